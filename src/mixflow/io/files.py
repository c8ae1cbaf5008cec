"""Iterators over text files: comma-separated values, and LibSVM's sparse rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ndarray as nd
from ..arguments import check, checked, either, flag, path, several, text, whole
from ..errors import FormatError, ParamError, UnknownNameError, describe_unknown
from ..ndarray.csr import CSRNDArray, csr_matrix
from .base import DataBatch, DataDesc, DataIter, batch_dtype, check_batch
from .text import Cursor, Rows, SparseRows, Table, dense_parser, join, row_count, sparse_parser

Array = np.ndarray[Any, Any]
_NO_FILE = "NULL"
_DTYPES = ("float32", "int32", "int64")


class RowIter(DataIter):
    """Batches of rows that come from cursors; the rules at an epoch's end are those of MXNet.

    With `round_batch` the last batch is filled up from the beginning and the next epoch begins
    behind what was taken; else it keeps the rows of the batch before it. Either way `pad` counts
    them.

    Args:
        operator: name for errors.
        cursors: of the data, and of the labels or None.
        batch_size: rows per batch.
        round_batch: how the last batch is filled.
    """

    def __init__(
        self, operator: str, cursors: Sequence[Cursor | None], batch_size: int, round_batch: bool
    ) -> None:
        super().__init__(batch_size)
        self._operator = operator
        self._data, self._label = cursors
        self._round = round_batch
        self._taken = 0  # rows of this pass that were given
        self._overflow = 0
        self._last: list[Any] | None = None
        check_batch(operator, (*self.provide_data, *self.provide_label))
        for cursor in cursors:
            if cursor is not None and cursor.is_empty():
                raise FormatError(
                    f"[{operator}] expected at least one row in {cursor.table.path}, got none"
                )

    def _rewind(self) -> None:
        self._taken = 0
        for cursor in (self._data, self._label):
            if cursor is not None:
                cursor.rewind()

    def reset(self) -> None:
        """Next epoch; under `round_batch` behind the rows that the last batch took."""
        if not (self._round and self._overflow):
            self._rewind()
        self._overflow = 0

    def close(self) -> None:
        """Ends a thread that parses ahead; `reset` begins again."""
        self._overflow = 0
        self._rewind()

    def _take(self, count: int) -> list[tuple[Rows, Rows | None, Array]]:
        """Up to `count` rows with labels and numbers, in one piece or none."""
        parts = self._data.take(count) if self._data is not None else []
        if not parts:
            return []
        rows = join(parts)
        found = row_count(rows)
        labels = None
        if self._label is not None:
            pieces = self._label.take(found)
            if sum(map(row_count, pieces)) < found:
                raise FormatError(
                    f"[{self._operator}] expected a label for each row, got "
                    f"{self._taken + sum(map(row_count, pieces))} in {self._label.table.path}"
                )
            labels = join(pieces)
        numbers = np.arange(self._taken, self._taken + found)
        self._taken += found
        return [(rows, labels, numbers)]

    def next(self) -> DataBatch:
        """The next batch.

        Raises:
            StopIteration: the epoch is over.
            FormatError: a line of the file is none, or labels are missing.
        """
        if self._overflow:
            raise StopIteration
        pieces = self._take(self.batch_size)
        if not pieces:
            raise StopIteration
        pad = self.batch_size - len(pieces[0][2])
        left = pad if self._round else 0
        while left:
            self._rewind()
            pieces += self._take(left)
            left -= len(pieces[-1][2])
            self._overflow = pad
        rows, labels, numbers = (list(column) for column in zip(*pieces, strict=True))
        joined = [join(rows), None if self._label is None else join(labels), join(numbers)]
        if pad and not self._round:
            joined = [self._filled(new, i, pad) for i, new in enumerate(joined)]
        self._last = joined
        data, label = self._arrays(joined[0], joined[1])
        return DataBatch([data], [label], pad, joined[2])

    def _filled(self, new: Any, which: int, pad: int) -> Any:
        """Rows and, behind them, those of the batch before at the same places."""
        if new is None:
            return None
        blank = np.zeros((self.batch_size, *new.shape[1:]), new.dtype)
        old = blank if self._last is None else self._last[which]
        return np.concatenate([new, old[self.batch_size - pad :]])

    def _arrays(self, rows: Rows, labels: Rows | None) -> tuple[Any, Any]:
        """Data and label of a batch as arrays."""
        raise NotImplementedError


def _refuse(operator: str, unknown: dict[str, Any], known: Sequence[str]) -> None:
    for name in unknown:
        raise UnknownNameError(describe_unknown(operator, name, list(known)))


_SIDE = whole(1, 1 << 40)
_SIZES = either(_SIDE, several(_SIDE))
_KINDS: dict[str, Any] = {
    "batch_size": whole(1),
    "round_batch": flag,
    "prefetch_buffer": whole(0, 1 << 20),
    "data_name": text,
    "label_name": text,
}


def _shape(operator: str, name: str, shape: Any) -> tuple[int, ...]:
    found = check(operator, name, shape, _SIZES)
    if isinstance(found, int):
        return (found,)
    if not found:
        raise ParamError(f"[{operator}] expected positive sizes in {name}, got none")
    return tuple(found)


class CSVIter(RowIter):
    """Batches of a text file with one sample per line, numbers between commas.

    Args:
        data_csv: the file.
        data_shape: shape of a sample; a line has as many numbers.
        batch_size: samples per batch.
        label_csv: file of labels, line by line; without one labels are 0.
        label_shape: shape of a label; (1,) gives labels of shape (batch,).
        round_batch: fill the last batch from the beginning; the next epoch begins behind.
        prefetch_buffer: blocks that a thread parses ahead; 0 = no thread.
        ctx: kept for MXNet programs.
        dtype: 'float32', 'int32' or 'int64'.
        data_name, label_name: names.

    Raises:
        ParamError: a size below 1, or another dtype.
        FormatError: a line with another number of fields, or a field that is no number.
        UnknownNameError: another argument.
        FileError: a file cannot be read.
    """

    @checked(data_csv=path, label_csv=path, **_KINDS)
    def __init__(
        self,
        data_csv: str | os.PathLike[str],
        data_shape: Any,
        batch_size: int,
        label_csv: str | os.PathLike[str] = _NO_FILE,
        label_shape: Any = (1,),
        round_batch: bool = True,
        prefetch_buffer: int = 4,
        ctx: str = "cpu",
        dtype: Any = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **unknown: Any,
    ) -> None:
        _refuse("CSVIter", unknown, ("data_csv", "data_shape", "label_csv", "label_shape"))
        name = batch_dtype(dtype).name
        if name not in _DTYPES:
            raise ParamError(f"[CSVIter] expected a dtype of {', '.join(_DTYPES)}, got {name}")
        self._dtype = np.dtype(name)
        self._data_shape = _shape("CSVIter", "data_shape", data_shape)
        self._label_shape = _shape("CSVIter", "label_shape", label_shape)
        data = self._cursor(data_csv, self._data_shape, prefetch_buffer)
        label = None
        if label_csv != _NO_FILE:
            label = self._cursor(label_csv, self._label_shape, prefetch_buffer)
        if label is None or self._label_shape == (1,):
            self._label_shape = ()
        self._names = data_name, label_name
        super().__init__("CSVIter", (data, label), batch_size, round_batch)

    def _cursor(self, path: Any, shape: tuple[int, ...], ahead: int) -> Cursor:
        parse = dense_parser(int(np.prod(shape)), self._dtype)
        return Cursor(Table("CSVIter", os.fspath(path), parse), ahead)

    @property
    def provide_data(self) -> list[DataDesc]:
        """Name, shape and dtype of the data of a batch."""
        return [DataDesc(self._names[0], (self.batch_size, *self._data_shape), self._dtype)]

    @property
    def provide_label(self) -> list[DataDesc]:
        """Name, shape and dtype of the labels of a batch."""
        return [DataDesc(self._names[1], (self.batch_size, *self._label_shape), self._dtype)]

    def _arrays(self, rows: Rows, labels: Rows | None) -> tuple[Any, Any]:
        if labels is None:
            labels = np.zeros(len(rows), self._dtype)
        shaped = labels.reshape(len(rows), *self._label_shape)
        data = nd.array(rows.reshape(len(rows), *self._data_shape), dtype=self._dtype)
        return data, nd.array(shaped, dtype=self._dtype)


class LibSVMIter(RowIter):
    """Batches of a text file with one sample per line: `label index:value ...`, indices from 0.

    Args:
        data_libsvm: the file.
        data_shape: (columns,).
        batch_size: samples per batch.
        label_libsvm: file of the same form whose rows are the labels.
        label_shape: (columns,) of these, more than one; without the file (1,): the label of a line.
        num_parts, part_index: the share of the file's bytes, from line to line.
        round_batch: fill the last batch from the beginning; must be True, as in MXNet.
        prefetch_buffer: blocks that a thread parses ahead; 0 = no thread.
        ctx: kept for MXNet programs.
        dtype: 'float32'.
        data_name, label_name: names.

    Data of a batch are a `CSRNDArray` (batch, columns), labels an NDArray (batch,), or with
    `label_libsvm` a `CSRNDArray`.

    Raises:
        ParamError: sizes, parts or dtype that do not fit.
        FormatError: a line of another form, or an index beyond the columns.
        UnknownNameError: another argument.
        FileError: a file cannot be read.
    """

    @checked(data_libsvm=path, label_libsvm=path, num_parts=whole(1), part_index=whole(0), **_KINDS)
    def __init__(
        self,
        data_libsvm: str | os.PathLike[str],
        data_shape: Any,
        batch_size: int,
        label_libsvm: str | os.PathLike[str] = _NO_FILE,
        label_shape: Any = (1,),
        num_parts: int = 1,
        part_index: int = 0,
        round_batch: bool = True,
        prefetch_buffer: int = 4,
        ctx: str = "cpu",
        dtype: Any = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **unknown: Any,
    ) -> None:
        _refuse("LibSVMIter", unknown, ("data_libsvm", "data_shape", "label_libsvm", "num_parts"))
        if not round_batch:
            raise ParamError(
                "[LibSVMIter] expected round_batch=True, got False; MXNet has no other"
            )
        found = batch_dtype(dtype)
        if found != np.float32:
            raise ParamError(f"[LibSVMIter] expected the dtype float32, got {found.name}")
        self._columns = self._columns_of("data_shape", data_shape)
        self._label_columns = self._columns_of("label_shape", label_shape)
        has_file = label_libsvm != _NO_FILE
        if has_file != (self._label_columns > 1):
            raise ParamError(
                "[LibSVMIter] expected label_shape of more than one column with label_libsvm, and "
                f"(1,) without, got ({self._label_columns},) and {os.fspath(label_libsvm)!r}"
            )
        parse = sparse_parser(self._columns)
        table = Table("LibSVMIter", os.fspath(data_libsvm), parse, part_index, num_parts)
        label = None
        if has_file:
            label = self._label_cursor(label_libsvm, table, prefetch_buffer)
        self._names = data_name, label_name
        super().__init__("LibSVMIter", (Cursor(table, prefetch_buffer), label), batch_size, True)

    @staticmethod
    def _columns_of(name: str, shape: Any) -> int:
        found = _shape("LibSVMIter", name, shape)
        if len(found) != 1:
            raise ParamError(f"[LibSVMIter] expected one size in {name}, got {found}")
        return found[0]

    def _label_cursor(self, path: Any, data: Table, ahead: int) -> Cursor:
        """Labels from the row at which this part of the data begins."""
        before = Table("LibSVMIter", data.path, data.parse)
        before.end = data.begin
        skip = Cursor(before).count() if data.begin else 0
        parse = sparse_parser(self._label_columns)
        return Cursor(Table("LibSVMIter", os.fspath(path), parse), ahead, skip)

    @property
    def provide_data(self) -> list[DataDesc]:
        """Name, shape and dtype of the data of a batch."""
        return [DataDesc(self._names[0], (self.batch_size, self._columns), np.float32)]

    @property
    def provide_label(self) -> list[DataDesc]:
        """Name, shape and dtype of the labels of a batch."""
        below = (self._label_columns,) if self._label_columns > 1 else ()
        return [DataDesc(self._names[1], (self.batch_size, *below), np.float32)]

    def _arrays(self, rows: Rows, labels: Rows | None) -> tuple[Any, Any]:
        data = _csr(rows, self._columns)
        if labels is None:
            return data, nd.array(rows.labels, dtype=np.float32)
        return data, _csr(labels, self._label_columns)


def _csr(rows: SparseRows, columns: int) -> CSRNDArray:
    indptr = np.concatenate([[0], np.cumsum(rows.counts)])
    return csr_matrix((rows.values, rows.indices, indptr), (len(rows.labels), columns))
