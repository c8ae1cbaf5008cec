"""Reductions and the positions of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir import Bool, DType, Int, Node, Param, Shape, TensorType, Value, constant, emit
from .rules import (
    Types,
    broadcast_to,
    check_axis,
    define,
    expect,
    forward,
    keep_axes,
    shape_of,
    typed,
)

Grads = list[Value | None]


def _reduced(name: str) -> Callable[[dict[str, Any], Types], list[TensorType]]:
    def rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
        shape, axes = shape_of(ins[0]), params["axes"]
        ordered = list(axes) == sorted(set(axes)) and all(0 <= a < len(shape) for a in axes)
        expect(ordered, name, f"sorted axes in [0, {len(shape)})", axes)
        kept = [(1 if i in axes else d) for i, d in enumerate(shape)]
        if not params["keepdims"]:
            kept = [d for i, d in enumerate(shape) if i not in axes]
        return [typed(ins[0], kept, params.get("dtype"))]

    return rule


#: (node, x, y and g stretched to x's shape) -> gradient of x
Spread = Callable[[Node, Value, Value, Value], Value]


def _reduction(name: str, doc: str, grad: Spread) -> None:
    def vjp(node: Node, grads: Grads) -> Grads:
        (g,) = grads
        if g is None:
            return [None]
        x, axes = node.inputs[0], node.params["axes"]
        y = keep_axes(node[0], axes, x.shape)
        if g.dtype != x.dtype:  # a reduction to another dtype
            y, g = (emit("cast", v, dtype=x.dtype) for v in (y, g))
        return [grad(node, x, y, broadcast_to(keep_axes(g, axes, x.shape), x.shape))]

    define(
        name,
        params=(
            Param("axes", Shape),
            Param("keepdims", Bool, False),
            Param("dtype", DType, None, nullable=True, doc="of the result; None = that of data"),
        ),
        infer=forward(name, _reduced(name)),
        vjp=vjp,
        doc=f"{doc} over `axes` (sorted; () is the identity). float16 accumulates in float32.",
    )


def _extreme_grad(node: Node, x: Value, y: Value, g: Value) -> Value:
    return emit("select", emit("equal", x, y), g, constant(0, g.dtype))


def _prod_grad(node: Node, x: Value, y: Value, g: Value) -> Value:
    """The product of the others, right where elements are 0 as well."""
    one, zero = constant(1, x.dtype), constant(0, x.dtype)
    is_zero = emit("equal", x, zero)
    others = emit("select", is_zero, one, x)
    axes = node.params["axes"]
    count = emit("reduce_sum", is_zero, axes=axes, keepdims=True)
    product = emit("reduce_prod", others, axes=axes, keepdims=True)
    at_zero = emit("select", emit("equal", count, one), product, zero)
    elsewhere = emit("select", emit("equal", count, zero), product / others, zero)
    return g * emit("select", is_zero, at_zero, elsewhere)


_reduction("reduce_sum", "Sum", lambda node, x, y, g: g)
_reduction("reduce_prod", "Product", _prod_grad)
_reduction("reduce_max", "Largest element (ties all get the gradient)", _extreme_grad)
_reduction("reduce_min", "Smallest element (ties all get the gradient)", _extreme_grad)


def _position(name: str) -> Callable[[dict[str, Any], Types], list[TensorType]]:
    def rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
        shape = shape_of(ins[0])
        axis = check_axis(name, params["axis"], len(shape))
        expect(shape[axis] != 0, name, "a non-empty axis", shape)
        kept = [(1 if i == axis else d) for i, d in enumerate(shape)]
        if not params["keepdims"]:
            kept.pop(axis)
        return [typed(ins[0], kept, params.get("dtype"))]

    return rule


for _name, _what in (("arg_max", "largest"), ("arg_min", "smallest")):
    define(
        _name,
        params=(Param("axis", Int), Param("keepdims", Bool, False), Param("dtype", DType)),
        infer=forward(_name, _position(_name)),
        nondiff=("data",),
        doc=f"Position of the first {_what} element along `axis`.",
    )
