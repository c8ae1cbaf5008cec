"""A set of steps, for workers whose steps mostly follow one another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

#: Intervals that are told apart; with more, the oldest gap counts as in the set.
KEPT = 32


class Steps:
    """Steps as intervals. A worker that was late leaves gaps: steps that it never pushes. Gaps of
    long ago are forgotten, so that the set stays small however often it was late."""

    __slots__ = ("_begins", "_ends")

    def __init__(self, intervals: Iterable[Iterable[int]] = ()) -> None:
        pairs = [(int(begin), int(end)) for begin, end in intervals]
        self._begins = [begin for begin, _ in pairs]
        self._ends = [end for _, end in pairs]

    def __contains__(self, step: int) -> bool:
        at = bisect_right(self._begins, step) - 1
        return at >= 0 and step < self._ends[at]

    def add(self, step: int) -> None:
        """Adds a step."""
        if step in self:
            return
        at = bisect_right(self._begins, step)
        joins_left = at > 0 and self._ends[at - 1] == step
        joins_right = at < len(self._begins) and self._begins[at] == step + 1
        if joins_left and joins_right:
            del self._begins[at], self._ends[at - 1]
        elif joins_left:
            self._ends[at - 1] = step + 1
        elif joins_right:
            self._begins[at] = step
        else:
            self._begins.insert(at, step)
            self._ends.insert(at, step + 1)
        if len(self._begins) > KEPT:
            del self._begins[1], self._ends[0]

    def to_json(self) -> list[tuple[int, int]]:
        """Its intervals, ends excluded."""
        return list(zip(self._begins, self._ends, strict=True))
