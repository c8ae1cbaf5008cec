"""A lone worker holds the state of its job: it updates the weights itself, and the servers get the
state now and then instead of every gradient.

The hazard: a state in two places. The servers lend it to a worker that is the only one (`lending`),
and the worker is then all there is: it deposits the state every period, at each number of a
snapshot, when it ends, and when the servers tell it that somebody else waits (a worker that joins).
What changes is how much work a killed worker repeats: what it did since its last deposit, at most a
period or so. What it repeats counts once, since the servers never heard of it.

The update is the optimizer's own, as a fused plan over the module's arrays; a copy of the optimizer
that was given runs it, as the servers have one.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _rt
from ...errors import MixflowError, MXNetError
from ...ndarray import NDArray
from ...optimizer import FusedUpdate
from ...optimizer.optimizer import state_list
from ...optimizer.own import is_own
from ..base import lookup
from ..protocol.messages import Array
from ..protocol.policy import Backup
from ..server import states

if TYPE_CHECKING:
    from ..dist import DistKVStore, Key

#: A deposit may take this share of the time, at most.
SHARE = 0.05


def take(
    store: DistKVStore, keys: Sequence[Any], grads: Sequence[NDArray], weights: Sequence[NDArray]
) -> Lease | None:
    """The lease of some keys, whose values stand in `weights`; None where a lone worker can't have
    one: it is not alone, the optimizer has no fused plan or is the program's own, gradients travel
    compressed, or snapshots are taken at no number of a step."""
    optimizer, known = store._optimizer, [lookup(key, store._keys) for key in keys]
    if not _usable(store) or optimizer is None or not FusedUpdate.usable(optimizer, weights):
        return None
    if is_own(optimizer):  # what it keeps in its attributes would not come back
        return None
    if any(key.width for key in known) or any(g.stype != "default" for g in grads):
        return None
    slices = [piece.name for key in known for piece in key.entry.slices]
    store._link.follow_boards()
    steps = store._link.client.next_steps(slices)
    if len(steps) != 1:
        return None
    name = uuid.uuid4().hex
    try:
        store._wait("lease", lambda c, now: c.lend(store._servers, name, now))
    except MixflowError:  # somebody else takes part; some server may have lent it all the same
        store._wait("lease", lambda c, now: c.deposit(store._servers, name, 0, {}, now, True))
        return None
    made = Lease(store, dict(zip(keys, known, strict=True)), grads, weights, name, steps.pop())
    made.start()
    return made


def _usable(store: DistKVStore) -> bool:
    policy, pulse = store.options.policy, store._pulse
    alone = store.num_workers == 1 and store.rank == 0 and not isinstance(policy, Backup)
    marked = policy.rounds or pulse is None or not pulse.has_snapshots
    plain = store._compression is None and not store._link.client.via
    return store.options.lease > 0 and alone and marked and plain


class Lease:
    """The state of some keys, in the hands of this worker until `end`. Thread-safe.

    Args:
        store: of the job.
        keys: what is held, by key.
        grads, weights: the arrays that updates read and write.
        name: of the lease.
        step: of the next update.
    """

    def __init__(
        self,
        store: DistKVStore,
        keys: Mapping[Any, Key],
        grads: Sequence[NDArray],
        weights: Sequence[NDArray],
        name: str,
        step: int,
    ) -> None:
        self.keys = keys
        self._store, self._name, self._step, self._kept = store, name, step, step
        self._weights = list(weights)
        optimizer = store._needed_optimizer()
        self._updater = states.fresh_updater(optimizer)
        self._updater.set_states(store._fetched_states(keys))
        self._update = FusedUpdate(self._updater, list(keys), weights, grads)
        self._rate = optimizer.lr
        self._error = ""
        self._held = True
        self._lock = threading.Lock()  # of the step, and of the order of updates and copies
        self._talking = threading.RLock()  # of words with the servers
        self._stopped = threading.Event()
        self._given_back = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mixflow-lease", daemon=True)

    def start(self) -> None:
        """Deposits from time to time from now on."""
        self._thread.start()

    def update(self) -> bool:
        """One update of every key; False: the lease has ended, and the servers do it again.

        Raises:
            MixflowError: the servers did not take a deposit.
        """
        with self._lock:
            held = self._held
            if held:
                if self._error:
                    raise MixflowError(self._error)
                self._follow_rate()
                self._update.run()
                self._step += 1
        if not held:  # the next push must come after the last deposit
            self._given_back.wait(3 * self._store.options.deadline)
            return False
        pulse = self._store._pulse
        if pulse is not None and pulse.has_snapshots and pulse.is_due(self._step):
            self.deposit()
        return True

    def _follow_rate(self) -> None:
        """A rate that was set on the optimizer that was given counts from the next update on."""
        given = self._store._needed_optimizer()
        if given.lr_scheduler is None and given.lr != self._rate:
            self._rate = given.lr
            self._updater.optimizer.set_learning_rate(given.lr)
            self._store._rate = given.lr
            self._store._send_rate()

    def _run(self) -> None:
        took = 0.0
        while not self._stopped.wait(max(self._store.options.lease, took / SHARE)):
            began = time.monotonic()
            try:
                if self.deposit():
                    self.end()
            except MXNetError as error:  # also one of the engine
                self._error = str(error)  # the training loop raises it
                return
            took = time.monotonic() - began

    def deposit(self, last: bool = False) -> bool:
        """Gives the servers the state as it is now and waits until it is durable there.

        Returns:
            Whether somebody else waits for the state.

        Raises:
            MixflowError: they do not answer, or the lease has ended without us.
        """
        with self._talking:
            if not (self._held or last):
                return False
            with self._lock:
                step = self._step
                copying = self._copy() if step != self._kept or last else None
            found = copying() if copying is not None else {}
            servers = self._store._servers
            ticket = self._store._wait(
                "deposit", lambda c, now: c.deposit(servers, self._name, step, found, now, last)
            )
            self._kept = step
            return ticket.recalled

    def end(self) -> None:
        """Gives the state back. Safe to call twice, and from any thread.

        Raises:
            MixflowError: the servers do not take it.
        """
        with self._talking:
            if self._given_back.is_set():
                return
            with self._lock:
                self._held = False
            self._stopped.set()
            try:
                self.deposit(last=True)
            finally:
                self._given_back.set()

    def abandon(self) -> None:
        """Ends without a word: what was deposited last is what is left."""
        self._stopped.set()

    def _copy(self) -> Callable[[], dict[str, dict[str, Array]]]:
        """Starts to copy the state as it is after the updates so far; what it gives waits for that:
        by slice, the value under '' and the optimizer's states."""
        counts = dict(self._updater.optimizer._counts)
        parts = []
        for (key, known), weight in zip(self.keys.items(), self._weights, strict=True):
            kept = state_list(self._updater.state(key, weight))
            parts.append((known, [weight, *kept], np.array([counts.get(key, 0)], np.int64)))
        arrays = [array for _, some, _ in parts for array in some]
        handles = {id(array): _rt.core.fresh_handle(array) for array in arrays}
        found: dict[str, dict[str, Array]] = {}
        done = threading.Event()

        def copy() -> None:
            made: dict[str, dict[str, Array]] = {}
            with contextlib.ExitStack() as stack:
                stack.callback(done.set)
                for known, (weight, *kept), count in parts:
                    whole = {"": weight} | {str(n): state for n, state in enumerate(kept)}
                    flat = {name: self._staged(handles[id(a)]) for name, a in whole.items()}
                    made.update(states.cut(known.entry, flat | {states.COUNT: count}))
                found.update(made)  # all of it or nothing: a part would be a state that never was

        _rt.core.push(copy, arrays, [], "deposit", 0)

        def finish() -> dict[str, dict[str, Array]]:
            if not done.wait(self._store.options.deadline) or len(found) == 0:
                raise MixflowError("[kvstore] expected a copy of the state, got none in time")
            return found

        return finish

    def _staged(self, handle: Any) -> Array:
        return self._store._link.staged(np.from_dlpack(handle).reshape(-1))
