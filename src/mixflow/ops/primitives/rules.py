"""Shared pieces of shape, dtype and gradient rules, for primitives and public operators alike.

A rule never guesses: it merges what is known from inputs and outputs and raises `ShapeError` or
`DTypeError` as ``[operator] expected ..., got ...; hint``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import DTypeError, ShapeError
from ...ir import Operator, TensorType, Value, constant, emit, register
from ...ir.op import InferRule
from ...ir.types import PartialShape

Types = list[TensorType]
#: (parameters, fully known input types) -> output types.
ForwardRule = Callable[[dict[str, Any], Types], Sequence[TensorType]]


def show(shape: PartialShape | None) -> str:
    """A shape in an error text."""
    return "an unknown shape" if shape is None else str(tuple(shape)).replace("None", "?")


def merge_shape(
    op: str, what: str, a: PartialShape | None, b: PartialShape | None, hint: str = ""
) -> PartialShape | None:
    """Two views of one shape made one; None dimensions take the other's value.

    Raises:
        ShapeError: they contradict each other. `what` names the tensor, `a` is what is expected.
    """
    if a is None or b is None:
        return b if a is None else a
    fits = len(a) == len(b) and all(
        x is None or y is None or x == y for x, y in zip(a, b, strict=True)
    )
    if not fits:
        tail = f"; {hint}" if hint else ""
        raise ShapeError(f"[{op}] expected {what} of shape {show(a)}, got {show(b)}{tail}")
    return tuple(y if x is None else x for x, y in zip(a, b, strict=True))


def merge_dtype(
    op: str, what: str, a: np.dtype[Any] | None, b: np.dtype[Any] | None
) -> np.dtype[Any] | None:
    """Two views of one dtype made one.

    Raises:
        DTypeError: they differ.
    """
    if a is not None and b is not None and a != b:
        raise DTypeError(f"[{op}] expected {what} of dtype {a.name}, got {b.name}; use cast")
    return b if a is None else a


def merge_type(op: str, what: str, a: TensorType, b: TensorType) -> TensorType:
    """Both of the above; keeps storage type and dynamic mark of `b`."""
    shape = merge_shape(op, what, a.shape, b.shape)
    return b._replace(shape=shape, dtype=merge_dtype(op, what, a.dtype, b.dtype))


def common_dtype(op: str, types: Sequence[TensorType]) -> np.dtype[Any] | None:
    """The one dtype of several tensors, None where none is known.

    Raises:
        DTypeError: two of them differ.
    """
    found = None
    for i, t in enumerate(types):
        found = merge_dtype(op, f"input {i}", found, t.dtype)
    return found


def computed_dtype(op: str, types: Sequence[TensorType]) -> np.dtype[Any] | None:
    """The dtype that products of these tensors are computed in.

    float32 tensors may stand among tensors of one narrow float dtype: they are rounded to it when
    they are read, and sums run in float32. So casts of weights need no step of their own.

    Raises:
        DTypeError: any other mixture.
    """
    wide = np.dtype(np.float32)
    narrow = [t for t in types if t.dtype is not None and t.dtype.itemsize == 2]
    rest = [t for t in types if t.dtype is not None and t.dtype != wide]
    if len(narrow) == len(rest) and narrow:
        return common_dtype(op, narrow)
    return common_dtype(op, types)


def elementwise_shape(op: str) -> InferRule:
    """Rule: all inputs and outputs have one shape and one dtype; works in both directions."""

    def infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
        one = TensorType()
        for i, t in enumerate([*ins, *outs]):
            what = f"input {i}" if i < len(ins) else "output"
            one = merge_type(op, what, one, TensorType(t.shape, t.dtype))
        fill = [t._replace(shape=one.shape, dtype=one.dtype) for t in [*ins, *outs]]
        return fill[: len(ins)], fill[len(ins) :]

    return infer


def broadcast_shapes(op: str, *shapes: PartialShape | None) -> PartialShape | None:
    """NumPy's broadcast of the shapes; None where one of them is unknown.

    Raises:
        ShapeError: they do not broadcast together.
    """
    if any(s is None for s in shapes):
        return None
    rank = max((len(s) for s in shapes if s is not None), default=0)
    result: list[int | None] = []
    for axis in range(-rank, 0):
        dims = [s[axis] for s in shapes if s is not None and len(s) >= -axis]
        sizes = {d for d in dims if d is not None and d != 1}
        if len(sizes) > 1:
            got = " and ".join(show(s) for s in shapes)
            raise ShapeError(f"[{op}] expected shapes that broadcast together, got {got}")
        unknown = any(d is None for d in dims)
        result.append(sizes.pop() if sizes else (None if unknown else 1))
    return tuple(result)


def broadcasting(op: str) -> InferRule:
    """Rule: outputs have the inputs' broadcast shape and one dtype (shapes go forward only)."""

    def infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
        dtype = common_dtype(op, [*ins, *outs])
        shape = broadcast_shapes(op, *(t.shape for t in ins))
        made = TensorType(shape, dtype)
        ins = [t._replace(dtype=dtype) for t in ins]
        return ins, [merge_type(op, "output", made, t) for t in outs]

    return infer


def forward(op: str, rule: ForwardRule, one_dtype: bool = True, mixed: bool = False) -> InferRule:
    """Rule that only goes from known inputs to outputs; unknown inputs leave all as it is.

    Args:
        mixed: float32 inputs may stand among narrow ones, see `computed_dtype`.
    """

    def infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
        if mixed:
            computed_dtype(op, ins)
        elif one_dtype:
            common_dtype(op, ins)
        if not all(t.known for t in ins):
            return ins, outs
        made = list(rule(params, ins))
        return ins, [merge_type(op, "output", m, t) for m, t in zip(made, outs, strict=True)]

    return infer


def check_axis(op: str, axis: int, rank: int) -> int:
    """The axis counted from the front.

    Raises:
        ShapeError: out of range.
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"[{op}] expected an axis in [{-rank}, {rank}), got {axis}")
    return axis % rank


def expect(condition: bool, op: str, expected: str, got: object, hint: str = "") -> None:
    """Raises the house form of `ShapeError` unless `condition`."""
    if not condition:
        tail = f"; {hint}" if hint else ""
        raise ShapeError(f"[{op}] expected {expected}, got {got}{tail}")


def shape_of(known: TensorType) -> tuple[int, ...]:
    """The shape of a fully known type."""
    assert known.shape is not None and None not in known.shape
    return known.shape  # type: ignore[return-value]


def typed(like: TensorType, shape: Sequence[int], dtype: Any = None) -> TensorType:
    """A dense type with this shape and `like`'s dtype unless one is given."""
    return TensorType(tuple(shape), like.dtype if dtype is None else np.dtype(dtype))


# -- graph algebra shared by gradient rules


def sum_to(value: Value, shape: tuple[int, ...]) -> Value:
    """Sums a gradient over the axes that broadcasting added or stretched; `value` if none."""
    if value.shape == shape:
        return value
    lead = value.ndim - len(shape)
    axes = tuple(
        i for i, d in enumerate(value.shape) if i < lead or (d != 1 and shape[i - lead] == 1)
    )
    if axes:
        value = emit("reduce_sum", value, axes=axes, keepdims=False)
    return reshape(value, shape)


def reshape(value: Value, shape: Sequence[int]) -> Value:
    """`value` in another shape; no node where it is the same."""
    return value if value.shape == tuple(shape) else emit("reshape", value, shape=tuple(shape))


def broadcast_to(value: Value, shape: tuple[int, ...]) -> Value:
    """`value` stretched to `shape`; no node where it is the same."""
    return value if value.shape == shape else emit("broadcast", value, shape=shape)


def keep_axes(value: Value, axes: Sequence[int], shape: tuple[int, ...]) -> Value:
    """A reduced value with its reduced axes put back as ones; `shape` is the unreduced one."""
    return reshape(value, tuple(1 if i in axes else d for i, d in enumerate(shape)))


def along(vector: Value, axis: int, rank: int) -> Value:
    """A vector laid along one axis of `rank`, ready to broadcast."""
    return reshape(vector, tuple(vector.shape[0] if i == axis else 1 for i in range(rank)))


def zeros(shape: tuple[int, ...], dtype: Any) -> Value:
    """A value full of zeros."""
    return constant(0.0, dtype, shape)


def define(name: str, **fields: Any) -> Operator:
    """Registers a primitive; internal unless stated."""
    fields.setdefault("internal", True)
    return register(Operator(name, primitive=True, **fields))
