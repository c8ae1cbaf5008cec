"""Primitives that move elements: reshape, permute, broadcast, slices, padding, concatenation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ir import Enum, Float, Int, Node, Param, Shape, TensorType, Value, constant, emit
from .rules import (
    Types,
    broadcast_shapes,
    check_axis,
    define,
    expect,
    forward,
    reshape,
    shape_of,
    sum_to,
    typed,
    zeros,
)

Grads = list[Value | None]


def _reshape_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    shape = params["shape"]
    fits = math.prod(shape) == ins[0].size and all(d >= 0 for d in shape)
    expect(fits, "reshape", f"a shape of {ins[0].size} elements", shape)
    return [typed(ins[0], shape)]


def _reshape_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    return [None if g is None else reshape(g, node.inputs[0].shape)]


define(
    "reshape",
    params=(Param("shape", Shape),),
    infer=forward("reshape", _reshape_rule),
    vjp=_reshape_vjp,
    reuse=((0, 0),),
    doc="The same elements in another shape.",
)


def _permute_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    axes, shape = params["axes"], shape_of(ins[0])
    expect(sorted(axes) == list(range(len(shape))), "permute", f"each axis of {shape} once", axes)
    return [typed(ins[0], [shape[a] for a in axes])]


def _permute_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    back = tuple(int(i) for i in np.argsort(node.params["axes"]))
    return [None if g is None else emit("permute", g, axes=back)]


define(
    "permute",
    params=(Param("axes", Shape),),
    infer=forward("permute", _permute_rule),
    vjp=_permute_vjp,
    doc="Output axis i is input axis axes[i].",
)


def _broadcast_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    shape = params["shape"]
    got = broadcast_shapes("broadcast", ins[0].shape, shape)
    expect(got == shape, "broadcast", f"a shape that stretches to {shape}", ins[0].shape)
    return [typed(ins[0], shape)]


def _broadcast_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    return [None if g is None else sum_to(g, node.inputs[0].shape)]


define(
    "broadcast",
    params=(Param("shape", Shape),),
    infer=forward("broadcast", _broadcast_rule),
    vjp=_broadcast_vjp,
    doc="NumPy's broadcast_to.",
)

# -- slices

SLICE = (Param("begin", Shape), Param("end", Shape), Param("step", Shape))


def slice_shape(op: str, params: dict[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the region that begin, end and step cut out of `shape`.

    Raises:
        ShapeError: one entry per axis is missing, a step is 0, or the region leaves the tensor.
    """
    begin, end, step = params["begin"], params["end"], params["step"]
    fits = len(begin) == len(end) == len(step) == len(shape)
    expect(fits, op, f"begin, end and step for each of {len(shape)} axes", (begin, end, step))
    sizes = []
    for axis, (b, e, s, d) in enumerate(zip(begin, end, step, shape, strict=True)):
        expect(s != 0, op, "steps other than 0", step)
        size = max(0, -((b - e) // s) if s > 0 else -((e - b) // -s))
        last = b + (size - 1) * s
        inside = size == 0 or (0 <= b < d and 0 <= last < d)
        expect(inside, op, f"a region inside axis {axis} of size {d}", f"{b}:{e}:{s}")
        sizes.append(size)
    return tuple(sizes)


def _slice_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    return [typed(ins[0], slice_shape("strided_slice", params, shape_of(ins[0])))]


def put_back(value: Value, params: Any, shape: tuple[int, ...]) -> Value:
    """Zeros of `shape` with `value` in the region; what the gradient of a slice is."""
    begin, end, step = params["begin"], params["end"], params["step"]
    if any(s != 1 for s in step):
        return emit("unslice", value, begin=begin, end=end, step=step, shape=shape)
    after = tuple(d - b - n for d, b, n in zip(shape, begin, value.shape, strict=True))
    return emit("pad", value, before=begin, after=after, mode="constant", value=0.0)


def _slice_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    return [None if g is None else put_back(g, node.params, node.inputs[0].shape)]


define(
    "strided_slice",
    params=SLICE,
    infer=forward("strided_slice", _slice_rule),
    vjp=_slice_vjp,
    doc="Every axis from begin to before end by step; length ceil((end - begin) / step).",
)


def _unslice_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    region = slice_shape("unslice", params, params["shape"])
    expect(
        region == ins[0].shape, "unslice", f"a value of the region's shape {region}", ins[0].shape
    )
    return [typed(ins[0], params["shape"])]


def _unslice_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    region = {k: node.params[k] for k in ("begin", "end", "step")}
    return [None if g is None else emit("strided_slice", g, **region)]


define(
    "unslice",
    params=(*SLICE, Param("shape", Shape)),
    infer=forward("unslice", _unslice_rule),
    vjp=_unslice_vjp,
    doc="Zeros of `shape` with data in the region: the gradient of strided_slice.",
)

# -- padding


def _pad_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    shape, before, after = shape_of(ins[0]), params["before"], params["after"]
    fits = len(before) == len(after) == len(shape) and min((*before, *after), default=0) >= 0
    expect(fits, "pad", f"widths of 0 or more for {len(shape)} axes", (before, after))
    limit = {"constant": None, "edge": 0, "reflect": 1}[params["mode"]]
    for d, b, a in zip(shape, before, after, strict=True):
        padded = max(b, a)
        if padded and limit is not None:
            enough = d > (padded if limit else 0)
            expect(
                enough,
                "pad",
                f"an axis larger than its {params['mode']} padding",
                f"{d} and {padded}",
            )
    padded_shape = [d + b + a for d, b, a in zip(shape, before, after, strict=True)]
    return [typed(ins[0], padded_shape)]


def _pad_indices(size: int, before: int, after: int, mode: str) -> Value:
    """Source position of each position of a padded axis, as an int32 vector."""
    dtype = np.dtype(np.int32)
    total = size + before + after
    at = emit("iota", start=float(-before), step=1.0, shape=(total,), dtype=dtype)
    last = constant(size - 1, dtype)
    if mode == "edge":
        return emit("minimum", emit("maximum", at, constant(0, dtype)), last)
    return last - emit("abs", last - emit("abs", at))


def _pad_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None]
    shape, p = node.inputs[0].shape, node.params
    if p["mode"] == "constant":
        end = tuple(b + d for b, d in zip(p["before"], shape, strict=True))
        return [emit("strided_slice", g, begin=p["before"], end=end, step=(1,) * len(shape))]
    for axis, size in enumerate(shape):
        if g.shape[axis] != size:
            at = _pad_indices(size, p["before"][axis], p["after"][axis], p["mode"])
            base = zeros(tuple(size if i == axis else d for i, d in enumerate(g.shape)), g.dtype)
            g = emit("scatter_add", base, at, g, axis=axis, mode="clip")
    return [g]


define(
    "pad",
    params=(
        Param("before", Shape),
        Param("after", Shape),
        Param("mode", Enum("constant", "edge", "reflect"), "constant"),
        Param("value", Float, 0.0),
    ),
    infer=forward("pad", _pad_rule),
    vjp=_pad_vjp,
    doc="Adds elements before and after each axis: a constant, the edge, or a reflection.",
)

# -- concatenation and the rest


def _concatenate_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    expect(
        len(ins) == params["num_args"] > 0, "concatenate", f"{params['num_args']} tensors", len(ins)
    )
    first = shape_of(ins[0])
    axis = check_axis("concatenate", params["axis"], len(first))
    total = 0
    for i, t in enumerate(ins):
        shape = shape_of(t)
        fits = len(shape) == len(first) and all(
            a == b for j, (a, b) in enumerate(zip(shape, first, strict=True)) if j != axis
        )
        expect(fits, "concatenate", f"input {i} like {first} except on axis {axis}", shape)
        total += shape[axis]
    return [typed(ins[0], [total if i == axis else d for i, d in enumerate(first)])]


def _concatenate_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None] * len(node.inputs)
    axis = node.params["axis"] % g.ndim
    result: Grads = []
    at = 0
    for x in node.inputs:
        begin = tuple(at if i == axis else 0 for i in range(g.ndim))
        end = tuple(b + d for b, d in zip(begin, x.shape, strict=True))
        result.append(emit("strided_slice", g, begin=begin, end=end, step=(1,) * g.ndim))
        at += x.shape[axis]
    return result


define(
    "concatenate",
    inputs=lambda p: tuple(f"arg{i}" for i in range(p["num_args"])),
    params=(Param("axis", Int), Param("num_args", Int, 1)),
    variadic="num_args",
    infer=forward("concatenate", _concatenate_rule),
    vjp=_concatenate_vjp,
    doc="Joins tensors that agree on all other axes.",
)


def _reverse_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    assert ins[0].shape is not None
    for axis in params["axes"]:
        check_axis("reverse", axis, len(ins[0].shape))
    return [ins[0]]


def _reverse_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    return [None if g is None else emit("reverse", g, axes=node.params["axes"])]


define(
    "reverse",
    params=(Param("axes", Shape),),
    infer=forward("reverse", _reverse_rule),
    vjp=_reverse_vjp,
    doc="Reverses the order along the axes.",
)
define(
    "copy",
    infer=forward("copy", lambda params, ins: [ins[0]]),
    vjp=lambda node, grads: list(grads),
    doc="A copy that is never merged away.",
)
