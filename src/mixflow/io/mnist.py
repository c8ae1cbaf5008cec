"""MNIST's files: the idx format, and the iterator over a pair of them."""

from __future__ import annotations

import gzip
import logging
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .. import ndarray as nd
from ..arguments import check_bytes, checked, either, flag, optional, several, text, whole
from ..arguments import path as name_of_file
from ..errors import (
    FormatError,
    MixflowError,
    ParamError,
    ShapeError,
    UnknownNameError,
    describe_unknown,
)
from ..files import open_regular
from .base import DataDesc, DataIter, batch_dtype

Array = np.ndarray[Any, Any]
_SCALE = np.float32(1 / 256)
_DRAWS = 2**32 - 1
_log = logging.getLogger("mixflow.io")
_KNOWN = ("image", "label", "batch_size", "shuffle", "flat", "seed", "num_parts", "part_index")


def read_idx(path: str | Path) -> Array:
    """A file of MNIST's idx format (uint8), plain or gzipped.

    Raises:
        FormatError: not such a file, truncated, or longer than its header says.
        FileError: it cannot be read.
    """
    with open_regular(path, "idx") as raw:
        size = os.fstat(raw.fileno()).st_size
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            return _read(raw, path, size)
        try:
            with gzip.GzipFile(fileobj=raw) as file:
                # Compression makes at most some thousandfold less of a byte.
                return _read(file, path, 1100 * size)
        except (EOFError, OSError, zlib.error) as error:
            if isinstance(error, MixflowError):
                raise
            raise FormatError(f"[idx] expected a whole gzip file at {path}, got {error}") from None


def _read(file: BinaryIO | gzip.GzipFile, path: str | Path, most: int) -> Array:
    """The array, once its header is known to be true; `most` bytes can be there at best."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
        raise FormatError(f"[idx] expected an idx file of unsigned bytes at {path}, got {magic!r}")
    head = file.read(4 * magic[3])
    if len(head) < 4 * magic[3]:
        raise FormatError(
            f"[idx] expected a header of {4 + 4 * magic[3]} bytes at {path}, got {4 + len(head)}"
        )
    shape = struct.unpack(f">{magic[3]}I", head)
    size = 1
    for n in shape:
        size *= n
    if size <= most:
        check_bytes("idx", f"the arrays of {path}", 4 * size, "the file does not fit into memory")
    content = file.read(size + 1) if size <= most else b""
    if len(content) != size:
        got = f"more than {size}" if len(content) > size else len(content) or "fewer"
        raise FormatError(f"[idx] expected {size} bytes for {shape} at {path}, got {got}")
    try:
        return np.frombuffer(content, np.uint8).reshape(shape)
    except ValueError:  # a size of 0 beside sizes whose product no array may have
        raise FormatError(f"[idx] expected the shape of an array at {path}, got {shape}") from None


def mersenne_order(count: int, seed: int) -> Array:
    """The numbers below `count` in the order to which MXNet's MNISTIter shuffles them.

    Fisher and Yates' shuffle from the front, with 32-bit draws of the Mersenne twister that are
    scaled by division and drawn anew above the largest multiple.

    Args:
        count: below 2^32.
        seed: of the twister.

    Returns:
        (count,) int64.
    """
    draws = iter(np.random.RandomState(seed)._bit_generator.random_raw(count + 256).tolist())
    order = list(range(count))
    for i in range(1, count):
        scale = _DRAWS // (i + 1)
        draw = next(draws)
        while draw >= scale * (i + 1):
            draw = next(draws)
        j = draw // scale
        order[i], order[j] = order[j], order[i]
    return np.array(order, np.int64)


class MNISTIter(DataIter):
    """Batches of MNIST's files: pixels divided by 256, labels as floats; the values of MXNet.

    Args:
        image, label: paths of the idx files (gzipped or not).
        batch_size: samples per batch; a smaller rest is dropped, as MXNet does.
        shuffle: shuffle once, by `seed`, to the order of MXNet.
        flat: (N, 784) instead of (N, 1, 28, 28).
        seed: of the shuffle.
        silent: do not log how many images there are.
        num_parts, part_index: this worker's share of the samples.
        prefetch_buffer, ctx: kept for MXNet programs.
        dtype: float32.
        input_shape: overrides the shape of a sample.
        data_name, label_name: names.

    Raises:
        FormatError: a damaged file.
        ShapeError: not one label per image, or fewer images than a batch.
        ParamError: sizes or parts that are none, or another dtype.
        UnknownNameError: another argument.
    """

    @checked(
        image=name_of_file,
        label=name_of_file,
        batch_size=whole(1),
        shuffle=flag,
        flat=flag,
        seed=whole(0, (1 << 32) - 1),
        silent=flag,
        num_parts=whole(1),
        part_index=whole(0),
        input_shape=optional(either(whole(-1), several(whole(-1)))),
        data_name=text,
        label_name=text,
    )
    def __init__(
        self,
        image: str | os.PathLike[str] = "./train-images-idx3-ubyte",
        label: str | os.PathLike[str] = "./train-labels-idx1-ubyte",
        batch_size: int = 128,
        shuffle: bool = True,
        flat: bool = False,
        seed: int = 0,
        silent: bool = False,
        num_parts: int = 1,
        part_index: int = 0,
        prefetch_buffer: int = 4,
        ctx: str = "cpu",
        dtype: Any = None,
        input_shape: Sequence[int] | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **unknown: Any,
    ) -> None:
        super().__init__(batch_size)
        for name in unknown:
            raise UnknownNameError(describe_unknown("MNISTIter", name, list(_KNOWN)))
        if batch_dtype(dtype) != np.float32:
            raise ParamError(f"[MNISTIter] expected the dtype float32, got {dtype}")
        if part_index >= num_parts:
            raise ParamError(
                f"[MNISTIter] expected part_index below num_parts, got {part_index} of {num_parts}"
            )
        images, labels = read_idx(Path(image)), read_idx(Path(label))
        if images.ndim < 2 or labels.shape != images.shape[:1]:
            raise ShapeError(
                f"[MNISTIter] expected one label per image, got {labels.shape} and {images.shape}"
            )
        part = slice(*(len(images) * n // num_parts for n in (part_index, part_index + 1)))
        order = np.arange(part.start, part.stop)
        if shuffle:
            order = order[mersenne_order(len(order), seed)]
        if len(order) < batch_size:
            raise ShapeError(
                f"[MNISTIter] expected at least one batch of {batch_size}, got {len(order)} images"
            )
        one = ((-1,) if flat else (1, *images.shape[1:])) if input_shape is None else input_shape
        one = (one,) if isinstance(one, int) else tuple(one)
        try:
            self._images = images.reshape(len(images), *one)
        except ValueError:
            raise ShapeError(
                f"[MNISTIter] expected an input_shape for {images.shape[1:]} pixels, got {one}"
            ) from None
        self._labels, self._order = labels, order
        self._names = data_name, label_name
        self._cursor = -batch_size
        if not silent:
            shape = (batch_size, *self._images.shape[1:])
            _log.info("MNISTIter: load %d images, shuffle=%d, shape=%s", len(order), shuffle, shape)

    @property
    def num_data(self) -> int:
        """Images of this part."""
        return len(self._order)

    @property
    def provide_data(self) -> list[DataDesc]:
        """Name, shape and dtype of the images of a batch."""
        return [DataDesc(self._names[0], (self.batch_size, *self._images.shape[1:]), np.float32)]

    @property
    def provide_label(self) -> list[DataDesc]:
        """Name, shape and dtype of the labels of a batch."""
        return [DataDesc(self._names[1], (self.batch_size,), np.float32)]

    def reset(self) -> None:
        """Back to the first batch; the order stays."""
        self._cursor = -self.batch_size

    def iter_next(self) -> bool:
        """Moves to the next batch; False when the epoch is over."""
        self._cursor += self.batch_size
        return self._cursor + self.batch_size <= len(self._order)

    def getdata(self) -> list[Any]:
        """Images of the current batch."""
        return [nd.array(self._images[self.getindex()].astype(np.float32) * _SCALE)]

    def getlabel(self) -> list[Any]:
        """Labels of the current batch."""
        return [nd.array(self._labels[self.getindex()].astype(np.float32))]

    def getindex(self) -> Array:
        """Numbers of the images in the file."""
        return self._order[self._cursor : self._cursor + self.batch_size]

    def getpad(self) -> int:
        """0: there are whole batches only."""
        return 0
