"""Iterators over arrays in memory, dense or sparse, and over datasets that are read by slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import ndarray as nd
from .. import random as _random
from ..arguments import checked, choice, flag, text, whole
from ..errors import DTypeError, FormatError, ShapeError
from ..ndarray import NDArray
from ..ndarray.csr import CSRNDArray, csr_matrix
from .base import DataBatch, DataDesc, DataIter, check_batch

Array = np.ndarray[Any, Any]


class _Source:
    """One named array, of which samples are taken by number."""

    def __init__(self, name: str, value: Any, axis: int) -> None:
        self.name = name
        self.value, self.dtype = _held(name, value)
        self.axis = axis if axis < len(self.value.shape) else 0
        self.sparse = isinstance(self.value, CSRNDArray)

    @property
    def count(self) -> int:
        """Number of samples."""
        return int(self.value.shape[self.axis])

    def shape(self, batch_size: int) -> tuple[int, ...]:
        """Shape of a batch."""
        shape = tuple(self.value.shape)
        return (*shape[: self.axis], batch_size, *shape[self.axis + 1 :])

    def take(self, numbers: Array, in_order: bool) -> Any:
        """The samples of these numbers; `in_order` where they follow each other."""
        if self.sparse:
            return self.value.take_rows(numbers)
        if in_order and len(numbers):
            pick: Any = slice(int(numbers[0]), int(numbers[0]) + len(numbers))
        else:
            pick = numbers
        before = (slice(None),) * self.axis
        if isinstance(self.value, np.ndarray):
            return nd.array(self.value[(*before, pick)], dtype=self.dtype)
        if in_order:
            return nd.array(np.asarray(self.value[(*before, pick)]), dtype=self.dtype)
        # Datasets of h5py take rising numbers, each once.
        rising, back = np.unique(numbers, return_inverse=True)
        read = np.asarray(self.value[(*before, rising)])
        return nd.array(np.take(read, back, self.axis), dtype=self.dtype)


def _held(name: str, value: Any) -> tuple[Any, Any]:
    """What a source keeps, and the dtype of its batches: that of an NDArray, else float32."""
    if isinstance(value, NDArray):
        return value.asnumpy(), value.dtype
    if isinstance(value, CSRNDArray):
        return value, value.dtype
    if hasattr(value, "tocsr"):
        made = csr_matrix(value)
        return made, made.dtype
    by_slices = (
        hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "__getitem__")
    )
    if not isinstance(value, np.ndarray) and not by_slices:
        try:
            value = np.asarray(value, np.float32)
        except (TypeError, ValueError) as error:
            raise DTypeError(
                f"[NDArrayIter] expected numbers for '{name}', got {type(value).__name__}: {error}"
            ) from None
    if len(value.shape) == 0 or np.dtype(value.dtype).kind not in "biufV":
        raise DTypeError(
            f"[NDArrayIter] expected an array of numbers for '{name}', got the shape {value.shape} "
            f"and {value.dtype}"
        )
    return value, np.dtype(np.float32)


def _sources(data: Any, default_name: str, allow_empty: bool, axis: int) -> list[_Source]:
    """Sources of the forms that NDArrayIter takes."""
    if data is None:
        data = []
    if isinstance(data, Mapping):
        pairs = [(str(k), v) for k, v in sorted(data.items())]
    elif not isinstance(data, (list, tuple)):
        pairs = [(default_name, data)]
    elif len(data) == 1:
        pairs = [(default_name, data[0])]
    else:
        pairs = [(f"_{i}_{default_name}", value) for i, value in enumerate(data)]
    if not pairs and not allow_empty:
        raise ShapeError("[NDArrayIter] expected at least one data array, got none")
    return [_Source(name, value, axis) for name, value in pairs]


class NDArrayIter(DataIter):
    """Batches of arrays that lie in memory, or of datasets that are read by slices.

    Args:
        data: array (N, ...), list of arrays, or dict name -> array. Arrays are NDArrays (batches
            keep their dtype), NumPy arrays and lists (batches are float32, as in MXNet), sparse
            matrices (CSRNDArray or SciPy: batches are CSRNDArrays), and datasets of h5py or the
            like, of which only the samples of a batch are read.
        label: the same for labels; None = no labels.
        batch_size: samples per batch.
        shuffle: a new order at each reset, drawn from `mx.random`'s seed.
        last_batch_handle: 'pad' (fill with the first samples), 'discard', or 'roll_over' (the rest
            opens the next epoch).
        data_name, label_name: names for a single array.
        layout: layout of the data; samples lie along its 'N'.

    Raises:
        ShapeError: arrays of different length, or fewer samples than a batch with 'discard'.
        ParamError: unknown `last_batch_handle`, or a batch size below 1.
        DTypeError: no array of numbers.
    """

    @checked(
        batch_size=whole(1),
        shuffle=flag,
        last_batch_handle=choice("pad", "discard", "roll_over"),
        data_name=text,
        label_name=text,
        layout=text,
    )
    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        layout: str = "NCHW",
    ) -> None:
        super().__init__(batch_size)
        axis = max(layout.find("N"), 0)
        self._data = _sources(data, data_name, False, axis)
        self._label = _sources(label, label_name, True, axis)
        self.data = [(s.name, s.value) for s in self._data]
        self.label = [(s.name, s.value) for s in self._label]
        self.data_list = [s.value for s in (*self._data, *self._label)]
        self.num_source = len(self.data_list)
        self.num_data = self._data[0].count
        self._check_lengths(last_batch_handle)
        self.shuffle = shuffle
        self.last_batch_handle = last_batch_handle
        self.layout = layout
        check_batch("NDArrayIter", (*self.provide_data, *self.provide_label))
        self.idx = np.arange(self.num_data)
        self._carried: Array = np.empty(0, np.int64)
        self.cursor = -batch_size
        self._order = self.idx
        self._start_epoch()

    def _check_lengths(self, last_batch_handle: str) -> None:
        for source in (*self._data, *self._label):
            if source.count != self.num_data:
                raise ShapeError(
                    f"[NDArrayIter] expected {self.num_data} samples in '{source.name}', got "
                    f"{source.count}"
                )
        if self.num_data == 0 or (
            last_batch_handle == "discard" and self.num_data < self.batch_size
        ):
            raise ShapeError(
                f"[NDArrayIter] expected at least one batch of {self.batch_size}, got "
                f"{self.num_data} samples"
            )

    def _descriptions(self, sources: Sequence[_Source]) -> list[DataDesc]:
        return [DataDesc(s.name, s.shape(self.batch_size), s.dtype, self.layout) for s in sources]

    @property
    def provide_data(self) -> list[DataDesc]:
        """Name, shape and dtype of each data array of a batch."""
        return self._descriptions(self._data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Name, shape and dtype of each label array of a batch."""
        return self._descriptions(self._label)

    def _start_epoch(self) -> None:
        if self.shuffle:
            _random.host_generator().shuffle(self.idx)
        self._order = np.concatenate([self._carried, self.idx]).astype(np.int64)
        self._carried = np.empty(0, np.int64)
        self.cursor = -self.batch_size

    def hard_reset(self) -> None:
        """Back to the first batch, forgetting what would roll over."""
        self._carried = np.empty(0, np.int64)
        self._start_epoch()

    def reset(self) -> None:
        """Next epoch; under 'roll_over' it opens with the rest of this one."""
        size = self.batch_size
        if self.last_batch_handle == "roll_over" and self.cursor >= 0:
            done = min(self.cursor + size, len(self._order))
            rest = self._order[(done // size) * size :]
            self._carried = rest if len(rest) < size else self._carried
        self._start_epoch()

    def state_dict(self) -> dict[str, Any]:
        """The position and the epoch's order as plain values (JSON): the batch after the last one
        given comes next."""
        return {
            "samples": self.num_data,
            "cursor": self.cursor,
            "carried": self._carried.tolist(),
            "order": self._order.tolist(),
            "idx": self.idx.tolist() if self.shuffle else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved position.

        Raises:
            FormatError: no such state, or one of other samples.
        """
        everything = list(range(self.num_data))
        try:
            cursor, order = int(state["cursor"]), np.array(state["order"], np.int64)
            carried = np.array(state["carried"], np.int64)
            idx = np.array(everything if state["idx"] is None else state["idx"])
            good = state["samples"] == self.num_data and sorted(idx.tolist()) == everything
            good = good and all(0 <= n < self.num_data for n in [*order, *carried])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"[NDArrayIter] expected a state of state_dict(), got {error!r}"
            ) from None
        if not good or cursor < -self.batch_size or cursor > len(order) + self.batch_size:
            raise FormatError(
                f"[NDArrayIter] expected the state of {self.num_data} samples, got another"
            )
        self.idx, self._order, self._carried, self.cursor = idx, order, carried, cursor

    def iter_next(self) -> bool:
        """Moves to the next batch; False when the epoch is over."""
        self.cursor += self.batch_size
        left = len(self._order) - self.cursor
        whole_only = self.last_batch_handle in ("discard", "roll_over")
        return left >= self.batch_size if whole_only else left > 0

    def _indices(self) -> Array:
        chosen = self._order[self.cursor : self.cursor + self.batch_size]
        if len(chosen) < self.batch_size:
            filling = np.resize(self._order, self.batch_size - len(chosen))
            chosen = np.concatenate([chosen, filling])
        return chosen

    def next(self) -> DataBatch:
        """The next batch.

        Raises:
            StopIteration: the epoch is over.
        """
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def _take(self, sources: Sequence[_Source]) -> list[Any]:
        whole = self.cursor + self.batch_size <= len(self._order)
        in_order = whole and not self.shuffle and len(self._order) == self.num_data
        numbers = self._indices()
        return [source.take(numbers, in_order) for source in sources]

    def getdata(self) -> list[Any]:
        """Data arrays of the current batch."""
        return self._take(self._data)

    def getlabel(self) -> list[Any]:
        """Label arrays of the current batch."""
        return self._take(self._label)

    def getindex(self) -> Array:
        """Sample numbers of the current batch."""
        return self._indices()

    def getpad(self) -> int:
        """Samples at the end of the current batch that only fill it up."""
        return max(0, self.cursor + self.batch_size - len(self._order))
