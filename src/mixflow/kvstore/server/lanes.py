"""Boards at the server: which slices go by shared words instead of messages, and when they stop.

The hazard: a push that is counted twice, or not at all, when the two ways meet. A slice goes one
way at a time. Its board is opened between two rounds, when every live worker has offered to go on
by it and none has pushed the next step yet; it is closed, for good, before a message changes
anything that a round of it depends on. What lies on a board that is closed and is not durable
counts for nothing: whoever put it there sends it again, with the same part.

    messages --(a round closes in which all live workers offered)--> board
    board --(a new part by message, a change of members, a peer lost, a stand-by)--> messages

Rounds are closed here, as if their pushes had come by message, or, as far as their updates are
foreseen (`foreseen.py`), by the desk itself (`arm`), which progress and counts then follow
(`absorb`).

Pure logic but for the memory (`Desk`), which the transport gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...ndarray.rows import wide
from ..protocol.foreseen import Foreseen
from ..protocol.merging import Sum, copied
from ..protocol.messages import Array, Push
from ..protocol.policy import Part, Sync, Verdict
from .books import Books

#: Rounds after which a board was worth its opening; after fewer the next one waits longer.
WORTH = 4
#: Seconds until a board is opened again after one that was not worth it; doubled each time.
FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0


@dataclass
class Opened:
    """A board: its number, slices, workers, and its memory: values, and gradients by worker."""

    number: int
    names: tuple[str, ...]
    workers: tuple[int, ...]
    senders: tuple[str, ...]
    values: list[Array]
    gradients: list[list[Array]]
    first: int = 0
    armed: bool = False
    #: Whether the desk has closed rounds of it; whether it is seen that it can't, by the settings.
    used: bool = False
    plain: bool = False


class Desk(Protocol):
    """The boards' memory, and the workers that see it. Given by the transport."""

    @property
    def rounds(self) -> int:
        """Rounds that the desk has closed by itself."""

    def open(
        self, values: Mapping[str, Array], versions: Mapping[str, int], senders: Mapping[int, str]
    ) -> Opened | None:
        """A board with these values at these versions, known to these workers; None if one of
        them can't have it."""

    def close(self, board: Opened) -> None:
        """Tells the workers that it is over. Its memory is theirs no more."""

    def arm(self, board: Opened, index: int, ledger: Any, version: int, foreseen: Foreseen) -> None:
        """The desk closes rounds of a slice itself, as long as they are foreseen, and commits them
        to the ledger's place if there is one. The slice and the ledger are at `version`."""

    def disarm(self, board: Opened, index: int) -> None:
        """It does no more."""

    def publish(self, board: Opened, index: int, version: int, durable: bool) -> None:
        """A round of a slice was closed here."""

    def version(self, board: Opened, index: int) -> int:
        """Closed rounds of a slice."""

    def ring(self) -> None:
        """Wakes the workers that wait."""


class Lanes:
    """The boards of a shard. Not thread-safe; its methods run between messages.

    Args:
        books: what the shard's roles share.
        prompt: whether what confirms leaves at once, and nobody stands by.

    Attributes:
        rounds: rounds that went by a board, whoever closed them.
    """

    def __init__(self, books: Books, prompt: Callable[[], bool]) -> None:
        self._books, self._prompt = books, prompt
        self.desk: Desk | None = None
        self.rounds = 0
        self._seen = 0
        self._moved: list[str] = []
        self._offers: dict[str, dict[int, str]] = {}
        self._boards: dict[int, Opened] = {}
        self._where: dict[str, tuple[Opened, int]] = {}
        self._wait = 0.0
        self._next_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._boards)

    # -- opening

    def pushed(self, message: Push, now: float) -> None:
        """A push has come by message: its new parts end the boards of their slices."""
        slots, members = self._books.slots, self._books.members
        for key, gradient in message.gradients.items():
            slot = slots[key]
            verdicts = [slot.policy.verdict(slot.progress, p, members) for p in gradient.parts]
            if Verdict.NEW not in verdicts:
                continue
            if key in self._where:
                self.close([key], now)
            if message.lane and len(gradient.parts) == 1 and not gradient.code:
                self._offers.setdefault(key, {})[gradient.parts[0].worker] = message.sender
            else:
                self._offers.pop(key, None)

    def closed(self, keys: Iterable[str], now: float) -> None:
        """Rounds of slices were closed that came by message: opens a board if all agree."""
        offers = {key: self._offers.pop(key, {}) for key in keys}
        if self.desk is None or now < self._next_at or not self._prompt():
            return
        members = self._books.members
        groups: dict[tuple[tuple[int, str], ...], list[str]] = {}
        for key, offer in offers.items():
            if key not in self._where and set(offer) == set(members) and self._fits(key):
                groups.setdefault(tuple(sorted(offer.items())), []).append(key)
        for senders, names in groups.items():
            self._open(names, dict(senders))

    def _fits(self, key: str) -> bool:
        """Whether a slice's next round is untouched, and of a kind that boards carry."""
        slot = self._books.slots[key]
        waiting = slot.progress.rounds or slot.sums or slot.pushes
        expected = all(m.expects(slot.progress.version) for m in self._books.members.values())
        return type(slot.policy) is Sync and expected and not waiting and bool(slot.value.size)

    def _open(self, names: list[str], senders: Mapping[int, str]) -> None:
        assert self.desk is not None
        slots = self._books.slots
        values = {name: slots[name].value for name in names}
        versions = {name: slots[name].progress.version for name in names}
        board = self.desk.open(values, versions, senders)
        if board is None:
            return
        board.first = self.rounds
        self._boards[board.number] = board
        for index, name in enumerate(board.names):
            slots[name].value = board.values[index]
            self._where[name] = (board, index)
        self._arm(board)

    # -- closing

    def close(self, keys: Iterable[str] | None, now: float) -> None:
        """Ends the boards of some slices, or all: messages take over."""
        chosen = self._boards.values() if keys is None else [self._where[k][0] for k in keys]
        for board in list({board.number: board for board in chosen}.values()):
            self._close(board, now)

    def lost(self, sender: str, now: float) -> None:
        """A worker's connection has ended, and with it its part in every board."""
        for board in [b for b in self._boards.values() if sender in b.senders]:
            self._close(board, now)

    def _close(self, board: Opened, now: float) -> None:
        assert self.desk is not None
        self._follow()
        self.desk.close(board)
        del self._boards[board.number]
        for name in board.names:
            del self._where[name]
            slot = self._books.slots[name]
            slot.value = copied(self._books.arena, slot.value)
        worth = self.rounds - board.first >= WORTH * len(board.names)
        self._wait = 0.0 if worth else min(max(2 * self._wait, FIRST_WAIT), LONGEST_WAIT)
        self._next_at = now + self._wait

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
        for name, (board, index) in self._where.items():
            progress = self._books.slots[name].progress
            more = self.desk.version(board, index) - progress.version if board.armed else 0
            if more > 0:
                progress.version += more
                progress.applied += more * len(board.workers)
                self._books.slots[name].applier.followed(name, more)
                self.rounds += more
                self._moved.append(name)

    def take(self, ready: Sequence[tuple[int, int]]) -> list[str]:
        """Puts complete rounds of boards where those of messages stand; gives their slices."""
        self._follow()
        names = []
        for number, index in ready:
            board = self._boards.get(number)
            if board is None:
                continue
            self._disarm(board)  # what was foreseen of it is over
            name = board.names[index]
            slot = self._books.slots[name]
            step = slot.progress.version
            parts = [Part(worker, step) for worker in board.workers]
            slot.policy.admit(slot.progress, parts, self._books.members)
            made = slot.sums[step] = Sum(wide(slot.value.dtype))
            for gradient in board.gradients[index]:
                made.add(gradient)
            names.append(name)
        self.rounds += len(names)
        return names

    def publish(self, names: Iterable[str]) -> None:
        """Shows the workers what was closed here; some of it may not be durable yet."""
        found = [name for name in names if name in self._where]
        if not found:
            return
        assert self.desk is not None
        for name in found:
            board, index = self._where[name]
            version = self._books.slots[name].progress.version
            self.desk.publish(board, index, version, self._books.is_durable(name))
        self.desk.ring()

    def review(self, now: float) -> None:
        """Lets the desk close rounds where it can."""
        if self._boards and not self._prompt():
            self.close(None, now)
        for board in self._boards.values():
            self._arm(board)

    def forget(self) -> None:
        """Nothing is foreseen any more: a setting is to change."""
        for board in self._boards.values():
            self._disarm(board)
            board.plain = False

    def _disarm(self, board: Opened) -> None:
        if not board.armed:
            return
        assert self.desk is not None
        self._follow()
        board.armed = False
        for index in range(len(board.names)):
            self.desk.disarm(board, index)

    def _arm(self, board: Opened) -> None:
        assert self.desk is not None
        books = self._books
        if not books.capture.quiet:
            self._disarm(board)
            return
        if board.armed or board.plain or not all(map(books.is_durable, board.names)):
            return
        if board.used:  # the ledger's texts must tell of the rounds that the desk has closed so far
            for name in board.names:
                books.commit(name, books.slots[name])
        found = [pair for pair in map(self._foreseen, board.names) if pair is not None]
        if len(found) < len(board.names):
            board.plain = True
            return
        for index, (name, (foreseen, place)) in enumerate(zip(board.names, found, strict=True)):
            self.desk.arm(board, index, place, books.slots[name].progress.version, foreseen)
        board.armed = board.used = True

    def _foreseen(self, name: str) -> tuple[Foreseen, Any] | None:
        """How the desk may close rounds of a slice, and where the ledger takes them (() for
        nowhere); None where it can't."""
        slot, ledger = self._books.slots[name], self._books.ledger
        if slot.value.dtype not in (np.float32, np.float64):
            return None
        foreseen = slot.applier.foresee(name, slot.value)
        if foreseen is None:
            return None
        place = ledger.place(name, slot.value, foreseen.states) if ledger.durable else ()
        return None if place is None else (foreseen, place)
