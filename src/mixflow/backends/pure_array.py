"""Array of the plain Python core: a contiguous view of a chunk, with Python's number protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import dtype as dtypes
from ..errors import MXNetError
from ..ir.types import Desc
from . import pure_state as state

_CODES = {d.num: c for d, c in dtypes._CODES.items()}


class Array:
    """See `_rt.Array`."""

    __slots__ = ("__weakref__", "_chunk", "_np", "_offset", "autograd")
    __array_ufunc__ = None
    _np: Any  #: the view as NumPy sees it
    _chunk: Any
    _offset: int  #: bytes into the chunk
    autograd: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions."""
        return self._np.shape  # type: ignore[no-any-return]

    @property
    def dtype_code(self) -> int:
        """MXNet's code of the element type."""
        return _CODES[self._np.dtype.num]

    @property
    def device(self) -> tuple[int, int]:
        """(type code, index)"""
        return self._chunk.device  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._np.size  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._np.ndim  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self._np.nbytes  # type: ignore[no-any-return]

    @property
    def version(self) -> int:
        """Writes to the storage so far."""
        return self._chunk.version  # type: ignore[no-any-return]

    @property
    def last_write(self) -> str:
        """Line that wrote to the storage last."""
        return self._chunk.writer  # type: ignore[no-any-return]

    def _desc(self) -> Desc:
        return Desc(self.dtype_code, self._np.shape, 0, self._chunk.device)

    def view(self, offset: int, shape: Sequence[int], dtype_code: int | None = None) -> Any:
        """See `_rt.Array`."""
        dtype = self._np.dtype if dtype_code is None else dtypes.from_code(dtype_code)
        start = self._offset + offset * self._np.dtype.itemsize
        end = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if offset < 0 or min(shape, default=0) < 0 or end > self._offset + self._np.nbytes:
            raise MXNetError(
                f"[view] expected a view inside {self._np.shape}, got offset {offset} and shape "
                f"{tuple(shape)}"
            )
        return state.wrap(self._chunk, start, tuple(shape), dtype, type(self))

    def shares_storage(self, other: Any) -> bool:
        """Whether both are views of one storage."""
        return bool(self._chunk is other._chunk)

    def storage_id(self) -> int:
        """Number of the storage."""
        return self._chunk.number  # type: ignore[no-any-return]

    def wait_to_read(self) -> None:
        """Raises the storage's error, if it has one."""
        self._chunk.check()

    def wait_to_write(self) -> None:
        """Raises the storage's error, if it has one."""
        self._chunk.check()

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """See `_rt.Array`."""
        self._chunk.check()
        return self._np.copy()  # type: ignore[no-any-return]

    def copy_from_numpy(self, source: np.ndarray[Any, Any]) -> None:
        """See `_rt.Array`."""
        if source.dtype != self._np.dtype or source.size != self._np.size:
            raise MXNetError(
                f"[copy_from_numpy] expected {self._np.dtype.name} of {self._np.size} elements, "
                f"got {source.dtype.name} of {source.size}"
            )
        np.copyto(self._np, source.reshape(self._np.shape))
        self._written(None)

    def _take(self, other: Any) -> None:
        """Copies an array of the same type in, with its error."""
        np.copyto(self._np, other._np)
        self._written(other._chunk.error)

    def _written(self, error: Any) -> None:
        self._chunk.wrote()
        if error is not None or self._np.nbytes == self._chunk.data.nbytes:
            self._chunk.error = error

    def __dlpack__(self, **kwargs: Any) -> Any:
        self._chunk.check()
        return self._np.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    # Python's numbers. Operators come by key from `set_operator_ids`.

    def __add__(self, other: Any) -> Any:
        return _binary("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _reflected("rsub_scalar", self, other)

    def __mul__(self, other: Any) -> Any:
        return _binary("mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _reflected("rdiv_scalar", self, other)

    def __mod__(self, other: Any) -> Any:
        return _binary("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _reflected("rmod_scalar", self, other)

    def __pow__(self, other: Any) -> Any:
        return _binary("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _reflected("rpow_scalar", self, other)

    def __iadd__(self, other: Any) -> Any:
        return _binary("add", self, other, self)

    def __isub__(self, other: Any) -> Any:
        return _binary("sub", self, other, self)

    def __imul__(self, other: Any) -> Any:
        return _binary("mul", self, other, self)

    def __itruediv__(self, other: Any) -> Any:
        return _binary("div", self, other, self)

    def __imod__(self, other: Any) -> Any:
        return _binary("mod", self, other, self)

    def __ipow__(self, other: Any) -> Any:
        return _binary("pow", self, other, self)

    def __neg__(self) -> Any:
        return _unary("neg", self)

    def __abs__(self) -> Any:
        return _unary("abs", self)

    def __eq__(self, other: object) -> Any:
        return _binary("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _binary("ne", self, other)

    def __lt__(self, other: Any) -> Any:
        return _binary("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return _binary("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return _binary("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return _binary("ge", self, other)

    __hash__ = object.__hash__


_NUMBERS = (bool, int, float, np.number, np.bool_)


def _call(key: str, inputs: list[Any], scalars: Any, out: Any = None) -> Any:
    from . import pure

    found = state.operator_ids.get(key)
    if found is None:
        return NotImplemented
    op_id, params = found
    return pure.invoke(op_id, inputs, params, scalars, out, None)


def _unary(key: str, a: Array) -> Any:
    made = _call(key, [a], ())
    if made is NotImplemented:
        raise TypeError(f"[{key}] expected its operator to be registered, got none")
    return made


def _binary(key: str, a: Array, b: Any, out: Any = None) -> Any:
    if isinstance(b, Array):
        return _call(key, [a, b], (), out)
    return _reflected(key + "_scalar", a, b, out)


def _reflected(key: str, a: Array, b: Any, out: Any = None) -> Any:
    if isinstance(b, _NUMBERS):
        return _call(key, [a], (float(b),), out)
    return NotImplemented
