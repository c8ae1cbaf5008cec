"""Reading and writing by index, order, diagonals. Indices of any numeric dtype are truncated."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import (
    Bool,
    DType,
    Enum,
    Float,
    Int,
    Node,
    Param,
    Shape,
    Value,
    binary,
    emit,
    emit_node,
)
from .common import (
    Shapes,
    along,
    axis_of,
    broadcast_to,
    cast,
    concatenated,
    define,
    expand,
    filled,
    iota,
    less,
    merge,
    need,
    permute,
    reshape,
    select,
    size,
    sliced,
    zeros_like,
)

Grads = list["Value | None"]

_FLOAT32 = np.dtype(np.float32)
_INT64 = np.dtype(np.int64)

# Gather -------------------------------------------------------------------------------------


def _embedding_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, out = ins[0], outs[0]
    if data is None and out is not None:
        data = out[:-1]
    made = None if data is None else (*data, params["output_dim"])
    return [data, (params["input_dim"], params["output_dim"])], [made]


@define(
    "Embedding",
    inputs=("data", "weight"),
    params=(
        Param("input_dim", Int, doc="number of rows"),
        Param("output_dim", Int, doc="length of a row"),
        Param("dtype", DType, _FLOAT32, doc="dtype of the weight"),
        Param("sparse_grad", Bool, False, doc="gradient of weight as row_sparse"),
    ),
    shapes=_embedding_shapes,
    dtypes="~T,@dtype->@dtype",
    nondiff=("data",),
)
def _embedding(data: Value, weight: Value, *, input_dim: int, output_dim: int, **_: Any) -> Value:
    """Rows of a matrix by index; indices outside are held within the first and last row.

    Args:
        data: (...), row numbers.
        weight: (input_dim, output_dim).

    Returns:
        (..., output_dim).
    """
    merge((input_dim, output_dim), weight.shape)
    return emit("gather", weight, data, axis=0, mode="clip")


_MODE = Param("mode", Enum("clip", "raise", "wrap"), "clip", doc="what an index outside means")


@define(
    "take",
    inputs=("a", "indices"),
    params=(Param("axis", Int, 0, doc="axis to read along"), _MODE),
    dtypes="T,~T->T",
    nondiff=("indices",),
)
def _take(a: Value, indices: Value, *, axis: int, mode: str) -> Value:
    """Slices of an array by index along an axis.

    Args:
        a: (d0, ..., dn).
        indices: (i0, ...).

    Returns:
        a's shape with (i0, ...) in the place of `axis`.
    """
    return emit("gather", a, indices, axis=axis_of(axis, a.ndim), mode=mode)


@define("batch_take", inputs=("a", "indices"), dtypes="T,*->T", nondiff=("indices",))
def _batch_take(a: Value, indices: Value) -> Value:
    """One element of each row.

    Args:
        a: (N, M).
        indices: (N,).

    Returns:
        (N,).
    """
    need(a.ndim == 2, f"expected a matrix, got {a.shape}")
    merge((a.shape[0],), indices.shape)
    made = emit("take_along", a, expand(indices, 1), axis=1, mode="clip")
    return reshape(made, indices.shape)


@define(
    "pick",
    inputs=("data", "index"),
    params=(
        Param("axis", Int, -1, nullable=True, doc="axis to choose along; None = the flat array"),
        Param("keepdims", Bool, False, doc="keep the axis with size 1"),
        Param("mode", Enum("clip", "wrap"), "clip", doc="what an index outside means"),
    ),
    dtypes="T,~T->T",
    nondiff=("index",),
)
def _pick(data: Value, index: Value, *, axis: int | None, keepdims: bool, mode: str) -> Value:
    """One element along an axis, chosen by an index.

    Args:
        data: (d0, ..., dn).
        index: data's shape without `axis`, or with 1 there.

    Returns:
        data's shape without `axis`, or with 1 there if keepdims.
    """
    if axis is None:
        data, axis = reshape(data, (size(data.shape),)), 0
    axis = axis_of(axis, data.ndim)
    rest = (*data.shape[:axis], *data.shape[axis + 1 :])
    kept = (*data.shape[:axis], 1, *data.shape[axis + 1 :])
    need(
        index.shape in (rest, kept, rest or (1,)),
        f"expected an index of {rest} or {kept}, got {index.shape}",
    )
    made = emit("take_along", data, reshape(index, kept), axis=axis, mode=mode)
    return made if keepdims else reshape(made, rest or (1,))


@define(
    "one_hot",
    inputs=("indices",),
    params=(
        Param("depth", Int, doc="size of the new axis"),
        Param("on_value", Float, 1.0, doc="value at the index"),
        Param("off_value", Float, 0.0, doc="value elsewhere"),
        Param("dtype", DType, _FLOAT32, doc="dtype of the output"),
    ),
    dtypes="*->@dtype",
    nondiff=("indices",),
    differentiable="no",
)
def _one_hot(indices: Value, *, depth: int, on_value: float, off_value: float, dtype: Any) -> Value:
    """A vector with on_value at each index; an index outside gives off_value everywhere.

    Args:
        indices: (...).

    Returns:
        (..., depth).
    """
    return emit(
        "one_hot", indices, depth=depth, on_value=on_value, off_value=off_value, dtype=dtype
    )


@define("gather_nd", inputs=("data", "indices"), dtypes="T,~T->T", nondiff=("indices",))
def _gather_nd(data: Value, indices: Value) -> Value:
    """Elements (or blocks) at index tuples.

    Args:
        data: (d0, ..., dn).
        indices: (M, p0, ...): column p is an index into the first M axes; negative from the end.

    Returns:
        (p0, ..., dM, ..., dn).
    """
    return emit("gather_nd", data, indices)


# Scatter ------------------------------------------------------------------------------------


@define(
    "scatter_nd",
    inputs=("data", "indices"),
    params=(Param("shape", Shape, doc="shape of the output"),),
    dtypes="T,~T->T",
    nondiff=("indices",),
)
def _scatter_nd(data: Value, indices: Value, *, shape: tuple[int, ...]) -> Value:
    """Zeros with the data at index tuples; the data of equal tuples is added up.

    Args:
        data: (p0, ..., dM, ..., dn).
        indices: (M, p0, ...).

    Returns:
        `shape`.
    """
    return emit("scatter_nd_add", filled(0.0, shape, data.dtype), indices, data)


@define(
    "_scatter_set_nd",
    inputs=("lhs", "rhs", "indices"),
    params=(Param("shape", Shape, doc="shape of lhs"),),
    dtypes="T,T,~T->T",
    nondiff=("indices",),
)
def _scatter_set_nd(lhs: Value, rhs: Value, indices: Value, *, shape: tuple[int, ...]) -> Value:
    """lhs with elements at index tuples replaced.

    Args:
        lhs: `shape`.
        rhs: (p0, ..., dM, ..., dn).
        indices: (M, p0, ...).

    Returns:
        `shape`.
    """
    merge(shape, lhs.shape)
    return emit_node("scatter_assign_nd", emit("copy", lhs), indices, rhs).values[-1]


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [size(shape[i + 1 :]) for i in range(len(shape))]


def _no_gradient(node: Node, grads: Grads) -> Grads:
    """Stops the gradient: the formula has one, but positions are whole numbers."""
    return [None]


@define(
    "_ravel_multi_index",
    params=(Param("shape", Shape, None, nullable=True, doc="shape that the indices refer to"),),
    nondiff=("data",),
    differentiable="no",
    vjp=_no_gradient,
)
def _ravel_multi_index(data: Value, *, shape: Any) -> Value:
    """Flat positions of index columns.

    Args:
        data: (len(shape), n).

    Returns:
        (n,).
    """
    need(shape, "expected 'shape', got none")
    need(
        data.ndim == 2 and data.shape[0] == len(shape),
        f"expected ({len(shape)}, n), got {data.shape}",
    )
    rows = [sliced(data, 0, i, i + 1) * float(s) for i, s in enumerate(_strides(shape))]
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return reshape(total, (data.shape[1],))


@define(
    "_unravel_index",
    params=(Param("shape", Shape, None, nullable=True, doc="shape that the positions refer to"),),
    nondiff=("data",),
    differentiable="no",
    vjp=_no_gradient,
)
def _unravel_index(data: Value, *, shape: Any) -> Value:
    """Index columns of flat positions.

    Args:
        data: (n,).

    Returns:
        (len(shape), n).
    """
    need(shape, "expected 'shape', got none")
    rows = []
    for stride, dim in zip(_strides(shape), shape, strict=True):
        rows.append(binary("mod", emit("floor", data / float(stride)), float(dim)))
    return concatenated([expand(r, 0) for r in rows], 0)


# Order --------------------------------------------------------------------------------------


def _flat(data: Value, axis: int | None) -> tuple[Value, int]:
    if axis is None:
        return reshape(data, (size(data.shape),)), 0
    return data, axis_of(axis, data.ndim)


_ORDER_AXIS = Param("axis", Int, -1, nullable=True, doc="axis to order; None = the flat array")


@define(
    "sort",
    params=(_ORDER_AXIS, Param("is_ascend", Bool, True, doc="smallest first")),
    outputs=("output0",),
)
def _sort(data: Value, *, axis: int | None, is_ascend: bool) -> Value:
    """Elements in order along an axis.

    Args:
        data: any shape.

    Returns:
        The shape of data, or (size,) if axis is None.
    """
    data, axis = _flat(data, axis)
    return emit("sort", data, axis=axis, is_ascend=is_ascend)


@define(
    "argsort",
    params=(
        _ORDER_AXIS,
        Param("is_ascend", Bool, True, doc="smallest first"),
        Param("dtype", DType, _FLOAT32, doc="dtype of the output"),
    ),
    dtypes="*->@dtype",
    nondiff=("data",),
    differentiable="no",
)
def _argsort(data: Value, *, axis: int | None, is_ascend: bool, dtype: Any) -> Value:
    """Positions that put the elements in order; equal elements keep theirs.

    Args:
        data: any shape.

    Returns:
        The shape of data, or (size,) if axis is None.
    """
    data, axis = _flat(data, axis)
    return emit("argsort", data, axis=axis, is_ascend=is_ascend, dtype=dtype)


def _topk_outputs(params: dict[str, Any]) -> tuple[str, ...]:
    return ("output0", "output1") if params["ret_typ"] == "both" else ("output",)


def _topk_dtypes(params: dict[str, Any]) -> str:
    kinds = {"both": "T,@dtype", "indices": "@dtype"}
    return "T->" + kinds.get(params["ret_typ"], "T")


@define(
    "topk",
    params=(
        _ORDER_AXIS,
        Param("k", Int, 1, doc="how many; 0 = all"),
        Param("ret_typ", Enum("both", "indices", "mask", "value"), "indices", doc="what to return"),
        Param("is_ascend", Bool, False, doc="the smallest instead of the largest"),
        Param("dtype", DType, _FLOAT32, doc="dtype of the indices"),
    ),
    outputs=_topk_outputs,
    dtypes=_topk_dtypes,
)
def _topk(data: Value, *, axis: Any, k: int, ret_typ: str, is_ascend: bool, dtype: Any) -> Any:
    """The k largest elements along an axis, in order.

    Args:
        data: (d0, ..., dn).

    Returns:
        Values, indices or both with k at `axis` ((k,) if axis is None); or a mask of data's shape.
    """
    flat, axis = _flat(data, axis)
    dim = flat.shape[axis]
    k = k if k > 0 else dim
    need(k <= dim, f"expected k of at most {dim}, got {k}")
    order = emit("argsort", flat, axis=axis, is_ascend=is_ascend, dtype=_INT64)
    first = sliced(order, axis, 0, k)
    if ret_typ == "indices":
        return cast(first, dtype)
    if ret_typ == "mask":
        ones = filled(1.0, first.shape, data.dtype)
        mask = emit("put_along_add", zeros_like(flat), first, ones, axis=axis, mode="clip")
        return reshape(mask, data.shape)
    values = emit("take_along", flat, first, axis=axis, mode="clip")
    return values if ret_typ == "value" else (values, cast(first, dtype))


# Diagonals and sequences --------------------------------------------------------------------


def band(rows: int, columns: int, k: int) -> Value:
    """int32 matrix with 1 where column - row == k, else 0."""
    down = along(iota(rows, start=float(k)), 0, 2)
    return binary("equal", along(iota(columns), 1, 2), down)


def _vector_diag(data: Value, k: int) -> Value:
    n = data.shape[0] + abs(k)
    axis = 0 if k >= 0 else 1
    long = emit("pad", data, before=(0,), after=(abs(k),), mode="constant", value=0.0)
    return select(band(n, n, k), broadcast_to(along(long, axis, 2), (n, n)), 0.0)


@define(
    "diag",
    params=(
        Param("k", Int, 0, doc="diagonal; above the main one if positive"),
        Param("axis1", Int, 0, doc="axis of the rows"),
        Param("axis2", Int, 1, doc="axis of the columns"),
    ),
)
def _diag(data: Value, *, k: int, axis1: int, axis2: int) -> Value:
    """A diagonal of matrices, or the matrix with a vector on a diagonal.

    Args:
        data: (n,), or (d0, ..., dm) with two axes that are matrices.

    Returns:
        (n + abs(k), n + abs(k)) for a vector; else the other axes, then the diagonal.
    """
    if data.ndim == 1:
        return _vector_diag(data, k)
    a, b = axis_of(axis1, data.ndim), axis_of(axis2, data.ndim)
    need(a != b, f"expected two axes, got {axis1} twice")
    rest = tuple(i for i in range(data.ndim) if i not in (a, b))
    rows, columns = data.shape[a], data.shape[b]
    length = min(rows, columns - k) if k >= 0 else min(rows + k, columns)
    need(length >= 0, f"expected a diagonal inside ({rows}, {columns}), got {k}")
    flat = reshape(permute(data, (*rest, a, b)), (*(data.shape[i] for i in rest), rows * columns))
    start = k if k >= 0 else -k * columns
    at = iota(length, start=float(start), step=float(columns + 1))
    return emit("gather", flat, at, axis=flat.ndim - 1, mode="clip")


_SEQUENCE = (
    Param("use_sequence_length", Bool, False, doc="sequence_length is given"),
    Param("axis", Int, 0, doc="time axis, 0 or 1"),
)


def _sequence_inputs(params: dict[str, Any]) -> tuple[str, ...]:
    return ("data", "sequence_length") if params["use_sequence_length"] else ("data",)


def _sequence_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = merge(ins[0], outs[0])
    if data is None:
        return ins, outs
    need(len(data) >= 2 and params["axis"] in (0, 1), f"expected time and batch axes, got {data}")
    return [data, *([(data[1 - params["axis"]],)] * (len(ins) - 1))], [data]


def _steps(data: Value, axis: int, lengths: Value) -> tuple[Value, Value]:
    """Step numbers and lengths, ready to broadcast against data; int32."""
    time = along(iota(data.shape[axis]), axis, data.ndim)
    return time, along(cast(lengths, np.int32), 1 - axis, data.ndim)


@define(
    "SequenceMask",
    inputs=_sequence_inputs,
    params=(
        _SEQUENCE[0],
        Param("value", Float, 0.0, doc="what stands after the end"),
        _SEQUENCE[1],
    ),
    shapes=_sequence_shapes,
    dtypes="T,~T->T",
    nondiff=("sequence_length",),
)
def _sequence_mask(data: Value, *lengths: Value, value: float, axis: int, **_: Any) -> Value:
    """Steps after the end of each sequence replaced by `value`.

    Args:
        data: (T, N, ...), or (N, T, ...) with axis 1.
        sequence_length: (N,).

    Returns:
        The shape of data.
    """
    if not lengths:
        return emit("identity", data)
    return select(less(*_steps(data, axis, lengths[0])), data, value)


@define(
    "SequenceLast",
    inputs=_sequence_inputs,
    params=_SEQUENCE,
    dtypes="T,~T->T",
    nondiff=("sequence_length",),
)
def _sequence_last(data: Value, *lengths: Value, axis: int, **_: Any) -> Value:
    """The last step of each sequence.

    Args:
        data: (T, N, ...), or (N, T, ...) with axis 1.
        sequence_length: (N,).

    Returns:
        (N, ...).
    """
    need(data.ndim >= 2 and axis in (0, 1), f"expected time and batch axes, got {data.shape}")
    steps, kept = data.shape[axis], list(data.shape)
    kept[axis] = 1
    if lengths:
        last = along(cast(lengths[0], np.int32), 1 - axis, data.ndim) - 1.0
        made = emit("take_along", data, broadcast_to(last, tuple(kept)), axis=axis, mode="clip")
    else:
        made = sliced(data, axis, steps - 1, steps)
    return reshape(made, (*data.shape[:axis], *data.shape[axis + 1 :]))


@define(
    "SequenceReverse",
    inputs=_sequence_inputs,
    params=_SEQUENCE,
    shapes=_sequence_shapes,
    dtypes="T,~T->T",
    nondiff=("sequence_length",),
)
def _sequence_reverse(data: Value, *lengths: Value, axis: int, **_: Any) -> Value:
    """Each sequence backwards; steps after its end stay where they are.

    Args:
        data: (T, N, ...).
        sequence_length: (N,).

    Returns:
        The shape of data.
    """
    if not lengths:
        return emit("reverse", data, axes=(axis,))
    time, length = _steps(data, axis, lengths[0])
    at = select(less(time, length), length - time - 1.0, time)
    return emit("take_along", data, broadcast_to(at, data.shape), axis=axis, mode="clip")
