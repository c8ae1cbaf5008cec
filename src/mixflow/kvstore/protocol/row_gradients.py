"""Some rows of a slice on their way: as pushed gradients, as sums at a server, as asked-for values.

The hazard: a batch touches a hundred rows of a table of a million, and nothing on the way may cost
a pass over the million. So a gradient travels as row numbers and values in one buffer of bytes
(code 'rows'), sums of a round are made over the rows that came, and the optimizer changes those
alone. Slices of such keys begin at whole rows; row numbers count from the slice's first row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import FormatError, MixflowError
from ...ndarray import rows as _rows
from ...ndarray.rows import Rows
from .messages import Array, Gradient
from .sharding import Slice

CODE = "rows"


@dataclass(frozen=True, slots=True)
class RowGradient:
    """A slice's gradient of which most rows are 0: the others, and its whole number of values."""

    rows: Rows
    size: int

    @property
    def width(self) -> int:
        """Values per row."""
        return int(self.rows.values.shape[1])

    def replace(self, value: Array) -> None:
        """Makes a flat value this gradient."""
        value[...] = 0
        value.reshape(-1, self.width)[self.rows.numbers] = self.rows.values

    def add_to(self, value: Array) -> None:
        """Adds the gradient to a flat value."""
        value.reshape(-1, self.width)[self.rows.numbers] += self.rows.values


def pack(rows: Rows) -> Gradient:
    """A gradient message of some rows (n, width); its parts are set by the client."""
    count, width = rows.values.shape
    content = np.empty(8 * count + rows.values.nbytes, np.uint8)
    content[: 8 * count] = rows.numbers.astype("<i8").view(np.uint8)
    content[8 * count :] = np.ascontiguousarray(rows.values).reshape(-1).view(np.uint8)
    return Gradient((), content, f"{CODE}:{count}:{width}:{rows.values.dtype.str}")


def unpack(gradient: Gradient, size: int) -> RowGradient:
    """What `pack` made, for a slice of `size` values.

    Raises:
        FormatError: bytes that do not fit the code, or rows outside of the slice.
    """
    try:
        _, count, width, name = gradient.code.split(":")
        n, w, dtype = int(count), int(width), np.dtype(name)
        content = np.ascontiguousarray(gradient.values, np.uint8)
        fits = n >= 0 < w and dtype.kind in "fiu" and content.size == n * (8 + w * dtype.itemsize)
    except (ValueError, TypeError):
        fits = False
    if not fits or size % w:
        raise FormatError(
            f"[kvstore] expected rows of a slice of {size} values, got {gradient.values.size} "
            f"bytes of {gradient.code!r}"
        )
    numbers = np.frombuffer(content[: 8 * n].tobytes(), "<i8").astype(np.int64)
    values = np.frombuffer(content[8 * n :].tobytes(), dtype).reshape(n, w)
    if n and not (numbers[0] >= 0 and (np.diff(numbers) > 0).all() and numbers[-1] < size // w):
        raise FormatError(
            f"[kvstore] expected rising row numbers from 0 to {size // w - 1}, got {numbers[0]} to "
            f"{numbers[-1]}"
        )
    return RowGradient(Rows(numbers, values), size)


def added(total: RowGradient | None, values: RowGradient, dtype: Any) -> RowGradient:
    """The sum of a round's rows so far (None at first) and of some more, in `dtype`."""
    if total is None:
        rows = Rows(values.rows.numbers, values.rows.values.astype(dtype))
    else:
        rows = _rows.add([total.rows, values.rows])
    return RowGradient(rows, values.size)


def replace(value: Array, merged: Any) -> None:
    """Makes a flat value a merged gradient."""
    if isinstance(merged, RowGradient):
        merged.replace(value)
    else:
        value[...] = merged


def add(value: Array, merged: Any) -> None:
    """Adds a merged gradient to a flat value."""
    if isinstance(merged, RowGradient):
        merged.add_to(value)
    else:
        value += merged


# -- a worker's side


def check_slices(slices: Sequence[Slice], width: int) -> None:
    """A key's slices begin at rows.

    Raises:
        MixflowError: one does not: another worker made the key dense.
    """
    for piece in slices:
        if piece.begin % width or piece.end % width:
            raise MixflowError(
                f"[kvstore] expected slices of whole rows of {width} values, got '{piece.name}' "
                f"from {piece.begin} to {piece.end}: initialise the key as row_sparse everywhere"
            )


def split(slices: Sequence[Slice], width: int, numbers: Array) -> dict[str, slice]:
    """Which of some sorted row numbers of the key lie in which of its slices."""
    found = {}
    for piece in slices:
        bounds = np.searchsorted(numbers, (piece.begin // width, piece.end // width))
        found[piece.name] = slice(*map(int, bounds))
    return found


def gradients(slices: Sequence[Slice], width: int, rows: Rows) -> dict[str, Gradient]:
    """Gradients by slice; slices without a row get an empty one, which counts like any other."""
    values = rows.values.reshape(len(rows.numbers), width)
    parts = split(slices, width, rows.numbers)
    return {
        piece.name: pack(
            Rows(
                rows.numbers[parts[piece.name]] - piece.begin // width,
                values[parts[piece.name]],
            )
        )
        for piece in slices
    }


def requests(slices: Sequence[Slice], width: int, numbers: Array) -> dict[str, Array]:
    """What a `Pull` asks for by slice: width, then row numbers; slices without a row are absent."""
    parts = split(slices, width, numbers)
    found = {}
    for piece in slices:
        own = numbers[parts[piece.name]] - piece.begin // width
        if len(own):
            found[piece.name] = np.concatenate([[width], own]).astype(np.int64)
    return found


def joined(slices: Sequence[Slice], asked: Array, shape: tuple[int, ...], dtype: Any) -> Any:
    """A function from answers by slice to the `Rows` that were asked for, in order."""

    def make(values: Mapping[str, Array]) -> Rows:
        parts = [values[piece.name] for piece in slices if piece.name in values]
        flat = np.concatenate(parts) if parts else np.empty(0, dtype)
        return Rows(asked, flat.reshape(len(asked), *shape[1:]))

    return make


# -- a server's side


def chosen(value: Array, request: Array | None) -> Array:
    """The values that a read asked for: all of a flat slice, or the rows of a `Pull`.

    Raises:
        MixflowError: rows outside of the slice.
    """
    if request is None:
        return value
    width, numbers = int(request[0]) if request.size else 0, request[1:]
    inside = width > 0 and value.size % width == 0
    if not inside or (
        numbers.size and not 0 <= numbers.min() <= numbers.max() < value.size // width
    ):
        raise MixflowError(
            f"[kvstore server] expected rows of a slice of {value.size} values, got {request[:8]}"
        )
    return np.ascontiguousarray(value.reshape(-1, width)[numbers]).reshape(-1)
