"""The store of several workers: `mx.kv.create('dist_sync')` and its kin, inside a worker.

The hazard: a training loop must not wait for the network, and must not send what a kernel has not
finished writing. So every push and pull is an engine task on the arrays that it reads or writes
and on the key's own tag: pushes start as soon as their gradient is there, in order per key; a pull
ends when its values have come, and holds no worker while it waits.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import _rt
from ..errors import MixflowError, MXNetError, ShapeError
from ..files import write_atomically
from ..ndarray import NDArray
from ..optimizer import Optimizer
from ..optimizer.describe import describe
from . import states
from .base import KVStoreBase, as_arrays, check_new, lookup, pairs
from .client import Client, Ticket
from .compression import Compression
from .local import LocalKVStore
from .messages import Array, Gradient
from .options import NAMES, StoreOptions, policy_of
from .policy import Backup
from .pulse import Pulse, State
from .rendezvous import Enquirer
from .sharding import Entry
from .snapshot import Snapshot
from .transport.zeromq import Call, Link

#: Seconds that a job's servers may take to start.
START_SECONDS = 60.0


class Key:
    """What a worker knows of a key: entry, shape, tag (order of its pushes and pulls)."""

    def __init__(self, entry: Entry, shape: tuple[int, ...]) -> None:
        self.entry = entry
        self.shape = shape
        self.tag = _rt.core.Tag()
        self.residual: Array | None = None

    def pieces(self, values: Array) -> dict[str, Array]:
        """Slices of a flat array by name."""
        return {s.name: values[s.begin : s.end] for s in self.entry.slices}

    def whole(self, values: Mapping[str, Array]) -> Array:
        """A flat array of all slices."""
        found = [values[s.name] for s in self.entry.slices]
        return found[0] if len(found) == 1 else np.concatenate(found)


class DistKVStore(KVStoreBase):
    """A worker's store.

    Args:
        name: the name it was created with.
        rank, num_workers: this worker's number, and how many there are.
        addresses: where each server is, by name; the first is the directory.
        options: policy, deadlines, faults.
        life: how often this worker was started before in this job.
        find: asks where the servers are now; called when one has been silent for long.
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
        self._link = Link(client, addresses, self.options.faults, find)
        self._closed = False
        self._resumed = resumed
        self._pulse: Pulse | None = None
        self.first_step = self.steps_to_skip = self._take_part(client, life)

    def _take_part(self, client: Client, life: int) -> int:
        """Joins; a restarted worker goes on with the step that the servers lack."""
        expected = self._rank < self._num_workers
        if life == 0 and expected and not self._resumed:
            return 0  # expected from the start
        rounds = self.options.policy.rounds
        reports = self._wait("resume", lambda c, now: c.ask(self._servers, now)).reports
        if life or expected:
            first = client.resume(reports, rounds=rounds)
        else:
            first = client.newcomer(reports, rounds=rounds)
        epoch = next(self._epoch)
        self._wait("join", lambda c, now: c.join(self._servers, first, epoch, now))
        return first

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
        arrays = {str(k): v.asnumpy() for k, v in named}
        entries = self._place(arrays)
        for k, v in named:
            made = self._keys[k] = Key(Entry.from_json(entries[str(k)]), v.shape)
            self._homes.update({s.name: self._servers[s.server] for s in made.entry.slices})
        flat = {k: arrays[str(k)].reshape(-1) for k, _ in named}
        first = self._gather(flat)
        if self._rank == 0:
            self._wait("init", lambda client, now: client.init(first, now))
        else:
            self._wait("init", lambda client, now: client.pull(first, now))

    def _place(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        keys = {k: (a.size, a.dtype.str, a.itemsize) for k, a in arrays.items()}
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
            handle = _rt.core.fresh_handle(merged)

            def send(known: Key = known, handle: _rt.Array = handle) -> None:
                self._push(known, handle.to_numpy(), priority, pull=False)

            _rt.core.push(send, [merged], [known.tag], f"push {k}", priority)

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Reads each key into every array of `out`, when the policy allows it."""
        if out is None:
            raise MixflowError("[kvstore] expected 'out' in pull, got None")
        for k, o in pairs(key, out):
            known, targets = lookup(k, self._keys), as_arrays(o)
            self._check_shapes(k, targets, known)

            def ask(known: Key = known) -> Call:
                slices = [s.name for s in known.entry.slices]
                return self._link.call(
                    "pull", lambda client, now: client.pull(slices, now, priority=priority)
                )

            self._receive(f"pull {k}", known, [], targets, ask, priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out` (or back into `value`), in one round trip."""
        targets = value if out is None else out
        for (k, v), (_, o) in zip(pairs(key, value), pairs(key, targets), strict=True):
            known, outs = lookup(k, self._keys), as_arrays(o)
            merged = self._merge(k, as_arrays(v), known)
            self._check_shapes(k, outs, known)
            handle = _rt.core.fresh_handle(merged)

            def ask(known: Key = known, handle: _rt.Array = handle) -> Call:
                return self._push(known, handle.to_numpy(), priority, pull=True)

            self._receive(f"pushpull {k}", known, [merged], outs, ask, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """`init`, then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Rows of sparse arrays.

        Raises:
            MixflowError: always: there are no row-sparse arrays yet.
        """
        raise MixflowError("[kvstore] expected dense arrays, got a call of row_sparse_pull")

    def _check_shapes(self, key: Any, arrays: Any, known: Key) -> None:
        for array in arrays:
            if array.shape != known.shape:
                raise ShapeError(
                    f"[kvstore] expected shape {known.shape} for key {key!r}, got {array.shape}"
                )

    def _merge(self, key: Any, values: Any, known: Key) -> NDArray:
        """The sum over contexts."""
        self._check_shapes(key, values, known)
        return LocalKVStore.sum(values)

    def _push(self, known: Key, values: Array, priority: int, pull: bool) -> Call:
        """Hands one step of a key to the link; called in the order of the key's tag."""
        self._send_rate()
        flat = values.reshape(-1)
        if self._compression is None:
            pieces = known.pieces(flat)
            return self._link.call(
                "push", lambda c, now: c.push(pieces, now, pull=pull, priority=priority)
            )
        coded = self._coded(known, flat)
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
        known: Key,
        reads: list[NDArray],
        targets: Any,
        ask: Callable[[], Call],
        priority: int,
    ) -> None:
        """A task that asks, and ends when the answer stands in the targets."""
        handles = [_rt.core.fresh_handle(target) for target in targets]

        def start(completion: _rt.Completion) -> None:
            def finish(call: Call) -> None:
                ticket = call.ticket
                assert ticket is not None
                if not ticket.error:
                    values = known.whole(ticket.values)
                    for handle in handles:
                        handle.copy_from_numpy(values.reshape(known.shape))
                completion.done(ticket.error or None)

            ask().then(finish)

        _rt.core.push(start, reads, [*targets, known.tag], name, priority, asynchronous=True)

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
            self._configure("optimizer", text)
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

    def _configure(self, setting: str, value: dict[str, Any]) -> None:
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
            host, port = os.environ["DMLC_PS_ROOT_URI"], os.environ["DMLC_PS_ROOT_PORT"]
            rank, token = int(os.environ["DMLC_WORKER_ID"]), os.environ["MIXFLOW_JOB_TOKEN"]
        except (KeyError, ValueError) as error:
            raise MixflowError(
                f"[kvstore] expected '{name}' inside a job, got no {error}; start the program with "
                "'mixflow launch -n WORKERS -s SERVERS python PROGRAM'"
            ) from None
        enquirer = Enquirer(f"tcp://{host}:{port}", token, f"worker{rank}")
        nonce = uuid.uuid4().hex
        policy = policy_of(name).name
        found = enquirer.wait_for_servers(
            "hello", START_SECONDS, rank=rank, nonce=nonce, consistency=policy
        )
        options = StoreOptions.from_json(found["options"])
        made = cls(
            name,
            rank,
            int(found["num_workers"]),
            found["servers"],
            options,
            int(found["life"]),
            lambda: enquirer.wait_for_servers("servers", options.deadline)["servers"],
            bool(found["start"]["snapshot"]),
        )
        made._follow(found["start"], f"tcp://{host}:{port}", token)
        atexit.register(made._close_at_exit)
        return made

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

    def _wait_for_pushes(self) -> None:
        """The last pushes may still wait for their gradients, unknown to the link.

        Raises:
            MixflowError: a push or pull of a key has failed.
        """
        for known in self._keys.values():
            known.tag.wait()

    def close(self) -> None:
        """Waits until every push is confirmed, and leaves the job. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            with contextlib.suppress(MXNetError):  # an error of a pull; it was raised there
                self._wait_for_pushes()
            self._link.settle(2 * self.options.deadline)
            epoch = next(self._epoch)
            self._wait("leave", lambda c, now: c.leave(self._servers, epoch, now))
        finally:
            if self._pulse is not None:
                self._pulse.close()
            self._link.close()

    def __enter__(self) -> DistKVStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


for _name in NAMES:
    KVStoreBase.kv_registry[_name] = DistKVStore.from_environment
