"""Reads of a shard: who waits for which version of a slice, and what is sent when it is there."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

from ...errors import MixflowError
from ..protocol.messages import Array, Failed, Message, Pull, Values
from ..protocol.policy import Part
from ..protocol.row_gradients import chosen
from .books import Books
from .slots import Reader, Readers, Slot


class Waiters(Protocol):
    """Readers that can be gone through, and taken out."""

    def __iter__(self) -> Iterator[Reader]: ...

    def remove(self, reader: Reader, /) -> None:
        """Takes one out."""


#: Something that is waited for: in words, by whom, and whom each waits for.
Wait = tuple[str, Waiters, Callable[[Reader], frozenset[int]]]


class Reads:
    """The readers of a shard's slices; those of slices that are still to be initialised too."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._early: dict[str, Readers] = {}
        #: Slices with readers, and some that have none any more.
        self._awaited: dict[str, None] = {}
        #: When readers that are held are let go, and of which slice: a heap.
        self._holds: list[tuple[float, str]] = []

    def pull(self, message: Pull, now: float) -> list[str]:
        """Takes a read; returns the slices of it that are there."""
        slots = self._books.slots
        for key, clock in message.clocks.items():
            rows = message.rows.get(key)
            reader = Reader(message.sender, message.number, message.worker, clock, now, rows)
            if key in slots:
                self._add(key, reader)
            else:
                self._early.setdefault(key, Readers()).add(reader)
        return [key for key in message.clocks if key in slots]

    def park(self, message: Message, parts: Mapping[str, tuple[Part, ...]], now: float) -> None:
        """The sender of a push reads the slices once its own parts are in them."""
        for key, pushed in parts.items():
            worker, step = pushed[-1]
            reader = Reader(message.sender, message.number, worker, step + 1, now)
            self._add(key, reader)

    def _add(self, key: str, reader: Reader) -> None:
        slot = self._books.slots[key]
        self._awaited[key] = None
        reader.after, reader.until = slot.lateness.hold(reader.worker)
        if slot.readers.add(reader) and reader.after > slot.progress.version:
            heapq.heappush(self._holds, (reader.until, key))

    def initialised(self, key: str, slot: Slot) -> None:
        """A slice is there: who waited for that waits for its version now."""
        slot.readers = self._early.pop(key, Readers())
        self._awaited[key] = None

    def next_release(self) -> float | None:
        """When `release` has something to do, or None."""
        return self._holds[0][0] if self._holds else None

    def release(self, now: float) -> None:
        """Lets go of readers that were held for long enough."""
        keys = set()
        while self._holds and self._holds[0][0] <= now:
            keys.add(heapq.heappop(self._holds)[1])
        self.serve(sorted(keys), now)

    def serve(self, keys: Iterable[str], now: float) -> None:
        """Answers the reads of slices that have become possible: one message per request,
        whatever the number of its slices."""
        ready: dict[tuple[str, int], dict[str, Array | None]] = {}
        for key in keys:
            slot = self._books.slots[key]
            for reader in self._ready(slot, now):
                slot.readers.remove(reader)
                ready.setdefault((reader.sender, reader.number), {})[key] = reader.rows
        for (sender, number), found in ready.items():
            self._answer(sender, number, found)

    def _answer(self, sender: str, number: int, found: dict[str, Array | None]) -> None:
        """Sends slices, or rows of them, to a reader."""
        books = self._books
        try:
            values = {key: chosen(books.slots[key].value, rows) for key, rows in found.items()}
        except MixflowError as error:  # the reader's mistake, not that of who made it readable
            books.send(sender, Failed(books.name, number, str(error)))
            return
        versions = {key: books.slots[key].progress.version for key in found}
        books.send(sender, Values(books.name, number, values, versions, books.incarnation))

    def _ready(self, slot: Slot, now: float) -> list[Reader]:
        """Who may read a slice now. Of those at a clock that is not open, none is looked at."""
        policy, progress, members = slot.policy, slot.progress, self._books.members
        return [
            reader
            for clock in slot.readers.clocks()
            if policy.opens(progress, members, clock)
            for reader in slot.readers.at(clock)
            if policy.has_own(progress, members, reader.worker, clock)
            and (progress.version >= reader.after or now >= reader.until)
        ]

    def waits(self) -> Iterable[Wait]:
        """Every list of readers."""
        for key in list(self._awaited):
            slot = self._books.slots[key]
            if slot.readers:
                yield f"all pushes of '{key}'", slot.readers, partial(self._missing, slot)
            else:
                del self._awaited[key]
        for key, readers in self._early.items():
            yield f"'{key}' to be initialised", readers, lambda reader: frozenset({0})

    def _missing(self, slot: Slot, reader: Reader) -> frozenset[int]:
        members = self._books.members
        return slot.policy.missing(slot.progress, members, reader.worker, reader.clock)
