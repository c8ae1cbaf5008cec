"""The store of several workers: `mx.kv.create('dist_sync')` and its kin, inside a worker.

The hazard: a training loop must not wait for the network, and must not send what a kernel has not
finished writing. So every push and pull is an engine task on the arrays that it reads or writes
and on the key's own tag: pushes start as soon as their gradient is there, in order per key; a pull
ends when its values have come, and holds no worker while it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import _rt
from ..errors import MixflowError, ParamError, ShapeError
from ..files import write_atomically
from ..ndarray import NDArray
from ..ndarray.row_sparse import BaseSparseNDArray, RowSparseNDArray
from ..optimizer import Optimizer
from ..optimizer.describe import describe
from ..optimizer.own import is_own
from .base import (
    FAR_BYTES,
    FIRST_BYTES,
    GROUP_BYTES,
    as_arrays,
    check_new,
    in_groups,
    lookup,
    pairs,
    pulled,
    repeats,
    row_requests,
)
from .local import LocalKVStore
from .protocol import program, row_gradients
from .protocol.client import Ticket
from .protocol.compression import Compression
from .protocol.messages import Array, Gradient
from .protocol.sharding import Entry
from .server import states
from .transport.zeromq import Call
from .worker import lease
from .worker.member import Member
from .worker.row_keys import any_sparse, push_rows, read_rows, set_whole, width_of

#: Bytes of a key up to which the caller's own thread sends it.
INLINE_BYTES = 1 << 20
#: The same of what goes by a board: it is copied once, and nothing else is done.
BOARD_INLINE_BYTES = 8 << 20


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
        #: Pushes that were asked for.
        self.steps = 0

    def pieces(self, values: Array) -> dict[str, Array]:
        """Slices of a flat array by name."""
        return {s.name: values[s.begin : s.end] for s in self.entry.slices}

    def whole(self, values: Mapping[str, Array]) -> Array:
        """A flat array of all slices."""
        found = [values[s.name] for s in self.entry.slices]
        return found[0] if len(found) == 1 else np.concatenate(found)


#: Keys of one exchange, each with its gradient (None: not pushed) and the arrays to fill.
Group = list[tuple[Key, Any, Sequence[Any]]]


def _tags(group: Group) -> list[Any]:
    """What an exchange of some keys writes: arrays and tags."""
    targets = [getattr(out, "tag", out) for _, _, outs in group for out in outs]
    return [*targets, *(known.tag for known, _, _ in group)]


class Detour:
    """What an exchange is to do, for when it goes by messages (`lane.Detour`), or begins late.

    Its task holds the arrays until it has ended.
    """

    def __init__(self, group: Group, priority: int) -> None:
        self._group = group
        self.priority = priority

    @property
    def slices(self) -> list[str]:
        """Slices that are read."""
        return [s.name for known, _, outs in self._group if outs for s in known.entry.slices]

    def pushed(self) -> list[_rt.Array]:
        """Handles of the gradients."""
        return [_rt.core.fresh_handle(m) for _, m, _ in self._group if m is not None]

    def filled(self) -> list[list[_rt.Array]]:
        """Handles of what is filled, by key."""
        return [[_rt.core.fresh_handle(out) for out in outs] for _, _, outs in self._group]

    def values(self) -> list[tuple[Key, Array]]:
        """Keys and their gradients."""
        keys = [known for known, merged, _ in self._group if merged is not None]
        return list(zip(keys, map(np.from_dlpack, self.pushed()), strict=True))

    def gradients(self) -> dict[str, Array]:
        """Copies of the gradients, by slice."""
        found: dict[str, Array] = {}
        for known, values in self.values():
            found.update(known.pieces(values.reshape(-1).copy()))
        return found

    def store(self, values: Mapping[str, Array]) -> None:
        """Writes an answer's values into the targets of their keys."""
        for known, _, outs in self._group:
            for target in outs:
                if isinstance(target, RowSparseNDArray):
                    set_whole(target, known.whole(values).reshape(known.shape))
                elif not isinstance(target, BaseSparseNDArray):
                    handle = _rt.core.fresh_handle(target)
                    handle.copy_from_numpy(known.whole(values).reshape(known.shape))

    def ended(self, ticket: Ticket, failed: Any) -> None:
        """Stores the values and ends the exchange."""
        if not ticket.error:
            self.store(ticket.values)
        failed.done(ticket.error or None)


class DistKVStore(Member):
    """A worker's store: keys, pushes and pulls. Arguments: of `Member`."""

    of_a_job = True
    _keys: dict[Any, Key]
    _lent = False
    _optimizers_set = 0
    #: Worker 0's learning rate, as its last push has found it.
    _rate: float | None = None
    _own_kinds: tuple[Any, ...] | None = None
    _own_version = 0

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

    def _known(self, key: Any) -> Key:
        """A key whose state is with the servers: a lease of it ends."""
        if self._lease is not None and key in self._lease.keys:
            self._end_lease()
        return lookup(key, self._keys)

    def lend(
        self, keys: Sequence[Any], grads: Sequence[NDArray], weights: Sequence[NDArray]
    ) -> Callable[[], bool] | None:
        """Lets a lone worker make the updates itself; see `lease`.

        Args:
            keys, grads, weights: what is updated; the weights are the store's values now, and
                nobody else writes them.

        Returns:
            A function that makes one update, and gives False once the servers make them again (so
            does `pushpull`); None where they do so from the beginning.
        """
        if self._lent:  # once for an optimizer: whoever has ended it may do so again and again
            return None
        self._lent = True
        self._wait_for_pushes()
        self._lease = lease.take(self, keys, grads, weights)
        return None if self._lease is None else self._lease.update

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
        self._note_rate()
        for k, v in pairs(key, value):
            known = self._known(k)
            merged = self._merge(k, as_arrays(v), known)
            known.steps += 1
            if isinstance(merged, RowSparseNDArray):
                push_rows(self._link, f"push {k}", known, merged, priority, self._send_rate)
                continue
            group: Group = [(known, merged, [])]
            if not self._by_boards(f"push {k}", group, priority):
                self._send(f"push {k}", group, priority)

    def _send(self, name: str, group: Group, priority: int) -> None:
        """A task that pushes some keys, and ends when that is on its way."""
        detour = Detour(group, priority)

        def start(completion: _rt.Completion) -> None:
            if not self._late_by_boards(group, detour, completion):
                self._push(detour.values(), priority, pull=False)
                completion.done()

        tags = [known.tag for known, _, _ in group]
        reads = [merged for _, merged, _ in group]
        _rt.core.push(start, reads, tags, name, priority, asynchronous=True)

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Reads each key into every array of `out`, when the policy allows it.

        Row_sparse arrays are left as they are, with a warning, unless `ignore_sparse` is false.
        """
        if out is None:
            raise MixflowError("[kvstore] expected 'out' in pull, got None")
        for k, o in pairs(key, out):
            known, targets = self._known(k), pulled(as_arrays(o), ignore_sparse)
            self._check_shapes(k, targets, known)
            group: Group = [(known, None, targets)]
            if not targets or self._by_boards(f"pull {k}", group, priority):
                continue

            def ask(detour: Detour, known: Key = known) -> Call:
                slices = [s.name for s in known.entry.slices]
                return self._link.call(
                    "pull", lambda client, now: client.pull(slices, now, priority=priority)
                )

            self._receive(f"pull {k}", group, ask, priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out` (or back into `value`), in one round trip.

        Neighbours in a list of keys that are small together travel in one message, which leaves
        when the last of their gradients is there; the first ones of the list come first. With
        row_sparse arrays it is two round trips, and those of `out` are left as they are, as by
        `pull`; so it is with a key that stands in the list twice.
        """
        self._note_rate()
        targets = value if out is None else out
        if any_sparse([value, targets]) or repeats(key):
            self.push(key, value, priority)
            self.pull(key, targets, priority)
            return
        found = []
        for (k, v), (_, o) in zip(pairs(key, value), pairs(key, targets), strict=True):
            known, outs = self._known(k), as_arrays(o)
            self._check_shapes(k, outs, known)
            found.append((k, (known, self._merge(k, as_arrays(v), known), outs)))
            known.steps += 1
        sizes = [known.nbytes for _, (known, _, _) in found]
        near = all(map(self._link.near, self._servers))
        limits = (GROUP_BYTES, None) if near else (FAR_BYTES, FIRST_BYTES)
        for number, group in enumerate(in_groups(found, sizes, *limits)):
            self._exchange([k for k, _ in group], [one for _, one in group], priority - number)

    def _route(self, group: Group) -> Any:
        """How an exchange of some keys goes by boards now; None where it has to go by messages."""
        if self._compression is not None or self._rate_changed():
            return None
        if any_sparse([list(outs) for _, _, outs in group]):
            return None
        return self._link.route(tuple(known for known, _, _ in group))

    def _by_boards(self, name: str, group: Group, priority: int) -> bool:
        """Pushes and pulls some keys by boards; False where they have to go by messages."""
        route = self._route(group)
        if route is None:
            return False
        assert self._link.lane is not None
        targets = [list(outs) for _, _, outs in group]
        self._link.lane.exchange(
            route,
            [merged for _, merged, _ in group if merged is not None],
            targets,
            [known.tag for known, _, _ in group],
            name,
            priority,
            any(targets),
            sum(known.nbytes for known, _, _ in group) <= BOARD_INLINE_BYTES,
            Detour(group, priority),
        )
        return True

    def _late_by_boards(self, group: Group, detour: Detour, completion: _rt.Completion) -> bool:
        """`_by_boards` of a task that has its arrays: boards may have been opened since it was
        pushed. A program that never waits is always some steps ahead of that."""
        route = self._route(group)
        if route is None:
            return False
        assert self._link.lane is not None
        self._link.lane.exchange_now(
            route, detour.pushed(), detour.filled(), _tags(group), detour, completion
        )
        return True

    def _exchange(self, keys: list[Any], group: Group, priority: int) -> None:
        """The gradients of some keys, and their values as the answer: in one message, or by boards
        of this host's servers."""
        name = "pushpull " + ", ".join(map(str, keys))
        if self._by_boards(name, group, priority):
            return

        def ask(detour: Detour) -> Call:
            return self._push(detour.values(), priority, pull=True)

        self._receive(name, group, ask, priority)

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
            known = self._known(k)
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
        self, name: str, group: Group, ask: Callable[[Detour], Call], priority: int
    ) -> None:
        """A task that asks, and ends when the answer stands in the targets of its keys."""
        detour = Detour(group, priority)

        def start(completion: _rt.Completion) -> None:
            if self._late_by_boards(group, detour, completion):
                return

            def finish(call: Call) -> None:
                ticket = call.ticket
                assert ticket is not None
                if not ticket.error:
                    detour.store(ticket.values)
                completion.done(ticket.error or None)

            ask(detour).then(finish)

        _rt.core.push(
            start,
            [merged for _, merged, _ in group if merged is not None],
            _tags(group),
            name,
            priority,
            asynchronous=True,
            # What is there already goes on its way at once, if that takes next to no time.
            inline_ok=sum(known.nbytes for known, _, _ in group) <= INLINE_BYTES,
        )

    # -- settings

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Updates run on the servers from now on. Worker 0's optimizer counts.

        One whose class or schedule the program has defined travels as code (see `program`); the
        servers' weights, gradients and states are flat then.

        Raises:
            ParamError: it can't travel: no Optimizer, with attributes of a library's one that are
                no plain values, or of one of the program's own that can't be pickled; or the
                servers can't load it.
        """
        text = self._described(optimizer)
        self._end_lease()
        if self._rank == 0:
            self._settle()  # before any push sees the rate of the new one
        self._optimizer, self._lent = optimizer, False
        if self._rank == 0:
            self._sent_rate = self._rate = None if optimizer.lr_scheduler else optimizer.lr
            self._optimizers_set += 1
            pushed = any(known.steps for known in self._keys.values())
            again = "" if pushed else self._again
            self.configure("optimizer", {**text, program.TURN: [self._optimizers_set, again]})
        self.barrier()

    def _described(self, optimizer: Optimizer) -> dict[str, Any]:
        if not isinstance(optimizer, Optimizer):
            raise ParamError(f"[kvstore] expected an Optimizer, got {optimizer!r}")
        if not is_own(optimizer):
            return describe(optimizer)
        # Classes that are defined anew have the same name: they are told apart by their order.
        schedule = optimizer.lr_scheduler
        kinds = (type(optimizer), getattr(schedule, "__code__", type(schedule)))
        if self._own_kinds not in (None, kinds):
            self._own_version += 1
        self._own_kinds = kinds
        return program.pack(optimizer, self._secret, self._own_version)

    def _note_rate(self) -> None:
        """A learning rate that was set on worker 0's optimizer counts from its next push on: those
        that a program has asked for before come first."""
        optimizer = self._optimizer
        if self._sent_rate is not None and optimizer is not None and optimizer.lr != self._rate:
            self._settle()
            self._rate = optimizer.lr

    def _rate_changed(self) -> bool:
        return self._sent_rate is not None and self._rate != self._sent_rate

    def _send_rate(self) -> None:
        """The rate that was noted reaches the servers before the next push does."""
        if not self._rate_changed():
            return
        self._sent_rate = self._rate
        rate = {"value": self._rate}
        self._link.call(
            "learning rate",
            lambda client, now: client.configure(self._servers, "learning_rate", rate, now),
        )

    def configure(self, setting: str, value: dict[str, Any]) -> None:
        """Changes a setting on every server, and waits until they have it; a lease ends.

        Raises:
            MixflowError: the servers do not know it, or do not answer within the deadline.
        """
        self._end_lease()
        self._settle()
        self._wait(
            setting, lambda client, now: client.configure(self._servers, setting, value, now)
        )

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Codes this worker's pushes from now on with 2 bits or 1 bit per value; see `compression`.

        Raises:
            ParamError: bad parameters.
            MixflowError: set before.
        """
        if self._compression is not None:
            raise MixflowError("[kvstore] expected compression to be set once, got a second call")
        made = Compression.from_params(compression_params)
        self._settle()
        self._compression = made

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Fetches the optimizer's states from the servers and writes them to a file, in the form
        of a store of one process. The file appears whole or not at all.

        Raises:
            MixflowError: no optimizer is set, or no answer within the deadline.
        """
        self._needed_optimizer()
        if self._lease is not None:
            self._lease.deposit()
        self._wait_for_pushes()  # pushes of this worker come before
        write_atomically(fname, self._fetched_states(self._keys))

    def _fetched_states(self, found: Mapping[Any, Key]) -> bytes:
        """The optimizer's states of keys from the servers, as a store of one process has them."""
        keys = {key: (known.entry, known.shape) for key, known in found.items()}
        slices = [piece.name for entry, _ in keys.values() for piece in entry.slices]
        held = self._wait("states", lambda c, now: c.fetch_states(slices, now)).values
        return states.to_archive(self._needed_optimizer(), keys, held)

    def load_optimizer_states(self, fname: str) -> None:
        """Gives the servers the states of a file that `save_optimizer_states` wrote, here or in a
        store of one process. One worker's call is enough; the same by others changes nothing.

        Raises:
            FormatError: damaged, or states of other shapes.
            MixflowError: no optimizer is set, or no answer within the deadline.
        """
        optimizer = self._needed_optimizer()
        self._end_lease()
        keys = {key: (known.entry, known.shape) for key, known in self._keys.items()}
        found = states.from_archive(optimizer, keys, Path(fname).read_bytes())
        self._settle()
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
