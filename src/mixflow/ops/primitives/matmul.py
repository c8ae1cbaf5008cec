"""Batched matrix product."""

from __future__ import annotations

import math
from typing import Any

from ...ir import Bool, DType, Node, Param, TensorType, Value, emit
from .rules import (
    Types,
    computed_dtype,
    define,
    expect,
    forward,
    reshape,
    shape_of,
    sum_to,
    typed,
)

Grads = list[Value | None]


def _rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    a, b = shape_of(ins[0]), shape_of(ins[1])
    expect(len(a) >= 2 and len(b) >= 2, "matmul", "two or more axes each", f"{a} and {b}")
    shared = len(a) == 2 or len(b) == 2 or a[:-2] == b[:-2]
    expect(shared, "matmul", "equal leading axes", f"{a} and {b}", "broadcast or reshape first")
    m, k = (a[-1], a[-2]) if params["transpose_a"] else (a[-2], a[-1])
    k2, n = (b[-1], b[-2]) if params["transpose_b"] else (b[-2], b[-1])
    flags = f"transpose_a={params['transpose_a']}, transpose_b={params['transpose_b']}"
    expect(k == k2, "matmul", f"inner size {k}", f"{k2} of {a} times {b}", flags)
    lead = a[:-2] if len(a) > 2 else b[:-2]
    dtype = params.get("dtype") or computed_dtype("matmul", ins)
    return [typed(ins[0], (*lead, m, n), dtype)]


def matmul(a: Value, b: Value, transpose_a: bool = False, transpose_b: bool = False) -> Value:
    """Emits the product."""
    return emit("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def _shared_grad(x: Value, g: Value, flip: bool) -> Value:
    """Gradient of a matrix that all of a batch shares: one product over batch and rows."""
    rows = math.prod(x.shape[:-1])
    x, g = reshape(x, (rows, x.shape[-1])), reshape(g, (rows, g.shape[-1]))
    return matmul(g, x, True) if flip else matmul(x, g, True)


def _vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None, None]
    a, b = node.inputs
    ta, tb = node.params["transpose_a"], node.params["transpose_b"]
    da = matmul(b, g, tb, True) if ta else matmul(g, b, False, not tb)
    if b.ndim == 2 and a.ndim > 2 and not ta:
        db = _shared_grad(a, g, tb)
    else:
        db = matmul(g, a, True, ta) if tb else matmul(a, g, not ta, False)
    made = [sum_to(da, a.shape), sum_to(db, b.shape)]
    return [
        d if d.dtype == v.dtype else emit("cast", d, dtype=v.dtype)  # mixed precision only
        for d, v in zip(made, node.inputs, strict=True)
    ]


define(
    "matmul",
    inputs=("a", "b"),
    params=(
        Param("transpose_a", Bool, False),
        Param("transpose_b", Bool, False),
        Param("dtype", DType, None, nullable=True, doc="of the result; None = that computed in"),
    ),
    infer=forward("matmul", _rule, mixed=True),
    vjp=_vjp,
    doc="Product of the last two axes (M, K) x (K, N). Leading axes equal, or one tensor has none.",
)
