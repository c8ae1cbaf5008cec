"""Compressed sparse rows: batches of sparse data.

The parts are known when a matrix is made and never change. So what makes another matrix of them is
computed at once (and waits for a dense operand); products, whose results are not csr, are pushed.
`Module` takes a batch dense.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import dtype as dtypes
from ..context import Context, current_context
from ..errors import DTypeError, ShapeError
from .creation import array as _dense
from .ndarray import NDArray
from .row_sparse import BaseSparseNDArray
from .rows import Array, Rows, sum_equal, wide

#: Terms of a product that are held at a time.
_BLOCK = 1 << 20


class Lines(NamedTuple):
    """Stored elements grouped by row (or, of the transposed matrix, by column).

    Only lines that have any are listed: `numbers` (lines,), `starts` (lines,) where each begins.
    `values` (stored,) and `partners` (stored,): the elements, and their places on the other axis.
    """

    numbers: Array
    starts: Array
    values: Array
    partners: Array

    def times(self, other: Array) -> Rows:
        """The product with a dense matrix (places on the other axis, width)."""
        width = max(other.shape[1], 1)
        made = np.empty((len(self.numbers), other.shape[1]), wide(other.dtype))
        ends = np.append(self.starts[1:], len(self.values))
        first = 0
        while first < len(self.numbers):
            room = self.starts[first] + _BLOCK // width
            last = max(first + 1, int(np.searchsorted(ends, room, side="right")))
            part = slice(self.starts[first], ends[last - 1])
            terms = other[self.partners[part]] * self.values[part, None].astype(made.dtype)
            starts = self.starts[first:last] - self.starts[first]
            made[first:last] = np.add.reduceat(terms, starts, axis=0)
            first = last
        return Rows(self.numbers, made.astype(other.dtype, copy=False))


class CSRNDArray(BaseSparseNDArray):
    """A matrix of which each row lists its elements that are stored.

    Made by `csr_matrix`. Its parts do not change.

    Attributes:
        shape: (rows, columns).
        stype: 'csr'.
        ctx, context: where a dense copy goes.
        parts: NumPy arrays (data, indices, indptr); not to be changed.
    """

    stype = "csr"
    shape: tuple[int, int]

    def __init__(
        self, data: Array, indices: Array, indptr: Array, shape: tuple[int, int], ctx: Context
    ) -> None:
        self.parts = (data, indices, indptr)
        self.shape = shape
        self.context = ctx
        self._columns: Lines | None = None

    @property
    def dtype(self) -> Any:
        """Type of the elements."""
        return self.parts[0].dtype.type

    @property
    def data(self) -> NDArray:
        """(stored,) values, row after row: a copy."""
        return _dense(self.parts[0], ctx=self.ctx, dtype=self.parts[0].dtype)

    @property
    def indices(self) -> NDArray:
        """(stored,) int64 columns: a copy."""
        return _dense(self.parts[1], ctx=self.ctx, dtype=np.int64)

    @property
    def indptr(self) -> NDArray:
        """(rows + 1,) int64: where each row begins in `data` and `indices`; a copy."""
        return _dense(self.parts[2], ctx=self.ctx, dtype=np.int64)

    def places(self) -> tuple[Array, Array]:
        """Row and column of each stored element."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.parts[2])), self.parts[1]

    def lines(self) -> Lines:
        """The stored elements by row."""
        data, indices, indptr = self.parts
        numbers = np.flatnonzero(np.diff(indptr))
        return Lines(numbers, indptr[numbers], data, indices)

    def columns(self) -> Lines:
        """The stored elements by column; kept, since a matrix is multiplied often."""
        if self._columns is None:
            rows, columns = self.places()
            order = np.argsort(columns, kind="stable")
            numbers, starts = np.unique(columns[order], return_index=True)
            self._columns = Lines(numbers, starts, self.parts[0][order], rows[order])
        return self._columns

    def with_data(self, data: Array) -> CSRNDArray:
        """Other values at the same places."""
        return CSRNDArray(data, *self.parts[1:], self.shape, self.context)

    def keyed(self) -> Rows:
        """The stored elements by row * columns + column, each place once."""
        rows, columns = self.places()
        return sum_equal(rows * max(self.shape[1], 1) + columns, self.parts[0])

    def from_keyed(self, elements: Rows) -> CSRNDArray:
        """A matrix of this shape with these elements."""
        rows, columns = np.divmod(elements.numbers, max(self.shape[1], 1))
        indptr = _starts(rows, self.shape[0])
        return CSRNDArray(elements.values, columns, indptr, self.shape, self.context)

    def asnumpy(self) -> Array:
        """A dense NumPy array; of a column that stands twice in a row the last value counts."""
        found = np.zeros(self.shape, self.parts[0].dtype)
        found[self.places()] = self.parts[0]
        return found

    def asscipy(self) -> Any:
        """A `scipy.sparse.csr_matrix` with copies of the parts."""
        from .. import extras

        sparse = extras.load("scipy.sparse", "asscipy")
        parts = tuple(part.copy() for part in self.parts)
        return sparse.csr_matrix(parts, shape=self.shape, dtype=self.parts[0].dtype)

    def astype(self, dtype: Any, copy: bool = True) -> CSRNDArray:
        """The elements converted to `dtype`; itself if nothing changes and `copy` is false."""
        wanted = dtypes.canonical(dtype)
        if wanted == self.parts[0].dtype and not copy:
            return self
        return self.with_data(self.parts[0].astype(wanted))

    def tostype(self, stype: str) -> Any:
        """Itself for 'csr', a dense NDArray for 'default'.

        Raises:
            DTypeError: another storage type.
        """
        if stype == "csr":
            return self
        if stype == "default":
            return _dense(self.asnumpy(), ctx=self.ctx, dtype=self.parts[0].dtype)
        raise DTypeError(f"[tostype] expected 'default' or 'csr', got {stype!r}")

    def copyto(self, other: Any) -> Any:
        """Writes the dense values into another array, or copies to a context."""
        if isinstance(other, Context):
            return CSRNDArray(*self.parts, self.shape, other)
        return self.todense().copyto(other)

    def check_format(self, full_check: bool = True) -> None:
        """Checks the parts again.

        Raises:
            ShapeError: parts that do not fit together or into the shape.
        """
        _check(*self.parts, self.shape)

    def __reduce__(self) -> Any:
        return _restored, (*self.parts, self.shape, self.context.key)

    def take_rows(self, rows: Array) -> CSRNDArray:
        """The rows of these numbers, in their order."""
        counts = np.diff(self.parts[2])[rows]
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        starts = np.repeat(self.parts[2][:-1][rows] - indptr[:-1], counts)
        where = np.arange(indptr[-1]) + starts
        shape = (len(rows), self.shape[1])
        return CSRNDArray(self.parts[0][where], self.parts[1][where], indptr, shape, self.ctx)

    def __getitem__(self, key: Any) -> CSRNDArray:
        """Rows by number or slice.

        Raises:
            IndexError: another key, or no such row.
        """
        if isinstance(key, (int, np.integer)):
            row = range(self.shape[0])[int(key)]
            key = slice(row, row + 1)
        if not isinstance(key, slice):
            raise IndexError(f"[CSRNDArray] expected a row or a slice of rows, got {key!r}")
        return self.take_rows(np.arange(self.shape[0])[key])


def csr_matrix(
    arg1: Any, shape: tuple[int, int] | None = None, ctx: Context | None = None, dtype: Any = None
) -> CSRNDArray:
    """A matrix of compressed rows.

    Args:
        arg1: (data, indices, indptr); (data, (rows, columns)), where values of the same place add
            up; a shape, for a matrix of zeros; a SciPy sparse matrix; or a dense matrix.
        shape: (rows, columns); by default the fewest columns that hold the indices.
        ctx: where its dense copies go.
        dtype: of the elements; by default that of the source, float64 as float32.

    Raises:
        ShapeError: parts that do not fit together or into the shape.
    """
    if isinstance(arg1, CSRNDArray):
        arg1, shape = arg1.parts, shape or arg1.shape
    if hasattr(arg1, "tocsr"):
        arg1 = arg1.tocsr()
        arg1, shape = (arg1.data, arg1.indices, arg1.indptr), shape or arg1.shape
    if isinstance(arg1, tuple) and len(arg1) == 2:
        arg1, shape = _from_pair(*arg1, shape)
    if not isinstance(arg1, tuple):
        arg1, shape = _from_dense(arg1), shape or np.shape(arg1)
    data, indices, indptr = (np.asarray(part) for part in arg1)
    if dtype is None:
        dtype = np.float32 if data.dtype == np.float64 else data.dtype
    data = np.ascontiguousarray(data, dtype)
    indices, indptr = indices.astype(np.int64), indptr.astype(np.int64)
    if shape is None:
        shape = (max(len(indptr) - 1, 0), int(indices.max(initial=-1)) + 1)
    _check(data, indices, indptr, shape)
    return CSRNDArray(
        data, indices, indptr, (int(shape[0]), int(shape[1])), ctx or current_context()
    )


def _from_pair(first: Any, second: Any, shape: Any) -> tuple[Any, Any]:
    """Parts and shape of a shape alone, or of (data, (rows, columns))."""
    if isinstance(first, (int, np.integer)):
        return (np.empty(0, np.float32), np.empty(0), np.zeros(int(first) + 1)), (first, second)
    data, (rows, columns) = np.asarray(first), (np.asarray(p).astype(np.int64) for p in second)
    if not (data.ndim == 1 and data.shape == rows.shape == columns.shape):
        raise ShapeError(
            "[csr_matrix] expected as many rows and columns as data, got "
            f"{rows.shape}, {columns.shape} and {data.shape}"
        )
    if shape is None:
        shape = (int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1)
    for axis, places in enumerate((rows, columns)):
        if len(places) and not (places.min() >= 0 and places.max() < shape[axis]):
            raise ShapeError(
                f"[csr_matrix] expected places within {shape}, got {places.min()} to "
                f"{places.max()} on axis {axis}"
            )
    summed = sum_equal(rows * shape[1] + columns, data)
    rows, columns = np.divmod(summed.numbers, max(shape[1], 1))
    return (summed.values, columns, _starts(rows, shape[0])), shape


def _starts(rows: Array, count: int) -> Array:
    """Where each row begins, of the sorted rows of all elements."""
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]).astype(np.int64)


def _from_dense(source: Any) -> tuple[Array, Array, Array]:
    dense = np.asarray(source)
    if dense.ndim != 2:
        raise ShapeError(f"[csr_matrix] expected a matrix, got the shape {dense.shape}")
    rows, columns = np.nonzero(dense)
    return dense[rows, columns], columns, _starts(rows, dense.shape[0])


def _check(data: Array, indices: Array, indptr: Array, shape: tuple[int, int]) -> None:
    one_axis = data.ndim == indices.ndim == indptr.ndim == 1
    if not one_axis or len(data) != len(indices) or len(indptr) != shape[0] + 1:
        raise ShapeError(
            f"[csr_matrix] expected as many data as indices and {shape[0] + 1} row starts, got "
            f"{data.shape}, {indices.shape} and {indptr.shape}"
        )
    if indptr[0] != 0 or indptr[-1] != len(data) or (np.diff(indptr) < 0).any():
        raise ShapeError("[csr_matrix] expected row starts that rise from 0 to the number of data")
    if len(indices) and not (indices.min() >= 0 and indices.max() < shape[1]):
        raise ShapeError(
            f"[csr_matrix] expected columns from 0 to {shape[1] - 1}, got {indices.min()} to "
            f"{indices.max()}"
        )


def _restored(data: Array, indices: Array, indptr: Array, shape: Any, ctx: Any) -> CSRNDArray:
    return csr_matrix((data, indices, indptr), shape, Context.from_key(ctx), data.dtype)
