"""Making arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _rt
from .. import dtype as dtypes
from ..context import Context, current_context
from ..errors import MixflowError, ShapeError
from .ndarray import NDArray
from .register import fill, primitive

_FLOAT32 = np.dtype(np.float32)


def _shape(shape: Any) -> tuple[int, ...]:
    found = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(d) for d in shape)
    if found and min(found) < 0:
        raise ShapeError(f"[empty] expected dimensions of at least 0, got {found}")
    return found


def _device(ctx: Context | None) -> tuple[int, int]:
    return (current_context() if ctx is None else ctx).key


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """A new array with the values of `source_array`.

    Args:
        source_array: NDArray, NumPy array, or nested sequences of numbers.
        ctx: context; default the current one.
        dtype: default float32, or the dtype of an NDArray.
    """
    if isinstance(source_array, _rt.core.Array):
        wanted = source_array.dtype if dtype is None else dtype
        copied = source_array.astype(wanted)
        place = current_context() if ctx is None else ctx
        return copied.as_in_context(place)  # type: ignore[no-any-return]
    if getattr(source_array, "stype", "default") != "default":
        sparse: NDArray = source_array.astype(source_array.dtype if dtype is None else dtype)
        return sparse
    wanted = dtypes.canonical(dtype)
    if isinstance(source_array, (list, tuple)):
        source_array = [x.asnumpy() if isinstance(x, NDArray) else x for x in source_array]
    try:
        values = np.asarray(source_array, wanted)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"[array] expected numbers of one regular shape, got {type(source_array).__name__}"
        ) from error
    plain = (
        values if values.flags.c_contiguous else np.ascontiguousarray(values).reshape(values.shape)
    )
    return _rt.core.from_numpy(plain, _device(ctx))  # type: ignore[no-any-return]


def empty(
    shape: Any, ctx: Context | None = None, dtype: Any = None, stype: str | None = None
) -> NDArray:
    """An array with arbitrary contents."""
    made = _rt.core.empty(_shape(shape), dtypes.code(dtype), _device(ctx))
    return made  # type: ignore[no-any-return]


def full(
    shape: Any,
    val: float,
    ctx: Context | None = None,
    dtype: Any = np.float32,
    out: NDArray | None = None,
) -> NDArray:
    """An array filled with one number."""
    if out is None:
        out = empty(shape, ctx, dtype)
    out[:] = val
    return out


def _constant(value: float, shape: Any, ctx: Context | None, dtype: Any) -> NDArray:
    dims, device = _shape(shape), _device(ctx)
    wanted = _FLOAT32 if dtype is None else dtypes.canonical(dtype)
    if 0 in dims:
        return _rt.core.empty(dims, dtypes.code(wanted), device)  # type: ignore[no-any-return]
    return fill(value, dims, wanted, None, device)  # type: ignore[no-any-return]


def zeros(
    shape: Any,
    ctx: Context | None = None,
    dtype: Any = None,
    stype: str | None = None,
    **kwargs: Any,
) -> NDArray:
    """An array of zeros."""
    if stype not in (None, "default"):
        from . import storage

        return storage.zeros(stype, _shape(shape), ctx, dtype)  # type: ignore[no-any-return]
    return _constant(0.0, shape, ctx, dtype)


def ones(shape: Any, ctx: Context | None = None, dtype: Any = None, **kwargs: Any) -> NDArray:
    """An array of ones."""
    return _constant(1.0, shape, ctx, dtype)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool | None = None,
    ctx: Context | None = None,
    dtype: Any = np.float32,
) -> NDArray:
    """Evenly spaced values in [start, stop), each `repeat` times."""
    if stop is None:
        start, stop = 0, start
    count = max(int(np.ceil((stop - start) / step)), 0) * repeat
    wanted = dtypes.canonical(dtype)
    made = empty((count,), ctx, wanted)
    if count:
        primitive("iota")(
            start=float(start),
            step=float(step),
            repeat=repeat,
            shape=(count,),
            dtype=wanted,
            ctx=made.context,
            out=made,
        )
    return made


def linspace(
    start: float,
    stop: float,
    num: int,
    endpoint: bool = True,
    ctx: Context | None = None,
    dtype: Any = np.float32,
) -> NDArray:
    """`num` evenly spaced values from start to stop."""
    return array(np.linspace(start, stop, num, endpoint=endpoint), ctx, dtype)


def eye(
    N: int,
    M: int = 0,
    k: int = 0,
    ctx: Context | None = None,
    dtype: Any = None,
    **kwargs: Any,
) -> NDArray:
    """Ones on the k-th diagonal of an N x M matrix (M = 0: square)."""
    return array(np.eye(N, M or None, k), ctx, dtype)


def concatenate(arrays: Sequence[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    """Joins arrays along an axis."""
    if len(arrays) == 1 and not always_copy:
        return arrays[0]
    at = axis % max(arrays[0].ndim, 1)
    return primitive("concatenate")(*arrays, axis=at)  # type: ignore[no-any-return]


def moveaxis(tensor: NDArray, source: Any, destination: Any) -> NDArray:
    """Moves axes to new places; the others keep their order."""
    return tensor.transpose(_moved(tensor.ndim, source, destination))


def _moved(ndim: int, source: Any, destination: Any) -> tuple[int, ...]:
    froms = [source] if isinstance(source, int) else list(source)
    tos = [destination] if isinstance(destination, int) else list(destination)
    if len(froms) != len(tos):
        raise ValueError(
            "`source` and `destination` arguments must have the same number of elements"
        )
    froms, tos = [a % ndim for a in froms], [a % ndim for a in tos]
    order = [a for a in range(ndim) if a not in froms]
    for to, origin in sorted(zip(tos, froms, strict=True)):
        order.insert(to, origin)
    return tuple(order)


def split_v2(
    ary: NDArray, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False
) -> Any:
    """Splits into equal sections, or at the given indices."""
    size = ary.shape[axis]
    if isinstance(indices_or_sections, int):
        if indices_or_sections <= 0 or size % indices_or_sections:
            raise ValueError("array split does not result in an equal division")
        width = size // indices_or_sections
        cuts = [width * k for k in range(1, indices_or_sections)]
    else:
        cuts = [int(i) for i in indices_or_sections]
    lead = (slice(None),) * (axis % ary.ndim)
    parts = [ary[(*lead, slice(a, b))] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    return [p.squeeze(axis) for p in parts] if squeeze_axis else parts


def histogram(a: NDArray, bins: Any = 10, range: Any = None) -> tuple[NDArray, NDArray]:
    """(counts, edges) of the values."""
    counts, edges = np.histogram(
        a.asnumpy(), bins.asnumpy() if isinstance(bins, NDArray) else bins, range=range
    )
    return array(counts, a.ctx), array(edges, a.ctx)


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """One row of `out` for each index, one at the index and zero elsewhere."""
    primitive("one_hot")(indices, depth=out.shape[1], dtype=np.dtype(out.dtype), out=out)
    return out


def imdecode(*args: Any, **kwargs: Any) -> NDArray:
    """Stands here for its name only.

    Raises:
        MixflowError: always; images are decoded by `mx.image.imdecode`.
    """
    raise MixflowError("[nd.imdecode] expected a call of mx.image.imdecode, got the old name")


def waitall() -> None:
    """Waits for all work; raises the oldest error that no wait has raised yet."""
    _rt.core.wait_all()


def from_numpy(
    ndarray: np.ndarray[Any, Any], zero_copy: bool = True, array_cls: Any = None
) -> NDArray:
    """An array with the values of a NumPy array; with `zero_copy` on the same memory.

    A shared array must not be written through NumPy afterwards, so it is marked read-only there.
    """
    dtypes.canonical(ndarray.dtype)
    if not zero_copy or not ndarray.flags.writeable:
        return array(ndarray, dtype=ndarray.dtype)
    if not ndarray.flags.c_contiguous:
        raise ValueError("Only c-contiguous arrays are supported for zero-copy")
    shared = _rt.core.from_dlpack(ndarray.__dlpack__())
    ndarray.flags.writeable = False
    return shared  # type: ignore[no-any-return]


def from_dlpack(dlpack: Any) -> NDArray:
    """An array on the memory of a DLPack capsule or of an object that gives one."""
    capsule = dlpack.__dlpack__() if hasattr(dlpack, "__dlpack__") else dlpack
    return _rt.core.from_dlpack(capsule)  # type: ignore[no-any-return]


def to_dlpack_for_read(data: NDArray) -> Any:
    """A DLPack capsule of the same memory; waits until the values are there."""
    return data.to_dlpack_for_read()


def to_dlpack_for_write(data: NDArray) -> Any:
    """A DLPack capsule of the same memory; waits until nothing uses it."""
    return data.to_dlpack_for_write()
