"""Iterators over arrays in memory, and over MNIST's files."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import ndarray as nd
from .. import random as _random
from ..errors import FormatError, ParamError, ShapeError
from ..ndarray import NDArray
from .base import DataBatch, DataDesc, DataIter

Array = np.ndarray[Any, Any]


def _named_arrays(data: Any, default_name: str, allow_empty: bool) -> list[tuple[str, Array]]:
    """(name, host array) pairs of the forms that NDArrayIter takes."""
    if data is None:
        data = []
    if isinstance(data, (np.ndarray, NDArray)) or hasattr(data, "__array__"):
        data = [data]
    if isinstance(data, Mapping):
        pairs = [(str(k), v) for k, v in sorted(data.items())]
    elif len(data) == 1:
        pairs = [(default_name, data[0])]
    else:
        pairs = [(f"_{i}_{default_name}", value) for i, value in enumerate(data)]
    if not pairs and not allow_empty:
        raise ShapeError("[NDArrayIter] expected at least one data array, got none")
    return [(k, v.asnumpy() if isinstance(v, NDArray) else np.asarray(v)) for k, v in pairs]


def _host_type(array: Array) -> Array:
    """float64 becomes float32, as `mx.nd.array` does."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


class NDArrayIter(DataIter):
    """Batches of arrays that lie in memory.

    Args:
        data: array (N, ...), list of arrays, or dict name -> array.
        label: the same for labels; None = no labels.
        batch_size: samples per batch.
        shuffle: a new order at each reset, drawn from `mx.random`'s seed.
        last_batch_handle: 'pad' (fill with the first samples), 'discard', or 'roll_over' (the rest
            opens the next epoch).
        data_name, label_name: names for a single array.
        layout: layout of the data.

    Raises:
        ShapeError: arrays of different length, or fewer samples than a batch with 'discard'.
        ParamError: unknown `last_batch_handle`, or a batch size below 1.
    """

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
        if last_batch_handle not in ("pad", "discard", "roll_over"):
            raise ParamError(
                "[NDArrayIter] expected last_batch_handle pad, discard or roll_over, got "
                f"{last_batch_handle!r}"
            )
        if batch_size < 1:
            raise ParamError(f"[NDArrayIter] expected a batch size of at least 1, got {batch_size}")
        self.data = [(k, _host_type(v)) for k, v in _named_arrays(data, data_name, False)]
        self.label = [(k, _host_type(v)) for k, v in _named_arrays(label, label_name, True)]
        self.num_data = self.data[0][1].shape[0]
        self._check_lengths(last_batch_handle)
        self.shuffle = shuffle
        self.last_batch_handle = last_batch_handle
        self.layout = layout
        self.idx = np.arange(self.num_data)
        self._carried: Array = np.empty(0, np.int64)
        self.cursor = -batch_size
        self._order = self.idx
        self._start_epoch()

    def _check_lengths(self, last_batch_handle: str) -> None:
        for name, array in [*self.data, *self.label]:
            if array.shape[0] != self.num_data:
                raise ShapeError(
                    f"[NDArrayIter] expected {self.num_data} samples in '{name}', got "
                    f"{array.shape[0]}"
                )
        if self.num_data == 0 or (
            last_batch_handle == "discard" and self.num_data < self.batch_size
        ):
            raise ShapeError(
                f"[NDArrayIter] expected at least one batch of {self.batch_size}, got "
                f"{self.num_data} samples"
            )

    def _descriptions(self, arrays: Sequence[tuple[str, Array]]) -> list[DataDesc]:
        return [
            DataDesc(k, (self.batch_size, *v.shape[1:]), v.dtype, self.layout) for k, v in arrays
        ]

    @property
    def provide_data(self) -> list[DataDesc]:
        """Name, shape and dtype of each data array of a batch."""
        return self._descriptions(self.data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Name, shape and dtype of each label array of a batch."""
        return self._descriptions(self.label)

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

    def _take(self, arrays: Sequence[tuple[str, Array]]) -> list[NDArray]:
        whole = self.cursor + self.batch_size <= len(self._order) and not self.shuffle
        window = slice(self.cursor, self.cursor + self.batch_size)
        plain = whole and len(self._order) == self.num_data
        pick: Any = window if plain else self._indices()
        return [nd.array(v[pick], dtype=v.dtype) for _, v in arrays]

    def getdata(self) -> list[NDArray]:
        """Data arrays of the current batch."""
        return self._take(self.data)

    def getlabel(self) -> list[NDArray]:
        """Label arrays of the current batch."""
        return self._take(self.label)

    def getindex(self) -> Array:
        """Sample numbers of the current batch."""
        return self._indices()

    def getpad(self) -> int:
        """Samples at the end of the current batch that only fill it up."""
        return max(0, self.cursor + self.batch_size - len(self._order))


def read_idx(path: str | Path) -> Array:
    """A file of MNIST's idx format (uint8), plain or gzipped.

    Raises:
        FormatError: not such a file, or truncated.
    """
    raw = Path(path).read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError) as error:
            raise FormatError(f"[idx] expected a whole gzip file at {path}, got {error}") from None
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or not 1 <= raw[3] <= 4:
        raise FormatError(
            f"[idx] expected an idx file of unsigned bytes at {path}, got {raw[:4]!r}"
        )
    head = 4 + 4 * raw[3]
    if len(raw) < head:
        raise FormatError(f"[idx] expected a header of {head} bytes at {path}, got {len(raw)}")
    shape = struct.unpack(f">{raw[3]}I", raw[4:head])
    if len(raw) - head != int(np.prod(shape, dtype=np.int64)):
        raise FormatError(
            f"[idx] expected {int(np.prod(shape, dtype=np.int64))} bytes for {shape} at {path}, "
            f"got {len(raw) - head}"
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


class MNISTIter(NDArrayIter):
    """Batches of MNIST's files: pixels divided by 255, labels as floats.

    Args:
        image, label: paths of the idx files (gzipped or not).
        batch_size: samples per batch; a smaller rest is dropped, as MXNet does.
        shuffle: shuffle once, by `seed`.
        flat: (N, 784) instead of (N, 1, 28, 28).
        seed: of the shuffle.
        silent: kept for MXNet programs.
        num_parts, part_index: this worker's share of the samples.
        input_shape: overrides the shape of a sample.

    Raises:
        FormatError: a damaged file.
    """

    def __init__(
        self,
        image: str = "./train-images-idx3-ubyte",
        label: str = "./train-labels-idx1-ubyte",
        batch_size: int = 128,
        shuffle: bool = True,
        flat: bool = False,
        seed: int = 0,
        silent: bool = False,
        num_parts: int = 1,
        part_index: int = 0,
        input_shape: Sequence[int] | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **_: Any,
    ) -> None:
        images, labels = read_idx(image), read_idx(label)
        if len(images) != len(labels):
            raise ShapeError(
                f"[MNISTIter] expected one label per image, got {len(images)} and {len(labels)}"
            )
        order = np.random.RandomState(seed).permutation(len(images)) if shuffle else None
        part = slice(
            len(images) * part_index // num_parts, len(images) * (part_index + 1) // num_parts
        )
        if order is not None:
            images, labels = images[order], labels[order]
        pixels = images[part].astype(np.float32) / 255.0
        shape = tuple(input_shape or ((-1,) if flat else (1, *images.shape[1:])))
        super().__init__(
            pixels.reshape(len(pixels), *shape),
            labels[part].astype(np.float32),
            batch_size,
            last_batch_handle="discard",
            data_name=data_name,
            label_name=label_name,
        )
