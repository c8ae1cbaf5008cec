"""MXNet's `.params` files: lists or dicts of arrays, byte for byte.

Format (facts of MXNet 1.9.1): uint64 0x112, uint64 0, count and arrays, count and names. An array
has a magic number (V1, V2, V3, or none in the oldest files), a storage type, its shape, its
context, its type code and its bytes. All numbers are little-endian.

Hazard: a file may be truncated, corrupt or hostile. Every length is checked against what is left of
the file before memory is taken, and a file that is written appears whole or not at all.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _rt
from .. import dtype as dtypes
from ..context import cpu
from ..errors import DTypeError, FormatError, ShapeError
from ..files import write_atomically
from .csr import CSRNDArray, csr_matrix
from .ndarray import NDArray
from .row_sparse import BaseSparseNDArray, row_sparse_array

LIST_MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_MAX_NDIM = 32
_CPU = cpu(0)
_STYPES = {0: "default", 1: "row_sparse", 2: "csr"}


# -- writing


def save(fname: str, data: Any) -> None:
    """Writes arrays to a file that MXNet 1.x reads too.

    Args:
        fname: path. The file is replaced as a whole.
        data: an NDArray, a list of them, or a dict from name to NDArray.

    Raises:
        TypeError: something else.
    """
    write_atomically(os.fspath(fname), _parts(*_checked(data)))


def save_to_buffer(data: Any) -> bytes:
    """The bytes that `save` writes."""
    return b"".join(_parts(*_checked(data)))


def _checked(data: Any) -> tuple[list[str], Sequence[Any]]:
    names: list[str] = []
    kinds = (NDArray, BaseSparseNDArray)
    arrays: Sequence[Any] = [data] if isinstance(data, kinds) else data
    if isinstance(data, Mapping):
        names, arrays = list(data), list(data.values())
    usable = isinstance(arrays, (list, tuple)) and all(isinstance(a, kinds) for a in arrays)
    if not usable or not all(isinstance(n, str) for n in names):
        raise TypeError("save only accept dict str->NDArray or list of NDArray")
    return names, arrays


def _parts(names: list[str], arrays: Sequence[Any]) -> Iterator[bytes]:
    """The file piece by piece, so that only one array is copied at a time."""
    yield struct.pack("<QQQ", LIST_MAGIC, 0, len(arrays))
    for a in arrays:
        yield from _array_parts(a)
    yield struct.pack("<Q", len(names))
    for name in names:
        encoded = name.encode()
        yield struct.pack("<Q", len(encoded)) + encoded


def _array_parts(a: Any) -> list[bytes]:
    """A 0-d array needs V3: in V2 no dimensions mean that there is no array."""
    if isinstance(a, BaseSparseNDArray):
        return _sparse_parts(a)
    values = a.asnumpy()
    magic = V2 if a.ndim else V3
    head = struct.pack(f"<Iii{a.ndim}q", magic, 0, a.ndim, *a.shape)
    kind, index = a.device
    return [head, struct.pack("<iii", kind, index, a.dtype_code), values.tobytes()]


def _sparse_parts(a: BaseSparseNDArray) -> list[bytes]:
    """Stored values, then the places where they stand: row starts and columns, or rows."""
    if isinstance(a, CSRNDArray):
        data, *aux = (a.parts[0], a.parts[2], a.parts[1])
    else:
        numbers, data = a.stored()  # type: ignore[attr-defined]
        aux = [numbers]
    code = {name: number for number, name in _STYPES.items()}[a.stype]
    head = struct.pack("<Ii", V2, code) + _dims(data.shape) + _dims(a.shape)
    head += struct.pack("<iii", *a.context.key, dtypes.code(data.dtype))
    for places in aux:
        head += struct.pack("<i", dtypes.code(places.dtype)) + _dims(places.shape)
    return [head, data.tobytes(), *(places.tobytes() for places in aux)]


def _dims(shape: Sequence[int]) -> bytes:
    return struct.pack(f"<i{len(shape)}q", len(shape), *shape)


# -- reading


def load(fname: str) -> Any:
    """Reads what `save` or MXNet 1.x wrote: a list, or a dict if the arrays have names.

    Raises:
        FormatError: the file is truncated, corrupt or of another kind; names file, offset, what
            was expected and what is there.
    """
    path = os.fspath(fname)
    with open(path, "rb") as handle:
        content = handle.read()
    return _Reader(content, path).read()


def load_frombuffer(buf: Any) -> Any:
    """The same from bytes."""
    if not isinstance(buf, (bytes, bytearray, memoryview)):
        raise TypeError(f"load_frombuffer expects bytes, got {type(buf).__name__}")
    return _Reader(bytes(buf), "<buffer>").read()


class _Reader:
    """A cursor over the bytes of one file."""

    def __init__(self, content: bytes, name: str) -> None:
        self._content = memoryview(content)
        self._name = name
        self._at = 0

    def _fail(self, expected: str, got: Any, at: int | None = None) -> FormatError:
        where = self._at if at is None else at
        return FormatError(f"[load] {self._name}: expected {expected} at offset {where}, got {got}")

    def _take(self, size: int, what: str) -> memoryview:
        left = len(self._content) - self._at
        if size > left:
            raise self._fail(f"{size} bytes of {what}", f"{left} (the file ends)")
        found = self._content[self._at : self._at + size]
        self._at += size
        return found

    def _numbers(self, form: str, what: str) -> tuple[Any, ...]:
        return struct.unpack("<" + form, self._take(struct.calcsize("<" + form), what))

    def _number(self, form: str, what: str) -> int:
        return self._numbers(form, what)[0]  # type: ignore[no-any-return]

    def _count(self, smallest: int, what: str) -> int:
        at, count = self._at, self._number("Q", f"the number of {what}")
        left = len(self._content) - self._at
        if count * smallest > left:
            raise self._fail(
                f"at most {left // smallest} {what} in the {left} bytes that are left", count, at
            )
        return count

    def read(self) -> Any:
        """The whole file."""
        magic = self._number("Q", "the list magic")
        if magic != LIST_MAGIC:
            raise self._fail("the list magic 0x112", hex(magic), 0)
        self._number("Q", "the reserved field")
        arrays = [self._array() for _ in range(self._count(4, "arrays"))]
        at = self._at
        names = [self._text() for _ in range(self._count(8, "names"))]
        if names and len(names) != len(arrays):
            raise self._fail(f"{len(arrays)} names (or none)", len(names), at)
        if self._at != len(self._content):
            raise self._fail("the end of the file", f"{len(self._content) - self._at} more bytes")
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise self._fail("different names", f"'{twice}' twice", at)
        return dict(zip(names, arrays, strict=True)) if names else arrays

    def _text(self) -> str:
        at = self._at
        size = self._number("Q", "the length of a name")
        try:
            return bytes(self._take(size, "a name")).decode()
        except UnicodeDecodeError:
            raise self._fail("a name in UTF-8", "other bytes", at) from None

    def _shape(self, form: str, dim: str) -> tuple[int, ...]:
        at = self._at
        ndim = self._number(form, "the number of dimensions")
        if not 0 <= ndim <= _MAX_NDIM:
            raise self._fail(f"0 to {_MAX_NDIM} dimensions", ndim, at)
        return self._dims(ndim, dim)

    def _dims(self, ndim: int, dim: str) -> tuple[int, ...]:
        at = self._at
        shape = self._numbers(f"{ndim}{dim}", "dimensions")
        if any(d < 0 for d in shape):
            raise self._fail("dimensions of at least 0", shape, at)
        return shape

    def _array(self) -> Any:
        at = self._at
        magic = self._number("I", "the magic of an array")
        if magic in (V2, V3):
            return self._current(magic, at)
        if magic == V1:
            shape = self._shape("I", "q")
        elif magic <= _MAX_NDIM:
            shape = self._dims(magic, "I")
        else:
            raise self._fail("the magic of an array", hex(magic), at)
        if not shape:
            raise self._fail("an array", "a place without one", at)
        return self._dense(shape)

    def _current(self, magic: int, at: int) -> Any:
        stype_at, stype = self._at, self._number("i", "the storage type")
        if stype not in _STYPES:
            raise self._fail(f"a storage type of {sorted(_STYPES)}", stype, stype_at)
        if stype:
            return self._sparse(stype)
        shape = self._shape("i", "q")
        if not shape and magic == V2:
            raise self._fail("an array", "a place without one", at)
        return self._dense(shape)

    def _context(self) -> None:
        at = self._at
        kind, _ = self._numbers("ii", "the context")
        if kind not in (1, 2, 3, 5):
            raise self._fail("a context type of 1, 2, 3 or 5", kind, at)

    def _dtype(self) -> np.dtype[Any]:
        at = self._at
        code = self._number("i", "the type code")
        try:
            return dtypes.from_code(code)
        except DTypeError:
            raise self._fail(f"a type code of {sorted(dtypes._FROM_CODE)}", code, at) from None

    def _values(self, shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> Any:
        size = dtype.itemsize
        for d in shape:
            size *= d
        raw = self._take(size, f"{what} of {dtype.name}{list(shape)}")
        return np.frombuffer(raw, dtype).reshape(shape)

    def _dense(self, shape: tuple[int, ...]) -> NDArray:
        self._context()
        dtype = self._dtype()
        values = self._values(shape, dtype, "elements")
        return _rt.core.from_numpy(values, (1, 0))  # type: ignore[no-any-return]

    def _sparse(self, stype: int) -> BaseSparseNDArray:
        at = self._at
        stored = self._shape("i", "q")
        shape = self._shape("i", "q")
        self._context()
        dtype = self._dtype()
        aux = []
        for _ in range(stype):
            kind = self._dtype()
            aux.append((kind, self._shape("i", "q")))
        data = self._values(stored, dtype, "stored elements")
        indices = [self._values(s, d, "indices").astype(np.int64) for d, s in aux]
        build = self._from_rows if stype == 1 else self._from_csr
        found: BaseSparseNDArray = build(data, indices, shape, at)
        return found

    def _from_rows(self, data: Any, indices: list[Any], shape: tuple[int, ...], at: int) -> Any:
        rows = indices[0]
        fits = shape and rows.ndim == 1 and data.shape == (rows.size, *shape[1:])
        fits = fits and len(np.unique(rows)) == rows.size
        if not fits or (rows.size and not 0 <= rows.min() <= rows.max() < shape[0]):
            raise self._fail(f"different rows within {shape}", f"{data.shape} at {rows.shape}", at)
        return row_sparse_array((data, rows), shape, _CPU, data.dtype)

    def _from_csr(self, data: Any, indices: list[Any], shape: tuple[int, ...], at: int) -> Any:
        starts, columns = indices
        got = f"{data.shape} with {starts.shape}"
        if len(shape) != 2:
            raise self._fail("a CSR matrix of two dimensions", f"{shape}: {got}", at)
        try:
            return csr_matrix((data, columns, starts), (shape[0], shape[1]), _CPU, data.dtype)
        except ShapeError:
            raise self._fail(f"a CSR matrix of {shape}", got, at) from None
