"""Pushes of a shard: which parts count, the rounds that they stand in, and the updates.

The hazard: a message that comes twice, or after a restart, or merged with one that was taken. So
parts are counted, not messages; a push is checked as a whole before anything changes; and a
repeated request gets the same words.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from ...errors import MixflowError
from ...ndarray.rows import wide
from ..protocol.merging import Sum
from ..protocol.messages import (
    Applied,
    Array,
    Failed,
    Gradient,
    Message,
    Push,
    Query,
    Received,
    Refused,
    arrival,
)
from ..protocol.policy import Part, Verdict
from ..protocol.row_gradients import RowGradient
from ..protocol.touched import NOTHING, Touched
from .books import Books
from .lanes import Lanes
from .reads import Reads
from .rules import key_of
from .slots import Readers, Slot

#: Gives the values of a gradient for a slice of some size: an array or `RowGradient`.
Decode = Callable[[Gradient, int], Any]


def plain(gradient: Gradient, size: int) -> Array:
    """The values of a gradient that has no code."""
    if gradient.code:
        raise MixflowError(f"[kvstore server] expected a known code, got {gradient.code!r}")
    return gradient.values


class UpdateError(MixflowError):
    """The update of a slice has failed."""


class Rounds:
    """Takes pushes and closes rounds.

    Args:
        books, reads: what the shard's roles share, and its readers.
        decode: values of a gradient.
    """

    def __init__(self, books: Books, reads: Reads, decode: Decode) -> None:
        self._books = books
        self._reads = reads
        self._decode = decode
        #: Whether what confirms leaves at once: then it also says that a push has arrived.
        self.prompt: Callable[[], bool] = lambda: True
        #: Hears of pushes before they are taken, and of closed rounds.
        self.lanes: Lanes | None = None

    def push(self, message: Push, now: float) -> None:
        """Takes a push, in full or (of each slice) not at all."""
        arrays = {key: self._checked(key, g) for key, g in message.gradients.items()}
        self.check_updates(message.gradients)
        if self.lanes is not None:
            self.lanes.pushed(message, now)
        done, refused = [], {}
        for key, gradient in message.gradients.items():
            verdicts = self._verdicts(key, gradient.parts)
            if set(verdicts) == {Verdict.NEW}:
                if not self._take(key, gradient.parts, arrays[key], message, now):
                    continue
            elif Verdict.NEW in verdicts:
                refused[key] = self._seen(gradient.parts, verdicts)
                continue
            elif self._open(key, gradient.parts, message):
                continue
            else:
                self._drop_late(key, gradient.parts, verdicts, now)
            done.append(key)
        self._books.confirm(message.sender, message.number, done)
        if refused:
            self._send(message, Refused(self._books.name, message.number, refused))
        parts = {key: g.parts for key, g in message.gradients.items() if key not in refused}
        if message.pull:
            self._reads.park(message, parts, now)
        self.settle(message.gradients, now)
        if self.lanes is not None:
            self.lanes.taken(message, now)
        if not (self.prompt() and self._all_confirmed(message)):
            books = self._books
            self._send(message, Received(books.name, message.number, books.incarnation))

    def _send(self, request: Message, answer: Message) -> None:
        self._books.send(request.sender, answer)

    def _all_confirmed(self, message: Push) -> bool:
        """Whether the answers so far say more than that the push has arrived."""
        out = self._books.out
        said = [a for _, a in out if isinstance(a, Applied) and a.number == message.number]
        return set(message.gradients) <= {key for answer in said for key in answer.slices}

    def query(self, message: Query, now: float) -> None:
        """Tells again what became of a push, or that it must be sent again."""
        unknown, done = [], []
        self.check_updates(message.parts)
        for key, parts in message.parts.items():
            verdicts = self._verdicts(key, parts) if key in self._books.slots else [Verdict.NEW]
            if Verdict.NEW in verdicts:
                unknown.append(key)
            elif not self._open(key, parts, message):
                self._drop_late(key, parts, verdicts, now)
                done.append(key)
        books = self._books
        self._send(message, arrival(message, books.name, unknown, books.incarnation))
        books.confirm(message.sender, message.number, done)
        known = {key: parts for key, parts in message.parts.items() if key not in unknown}
        if message.pull:
            self._reads.park(message, known, now)
        self.settle(known, now)

    def _checked(self, key: str, gradient: Gradient) -> Any:
        """The gradient's values, if they fit the slice; nothing has been changed yet."""
        size = self._books.slot(key).value.size
        values = self._decode(gradient, size)
        who = f"[kvstore server {self._books.name}]"
        if values.size != size:
            raise MixflowError(f"{who} expected {size} values for key '{key}', got {values.size}")
        if not gradient.parts:
            raise MixflowError(f"{who} expected parts for '{key}', got none")
        return values if isinstance(values, RowGradient) else values.reshape(-1)

    def _verdicts(self, key: str, parts: Iterable[Part]) -> list[Verdict]:
        slot = self._books.slots[key]
        return [slot.policy.verdict(slot.progress, part, self._books.members) for part in parts]

    @staticmethod
    def _seen(parts: Iterable[Part], verdicts: Iterable[Verdict]) -> tuple[Part, ...]:
        paired = zip(parts, verdicts, strict=True)
        return tuple(part for part, verdict in paired if verdict is not Verdict.NEW)

    def _open(self, key: str, parts: Iterable[Part], message: Message) -> bool:
        """Whether parts that were seen stand in a round that is still open; the sender is then
        told when it closes."""
        slot = self._books.slots[key]
        for part in parts:
            if part.worker in slot.progress.rounds.get(part.step, ()):
                self._await(slot, part.step, message)
                return True
        return False

    def _drop_late(
        self, key: str, parts: Iterable[Part], verdicts: Iterable[Verdict], now: float
    ) -> None:
        """Counts the parts that came too late; that is durable before it is confirmed."""
        slot = self._books.slots[key]
        paired = zip(parts, verdicts, strict=True)
        late = [part for part, verdict in paired if verdict is Verdict.STALE]
        for part in late:
            slot.progress.drop(part)
            slot.lateness.missed(part.worker, slot.progress.version, now)
        if late:
            self._books.commit_progress(key, slot)

    def _take(
        self, key: str, parts: tuple[Part, ...], values: Any, message: Push, now: float
    ) -> bool:
        """Takes new parts; True when they are applied and durable at once."""
        books, slot = self._books, self._books.slots[key]
        steps = {part.step for part in parts}
        if not slot.policy.rounds:
            self._apply_at_once(key, parts, values, now)
            return True
        if len(steps) != 1:
            raise MixflowError(
                f"[kvstore server {books.name}] expected parts of one step for key '{key}', got "
                f"steps {sorted(steps)}"
            )
        step = steps.pop()
        slot.policy.admit(slot.progress, parts, books.members)
        if slot.policy.drops:
            for part in parts:
                slot.lateness.counted(part.worker)
        slot.sums.setdefault(step, Sum(wide(slot.value.dtype))).add(values)
        self._await(slot, step, message)
        return False

    def apply_own(self, key: str, part: Part, values: Array, now: float) -> None:
        """Takes a push that lies on its worker's own board. One whose update fails is sent again by
        message, and answered."""
        with contextlib.suppress(UpdateError):
            self._apply_at_once(key, (part,), values, now)

    def _apply_at_once(self, key: str, parts: tuple[Part, ...], values: Any, now: float) -> None:
        books, slot = self._books, self._books.slots[key]
        try:
            touched = self._apply(key, slot, values, len(parts))
        except UpdateError as error:
            self._fail(key, slot, str(error), now)
            raise
        slot.policy.admit(slot.progress, parts, books.members)
        books.commit(key, slot, touched)

    @staticmethod
    def _await(slot: Slot, step: int, message: Message) -> None:
        slot.pushes.setdefault(step, {})[message.sender, message.number] = None

    def settle(self, keys: Iterable[str], now: float) -> None:
        """Closes the rounds that are complete, and answers what waited for that."""
        keys = list(keys)
        closed: list[str] = []
        confirmed: dict[tuple[str, int], list[str]] = {}
        for key in keys:
            slot = self._books.slots[key]
            try:
                while not slot.failed and slot.policy.complete(slot.progress, self._books.members):
                    requests = self._close(key, slot, now)
                    closed.append(key)
                    for request in requests:
                        confirmed.setdefault(request, []).append(key)
            except UpdateError as error:
                self._fail(key, slot, str(error), now)
        for (sender, number), done in confirmed.items():
            self._books.confirm(sender, number, done)
        self._reads.serve(keys, now)
        if closed and self.lanes is not None:
            self.lanes.closed(closed, now)

    def _fail(self, key: str, slot: Slot, text: str, now: float) -> None:
        """An update has failed: whoever has pushed the slice or reads it hears why, now and later,
        by messages. It is not tried again: a part of it may have been made."""
        books = self._books
        asked = {request: None for waiting in slot.pushes.values() for request in waiting}
        asked |= {(reader.sender, reader.number): None for reader in slot.readers}
        slot.pushes.clear()
        slot.readers = Readers()
        for sender, number in asked:
            books.send(sender, Failed(books.name, number, text))
        if self.lanes is not None:
            self.lanes.close(now)

    def check_updates(self, keys: Iterable[str]) -> None:
        """Refuses slices of which an update has failed.

        Raises:
            MixflowError: what it said.
        """
        slots = self._books.slots
        for key in keys:
            if key in slots and slots[key].failed:
                raise MixflowError(slots[key].failed)

    def _close(self, key: str, slot: Slot, now: float) -> list[tuple[str, int]]:
        """Applies a complete round; returns the pushes that it held."""
        step = slot.progress.version
        merged = slot.sums.pop(step, None)
        touched: Touched | None = NOTHING
        if merged is not None:
            touched = self._update(key, slot, merged, len(slot.progress.rounds[step]))
        slot.policy.close(slot.progress)
        slot.lateness.closed(now)
        self._books.commit_soon(key, slot, touched)
        return list(slot.pushes.pop(step, {}))

    def _update(self, key: str, slot: Slot, merged: Sum, count: int) -> Touched | None:
        if slot.applier.replaces:
            merged.into(self._books.writable(slot, keep=False))
            return None
        return self._apply(key, slot, merged.result(), count)

    def _failure(self, key: str, error: Exception) -> str:
        if isinstance(error, MixflowError):
            return str(error)
        return (
            f"[kvstore server {self._books.name}] expected an update of key '{key_of(key)}', got "
            f"{type(error).__name__}: {error}"
        )

    def _apply(self, key: str, slot: Slot, values: Any, count: int) -> Touched | None:
        """Updates a slice; returns what of it has changed.

        Raises:
            UpdateError: the update has failed.
        """
        value = self._books.writable(slot)
        try:
            by_rows = slot.applier.apply(key, value, values, count)
        except Exception as error:  # an optimizer is anybody's code
            slot.failed = text = self._failure(key, error)
            raise UpdateError(text) from error
        if by_rows and isinstance(values, RowGradient):
            return Touched(values.width, values.rows.numbers)
        return None
