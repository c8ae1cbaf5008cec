"""Gather, scatter and order. Indices of any numeric dtype are truncated to integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir import Bool, DType, Enum, Float, Int, Node, Param, TensorType, Value, emit
from .rules import Types, check_axis, common_dtype, define, expect, forward, shape_of, typed, zeros

Grads = list[Value | None]
_AXIS = Param("axis", Int)
_MODE = Param("mode", Enum("clip", "wrap", "raise"), "clip")


def _gathered(op: str, data: TensorType, at: TensorType, axis: int) -> tuple[int, ...]:
    shape = shape_of(data)
    axis = check_axis(op, axis, len(shape))
    return shape[:axis] + shape_of(at) + shape[axis + 1 :]


def _gather_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    return [typed(ins[0], _gathered("gather", ins[0], ins[1], params["axis"]))]


def _gather_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None, None]
    x, at = node.inputs
    return [emit("scatter_add", zeros(x.shape, x.dtype), at, g, **node.params), None]


define(
    "gather",
    inputs=("data", "indices"),
    params=(_AXIS, _MODE),
    infer=forward("gather", _gather_rule, one_dtype=False),
    vjp=_gather_vjp,
    nondiff=("indices",),
    doc="NumPy's take along one axis.",
)


def _scatter_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    common_dtype("scatter_add", [ins[0], ins[2]])
    shape = _gathered("scatter_add", ins[0], ins[1], params["axis"])
    expect(ins[2].shape == shape, "scatter_add", f"updates of shape {shape}", ins[2].shape)
    return [ins[0]]


def _scatter_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None, None, None]
    return [g, None, emit("gather", g, node.inputs[1], **node.params)]


define(
    "scatter_add",
    inputs=("base", "indices", "updates"),
    params=(_AXIS, _MODE),
    infer=forward("scatter_add", _scatter_rule, one_dtype=False),
    vjp=_scatter_vjp,
    nondiff=("indices",),
    reuse=((0, 0),),
    doc="base plus updates at the places that gather reads; duplicates add up.",
)


def _check_along(op: str, data: TensorType, at: TensorType, axis: int) -> None:
    a, b = shape_of(data), shape_of(at)
    axis = check_axis(op, axis, len(a))
    pairs = enumerate(zip(a, b, strict=False))
    same = len(a) == len(b) and all(x == y for i, (x, y) in pairs if i != axis)
    expect(same, op, f"indices like {a} except on axis {axis}", b)


def _along_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    _check_along("take_along", ins[0], ins[1], params["axis"])
    return [typed(ins[0], shape_of(ins[1]))]


def _along_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None, None]
    x, at = node.inputs
    return [emit("put_along_add", zeros(x.shape, x.dtype), at, g, **node.params), None]


define(
    "take_along",
    inputs=("data", "indices"),
    params=(_AXIS, _MODE),
    infer=forward("take_along", _along_rule, one_dtype=False),
    vjp=_along_vjp,
    nondiff=("indices",),
    doc="NumPy's take_along_axis.",
)


def _put_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    common_dtype("put_along_add", [ins[0], ins[2]])
    _check_along("put_along_add", ins[0], ins[1], params["axis"])
    expect(
        ins[2].shape == ins[1].shape, "put_along_add", f"updates of {ins[1].shape}", ins[2].shape
    )
    return [ins[0]]


def _put_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None, None, None]
    return [g, None, emit("take_along", g, node.inputs[1], **node.params)]


define(
    "put_along_add",
    inputs=("base", "indices", "updates"),
    params=(_AXIS, _MODE),
    infer=forward("put_along_add", _put_rule, one_dtype=False),
    vjp=_put_vjp,
    nondiff=("indices",),
    reuse=((0, 0),),
    doc="base plus updates at the places that take_along reads; duplicates add up.",
)


def nd_shape(op: str, data: tuple[int, ...], at: tuple[int, ...]) -> tuple[int, ...]:
    """Shape that gather_nd reads: indices (M, *places) into the first M axes of data.

    Raises:
        ShapeError: no index axis, or more index rows than data axes.
    """
    expect(len(at) >= 1 and at[0] <= len(data), op, f"indices of at most {len(data)} rows", at)
    return at[1:] + data[at[0] :]


def _nd_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    return [typed(ins[0], nd_shape("gather_nd", *map(shape_of, ins)))]


def _nd_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None, None]
    x, at = node.inputs
    return [emit("scatter_nd_add", zeros(x.shape, x.dtype), at, g), None]


define(
    "gather_nd",
    inputs=("data", "indices"),
    infer=forward("gather_nd", _nd_rule, one_dtype=False),
    vjp=_nd_vjp,
    nondiff=("indices",),
    doc="Element (or block) at indices[:, place] of data, for each place.",
)


def _nd_add_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    common_dtype("scatter_nd_add", [ins[0], ins[2]])
    shape = nd_shape("scatter_nd_add", *map(shape_of, ins[:2]))
    expect(ins[2].shape == shape, "scatter_nd_add", f"updates of shape {shape}", ins[2].shape)
    return [ins[0]]


def _nd_add_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None, None, None]
    return [g, None, emit("gather_nd", g, node.inputs[1])]


define(
    "scatter_nd_add",
    inputs=("base", "indices", "updates"),
    infer=forward("scatter_nd_add", _nd_add_rule, one_dtype=False),
    vjp=_nd_add_vjp,
    nondiff=("indices",),
    reuse=((0, 0),),
    doc="base plus updates at the places that gather_nd reads; duplicates add up.",
)


def _one_hot_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    expect(params["depth"] > 0, "one_hot", "a positive depth", params["depth"])
    return [typed(ins[0], (*shape_of(ins[0]), params["depth"]), params["dtype"])]


define(
    "one_hot",
    inputs=("indices",),
    params=(
        Param("depth", Int),
        Param("on_value", Float, 1.0),
        Param("off_value", Float, 0.0),
        Param("dtype", DType),
    ),
    infer=forward("one_hot", _one_hot_rule),
    nondiff=("indices",),
    doc="A last axis of size depth with on_value at the index; all off_value where it is outside.",
)

# -- order


def _same_axis(name: str) -> Any:
    def rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
        check_axis(name, params["axis"], len(shape_of(ins[0])))
        return [ins[0]._replace(dtype=params.get("dtype", ins[0].dtype))]

    return forward(name, rule)


def _sort_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None]
    x, p = node.inputs[0], node.params
    at = emit("argsort", x, **p, dtype=np.dtype(np.int64))
    return [emit("put_along_add", zeros(x.shape, x.dtype), at, g, axis=p["axis"], mode="clip")]


_ASCEND = Param("is_ascend", Bool, True)
define(
    "sort",
    params=(_AXIS, _ASCEND),
    infer=_same_axis("sort"),
    vjp=_sort_vjp,
    doc="Sorted along an axis; stable; NaN last in ascending order.",
)
define(
    "argsort",
    params=(_AXIS, _ASCEND, Param("dtype", DType)),
    infer=_same_axis("argsort"),
    nondiff=("data",),
    doc="Positions that sort; equal elements keep their order, in both directions.",
)


def _cumsum_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None]
    axis = node.params["axis"] % g.ndim
    back = emit("cumsum", emit("reverse", g, axes=(axis,)), axis=axis)
    return [emit("reverse", back, axes=(axis,))]


define(
    "cumsum",
    params=(_AXIS,),
    infer=_same_axis("cumsum"),
    vjp=_cumsum_vjp,
    doc="Running sum along an axis.",
)
