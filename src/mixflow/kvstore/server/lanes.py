"""Boards at the server: which slices go by shared words instead of messages, and when they stop.

The hazard: a push that is counted twice, or not at all, when the two ways meet. Where pushes wait
in rounds, a slice goes one way at a time: its board is opened between two rounds, when every live
worker has offered to go on by it and none has pushed the next step yet. Where each push makes an
update by itself, a *worker* goes one way at a time: each has a board of its own, opened when its
push was applied and all others have offered too; they share the value (its *home*). A board is
closed, for good, before a message changes anything that a step of it depends on. What lies on a
board that is closed and is not durable counts for nothing: whoever put it there sends it again,
with the same part.

    messages --(a round closes in which all live workers offered;
                of an own board: a push is applied)--> board
    board --(a new part by message, a change of members, a peer lost, a stand-by)--> messages

Rounds are closed here, as if their pushes had come by message, or, as far as their updates are
foreseen (`foreseen.py`), by the desk itself (`arm`), which progress and counts then follow
(`absorb`).

Pure logic but for the memory (`Desk`), which the transport gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...ndarray.rows import wide
from ..protocol.foreseen import Foreseen
from ..protocol.merging import Sum, copied
from ..protocol.messages import Array, Push
from ..protocol.policy import Async, Bounded, Part, Policy, Sync, Verdict
from .books import Books
from .slots import Slot

#: Rounds after which a board was worth its opening; after fewer the next one waits longer.
WORTH = 4
#: Seconds until a board is opened again after one that was not worth it; doubled each time. It ends
#: at a multiple of itself, by the host's clock: a worker that has boards of some servers only uses
#: none, so all have to open theirs at once.
FIRST_WAIT, LONGEST_WAIT = 0.05, 6.4
#: Steps of the slowest worker without a board, where there is none.
NOBODY = 2**63 - 1
#: What applies a worker's push of a slice at once: slice, part, gradient, now.
Apply = Callable[[str, Part, Array, float], None]


@dataclass
class Opened:
    """A board: its number, slices, workers, and its memory: values, and gradients by worker.

    `own`: of one worker, whose steps are its rounds. `rounds`: how many of slices went by it.
    """

    number: int
    names: tuple[str, ...]
    workers: tuple[int, ...]
    senders: tuple[str, ...]
    values: list[Array]
    gradients: list[list[Array]]
    own: bool = False
    rounds: int = 0


@dataclass
class Way:
    """A slice that goes by boards: which (its index, by the board's number), and whether the desk
    closes its rounds."""

    boards: dict[int, int] = field(default_factory=dict)
    armed: bool = False


class Desk(Protocol):
    """The boards' memory, and the workers that see it. Given by the transport."""

    @property
    def rounds(self) -> int:
        """Rounds that the desk has closed by itself."""

    def reaches(self, senders: Mapping[int, str]) -> bool:
        """Whether these workers can have a board."""

    def home(self, value: Array) -> Array:
        """A copy of a slice's value for own boards, in memory that no answer refers to."""

    def open(
        self,
        values: Mapping[str, Array],
        versions: Mapping[str, int],
        senders: Mapping[int, str],
        bounds: Sequence[int | None] | None = None,
    ) -> Opened | None:
        """A board with these values at these versions, known to these workers; None if one of
        them can't have it.

        Args:
            values, versions: by slice; of an own board the homes, and its worker's steps.
            senders: by worker.
            bounds: for an own board: by slice, the staleness; None where reads wait for nobody.
        """

    def close(self, board: Opened) -> None:
        """Tells the workers that it is over. Its memory is theirs no more."""

    def arm(self, board: Opened, index: int, ledger: Any, foreseen: Foreseen) -> None:
        """The desk closes rounds of a slice itself, on all boards with its home, as long as they
        are foreseen, and commits them to the ledger's place if there is one, which tells of the
        slice as it stands."""

    def disarm(self, board: Opened, index: int) -> None:
        """It does no more."""

    def publish(self, board: Opened, index: int, version: int, durable: bool) -> None:
        """A round of a slice was closed here."""

    def set_floor(self, board: Opened, index: int, steps: int) -> None:
        """Steps of the slowest worker that has no own board of a slice."""

    def closed(self, board: Opened, index: int) -> int:
        """Closed rounds of a slice."""

    def ring(self) -> None:
        """Wakes the workers that wait."""


class Lanes:
    """The boards of a shard. Not thread-safe; its methods run between messages.

    Args:
        books: what the shard's roles share.
        prompt: whether what confirms leaves at once, and nobody stands by.
        apply: takes a push that makes an update by itself.

    Attributes:
        rounds: rounds that went by a board, whoever closed them.
    """

    def __init__(self, books: Books, prompt: Callable[[], bool], apply: Apply) -> None:
        self._books, self._prompt, self._apply = books, prompt, apply
        self.desk: Desk | None = None
        self.rounds = 0
        self._seen = 0
        self._moved: list[str] = []
        self._offers: dict[str, dict[int, str]] = {}
        self._boards: dict[int, Opened] = {}
        self._ways: dict[str, Way] = {}
        #: Slices whose text in the ledger is of this process and tells of all that was closed.
        self._told: set[str] = set()
        #: Slices whose rounds the desk might close, and does not yet.
        self._idle: dict[str, None] = {}
        #: By the workers of a board: how long the next one waits, and until when.
        self._waits: dict[tuple[int, ...], tuple[float, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._boards)

    # -- opening

    def pushed(self, message: Push, now: float) -> None:
        """A push has come by message: its new parts end the boards that they would go by."""
        slots, members = self._books.slots, self._books.members
        for key, gradient in message.gradients.items():
            slot = slots[key]
            verdicts = [slot.policy.verdict(slot.progress, p, members) for p in gradient.parts]
            if Verdict.NEW not in verdicts:
                continue
            self._end_for(key, {part.worker for part in gradient.parts}, now)
            if message.lane and len(gradient.parts) == 1 and not gradient.code:
                self._offers.setdefault(key, {})[gradient.parts[0].worker] = message.sender
            else:
                self._offers.pop(key, None)

    def _end_for(self, key: str, workers: set[int], now: float) -> None:
        """Some workers push a slice by message: no boards of theirs, and nothing foreseen."""
        for number in list(self._ways[key].boards) if key in self._ways else ():
            board = self._boards[number]
            if not board.own or workers.intersection(board.workers):
                self._close(board, now)
        if key in self._ways:
            self._disarm(key)

    def closed(self, keys: Iterable[str], now: float) -> None:
        """Rounds of slices were closed that came by message: opens a board if all agree."""
        offers = {key: self._offers.pop(key, {}) for key in keys}
        members = self._books.members
        groups: dict[tuple[tuple[int, str], ...], list[str]] = {}
        for key, offer in offers.items():
            if key not in self._ways and set(offer) == set(members) and self._fits(key):
                groups.setdefault(tuple(sorted(offer.items())), []).append(key)
        for senders, names in groups.items():
            self._open(names, dict(senders), now)

    def taken(self, message: Push, now: float) -> None:
        """A push has come by message and was taken: where it made updates by itself, its worker
        gets a board of its own if all others would go by theirs."""
        keys = [k for k in message.gradients if _one_by_one(self._books.slots[k].policy)]
        for key in keys:
            self._set_floor(key)
        names: dict[int, list[str]] = {}
        for key in keys:
            parts = message.gradients[key].parts
            offers = self._offers.get(key, {})
            if offers.keys() == self._books.members.keys() and self._fits_own(key, parts[0]):
                names.setdefault(parts[0].worker, []).append(key)
        for worker, found in names.items():
            self._open(found, {worker: message.sender}, now, own=True)

    def _may_open(self, workers: Iterable[int], now: float) -> bool:
        _, until = self._waits.get(tuple(workers), (0.0, 0.0))
        return self.desk is not None and now >= until and self._prompt()

    def _fits(self, key: str) -> bool:
        """Whether a slice's next round is untouched, and of a kind that boards carry."""
        slot = self._books.slots[key]
        waiting = slot.progress.rounds or slot.sums or slot.pushes
        expected = all(m.expects(slot.progress.version) for m in self._books.members.values())
        return type(slot.policy) is Sync and expected and not waiting and bool(slot.value.size)

    def _fits_own(self, key: str, part: Part) -> bool:
        """Whether a worker's next step of a slice follows on this part, and may go by a board."""
        slot, worker = self._books.slots[key], part.worker
        boards = self._ways[key].boards if key in self._ways else ()
        has_one = any(worker in self._boards[number].workers for number in boards)
        next_step = slot.progress.clocks.get(worker) == part.step + 1
        fits = next_step and worker not in slot.progress.ahead and bool(slot.value.size)
        return fits and not has_one and not slot.failed

    def _open(
        self, names: list[str], senders: Mapping[int, str], now: float, own: bool = False
    ) -> None:
        if not self._may_open(senders, now):
            return
        assert self.desk is not None
        if not self.desk.reaches(senders):
            return
        slots = self._books.slots
        for name in names if own else ():
            if name in self._ways:
                self._disarm(name)
            else:
                slots[name].value = self.desk.home(slots[name].value)
        values = {name: slots[name].value for name in names}
        if own:
            (worker,) = senders
            versions = {name: slots[name].progress.clocks[worker] for name in names}
            bounds = [_staleness(slots[name].policy) for name in names]
            board = self.desk.open(values, versions, senders, bounds)
        else:
            versions = {name: slots[name].progress.version for name in names}
            board = self.desk.open(values, versions, senders)
        if board is not None:
            self._boards[board.number] = board
        for index, name in enumerate(names):
            if board is not None:
                self._ways.setdefault(name, Way()).boards[board.number] = index
                if not own:
                    slots[name].value = board.values[index]
                self._set_floor(name)
                self._arm(name)
            elif name not in self._ways and own:
                slots[name].value = copied(self._books.arena, slots[name].value)

    def _set_floor(self, key: str) -> None:
        """Tells the desk of the workers that go by messages."""
        way, slot = self._ways.get(key), self._books.slots[key]
        if way is None or _staleness(slot.policy) is None:
            return
        assert self.desk is not None
        members, progress = self._books.members, slot.progress
        there = {worker for number in way.boards for worker in self._boards[number].workers}
        clocks = [progress.clock(worker, members) for worker in members if worker not in there]
        number, index = next(iter(way.boards.items()))
        self.desk.set_floor(self._boards[number], index, min(clocks, default=NOBODY))

    # -- closing

    def close(self, now: float) -> None:
        """Ends all boards: messages take over."""
        self._offers.clear()
        for board in list(self._boards.values()):
            self._close(board, now)

    def lost(self, sender: str, now: float) -> None:
        """A worker's connection has ended, and with it its part in every board."""
        for board in [b for b in self._boards.values() if sender in b.senders]:
            self._close(board, now)

    def _close(self, board: Opened, now: float) -> None:
        assert self.desk is not None
        self._follow()
        for name in board.names:
            self._disarm(name)
        self.desk.close(board)
        del self._boards[board.number]
        for name in board.names:
            del self._ways[name].boards[board.number]
            if self._ways[name].boards:
                self._set_floor(name)
                continue
            del self._ways[name]
            self._idle.pop(name, None)
            slot = self._books.slots[name]
            slot.value = copied(self._books.arena, slot.value)
        wait, _ = self._waits.pop(board.workers, (0.0, 0.0))
        if board.rounds < WORTH * len(board.names):
            wait = min(max(2 * wait, FIRST_WAIT), LONGEST_WAIT)
            self._waits[board.workers] = wait, (now // wait + 1) * wait

    # -- rounds

    def absorb(self) -> list[str]:
        """Follows what the desk has closed by itself; gives the slices that have moved since the
        last call."""
        self._follow()
        moved, self._moved = self._moved, []
        return moved

    def _follow(self) -> None:
        if self.desk is None or self.desk.rounds == self._seen:
            return
        self._seen = self.desk.rounds
        for name, way in self._ways.items():
            if not way.armed:
                continue
            slot = self._books.slots[name]
            more = sum(self._advance(slot, number, index) for number, index in way.boards.items())
            if more > 0:
                slot.applier.followed(name, more)
                self._told.discard(name)
                self.rounds += more
                self._moved.append(name)

    def _advance(self, slot: Slot, number: int, index: int) -> int:
        """Moves a slice's progress over what the desk has closed on a board."""
        assert self.desk is not None
        board, progress = self._boards[number], slot.progress
        before, closed = progress.version, self.desk.closed(board, index)
        if board.own:
            (worker,) = board.workers
            slot.policy.advance(progress, worker, closed, self._books.members)
        elif closed > before:
            progress.version = closed
            progress.applied += (closed - before) * len(board.workers)
        board.rounds += progress.version - before
        return progress.version - before

    def take(self, ready: Sequence[tuple[int, int]], now: float) -> list[str]:
        """Puts complete rounds of boards where those of messages stand, and applies what makes an
        update by itself; gives their slices."""
        self._follow()
        names = []
        for number, index in ready:
            board = self._boards.get(number)
            if board is None:
                continue
            name = board.names[index]
            self._disarm(name)  # what was foreseen of it is over
            slot = self._books.slots[name]
            board.rounds += 1
            names.append(name)
            if board.own:
                (worker,) = board.workers
                part = Part(worker, slot.progress.clocks[worker])
                self._apply(name, part, board.gradients[index][0], now)
                continue
            step = slot.progress.version
            parts = [Part(worker, step) for worker in board.workers]
            slot.policy.admit(slot.progress, parts, self._books.members)
            made = slot.sums[step] = Sum(wide(slot.value.dtype))
            for gradient in board.gradients[index]:
                made.add(gradient)
        self.rounds += len(names)
        return names

    def publish(self, names: Iterable[str]) -> None:
        """Shows the workers what was closed here; some of it may not be durable yet."""
        found = [name for name in names if name in self._ways]
        if not found:
            return
        assert self.desk is not None
        for name in found:
            progress, durable = self._books.slots[name].progress, self._books.is_durable(name)
            for number, index in self._ways[name].boards.items():
                board = self._boards[number]
                closed = progress.clocks[board.workers[0]] if board.own else progress.version
                self.desk.publish(board, index, closed, durable)
        self.desk.ring()

    def review(self, now: float) -> None:
        """Lets the desk close rounds where it can."""
        if self._boards and not self._prompt():
            self.close(now)
        if not self._books.capture.quiet:
            for name in self._ways:
                self._disarm(name)
            return
        for name in list(self._idle):
            self._arm(name)

    def forget(self) -> None:
        """Nothing is foreseen any more: a setting is to change."""
        for name in self._ways:
            self._disarm(name)
            self._idle[name] = None  # also where the desk could not, by the setting so far

    def _disarm(self, name: str) -> None:
        way = self._ways[name]
        if not way.armed:
            return
        assert self.desk is not None
        self._follow()
        way.armed = False
        self._idle[name] = None
        number, index = next(iter(way.boards.items()))
        self.desk.disarm(self._boards[number], index)

    def _arm(self, name: str) -> None:
        assert self.desk is not None
        books, way = self._books, self._ways[name]
        self._idle[name] = None
        if not (books.capture.quiet and books.is_durable(name)):
            return
        if name not in self._told:  # what the desk commits adds to the text
            books.commit(name, books.slots[name])
            self._told.add(name)
        del self._idle[name]
        number, index = next(iter(way.boards.items()))
        board = self._boards[number]
        found = self._foreseen(name, len(way.boards) if board.own else 0)
        if found is None:  # until a setting changes
            return
        foreseen, place = found
        self.desk.arm(board, index, place, foreseen)
        way.armed = True

    def _foreseen(self, name: str, workers: int) -> tuple[Foreseen, Any] | None:
        """How the desk may close rounds of a slice, and where the ledger takes them (() for
        nowhere), with the steps of so many workers; None where it can't."""
        slot, ledger = self._books.slots[name], self._books.ledger
        if slot.value.dtype not in (np.float32, np.float64):
            return None
        foreseen = slot.applier.foresee(name, slot.value)
        if foreseen is None:
            return None
        place: Any = ()
        if ledger.durable:
            place = ledger.place(name, slot.value, foreseen.states, workers)
        return None if place is None else (foreseen, place)


def _one_by_one(policy: Policy) -> bool:
    """Whether each push makes an update by itself."""
    return type(policy) in (Async, Bounded)


def _staleness(policy: Policy) -> int | None:
    """Steps that a reader may be ahead of the slowest worker; None: any number."""
    return policy.staleness if isinstance(policy, Bounded) else None
