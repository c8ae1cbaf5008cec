"""Writes to variables: pure nodes whose only output is the variable's next version."""

from __future__ import annotations

from typing import Any

from ...ir import Node, Value, emit
from .index import nd_shape
from .rules import Types, common_dtype, define, expect, merge_shape, shape_of, zeros
from .shape import SLICE, put_back, slice_shape

Grads = list[Value | None]


def _assign_infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
    common_dtype("assign", ins)
    merge_shape("assign", "a value", ins[0].shape, ins[1].shape)
    return ins, outs


define(
    "assign",
    inputs=("variable", "value"),
    outputs=(),
    mutates=("variable",),
    infer=_assign_infer,
    vjp=lambda node, grads: [None, grads[-1]],
    doc="The next version of the variable is the value.",
)


def _slice_infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
    common_dtype("slice_assign", ins)
    if ins[0].known:
        region = slice_shape("slice_assign", params, shape_of(ins[0]))
        merge_shape("slice_assign", "a value", region, ins[1].shape, "broadcast it first")
    return ins, outs


def _slice_vjp(node: Node, grads: Grads) -> Grads:
    g = grads[-1]
    if g is None:
        return [None, None]
    p = node.params
    inner = emit("strided_slice", g, begin=p["begin"], end=p["end"], step=p["step"])
    return [g - put_back(inner, p, g.shape), inner]


define(
    "slice_assign",
    inputs=("variable", "value"),
    params=SLICE,
    outputs=(),
    mutates=("variable",),
    infer=_slice_infer,
    vjp=_slice_vjp,
    doc="The next version has `value` (of the region's shape) in the region.",
)


def _scatter_infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
    common_dtype("scatter_assign_nd", [ins[0], ins[2]])
    if ins[0].known and ins[1].known:
        shape = nd_shape("scatter_assign_nd", shape_of(ins[0]), shape_of(ins[1]))
        expect(ins[2].shape == shape, "scatter_assign_nd", f"a value of {shape}", ins[2].shape)
    return ins, outs


def _scatter_vjp(node: Node, grads: Grads) -> Grads:
    g = grads[-1]
    if g is None:
        return [None, None, None]
    _, at, value = node.inputs
    ones = emit("full", value=1.0, shape=value.shape, dtype=g.dtype)
    hit = emit("scatter_nd_add", zeros(g.shape, g.dtype), at, ones)
    kept = emit("select", hit, zeros((), g.dtype), g)
    return [kept, None, emit("gather_nd", g, at)]


define(
    "scatter_assign_nd",
    inputs=("variable", "indices", "value"),
    outputs=(),
    mutates=("variable",),
    infer=_scatter_infer,
    vjp=_scatter_vjp,
    nondiff=("indices",),
    doc="The next version has `value` at the places of gather_nd; of equal ones the last wins.",
)
