"""Compressed sparse rows: storage for batches of sparse data, without operators on it.

What computes with a batch takes it dense: `tostype('default')`, which `Module` does by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import Context, current_context
from ..errors import DTypeError, ShapeError
from .creation import array as _dense
from .ndarray import NDArray

Array = np.ndarray[Any, Any]


class CSRNDArray:
    """A matrix of which each row lists its elements that are stored.

    Made by `csr_matrix`. Its parts do not change.

    Attributes:
        shape: (rows, columns).
        dtype: of the elements.
        stype: 'csr'.
        ctx, context: where a dense copy goes.
    """

    stype = "csr"

    def __init__(
        self, data: Array, indices: Array, indptr: Array, shape: tuple[int, int], ctx: Context
    ) -> None:
        self._data, self._indices, self._indptr = data, indices, indptr
        self.shape = shape
        self.ctx = self.context = ctx

    @property
    def dtype(self) -> Any:
        """Type of the elements."""
        return self._data.dtype.type

    @property
    def size(self) -> int:
        """Elements, stored or not."""
        return self.shape[0] * self.shape[1]

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def data(self) -> NDArray:
        """(stored,) values, row after row."""
        return _dense(self._data, ctx=self.ctx, dtype=self._data.dtype)

    @property
    def indices(self) -> NDArray:
        """(stored,) int64 columns."""
        return _dense(self._indices, ctx=self.ctx, dtype=np.int64)

    @property
    def indptr(self) -> NDArray:
        """(rows + 1,) int64: where each row begins in `data` and `indices`."""
        return _dense(self._indptr, ctx=self.ctx, dtype=np.int64)

    def asnumpy(self) -> Array:
        """A dense NumPy array; of a column that stands twice in a row the last value counts."""
        found = np.zeros(self.shape, self._data.dtype)
        rows = np.repeat(np.arange(self.shape[0]), np.diff(self._indptr))
        found[rows, self._indices] = self._data
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self.asnumpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def asscipy(self) -> Any:
        """A `scipy.sparse.csr_matrix` with copies of the parts."""
        from .. import extras

        sparse = extras.load("scipy.sparse", "asscipy")
        parts = (self._data.copy(), self._indices.copy(), self._indptr.copy())
        return sparse.csr_matrix(parts, shape=self.shape, dtype=self._data.dtype)

    def tostype(self, stype: str) -> Any:
        """Itself for 'csr', a dense NDArray for 'default'.

        Raises:
            DTypeError: another storage type.
        """
        if stype == "csr":
            return self
        if stype == "default":
            return _dense(self.asnumpy(), ctx=self.ctx, dtype=self._data.dtype)
        raise DTypeError(f"[tostype] expected 'default' or 'csr', got {stype!r}")

    def todense(self) -> NDArray:
        """A dense NDArray."""
        found: NDArray = self.tostype("default")
        return found

    def copyto(self, other: Any) -> Any:
        """Writes the dense values into another array."""
        return self.todense().copyto(other)

    def take_rows(self, rows: Array) -> CSRNDArray:
        """The rows of these numbers, in their order."""
        counts = np.diff(self._indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        starts = np.repeat(self._indptr[:-1][rows] - indptr[:-1], counts)
        where = np.arange(indptr[-1]) + starts
        shape = (len(rows), self.shape[1])
        return CSRNDArray(self._data[where], self._indices[where], indptr, shape, self.ctx)

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

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"\n<CSRNDArray {'x'.join(map(str, self.shape))} @{self.ctx}>"


def csr_matrix(
    arg1: Any, shape: tuple[int, int] | None = None, ctx: Context | None = None, dtype: Any = None
) -> CSRNDArray:
    """A matrix of compressed rows.

    Args:
        arg1: (data, indices, indptr), a SciPy sparse matrix, or a dense matrix.
        shape: (rows, columns); by default the fewest columns that hold the indices.
        ctx: where its dense copies go.
        dtype: of the elements; by default that of the source, float64 as float32.

    Raises:
        ShapeError: parts that do not fit together or into the shape.
    """
    if isinstance(arg1, CSRNDArray):
        arg1, shape = (arg1._data, arg1._indices, arg1._indptr), shape or arg1.shape
    if hasattr(arg1, "tocsr"):
        arg1 = arg1.tocsr()
        arg1, shape = (arg1.data, arg1.indices, arg1.indptr), shape or arg1.shape
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


def _from_dense(source: Any) -> tuple[Array, Array, Array]:
    dense = np.asarray(source)
    if dense.ndim != 2:
        raise ShapeError(f"[csr_matrix] expected a matrix, got the shape {dense.shape}")
    rows, columns = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=dense.shape[0]))])
    return dense[rows, columns], columns, indptr


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
