"""NDArray: the array that users hold. Memory, views and tasks belong to the core's Array."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import (
    _rt,
    backends,  # noqa: F401 - binds the core before its Array is subclassed
)
from .. import dtype as dtypes
from ..context import Context
from ..errors import MixflowError, ShapeError
from . import indexing
from .register import function, primitive, registered
from .shapes import resolve_reshape

_contexts: dict[tuple[int, int], Context] = {}
_TYPES = {dtypes.code(d): d.type for d in map(dtypes.from_code, dtypes._FROM_CODE)}
#: Methods that later layers give: name -> function. See `install_methods`.
_LATE = ("attach_grad", "backward", "detach", "grad", "record_copy", "tostype")


def context_of(device: tuple[int, int]) -> Context:
    """The Context of the core's device."""
    found = _contexts.get(device)
    if found is None:
        found = _contexts[device] = Context(Context.devtype2str[device[0]], device[1])
    return found


class NDArray(_rt.core.Array):  # type: ignore[misc,name-defined]
    """A dense array on a context, computed asynchronously.

    Make one with `mx.nd.array`, `mx.nd.zeros` and their kind. Operators return at once; reading
    values (`asnumpy`, `print`, `float`) waits.
    """

    __slots__ = ()
    __array_priority__ = 1000.0
    __array_ufunc__ = None
    __hash__ = object.__hash__

    # -- what it is

    @property
    def dtype(self) -> Any:
        """NumPy type of the elements, as ``numpy.float32``."""
        return _TYPES[self.dtype_code]

    @property
    def context(self) -> Context:
        """Where it lives."""
        return context_of(self.device)

    @property
    def ctx(self) -> Context:
        """Where it lives."""
        return context_of(self.device)

    @property
    def stype(self) -> str:
        """Storage type: 'default'."""
        return "default"

    @property
    def T(self) -> NDArray:
        """The axes in reverse order."""
        return self if self.ndim < 2 else self.transpose()

    @property
    def grad(self) -> NDArray | None:
        """The gradient array that `attach_grad` made, else None."""
        return _late_grad(self)  # type: ignore[no-any-return]

    # -- values

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """A copy as a NumPy array. Waits; raises the error of the operator that made it."""
        return self.to_numpy()  # type: ignore[no-any-return]

    def asscalar(self) -> Any:
        """The value of an array of one element, as a NumPy scalar."""
        if self.size != 1:
            raise ValueError("The current array is not a scalar")
        return self.to_numpy().reshape(-1)[0]

    def item(self) -> Any:
        """The value of an array of one element, as a Python number."""
        return self.asscalar().item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("[__array__] expected copy=None or True, got False; use dlpack")
        found = self.asnumpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def __bool__(self) -> bool:
        if self.size > 1:
            raise ValueError("The truth value of an NDArray with multiple elements is ambiguous.")
        return bool(self.asscalar()) if self.size else False

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __complex__(self) -> complex:
        return complex(self.asscalar())

    def __index__(self) -> int:
        if not np.issubdtype(self.dtype, np.integer):
            raise TypeError("only integer arrays of one element can be converted to an index")
        return int(self.asscalar())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[NDArray]:
        for i in range(len(self)):
            yield self[i]

    def __contains__(self, value: Any) -> bool:
        return bool(np.any(self.to_numpy() == value))

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"\n{self.to_numpy()}\n<{type(self).__name__} {shape} @{self.context}>"

    def __reduce__(self) -> Any:
        return _unpickle, (self.to_numpy(), self.device)

    def __copy__(self) -> NDArray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> NDArray:
        return self.copy()

    def to_dlpack_for_read(self) -> Any:
        """A DLPack capsule of the same memory; waits until the values are there."""
        self.wait_to_read()
        return self.__dlpack__()

    def to_dlpack_for_write(self) -> Any:
        """A DLPack capsule of the same memory; waits until nothing uses it."""
        self.wait_to_write()
        return self.__dlpack__()

    # -- items

    def __getitem__(self, key: Any) -> NDArray:
        return indexing.read(self, key)  # type: ignore[no-any-return]

    def __setitem__(self, key: Any, value: Any) -> None:
        indexing.write(self, key, value)

    def slice_assign(self, rhs: Any, begin: Any, end: Any, step: Any = None) -> NDArray:
        """Writes `rhs` into the region and returns self."""
        steps = step or (None,) * len(begin)
        self[tuple(slice(*t) for t in zip(begin, end, steps, strict=True))] = rhs
        return self

    slice_assign_scalar = slice_assign

    # -- copies

    def copy(self) -> NDArray:
        """A copy on the same context."""
        return primitive("copy")(self)  # type: ignore[no-any-return]

    def copyto(self, other: NDArray | Context) -> NDArray:
        """Copies into an array of the same shape (converting the dtype), or to a context.

        Raises:
            ShapeError: the shapes differ.
        """
        if isinstance(other, Context):
            if other.key == self.device:
                return self.copy()
            made = _rt.core.empty(self.shape, self.dtype_code, other.key)
            _copy_across(self, made)
            return made  # type: ignore[no-any-return]
        if not isinstance(other, NDArray):
            if getattr(other, "stype", "") == "row_sparse":
                other.set_dense(self)
                return other
            raise TypeError(f"copyto does not support type {type(other).__name__}")
        if other is self:
            return other
        if other.shape != self.shape:
            raise ShapeError(f"[copyto] expected shape {other.shape}, got {self.shape}")
        source = self
        if other.dtype_code != self.dtype_code:
            source = primitive("cast")(self, dtype=np.dtype(other.dtype))
        if other.device == source.device:
            primitive("copy")(source, out=other)
        else:
            _copy_across(source, other)
        return other

    def as_in_context(self, context: Context) -> NDArray:
        """Itself where it already lives there, else a copy there."""
        return self if context.key == self.device else self.copyto(context)

    as_in_ctx = as_in_context
    to_device = as_in_context

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """The elements converted to `dtype`; itself if nothing changes and `copy` is false."""
        wanted = dtypes.canonical(dtype)
        if dtypes.code(wanted) == self.dtype_code:
            return self.copy() if copy else self
        return primitive("cast")(self, dtype=wanted)  # type: ignore[no-any-return]

    def as_nd_ndarray(self) -> NDArray:
        """Itself."""
        return self

    # -- shapes

    def reshape(self, *shape: Any, **kwargs: Any) -> NDArray:
        """The same elements in another shape: a view, or a recorded operator under autograd.

        Args:
            shape: integers or one tuple, with MXNet's codes: 0 copies a dimension, -1 infers one,
                -2 copies the rest, -3 joins two, -4 splits one into the next two numbers.
            reverse: read the codes from the right.

        Raises:
            ShapeError: the sizes differ.
        """
        reverse = kwargs.pop("reverse", False)
        wanted = kwargs.pop("shape", shape)
        if kwargs:
            raise TypeError(f"[reshape] expected shape and reverse, got {list(kwargs)}")
        if len(wanted) == 1 and isinstance(wanted[0], (tuple, list)):
            wanted = wanted[0]
        codes = tuple(map(int, wanted))
        plain = codes and min(codes) > 0 and math.prod(codes) == self.size
        return self._with_shape(codes if plain else resolve_reshape(self.shape, codes, reverse))

    def _with_shape(self, shape: tuple[int, ...]) -> NDArray:
        if _rt.core.is_recording():
            return primitive("reshape")(self, shape=shape)  # type: ignore[no-any-return]
        return self.view(0, shape)  # type: ignore[no-any-return]

    def reshape_like(self, rhs: NDArray, **kwargs: Any) -> NDArray:
        """The same elements in the shape of `rhs`."""
        if kwargs:
            return function("reshape_like")(self, rhs, **kwargs)  # type: ignore[no-any-return]
        return self.reshape(rhs.shape)

    def expand_dims(self, axis: int, inplace: bool = False) -> NDArray:
        """With a new axis of length 1 at `axis`."""
        ndim = self.ndim
        if not -ndim - 1 <= axis <= ndim:
            raise ShapeError(f"[expand_dims] expected axis in [{-ndim - 1}, {ndim}], got {axis}")
        at = axis + ndim + 1 if axis < 0 else axis
        return self._with_shape((*self.shape[:at], 1, *self.shape[at:]))

    def squeeze(self, axis: Any = None, inplace: bool = False) -> NDArray:
        """Without axes of length 1: all of them, or those of `axis`."""
        ndim = self.ndim
        if axis is None:
            left = tuple(d for d in self.shape if d != 1)
            return self._with_shape(left or (1,))
        chosen = {
            a + ndim if a < 0 else a for a in (axis if isinstance(axis, (tuple, list)) else (axis,))
        }
        for a in chosen:
            if not 0 <= a < ndim or self.shape[a] != 1:
                raise ShapeError(f"[squeeze] expected an axis of length 1, got {a} of {self.shape}")
        left = tuple(d for i, d in enumerate(self.shape) if i not in chosen)
        return self._with_shape(left or (1,))

    def flatten(self, inplace: bool = False) -> NDArray:
        """As a matrix: the first axis stays, the others are joined."""
        return self.reshape((0, -1)) if self.ndim != 1 else self.reshape((0, 1))

    def broadcast_to(self, shape: Sequence[int]) -> NDArray:
        """Stretched to `shape`; 0 in it keeps a dimension."""
        wanted = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        if len(wanted) < self.ndim:
            raise ShapeError(
                f"[broadcast_to] expected at least {self.ndim} dimensions, got {wanted}"
            )
        lead = len(wanted) - self.ndim
        wanted = tuple(
            self.shape[i - lead] if d == 0 and i >= lead else d for i, d in enumerate(wanted)
        )
        return primitive("broadcast")(self, shape=wanted)  # type: ignore[no-any-return]

    def broadcast_like(self, other: NDArray) -> NDArray:
        """Stretched to the shape of `other`."""
        return self.broadcast_to(other.shape)

    def transpose(self, *axes: Any, **kwargs: Any) -> NDArray:
        """The axes in the given order, by default reversed."""
        order = kwargs.pop("axes", axes)
        if kwargs:
            raise TypeError(f"[transpose] expected axes, got {list(kwargs)}")
        if len(order) == 1 and isinstance(order[0], (tuple, list)):
            order = order[0]
        order = tuple(a % self.ndim for a in order) if order else tuple(reversed(range(self.ndim)))
        return primitive("permute")(self, axes=order)  # type: ignore[no-any-return]

    def split_v2(self, *args: Any, **kwargs: Any) -> Any:
        """`mx.nd.split_v2` of this array."""
        from .creation import split_v2

        return split_v2(self, *args, **kwargs)

    # -- what later layers install

    def attach_grad(self, grad_req: str = "write", stype: str | None = None) -> None:
        """Makes an array of zeros for the gradient of this one (needs `mixflow.autograd`)."""
        raise _missing("attach_grad", "mixflow.autograd")

    def backward(
        self, out_grad: Any = None, retain_graph: bool = False, train_mode: bool = True
    ) -> None:
        """Computes gradients from here (needs `mixflow.autograd`)."""
        raise _missing("backward", "mixflow.autograd")

    def detach(self) -> NDArray:
        """A view that autograd does not follow."""
        return self.view(0, self.shape)  # type: ignore[no-any-return]

    def tostype(self, stype: str) -> NDArray:
        """The same values in another storage (needs `mixflow.ndarray.storage`)."""
        raise _missing("tostype", "mixflow.ndarray.storage")


def _no_grad(array: NDArray) -> NDArray | None:
    return None


def _no_record(source: NDArray, target: NDArray) -> None:
    """Without autograd nothing follows a copy."""


_late_grad: Callable[[Any], Any] = _no_grad
_late_record_copy: Callable[[Any, Any], None] = _no_record


def _missing(method: str, layer: str) -> MixflowError:
    return MixflowError(f"[{method}] expected {layer} to be imported, got a bare NDArray")


def install_methods(**methods: Callable[..., Any]) -> None:
    """Gives NDArray the methods that a later layer implements.

    Args:
        methods: among attach_grad, backward, detach, tostype, and `grad`, a function of the array
            that the property calls, and `record_copy`, called (source, target) after a copy between
            contexts while recording.
    """
    global _late_grad, _late_record_copy
    for name, implementation in methods.items():
        if name not in _LATE:
            raise MixflowError(f"[install_methods] expected one of {_LATE}, got '{name}'")
        if name == "grad":
            _late_grad = implementation
        elif name == "record_copy":
            _late_record_copy = implementation
        else:
            setattr(NDArray, name, implementation)


def _copy_across(source: Any, target: Any) -> None:
    """A copy between contexts as a task of its own."""
    _rt.core.copy_array(source, target)
    if _rt.core.is_recording():
        _late_record_copy(source, target)


def _unpickle(values: np.ndarray[Any, Any], device: tuple[int, int]) -> Any:
    return _rt.core.from_numpy(np.ascontiguousarray(values).reshape(values.shape), device)


#: Methods that are the operator of the same name applied to the array.
FLUENT = (
    *("abs", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "argmax", "argmin"),
    *("argmax_channel", "argsort", "broadcast_axes", "cbrt", "ceil", "clip", "cos", "cosh"),
    *("degrees", "depth_to_space", "diag", "exp", "expm1", "fix", "flip", "floor", "log", "log10"),
    *("log1p", "log2", "log_softmax", "max", "mean", "min", "nanprod", "nansum", "norm", "one_hot"),
    *("ones_like", "pad", "pick", "prod", "radians", "rcbrt", "reciprocal", "relu", "repeat"),
    *("rint", "round", "rsqrt", "shape_array", "sigmoid", "sign", "sin", "sinh", "size_array"),
    *("slice", "slice_axis", "slice_like", "softmax", "softmin", "sort", "space_to_depth", "split"),
    *("sqrt", "square", "sum", "swapaxes", "take", "tan", "tanh", "tile", "topk", "trunc"),
    *("zeros_like",),
)


def _fluent(name: str) -> Callable[..., Any]:
    def method(self: NDArray, *args: Any, **kwargs: Any) -> Any:
        return function(name)(self, *args, **kwargs)

    method.__name__ = name
    method.__qualname__ = f"NDArray.{name}"
    method.__doc__ = f"`mx.nd.{name}` of this array."
    return method


for _name in FLUENT:
    if registered(_name):
        setattr(NDArray, _name, _fluent(_name))

_rt.core.set_array_class(NDArray)
