"""Barriers of a job's workers, some of which may have been started again. Pure logic.

The hazard: a worker that comes back counts its barriers from one, and does not come to those that
its program has behind it. Waiting for it by counts would end at the deadline: under `dist_sync`
the others stand at a barrier, and it waits for their pushes. So each barrier is known by its
number, and by its **place**: the steps that the worker had pushed, and how often it was at a
barrier since. Among workers that were there from the start numbers count; where one has joined in
the middle, places.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from .slots import Reader, Readers


class Barriers:
    """Who is at which barrier, and who waits there (`waiting`)."""

    def __init__(self) -> None:
        self.waiting = Readers()
        self._counts: dict[int, int] = {}
        self._places: dict[int, tuple[int, int]] = {}
        #: The steps with which workers go on that have joined in the middle.
        self._resumed: dict[int, int] = {}
        #: The steps with which those began that have been there from the start: above 0 in a job
        #: that goes on from a snapshot, and not all the same without rounds.
        self._founded: dict[int, int] = {}

    def join(self, worker: int, first: int, founds: bool = False) -> None:
        """A worker takes part from step `first` on.

        Args:
            founds: with the job: it has no barriers behind it, and all are at its first ones.
        """
        self._founded.pop(worker, None)
        if founds:
            self._founded[worker] = first
        if first > 0:
            self._resumed[worker] = first

    def enter(self, reader: Reader, step: int, turn: int) -> bool:
        """A worker is at a barrier (see `messages.Enter`; the reader's clock is its number).

        Returns:
            Whether something has changed that is to be kept.
        """
        worker, place = reader.worker, (step, turn)
        self.waiting.add(reader)
        count, known = self._counts.get(worker, 0), self._places.get(worker, (0, 0))
        # A worker that is started again comes to barriers that the others have passed.
        self._counts[worker], self._places[worker] = max(reader.clock, count), max(place, known)
        return reader.clock > count or place > known

    def absent(self, reader: Reader, members: Collection[int]) -> frozenset[int]:
        """Whom a worker at a barrier waits for.

        A barrier of the step with which a worker goes on may be one where it was before, or one
        that comes before its next push: nobody waits there for it, nor it for others. Those that
        begin together have none behind them, and wait for each other.
        """
        me, place = reader.worker, self._places[reader.worker]
        if me in self._resumed and place[0] <= self._resumed[me] and me not in self._founded:
            return frozenset()
        return frozenset(w for w in members if not self._is_there(w, reader, place))

    def _is_there(self, worker: int, reader: Reader, place: tuple[int, int]) -> bool:
        if worker not in self._resumed and reader.worker not in self._resumed:
            return self._counts.get(worker, 0) >= reader.clock
        if place[0] <= self._founded.get(reader.worker, -1):
            first = self._founded.get(worker)
            return first is None or self._places.get(worker, (0, 0)) >= (first, place[1])
        passed = (self._resumed.get(worker, -1), math.inf)
        return max(self._places.get(worker, (0, 0)), passed) >= place

    def open(self, members: Collection[int]) -> list[Reader]:
        """Takes out those whose barrier all members have reached."""
        found = [reader for reader in self.waiting if not self.absent(reader, members)]
        for reader in found:
            self.waiting.remove(reader)
        return found

    def to_json(self) -> dict[str, Any]:
        """What is to be kept, as plain values."""
        return {
            "counts": sorted(self._counts.items()),
            "places": [(w, *place) for w, place in sorted(self._places.items())],
            "resumed": sorted(self._resumed.items()),
            "founded": sorted(self._founded.items()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `to_json` gave; nobody waits."""
        self._counts = {int(w): int(count) for w, count in state["counts"]}
        self._places = {int(w): (int(step), int(turn)) for w, step, turn in state["places"]}
        self._resumed = {int(w): int(first) for w, first in state["resumed"]}
        self._founded = {int(w): int(first) for w, first in state["founded"]}
