"""Sums of gradients that lie where their senders keep them: nothing is copied to be added later."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np

from ...errors import MixflowError
from .foreseen import Foreseen
from .messages import Array
from .row_gradients import RowGradient, add, added, replace
from .touched import Touched

#: Bytes from which a second thread is worth its start.
PARALLEL_BYTES = 2 << 20


class Arena(Protocol):
    """Where a shard keeps its values."""

    def empty(self, size: int, dtype: Any) -> Array:
        """A new flat array with any content."""

    def busy(self, array: Array) -> bool:
        """Whether somebody outside still reads it: it must not be written then."""


class PlainArena:
    """Values in this process's memory, which nobody else reads."""

    def empty(self, size: int, dtype: Any) -> Array:
        """A new flat array."""
        return np.empty(size, dtype)

    def busy(self, array: Array) -> bool:
        """Never."""
        return False


def copied(arena: Arena, values: Array) -> Array:
    """A flat copy of some values in an arena."""
    made = arena.empty(values.size, values.dtype)
    made[...] = values.reshape(-1)
    return made


def _add(a: Array, b: Array, out: Array) -> None:
    """The sum of two arrays; of big ones, each half on a thread of its own."""
    if out.nbytes < PARALLEL_BYTES:
        np.add(a, b, out=out, casting="same_kind")
        return
    half = out.size // 2
    other = threading.Thread(target=np.add, args=(a[:half], b[:half], out[:half]))
    other.start()
    np.add(a[half:], b[half:], out=out[half:])
    other.join()


class Sum:
    """The sum of flat arrays of one size, in `dtype`; some may be `RowGradient`.

    The last one added is only held until the next comes or the sum is asked for: whoever sent it
    keeps it as it is until it is confirmed. So two gradients are summed in one pass. Rows are
    summed apart.
    """

    __slots__ = ("_dtype", "_last", "_own", "_rows", "_total")

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._total: Array | None = None
        self._last: Array | None = None
        self._own = False
        self._rows: RowGradient | None = None

    def add(self, values: Array | RowGradient) -> None:
        """Adds a gradient."""
        if isinstance(values, RowGradient):
            self._rows = added(self._rows, values, self._dtype)
            return
        if self._last is not None:
            self._fold()
        self._last = np.asarray(values, dtype=self._dtype)

    def _fold(self) -> None:
        last, self._last = self._last, None
        assert last is not None
        if self._total is None:
            self._total = last
        elif self._own:
            self._total += last
        else:
            self._total, self._own = np.add(self._total, last, dtype=self._dtype), True

    def into(self, target: Array) -> None:
        """Writes the sum into an array; it is rounded to its dtype once."""
        if self._rows is None and self._total is not None and self._last is not None:
            _add(self._total, self._last, target)
        else:
            replace(target, self.result())

    def result(self) -> Array | RowGradient:
        """The sum, as rows if nothing else was added; it may be one of the arrays that were."""
        if self._last is not None:
            self._fold()
        if self._total is None:
            assert self._rows is not None
            return self._rows
        if self._rows is not None:
            self._total, self._own = np.array(self._total), True
            self._rows.add_to(self._total)
            self._rows = None
        return self._total


class Assign:
    """No optimizer: a round's sum replaces the value, as in a store without an updater."""

    replaces = True

    def apply(self, key: str, value: Array, merged: Any, count: int) -> bool:
        """Copies the merged gradient over the value."""
        replace(value, merged)
        return False

    def configure(self, setting: str, value: dict[str, Any]) -> None:
        """Takes no setting."""
        raise MixflowError(f"[kvstore server] expected an applier with settings, got {setting!r}")

    def states(self, key: str, touched: Touched | None = None) -> dict[str, Array]:
        """Keeps nothing."""
        return {}

    def restore(self, key: str, states: dict[str, Array]) -> None:
        """Keeps nothing."""

    def foresee(self, key: str, value: Array) -> Foreseen | None:
        """Every round, where the sum replaces the value."""
        return Foreseen() if self.replaces else None

    def followed(self, key: str, rounds: int) -> None:
        """Counts nothing."""


class Add(Assign):
    """Additive values: a table's increments."""

    replaces = False

    def apply(self, key: str, value: Array, merged: Any, count: int) -> bool:
        """Adds the merged increments to the value."""
        add(value, merged)
        return isinstance(merged, RowGradient)
