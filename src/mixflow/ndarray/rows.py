"""Some rows of an array, in NumPy: what tasks on row-sparse arrays compute with.

Row numbers are int64, each once, rising. Values have one row per number. Sums are made in the
values' dtype, 16-bit ones in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import ShapeError

Array = np.ndarray[Any, Any]


class Rows(NamedTuple):
    """Row numbers (n,) and their values (n, ...)."""

    numbers: Array
    values: Array


def none_of(shape: tuple[int, ...], dtype: Any) -> Rows:
    """No row at all of an array of this shape."""
    return Rows(np.empty(0, np.int64), np.empty((0, *shape[1:]), dtype))


def wide(dtype: Any) -> np.dtype[Any]:
    """The dtype that sums are made in."""
    found = np.dtype(dtype)
    return np.dtype(np.float32) if found.itemsize == 2 and found.kind not in "iu" else found


def checked(numbers: Any, values: Array, shape: tuple[int, ...]) -> Rows:
    """Rows given by a user, sorted by number.

    Raises:
        ShapeError: parts that do not fit together or into the shape, or a row given twice.
    """
    numbers = np.asarray(numbers)
    if numbers.ndim != 1 or values.shape != (len(numbers), *shape[1:]):
        raise ShapeError(
            f"[row_sparse_array] expected rows of shape {shape[1:]} and as many row numbers, got "
            f"{values.shape} and {numbers.shape}"
        )
    numbers = numbers.astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    if (np.diff(order) != 1).any():
        numbers, values = numbers[order], values[order]
    within(numbers, shape, "row_sparse_array")
    twice = numbers[1:][np.diff(numbers) == 0]
    if len(twice):
        raise ShapeError(f"[row_sparse_array] expected each row once, got {twice[0]} twice")
    return Rows(numbers, values)


def within(numbers: Array, shape: tuple[int, ...], who: str) -> None:
    """Checks sorted row numbers.

    Raises:
        ShapeError: one outside of the array.
    """
    if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < shape[0]):
        raise ShapeError(
            f"[{who}] expected row numbers from 0 to {shape[0] - 1}, got {numbers[0]} to "
            f"{numbers[-1]}"
        )


def wanted(numbers: Any) -> Array:
    """Row numbers as asked for (any shape and order, repeated) as sorted different ones."""
    found = np.asarray(numbers).reshape(-1).astype(np.int64)
    rising = (found[1:] > found[:-1]).all()  # as they often come: `unique` costs far more
    return found if rising else np.unique(found)


def from_dense(values: Array) -> Rows:
    """The rows that are not all 0."""
    flat = values.reshape(len(values), -1)
    numbers = np.flatnonzero((flat != 0).any(axis=1)).astype(np.int64)
    return Rows(numbers, values[numbers])


def to_dense(rows: Rows, shape: tuple[int, ...]) -> Array:
    """The whole array."""
    made = np.zeros(shape, rows.values.dtype)
    made[rows.numbers] = rows.values
    return made


def take(rows: Rows, numbers: Array, height: int = -1) -> Array:
    """Values of these rows, 0 where one is not stored; `height` of the whole array if known."""
    if len(rows.numbers) == height:
        return rows.values[numbers]
    if len(rows.numbers) == 0:
        return np.zeros((len(numbers), *rows.values.shape[1:]), rows.values.dtype)
    at = np.searchsorted(rows.numbers, numbers)
    at[at == len(rows.numbers)] = 0
    found = rows.values[at]
    found[rows.numbers[at] != numbers] = 0
    return found


def add(parts: Sequence[Rows], signs: Sequence[int] | None = None) -> Rows:
    """The sum of several, over the union of their rows."""
    numbers = np.unique(np.concatenate([part.numbers for part in parts]))
    dtype = parts[0].values.dtype
    total = np.zeros((len(numbers), *parts[0].values.shape[1:]), wide(dtype))
    for part, sign in zip(parts, signs or [1] * len(parts), strict=True):
        at = np.searchsorted(numbers, part.numbers)
        if sign > 0:
            total[at] += part.values
        else:
            total[at] -= part.values
    return Rows(numbers, total.astype(dtype, copy=False))


def multiply(left: Rows, right: Rows) -> Rows:
    """The product, over the rows that both have."""
    numbers = np.intersect1d(left.numbers, right.numbers, assume_unique=True)
    return Rows(numbers, take(left, numbers) * take(right, numbers))


def positions(rows: Rows, numbers: Array, height: int) -> Array:
    """Where stored rows of an array of `height` rows lie among the values."""
    full = len(rows.numbers) == height  # then each lies at its own number
    return numbers if full else np.searchsorted(rows.numbers, numbers)


def with_rows(rows: Rows, numbers: Array, height: int) -> Rows:
    """The same with rows of 0 for those of `numbers` that are not stored."""
    at = positions(rows, numbers, height)
    if at is numbers:
        return rows
    known = at < len(rows.numbers)
    if known.all() and (rows.numbers[at] == numbers).all():
        return rows
    union = np.union1d(rows.numbers, numbers)
    return Rows(union, take(rows, union))


def sum_equal(numbers: Array, values: Array) -> Rows:
    """Rows from numbers that may repeat, in any order: values of the same row are added up."""
    if len(numbers) == 0:
        return Rows(numbers.astype(np.int64), values)
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order].astype(np.int64)
    starts = np.flatnonzero(np.concatenate([[True], np.diff(ordered) != 0]))
    summed = np.add.reduceat(values[order].astype(wide(values.dtype), copy=False), starts, axis=0)
    return Rows(ordered[starts], summed.astype(values.dtype, copy=False))
