"""The store of several workers: `mx.kv.create('dist_sync')` and its kin, inside a worker.

The hazard: a training loop must not wait for the network, and must not send what a kernel has not
finished writing. So every push and pull is an engine task on the arrays that it reads or writes
and on the key's own tag: pushes start as soon as their gradient is there, in order per key; a pull
ends when its values have come, and holds no worker while it waits.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import _rt
from ..errors import MixflowError, MXNetError, ShapeError
from ..files import write_atomically
from ..ndarray import NDArray
from ..ndarray.row_sparse import BaseSparseNDArray, RowSparseNDArray
from ..optimizer import Optimizer
from ..optimizer.describe import describe
from . import row_gradients, states
from .base import (
    KVStore,
    KVStoreBase,
    as_arrays,
    check_new,
    in_groups,
    lookup,
    pairs,
    pulled,
    row_requests,
)
from .client import Client, Ticket
from .compression import Compression
from .host import NAME as MERGER
from .host import address_of, ensure
from .local import LocalKVStore
from .messages import Array, Gradient
from .options import NAMES, StoreOptions, policy_of
from .policy import Backup
from .pulse import Pulse, State
from .rendezvous import Enquirer
from .row_keys import any_sparse, push_rows, read_rows, set_whole, width_of
from .sharding import Entry
from .snapshot import Snapshot
from .transport.local import host_id, is_there, name_of
from .transport.segments import available
from .transport.zeromq import Call, Link
from .utilisation import Sampler, start_sampler

#: Bytes of a key up to which the caller's own thread sends it.
INLINE_BYTES = 1 << 20
#: Seconds that a job's servers may take to start, and that its workers are waited for to know who
#: shares a host.
START_SECONDS = 60.0
NEIGHBOUR_SECONDS = 3.0


class Key:
    """What a worker knows of a key: entry, shape, values per row (0: dense), tag (order of its
    pushes and pulls)."""

    def __init__(self, entry: Entry, shape: tuple[int, ...], width: int = 0) -> None:
        self.entry = entry
        self.shape = shape
        self.nbytes = entry.size * np.dtype(entry.dtype).itemsize
        self.width = width
        self.tag = _rt.core.Tag()
        self.residual: Array | None = None

    def pieces(self, values: Array) -> dict[str, Array]:
        """Slices of a flat array by name."""
        return {s.name: values[s.begin : s.end] for s in self.entry.slices}

    def whole(self, values: Mapping[str, Array]) -> Array:
        """A flat array of all slices."""
        found = [values[s.name] for s in self.entry.slices]
        return found[0] if len(found) == 1 else np.concatenate(found)


def _store(
    values: Mapping[str, Array],
    handles: list[tuple[Key, _rt.Array]],
    sparse: list[tuple[Key, RowSparseNDArray]],
) -> None:
    """Writes an answer's values into dense handles and row_sparse arrays of its keys."""
    for known, handle in handles:
        handle.copy_from_numpy(known.whole(values).reshape(known.shape))
    for known, target in sparse:
        set_whole(target, known.whole(values).reshape(known.shape))


class DistKVStore(KVStore):
    """A worker's store.

    Args:
        name: the name it was created with.
        rank, num_workers: this worker's number, and how many there are.
        addresses: where each server is, by name; the first is the directory.
        options: policy, deadlines, faults.
        life: how often this worker was started before in this job.
        find: asks where the servers are now; called when one has been silent for long.
        host: name of this host: servers of the same name are reached through shared memory.
        merger: makes sure that this host has a merger, and gives its address: pushes and pulls go
            through it. None: straight to the servers.
        resumed: whether the servers have started from a snapshot.

    `first_step` tells how many steps this worker had done before it was started again, and
    `steps_to_skip` how many of them `Module.fit` has not let go by yet. `restored` is what this
    worker had saved in the snapshot that the job has started from (see `step_done`), or None.
    """

    restored: dict[str, Any] | None = None

    def __init__(
        self,
        name: str,
        rank: int,
        num_workers: int,
        addresses: Mapping[str, str],
        options: StoreOptions | None = None,
        life: int = 0,
        find: Callable[[], Mapping[str, str]] | None = None,
        host: str = "",
        merger: Callable[[], str] | None = None,
        resumed: bool = False,
    ) -> None:
        self.options = options or StoreOptions()
        self._name, self._rank, self._num_workers = name, rank, num_workers
        self._servers = list(addresses)
        self._keys: dict[Any, Key] = {}
        self._homes: dict[str, str] = {}
        self._compression: Compression | None = None
        self._optimizer: Optimizer | None = None
        self._sent_rate: float | None = None
        self._barriers = itertools.count(1)
        self._epoch = itertools.count(2 * life)
        client = Client(
            f"worker{rank}",
            rank,
            self._homes.__getitem__,
            self.options.policy,
            repeat=self.options.repeat,
            deadline=2 * self.options.deadline,
            # Numbers of an earlier life must not be taken for this one's.
            first_number=life << 32,
        )
        self._merger = merger
        if merger is not None:
            addresses = {**addresses, MERGER: merger()}
            client.via = MERGER
        self._link = Link(client, addresses, self.options.faults, find, host, self._lost)
        self._closed = False
        self._sampler: Sampler | None = None
        self._resumed = resumed
        self._pulse: Pulse | None = None
        self.first_step = self.steps_to_skip = self._take_part(client, life)

    def _take_part(self, client: Client, life: int) -> int:
        """Joins; a restarted worker goes on with the step that the servers lack."""
        expected = self._rank < self._num_workers
        if life == 0 and expected and not self._resumed:
            if client.via:  # the servers expect it from the start
                self._join([client.via], 0, next(self._epoch))
            return 0
        rounds = self.options.policy.rounds
        reports = self._wait("resume", lambda c, now: c.ask(self._servers, now)).reports
        if life or expected:
            first = client.resume(reports, rounds=rounds)
        else:
            first = client.newcomer(reports, rounds=rounds)
        self._join(self._peers(), first, next(self._epoch))
        return first

    def _join(self, peers: list[str], first: int, epoch: int) -> None:
        self._wait("join", lambda c, now: c.join(peers, first, epoch, now))

    def _peers(self) -> list[str]:
        """All that must know whether this worker takes part."""
        return [*self._servers, *([MERGER] if self._merger else [])]

    def _lost(self, server: str) -> None:
        """A connection inside of this host has ended. A merger is replaced; what it had comes to
        the next one when it shows that it is another."""
        if server == MERGER and not self._closed:
            threading.Thread(target=self._replace_merger, daemon=True).start()

    def _replace_merger(self) -> None:
        assert self._merger is not None
        with contextlib.suppress(MXNetError):
            self._link.move(MERGER, self._merger())
            self._join([MERGER], self.first_step, 0)

    # -- what it is

    @property
    def type(self) -> str:
        """Name it was created with."""
        return self._name

    @property
    def rank(self) -> int:
        """Number of this worker."""
        return self._rank

    @property
    def num_workers(self) -> int:
        """Number of workers that the job was started with."""
        return self._num_workers

    @property
    def step(self) -> int:
        """Steps of this worker that are done, earlier lives included (see `step_done`)."""
        return self._pulse.step if self._pulse is not None else self.first_step

    @property
    def parts_per_update(self) -> int:
        """Pushes that one update sums: gradients are means over as many batches."""
        policy = self.options.policy
        if isinstance(policy, Backup):
            return min(policy.take, self._num_workers)
        return self._num_workers if policy.rounds else 1

    # -- keys

    def init(self, key: Any, value: Any) -> None:
        """Sets the first value of each key; that of worker 0 counts. Waits until it is set.

        Raises:
            MixflowError: initialised before, key types mixed, or no answer within the deadline.
            ParamError: workers disagree on a key's size or dtype.
        """
        named = [(k, as_arrays(v)[0]) for k, v in pairs(key, value)]
        for k, _ in named:
            check_new(k, self._keys)
        entries = self._place(named)
        for k, v in named:
            entry = Entry.from_json(entries[str(k)])
            if width_of(v):
                row_gradients.check_slices(entry.slices, width_of(v))
            made = self._keys[k] = Key(entry, v.shape, width_of(v))
            self._homes.update({s.name: self._servers[s.server] for s in made.entry.slices})
        if self._rank == 0:
            first = self._gather({k: v.asnumpy().reshape(-1) for k, v in named})
            self._wait("init", lambda client, now: client.init(first, now))
        else:
            slices = {s.name: self._keys[k] for k, _ in named for s in self._keys[k].entry.slices}
            # Of a table no row is asked for: only whether it is there.
            rows = {name: np.array([key.width]) for name, key in slices.items() if key.width}
            self._wait("init", lambda client, now: client.pull(slices, now, rows=rows))

    def _place(self, named: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
        keys: dict[str, tuple[Any, ...]] = {}
        for k, v in named:
            dtype = np.dtype(v.dtype)
            row = (width_of(v),) if width_of(v) else ()
            keys[str(k)] = (v.size, dtype.str, dtype.itemsize, *row)
        ticket = self._wait("init", lambda client, now: client.place(self._servers[0], keys, now))
        return ticket.entries

    def _gather(self, flat: Mapping[Any, Array]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for k, values in flat.items():
            found.update(self._keys[k].pieces(values))
        return found

    # -- push and pull

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sends the sum over contexts of each key's values, when they are there.

        Raises:
            ShapeError: a value's shape is not the key's.
        """
        for k, v in pairs(key, value):
            known = lookup(k, self._keys)
            merged = self._merge(k, as_arrays(v), known)
            if isinstance(merged, RowSparseNDArray):
                push_rows(self._link, f"push {k}", known, merged, priority, self._send_rate)
                continue
            handle = _rt.core.fresh_handle(merged)

            def send(known: Key = known, handle: _rt.Array = handle) -> None:
                self._push([(known, np.from_dlpack(handle))], priority, pull=False)

            _rt.core.push(send, [merged], [known.tag], f"push {k}", priority)

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Reads each key into every array of `out`, when the policy allows it.

        Row_sparse arrays are left as they are, with a warning, unless `ignore_sparse` is false.
        """
        if out is None:
            raise MixflowError("[kvstore] expected 'out' in pull, got None")
        for k, o in pairs(key, out):
            known, targets = lookup(k, self._keys), pulled(as_arrays(o), ignore_sparse)
            self._check_shapes(k, targets, known)
            if not targets:
                continue

            def ask(known: Key = known) -> Call:
                slices = [s.name for s in known.entry.slices]
                return self._link.call(
                    "pull", lambda client, now: client.pull(slices, now, priority=priority)
                )

            self._receive(f"pull {k}", [], [(known, targets)], ask, priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out` (or back into `value`), in one round trip.

        Neighbours in a list of keys that are small together travel in one message, which leaves
        when the last of their gradients is there; the first ones of the list come first. With
        row_sparse arrays it is two round trips, and those of `out` are left as they are, as by
        `pull`.
        """
        targets = value if out is None else out
        if any_sparse([value, targets]):
            self.push(key, value, priority)
            self.pull(key, targets, priority)
            return
        found = []
        for (k, v), (_, o) in zip(pairs(key, value), pairs(key, targets), strict=True):
            known, outs = lookup(k, self._keys), as_arrays(o)
            self._check_shapes(k, outs, known)
            found.append((k, known, self._merge(k, as_arrays(v), known), outs))
        sizes = [known.nbytes for _, known, _, _ in found]
        for number, group in enumerate(in_groups(found, sizes)):
            self._exchange(group, priority - number)

    def _exchange(self, group: list[tuple[Any, Key, NDArray, Any]], priority: int) -> None:
        """One message with the gradients of some keys, and the answer with their values."""
        handles = [(known, _rt.core.fresh_handle(merged)) for _, known, merged, _ in group]

        def ask() -> Call:
            return self._push([(k, np.from_dlpack(h)) for k, h in handles], priority, pull=True)

        name = "pushpull " + ", ".join(str(k) for k, _, _, _ in group)
        reads = [merged for _, _, merged, _ in group]
        self._receive(name, reads, [(known, outs) for _, known, _, outs in group], ask, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """`init`, then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Reads rows of each key into every row_sparse array of `out`; only they travel.

        Args:
            key, out, row_ids: as in `LocalKVStore.row_sparse_pull`.
            priority: larger ones go first.

        Raises:
            MixflowError: no `out` or `row_ids`, an out that is not row_sparse, or a key that was
                not initialised with a row_sparse value; or, when an out is read, a row outside of
                the array.
            ShapeError: an out of another shape.
        """
        for k, wanted in row_requests(key, out, row_ids):
            known = lookup(k, self._keys)
            self._check_shapes(k, [target for target, _ in wanted], known)
            if not known.width:
                raise MixflowError(
                    f"[kvstore] expected key {k!r} to be initialised as row_sparse, got a dense one"
                )
            for target, ids in wanted:
                read_rows(self._link, f"row_sparse_pull {k}", known, target, ids, priority)

    def _check_shapes(self, key: Any, arrays: Any, known: Key) -> None:
        for array in arrays:
            if array.shape != known.shape:
                raise ShapeError(
                    f"[kvstore] expected shape {known.shape} for key {key!r}, got {array.shape}"
                )

    def _merge(self, key: Any, values: Any, known: Key) -> Any:
        """The sum over contexts; dense where the key is, or where one value is."""
        self._check_shapes(key, values, known)
        merged = LocalKVStore.sum(values)
        if not isinstance(merged, BaseSparseNDArray):
            return merged
        if self._compression is not None:
            raise MixflowError(
                f"[gradient compression] expected dense gradients of {key!r}, got {merged.stype}"
            )
        return merged if known.width else merged.tostype("default")

    def _push(self, values: list[tuple[Key, Array]], priority: int, pull: bool) -> Call:
        """Hands one step of some keys to the link; called in the order of the keys' tags."""
        self._send_rate()
        if self._compression is None:
            pieces: dict[str, Array] = {}
            for known, array in values:
                pieces.update(known.pieces(self._link.staged(array.reshape(-1))))
            return self._link.call(
                "push", lambda c, now: c.push(pieces, now, pull=pull, priority=priority)
            )
        coded: dict[str, Gradient] = {}
        for known, array in values:
            coded.update(self._coded(known, array.reshape(-1)))
        return self._link.call(
            "push", lambda c, now: c.push_coded(coded, now, pull=pull, priority=priority)
        )

    def _coded(self, known: Key, flat: Array) -> dict[str, Gradient]:
        assert self._compression is not None
        if known.residual is None:
            known.residual = np.zeros_like(flat)
        found = {}
        for piece in known.entry.slices:
            part = slice(piece.begin, piece.end)
            code = self._compression.encode(flat[part], known.residual[part])
            found[piece.name] = Gradient((), code, self._compression.code)
        return found

    def _receive(
        self,
        name: str,
        reads: list[NDArray],
        targets: list[tuple[Key, Any]],
        ask: Callable[[], Call],
        priority: int,
    ) -> None:
        """A task that asks, and ends when the answer stands in the targets of its keys."""
        arrays = [(known, target) for known, some in targets for target in some]
        handles = [
            (known, _rt.core.fresh_handle(target))
            for known, target in arrays
            if not isinstance(target, BaseSparseNDArray)
        ]
        sparse = [(k, target) for k, target in arrays if isinstance(target, RowSparseNDArray)]
        writes = [getattr(target, "tag", target) for _, target in arrays]
        writes += [known.tag for known, _ in targets]

        def start(completion: _rt.Completion) -> None:
            def finish(call: Call) -> None:
                ticket = call.ticket
                assert ticket is not None
                if not ticket.error:
                    _store(ticket.values, handles, sparse)
                completion.done(ticket.error or None)

            ask().then(finish)

        _rt.core.push(
            start,
            reads,
            writes,
            name,
            priority,
            asynchronous=True,
            # What is there already goes on its way at once, if that takes next to no time.
            inline_ok=sum(known.nbytes for known, _ in targets) <= INLINE_BYTES,
        )

    # -- settings

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Updates run on the servers from now on. Worker 0's optimizer counts.

        Raises:
            ParamError: it can't travel: not registered, or with attributes that are no plain
                values.
        """
        text = describe(optimizer)
        self._optimizer = optimizer
        if self._rank == 0:
            self._sent_rate = None if optimizer.lr_scheduler else optimizer.lr
            self.configure("optimizer", text)
        self.barrier()

    def _send_rate(self) -> None:
        """A learning rate that was set on worker 0's optimizer reaches the servers with its next
        push."""
        optimizer = self._optimizer
        if self._sent_rate is None or optimizer is None or optimizer.lr == self._sent_rate:
            return
        self._sent_rate = optimizer.lr
        rate = {"value": optimizer.lr}
        self._link.call(
            "learning rate",
            lambda client, now: client.configure(self._servers, "learning_rate", rate, now),
        )

    def configure(self, setting: str, value: dict[str, Any]) -> None:
        """Changes a setting on every server, and waits until they have it.

        Raises:
            MixflowError: the servers do not know it, or do not answer within the deadline.
        """
        self._wait(
            setting, lambda client, now: client.configure(self._servers, setting, value, now)
        )

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Codes pushes with 2 bits or 1 bit per value; see `compression`.

        Raises:
            ParamError: bad parameters.
            MixflowError: set before, or keys exist already.
        """
        if self._compression is not None:
            raise MixflowError("[kvstore] expected compression to be set once, got a second call")
        self._compression = Compression.from_params(compression_params)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Fetches the optimizer's states from the servers and writes them to a file, in the form
        of a store of one process. The file appears whole or not at all.

        Raises:
            MixflowError: no optimizer is set, or no answer within the deadline.
        """
        optimizer = self._needed_optimizer()
        keys = {key: (known.entry, known.shape) for key, known in self._keys.items()}
        slices = [piece.name for entry, _ in keys.values() for piece in entry.slices]
        self._wait_for_pushes()  # pushes of this worker come before
        found = self._wait("states", lambda c, now: c.fetch_states(slices, now)).values
        write_atomically(fname, states.to_archive(optimizer, keys, found))

    def load_optimizer_states(self, fname: str) -> None:
        """Gives the servers the states of a file that `save_optimizer_states` wrote, here or in a
        store of one process. One worker's call is enough; the same by others changes nothing.

        Raises:
            FormatError: damaged, or states of other shapes.
            MixflowError: no optimizer is set, or no answer within the deadline.
        """
        optimizer = self._needed_optimizer()
        keys = {key: (known.entry, known.shape) for key, known in self._keys.items()}
        found = states.from_archive(optimizer, keys, Path(fname).read_bytes())
        self._wait("states", lambda c, now: c.put_states(found, now))

    def _needed_optimizer(self) -> Optimizer:
        if self._optimizer is None:
            raise MixflowError("[kvstore] expected an optimizer, got none; call set_optimizer")
        return self._optimizer

    def set_updater(self, updater: Callable[[Any, NDArray, NDArray], None]) -> None:
        """Updaters run in one process only.

        Raises:
            MixflowError: always; use set_optimizer.
        """
        raise MixflowError("[kvstore] expected set_optimizer, got set_updater on several workers")

    _set_updater = set_updater

    # -- together

    def barrier(self) -> None:
        """Waits for all live workers.

        Raises:
            MixflowError: one did not come within the deadline; the text names it.
        """
        count = next(self._barriers)
        self._wait("barrier", lambda c, now: c.enter(self._servers[0], count, now))

    _barrier = barrier

    def _wait(self, what: str, make: Callable[[Client, float], Ticket]) -> Ticket:
        return self._link.call(what, make).wait(3 * self.options.deadline)

    @classmethod
    def from_environment(cls, name: str) -> DistKVStore:
        """The store of the worker that a launcher has started.

        Raises:
            MixflowError: not inside a job, or its servers do not start within the deadline.
        """
        try:
            uri, port = os.environ["DMLC_PS_ROOT_URI"], os.environ["DMLC_PS_ROOT_PORT"]
            rank, token = int(os.environ["DMLC_WORKER_ID"]), os.environ["MIXFLOW_JOB_TOKEN"]
        except (KeyError, ValueError) as error:
            raise MixflowError(
                f"[kvstore] expected '{name}' inside a job, got no {error}; start the program with "
                "'mixflow launch -n WORKERS -s SERVERS python PROGRAM'"
            ) from None
        host = os.environ.get("DMLC_NODE_HOST", "")
        enquirer = Enquirer(f"tcp://{uri}:{port}", token, f"worker{rank}")
        found = _hello(enquirer, rank, policy_of(name).name)
        options = StoreOptions.from_json(found["options"])
        task = {
            "address": address_of(hashlib.blake2b(token.encode(), digest_size=8).hexdigest(), host),
            "host": host,
            "servers": found["servers"],
            "options": found["options"],
            "rendezvous": f"tcp://{uri}:{port}",
            "token": token,
        }

        def merger() -> str:
            ensure(task)
            return str(task["address"])

        made = cls(
            name,
            rank,
            int(found["num_workers"]),
            found["servers"],
            options,
            int(found["life"]),
            lambda: enquirer.wait_for_servers("servers", options.deadline)["servers"],
            host,
            merger if _merges(found, host) else None,
            bool(found["start"]["snapshot"]),
        )
        made._sampler = start_sampler(
            f"tcp://{uri}:{port}", token, f"worker{rank}", options.sample_period, made._bytes
        )
        made._follow(found["start"], f"tcp://{uri}:{port}", token)
        atexit.register(made._close_at_exit)
        return made

    def _bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self._link.moved_bytes

    def _follow(self, start: Mapping[str, Any], address: str, token: str) -> None:
        """Hears of snapshots from now on, and reads what this worker had saved in the one that
        the job has started from."""
        self._pulse = Pulse(
            address,
            token,
            self._rank,
            rounds=self.options.policy.rounds,
            folder=str(start["folder"]),
            every=int(start["every"]),
            step=self.first_step,
        )
        if start["snapshot"]:
            self.restored = Snapshot(start["snapshot"]).worker(self._rank)

    def step_done(self, state: State | None = None) -> bool:
        """Ends a step of this worker, after its pushes: the moment at which it may leave the job,
        and at which its part of a snapshot is taken.

        Args:
            state: called where a snapshot is due: plain values (JSON) to be found in `restored`
                after a return to it, and under 'arrays' tensors by name.

        Returns:
            Whether to go on; False: this worker was asked to leave, and should come to its end.

        Raises:
            FileError: the snapshot's folder is not writable.
        """
        if self._pulse is None:
            return True
        self._pulse.step_done(state)
        return not self._pulse.leave

    def _close_at_exit(self) -> None:
        """A program that ended by an error does not leave the job: it is started again, and the
        others must not go on without its part."""
        if getattr(sys, "last_value", None) is not None:
            self.abandon()
            return
        try:
            self._wait_for_pushes()
            self.close()
        except Exception as error:
            # An error in an exit hook leaves the exit code 0: the job would take it for an end.
            sys.stdout.flush()
            print(f"mixflow: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def abandon(self) -> None:
        """Ends the connection without a word: to the servers the worker is lost, not done."""
        self._closed = True
        if self._pulse is not None:
            self._pulse.close()
        self._link.close()
        self._end_sampler()

    def _end_sampler(self) -> None:
        if self._sampler:
            self._sampler.close()

    def _wait_for_pushes(self) -> None:
        """The last pushes may still wait for their gradients, unknown to the link.

        Raises:
            MixflowError: a push or pull of a key has failed.
        """
        for known in self._keys.values():
            known.tag.wait()

    def close(self) -> None:
        """Waits until every push is made and confirmed, and leaves the job. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            with contextlib.suppress(MXNetError):  # an error of a pull; it was raised there
                self._wait_for_pushes()
            self._link.settle(2 * self.options.deadline)
            epoch = next(self._epoch)
            self._wait("leave", lambda c, now: c.leave(self._peers(), epoch, now))
        finally:
            if self._pulse is not None:
                self._pulse.close()
            self._link.close()
            self._end_sampler()

    def __enter__(self) -> DistKVStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _hello(enquirer: Enquirer, rank: int, policy: str) -> dict[str, Any]:
    """What the rendezvous knows of the job, once the servers are there; who the neighbours are is
    worth a short wait for slow starters."""
    said = {
        "rank": rank,
        "nonce": uuid.uuid4().hex,
        "consistency": policy,
        "host": host_id(os.environ.get("DMLC_NODE_HOST", "")),
    }
    end = time.monotonic() + NEIGHBOUR_SECONDS
    while True:
        found = enquirer.wait_for_servers("hello", START_SECONDS, **said)
        if found["complete"] or time.monotonic() > end:
            return found
        time.sleep(0.02)


def _merges(found: Mapping[str, Any], host: str) -> bool:
    """Whether this host's pushes are worth a merger: it has several workers, and a server is on
    another host. Servers of this host merge what comes to them by shared memory."""
    far = any(not is_there(name_of(address, host)) for address in found["servers"].values())
    return available() and far and int(found["neighbours"]) > 0


for _name in NAMES:
    KVStoreBase.kv_registry[_name] = DistKVStore.from_environment
