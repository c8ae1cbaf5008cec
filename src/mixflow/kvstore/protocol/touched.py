"""Which rows of a slice have changed since its state was last kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .messages import Array


class Touched(NamedTuple):
    """Rows of `width` values by their rising numbers (int64); all others are as they were."""

    width: int
    numbers: Array

    @property
    def size(self) -> int:
        """Values in these rows."""
        return self.width * len(self.numbers)

    def of(self, values: Array) -> Array:
        """A flat copy of these rows of a flat array."""
        found: Array = values.reshape(-1, self.width)[self.numbers]
        return found.reshape(-1)

    def fits(self, given: int, whole: int, slice_size: int) -> bool:
        """Whether an array of `given` values is one of `whole` values in full, or the rows of one
        that is as long as the slice."""
        if given == whole:
            return True
        if whole != slice_size or given != self.size or whole % self.width:
            return False
        numbers = self.numbers
        return not len(numbers) or 0 <= numbers[0] <= numbers[-1] < whole // self.width

    def put(self, target: Array, given: Array) -> None:
        """Writes an array in full, or its rows, to where it is kept (both flat)."""
        if given.size == target.size:
            target[...] = given
        else:
            target.reshape(-1, self.width)[self.numbers] = given.reshape(-1, self.width)


#: Nothing but the progress has changed.
NOTHING = Touched(1, np.empty(0, np.int64))


def union(first: Touched | None, second: Touched | None) -> Touched | None:
    """What was touched by either; None: anything."""
    if first is None or second is None:
        return None
    if not len(first.numbers):
        return second
    if not len(second.numbers):
        return first
    if first.width != second.width:
        return None
    return Touched(first.width, np.union1d(first.numbers, second.numbers))


def patch(
    places: Mapping[str, Array], touched: Touched, given: Mapping[str, Array], size: int
) -> bool:
    """Writes arrays, in full or as rows, to where those of the same names are kept; `size` is that
    of the slice. False, with nothing changed, where they do not fit."""
    if places.keys() != given.keys():
        return False
    for name, place in places.items():
        new = given[name]
        if new.dtype != place.dtype or not touched.fits(new.size, place.size, size):
            return False
    for name, place in places.items():
        touched.put(place, given[name])
    return True
