"""A server shard: the slices that it owns, merged, updated and read under a policy.

The hazard: a network repeats, loses, delays and reorders, workers die in the middle of a step and
come back, and a restarted server must not apply a push twice nor lose one that it confirmed. So a
shard counts parts (worker, step), not messages; it answers a repeated request with the same words;
and it confirms with `Applied` only what `Ledger.commit` has made durable.

Pure logic: no socket, no thread, no clock of its own. `handle` and `tick` return what to send; the
caller passes the time. Not thread-safe; one caller at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import MixflowError
from ..ndarray.rows import wide
from .lanes import Desk, Lanes
from .merging import Add, Arena, Assign, PlainArena, Sum, copied
from .messages import (
    Applied,
    Array,
    Ask,
    Configure,
    Done,
    Enter,
    Failed,
    FetchStates,
    Gradient,
    Init,
    Join,
    Leave,
    Message,
    Place,
    Placed,
    Pull,
    Push,
    PutStates,
    Query,
    Received,
    Refused,
    Report,
    States,
    Values,
    arrival,
    join_name,
    split_name,
)
from .policy import Member, Part, Policy, Verdict
from .row_gradients import RowGradient, chosen
from .rules import Rules
from .sharding import Directory
from .slots import Applier, Ledger, Memory, Reader, Slot, add_reader
from .snapshot import Capture

__all__ = ["Add", "Applier", "Assign", "Ledger", "Memory", "Outgoing", "Shard"]

Outgoing = list[tuple[str, Message]]
#: Bytes from which a slice's commit may wait until its values are on their way.
DEFER_BYTES = 256 << 10


def _plain(gradient: Gradient, size: int) -> Array:
    """The values of a gradient that has no code."""
    if gradient.code:
        raise MixflowError(f"[kvstore server] expected a known code, got {gradient.code!r}")
    return gradient.values


class Shard:
    """One server. `name` addresses it; `incarnation` changes with each start of its process."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        applier: Applier,
        *,
        workers: int = 0,
        directory: Directory | None = None,
        ledger: Ledger | None = None,
        deadline: float = 60.0,
        give_up: bool = False,
        incarnation: int = 0,
        decode: Callable[[Gradient, int], Any] = _plain,
        arena: Arena | None = None,
        capture: Capture | None = None,
    ) -> None:
        self.name = name
        self.policy = policy
        self.applier = applier
        self._rules = Rules(policy, applier, Add())
        self.ledger = ledger or Memory()
        self.arena = arena or PlainArena()
        self.deadline = deadline
        self.give_up = give_up
        self.incarnation = incarnation
        # All of a job's first workers are expected from the start: a round must not close
        # before the slow starters have joined.
        self.members: dict[int, Member] = {w: Member() for w in range(workers)}
        self.slots: dict[str, Slot] = {}
        self._epochs: dict[int, int] = {}
        self._configured: dict[str, int] = {}
        self._settings: list[tuple[str, dict[str, Any]]] = []
        self._barriers: dict[int, int] = {}
        self._entered: list[Reader] = []
        self._early: dict[str, list[Reader]] = {}
        self.directory = directory
        self._decode = decode
        #: Copies slices for snapshots.
        self.capture = capture or Capture(policy.rounds)
        self._out: Outgoing = []
        #: Whether what confirms leaves at once: then it also says that a push has arrived.
        self.prompt: Callable[[], bool] = lambda: True
        #: Whether `finish` is called after what `handle` and `tick` gave has been sent.
        self.deferring = False
        #: Slices that go by boards of this host instead of messages.
        self.lanes = Lanes(self)
        self.uncommitted: dict[str, Slot] = {}
        self._unconfirmed: Outgoing = []
        self._handlers: dict[type[Message], Callable[[Any, float], None]] = {
            Place: self._place,
            Init: self._init,
            Push: self._push,
            Pull: self._pull,
            Join: self._join,
            Leave: self._leave,
            Enter: self._enter,
            Configure: self._configure,
            Ask: self._ask,
            Query: self._query,
            FetchStates: self._fetch_states,
            PutStates: self._put_states,
        }
        self._restore()

    def _restore(self) -> None:
        """Goes on from what an earlier process of this shard has committed, if it did."""
        roster = self.ledger.roster()
        if roster is not None:
            self.members = {int(w): Member(int(first)) for w, first in roster["members"]}
            self._epochs = {int(w): int(epoch) for w, epoch in roster["epochs"]}
            self._configured = dict(roster["configured"])
            self._barriers = {int(w): int(count) for w, count in roster["barriers"]}
            for setting, value in roster["settings"]:
                self._set(str(setting), value)
            if self.directory is not None:
                self.directory.restore(roster["directory"])
        for key, value, states, progress in self.ledger.slices():
            slot = self.slots[key] = Slot(copied(self.arena, value), *self._rules.of(key), progress)
            slot.applier.restore(key, states)

    def move_values(self, arena: Arena) -> None:
        """Keeps the values in another arena from now on."""
        self.arena = arena
        for slot in self.slots.values():
            slot.value = copied(arena, slot.value)

    def lost(self, name: str, now: float) -> None:
        """A connection says nothing of its worker: it may come back by another."""
        self.lanes.lost(name, now)

    def use_desk(self, desk: Desk) -> None:
        """Boards may be opened from now on (see `lanes`)."""
        self.lanes.desk = desk

    def serve_boards(self, ready: Sequence[tuple[int, int]], now: float) -> Outgoing:
        """Takes the rounds that the desk has closed, and closes those that are complete (board,
        slice). Called before messages are handled."""
        self._out = []
        moved, names = self.lanes.absorb(), self.lanes.take(ready)
        self._settle([*moved, *names], now, by_message=False)
        self.lanes.publish(names)
        return self._out

    def _commit(self, key: str, slot: Slot) -> None:
        self._keep(key, slot)
        self.capture.see(key, self)

    def _keep(self, key: str, slot: Slot) -> None:
        if self.ledger.durable:
            self.ledger.commit(key, slot.value, slot.applier.states(key), slot.progress)

    def states(self, key: str) -> dict[str, Array]:
        """Optimizer states of a slice, by name."""
        return self.slots[key].applier.states(key)

    def _commit_roster(self) -> None:
        self.ledger.commit_roster(self.roster())

    def roster(self) -> dict[str, Any]:
        """Membership, settings and directory as plain values."""
        return {
            "members": [(w, m.first) for w, m in sorted(self.members.items())],
            "epochs": sorted(self._epochs.items()),
            "configured": sorted(self._configured.items()),
            "barriers": sorted(self._barriers.items()),
            "settings": list(self._settings),
            "directory": self.directory.to_json() if self.directory else None,
        }

    def _set(self, setting: str, value: dict[str, Any]) -> None:
        """Takes a setting; of several for the same thing the last one is kept.

        The same again changes nothing: a restarted worker sets the optimizer that is set, and must
        not lose its states.
        """
        if (setting, value) in self._settings:
            return
        self._rules.configure(setting, value)
        self._settings = [kept for kept in self._settings if kept[0] != setting]
        self._settings.append((setting, value))

    def handle(self, message: Message, now: float) -> Outgoing:
        """Serves one message and returns what to send. A bad request is answered by `Failed`;
        it changes nothing. Arrays in the answers are the shard's own: copy or encode them before
        the next call."""
        self._out = []
        try:
            self._handlers[type(message)](message, now)
        except MixflowError as error:
            self._send(message.sender, Failed(self.name, message.number, str(error)))
        return self._out

    def finish(self) -> Outgoing:
        """Commits the big slices whose rounds were closed, and gives the confirmations. Their
        values could be sent before: after a crash the same pushes give the same values."""
        for key, slot in self.uncommitted.items():
            self._keep(key, slot)
        done = list(self.uncommitted)
        self.uncommitted.clear()
        self.lanes.publish(done)
        found, self._unconfirmed = self._unconfirmed, []
        return found

    def tick(self, now: float) -> Outgoing:
        """Ends waits that have passed the deadline: with an error that names the missing workers,
        or by going on without them (`give_up`)."""
        self._out = []
        while self.capture.wanted:
            number = self.capture.wanted.popleft()
            self.capture.mark(number, self)
        self.lanes.review(now)
        lost: set[int] = set()
        for what, waiting, missing_of in self._waits():
            for reader in [r for r in waiting if now - r.since > self.deadline]:
                missing = missing_of(reader)
                if self.give_up and missing - {reader.worker}:
                    lost |= missing - {reader.worker}
                else:
                    waiting.remove(reader)
                    self._send(reader.sender, self._timed_out(what, reader, missing))
        if lost:
            self._drop(lost, now)
            self._settle(self.slots, now)
        return self._out

    def next_deadline(self) -> float | None:
        """Time at which `tick` has something to do, or None."""
        since = [reader.since for _, waiting, _ in self._waits() for reader in waiting]
        return min(since) + self.deadline if since else None

    def _waits(self) -> Iterable[tuple[str, list[Reader], Callable[[Reader], frozenset[int]]]]:
        """Everything that is waited for: in words, by whom, and whom each waits for."""
        for key, slot in self.slots.items():
            yield f"all pushes of '{key}'", slot.readers, partial(self._missing, slot)
        for key, readers in self._early.items():
            yield f"'{key}' to be initialised", readers, lambda reader: frozenset({0})
        yield "all workers at a barrier", self._entered, self._absent

    def _timed_out(self, what: str, reader: Reader, missing: frozenset[int]) -> Failed:
        names = ", ".join(map(str, sorted(missing)))
        return Failed(
            self.name,
            reader.number,
            f"[kvstore server {self.name}] expected {what} (worker {reader.worker} is at clock "
            f"{reader.clock}) within {self.deadline:g} s, got nothing from worker {names}",
            tuple(sorted(missing)),
        )

    def _missing(self, slot: Slot, reader: Reader) -> frozenset[int]:
        return slot.policy.missing(slot.progress, self.members, reader.worker, reader.clock)

    def _may_read(self, slot: Slot, reader: Reader) -> bool:
        return slot.policy.may_read(slot.progress, self.members, reader.worker, reader.clock)

    def _send(self, to: str, message: Message) -> None:
        self._out.append((to, message))

    def _slot(self, key: str) -> Slot:
        if key not in self.slots:
            raise MixflowError(
                f"[kvstore server {self.name}] expected key '{key}' to be initialised, got none"
            )
        return self.slots[key]

    def _place(self, message: Place, now: float) -> None:
        if self.directory is None:
            raise MixflowError(
                f"[kvstore server {self.name}] expected 'Place' at the first server only, got one"
            )
        known = len(self.directory.entries)
        entries = self.directory.place(message.keys)
        if len(self.directory.entries) > known:
            self._commit_roster()
        found = {key: entry.to_json() for key, entry in entries.items()}
        self._send(message.sender, Placed(self.name, message.number, found))

    def _init(self, message: Init, now: float) -> None:
        for key, value in message.values.items():
            if key not in self.slots:
                slot = Slot(copied(self.arena, value), *self._rules.of(key))
                slot.readers = self._early.pop(key, [])
                self.slots[key] = slot
                self._commit(key, slot)
            elif self.slots[key].value.size != value.size:
                raise MixflowError(
                    f"[kvstore server {self.name}] expected {self.slots[key].value.size} values "
                    f"for key '{key}', got {value.size}: workers disagree on its shape"
                )
        self._send(message.sender, Done(self.name, message.number))
        self._settle(message.values, now)

    def _push(self, message: Push, now: float) -> None:
        arrays = {key: self._checked(key, g) for key, g in message.gradients.items()}
        self.lanes.pushed(message, now)
        done, refused = [], {}
        for key, gradient in message.gradients.items():
            verdicts = self._verdicts(key, gradient.parts)
            if set(verdicts) == {Verdict.NEW}:
                if not self._take(key, gradient.parts, arrays[key], message):
                    continue
            elif Verdict.NEW in verdicts:
                refused[key] = self._seen(gradient.parts, verdicts)
                continue
            elif self._open(key, gradient.parts, message):
                continue
            else:
                late = self._verdicts(key, gradient.parts).count(Verdict.STALE)
                self.slots[key].progress.stale += late
            done.append(key)
        self._confirm(message.sender, message.number, done)
        if refused:
            self._send(message.sender, Refused(self.name, message.number, refused))
        parts = {key: g.parts for key, g in message.gradients.items() if key not in refused}
        if message.pull:
            self._park(message, parts, now)
        self._settle(message.gradients, now)
        if not (self.prompt() and self._all_confirmed(message)):
            self._send(message.sender, Received(self.name, message.number, self.incarnation))

    def _all_confirmed(self, message: Push) -> bool:
        """Whether the answers so far say more than that the push has arrived."""
        said = [a for _, a in self._out if isinstance(a, Applied) and a.number == message.number]
        return set(message.gradients) <= {key for answer in said for key in answer.slices}

    def _query(self, message: Query, now: float) -> None:
        """Tells again what became of a push, or that it must be sent again."""
        unknown, done = [], []
        for key, parts in message.parts.items():
            if key not in self.slots or Verdict.NEW in self._verdicts(key, parts):
                unknown.append(key)
            elif not self._open(key, parts, message):
                done.append(key)
        self._send(message.sender, arrival(message, self.name, unknown, self.incarnation))
        self._confirm(message.sender, message.number, done)
        known = {key: parts for key, parts in message.parts.items() if key not in unknown}
        if message.pull:
            self._park(message, known, now)
        self._settle(known, now)

    def _checked(self, key: str, gradient: Gradient) -> Any:
        """The gradient's values, if they fit the slice; nothing has been changed yet."""
        slot = self._slot(key)
        values = self._decode(gradient, slot.value.size)
        if values.size != slot.value.size:
            raise MixflowError(
                f"[kvstore server {self.name}] expected {slot.value.size} values for key "
                f"'{key}', got {values.size}"
            )
        if not gradient.parts:
            raise MixflowError(f"[kvstore server {self.name}] expected parts for '{key}', got none")
        return values if isinstance(values, RowGradient) else values.reshape(-1)

    def _verdicts(self, key: str, parts: Iterable[Part]) -> list[Verdict]:
        slot = self.slots[key]
        return [slot.policy.verdict(slot.progress, part, self.members) for part in parts]

    @staticmethod
    def _seen(parts: Iterable[Part], verdicts: Iterable[Verdict]) -> tuple[Part, ...]:
        paired = zip(parts, verdicts, strict=True)
        return tuple(part for part, verdict in paired if verdict is not Verdict.NEW)

    def _open(self, key: str, parts: Iterable[Part], message: Message) -> bool:
        """Whether parts that were seen stand in a round that is still open; the sender is then
        told when it closes."""
        slot = self.slots[key]
        for part in parts:
            if part.worker in slot.progress.rounds.get(part.step, ()):
                self._await(slot, part.step, message)
                return True
        return False

    def _take(self, key: str, parts: tuple[Part, ...], values: Any, message: Push) -> bool:
        """Takes new parts; True when they are applied and durable at once."""
        slot = self.slots[key]
        steps = {part.step for part in parts}
        if not slot.policy.rounds:
            slot.applier.apply(key, self._writable(slot), values, len(parts))
            slot.policy.admit(slot.progress, parts, self.members)
            self._commit(key, slot)
            return True
        if len(steps) != 1:
            raise MixflowError(
                f"[kvstore server {self.name}] expected parts of one step for key '{key}', got "
                f"steps {sorted(steps)}"
            )
        step = steps.pop()
        slot.policy.admit(slot.progress, parts, self.members)
        slot.sums.setdefault(step, Sum(wide(slot.value.dtype))).add(values)
        self._await(slot, step, message)
        return False

    @staticmethod
    def _await(slot: Slot, step: int, message: Message) -> None:
        waiting = slot.pushes.setdefault(step, [])
        if (message.sender, message.number) not in waiting:
            waiting.append((message.sender, message.number))

    def _confirm(self, sender: str, number: int, keys: list[str]) -> None:
        if keys:
            self._send(sender, Applied(self.name, number, tuple(keys), self.incarnation))

    def _park(self, message: Message, parts: Mapping[str, tuple[Part, ...]], now: float) -> None:
        """The sender of a push reads the slices once its own parts are in them."""
        for key, pushed in parts.items():
            worker, step = pushed[-1]
            reader = Reader(message.sender, message.number, worker, step + 1, now)
            add_reader(self.slots[key].readers, reader)

    def _pull(self, message: Pull, now: float) -> None:
        for key, clock in message.clocks.items():
            rows = message.rows.get(key)
            reader = Reader(message.sender, message.number, message.worker, clock, now, rows)
            slot = self.slots.get(key)
            add_reader(slot.readers if slot else self._early.setdefault(key, []), reader)
        self._settle(filter(self.slots.__contains__, message.clocks), now)

    def _join(self, message: Join, now: float) -> None:
        if self._is_news(message.worker, message.epoch):
            self.lanes.close(None, now)
            self.members[message.worker] = Member(message.first)
            for slot in self.slots.values():
                slot.progress.join(message.worker, message.first)
            self._commit_roster()
        self._send(message.sender, Done(self.name, message.number))
        self._settle(self.slots, now)  # rounds that waited for it, if it joins again later on

    def _leave(self, message: Leave, now: float) -> None:
        if self._is_news(message.worker, message.epoch):
            self._drop([message.worker], now)
        self._send(message.sender, Done(self.name, message.number))
        self._settle(self.slots, now)

    def _enter(self, message: Enter, now: float) -> None:
        before = self._barriers.get(message.worker, 0)
        if message.count > before:
            # A worker that is started again comes to barriers that the others have passed.
            self._barriers[message.worker] = message.count
            self._commit_roster()
        reader = Reader(message.sender, message.number, message.worker, message.count, now)
        add_reader(self._entered, reader)
        self._open_barrier()

    def _open_barrier(self) -> None:
        """Lets go of those whose barrier all live workers have reached."""
        for reader in [r for r in self._entered if not self._absent(r)]:
            self._entered.remove(reader)
            self._send(reader.sender, Done(self.name, reader.number))

    def _absent(self, reader: Reader) -> frozenset[int]:
        return frozenset(w for w in self.members if self._barriers.get(w, 0) < reader.clock)

    def _is_news(self, worker: int, epoch: int) -> bool:
        """Whether a change of membership is later than the last one: a copy of an old message
        must not bring back a worker that has ended."""
        if epoch <= self._epochs.get(worker, -1):
            return False
        self._epochs[worker] = epoch
        return True

    def _drop(self, workers: Iterable[int], now: float) -> None:
        self.lanes.close(None, now)
        for worker in workers:
            self.members.pop(worker, None)
        self._commit_roster()
        self._open_barrier()

    def _configure(self, message: Configure, now: float) -> None:
        if message.number > self._configured.get(message.sender, -1):
            self._set(message.setting, message.value)
            self._configured[message.sender] = message.number
            self._commit_roster()
            self.lanes.review(now)
        self._send(message.sender, Done(self.name, message.number))

    def _ask(self, message: Ask, now: float) -> None:
        report = {key: slot.progress.to_json() for key, slot in self.slots.items()}
        self._send(message.sender, Report(self.name, message.number, report, self.incarnation))

    def _fetch_states(self, message: FetchStates, now: float) -> None:
        found = {
            join_name(key, name): state
            for key in message.slices
            for name, state in self.states(self._checked_key(key)).items()
        }
        self._send(message.sender, States(self.name, message.number, found))

    def _checked_key(self, key: str) -> str:
        self._slot(key)
        return key

    def _put_states(self, message: PutStates, now: float) -> None:
        grouped: dict[str, dict[str, Array]] = {}
        for text, state in message.values.items():
            key, name = split_name(text)
            grouped.setdefault(self._checked_key(key), {})[name] = np.array(state, copy=True)
        self.lanes.close(None, now)
        for key, states in grouped.items():
            self.slots[key].applier.restore(key, states)
            self._commit(key, self.slots[key])
        self._send(message.sender, Done(self.name, message.number))

    def _settle(self, keys: Iterable[str], now: float, by_message: bool = True) -> None:
        """Closes the rounds that are complete, and answers the reads that have become possible:
        one message per request, whatever the number of its slices."""
        closed: list[str] = []
        confirmed: dict[tuple[str, int], list[str]] = {}
        ready: dict[tuple[str, int], dict[str, Array | None]] = {}
        for key in keys:
            slot = self.slots[key]
            while slot.policy.complete(slot.progress, self.members):
                closed.append(key)
                for request in self._close(key, slot):
                    confirmed.setdefault(request, []).append(key)
            for reader in [r for r in slot.readers if self._may_read(slot, r)]:
                slot.readers.remove(reader)
                ready.setdefault((reader.sender, reader.number), {})[key] = reader.rows
        for (sender, number), done in confirmed.items():
            later = [key for key in done if key in self.uncommitted]
            self._confirm(sender, number, [key for key in done if key not in later])
            if later:
                applied = Applied(self.name, number, tuple(later), self.incarnation)
                self._unconfirmed.append((sender, applied))
        for (sender, number), found in ready.items():
            self._answer(sender, number, found)
        if closed and by_message:
            self.lanes.closed(closed, now)

    def _answer(self, sender: str, number: int, found: dict[str, Array | None]) -> None:
        """Sends slices, or rows of them, to a reader."""
        try:
            values = {key: chosen(self.slots[key].value, rows) for key, rows in found.items()}
        except MixflowError as error:  # the reader's mistake, not that of who made it readable
            self._send(sender, Failed(self.name, number, str(error)))
            return
        versions = {key: self.slots[key].progress.version for key in found}
        self._send(sender, Values(self.name, number, values, versions, self.incarnation))

    def _close(self, key: str, slot: Slot) -> list[tuple[str, int]]:
        """Applies a complete round; returns the pushes that it held."""
        step = slot.progress.version
        merged = slot.sums.pop(step, None)
        if merged is not None:
            self._update(key, slot, merged, len(slot.progress.rounds[step]))
        slot.policy.close(slot.progress)
        if self.deferring and slot.value.nbytes >= DEFER_BYTES:
            self.uncommitted[key] = slot
            # At once: the next round may be closed before the commit.
            self.capture.see(key, self)
        else:
            self._commit(key, slot)
        return slot.pushes.pop(step, [])

    def _update(self, key: str, slot: Slot, merged: Sum, count: int) -> None:
        if slot.applier.replaces:
            merged.into(self._writable(slot, keep=False))
        else:
            slot.applier.apply(key, self._writable(slot), merged.result(), count)

    def _writable(self, slot: Slot, keep: bool = True) -> Array:
        """The slice's value to be written: another copy while a peer of this host reads it (its
        content counts with `keep` only)."""
        if self.arena.busy(slot.value):
            old = slot.value
            slot.value = copied(self.arena, old) if keep else self.arena.empty(old.size, old.dtype)
        return slot.value
