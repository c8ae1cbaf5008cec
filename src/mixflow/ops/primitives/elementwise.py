"""Elementwise primitives: the functions that stand in fused programs.

A gradient rule gets what the formula needs: inputs, output and the output's gradient. Functions
whose derivative is zero almost everywhere (rounding, comparison) list their inputs in `nondiff`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ... import dtype as dtypes
from ...ir import DType, Int, Node, Param, TensorType, Value, constant, emit
from ..aliases import ALIASES
from .rules import (
    Types,
    broadcast_shapes,
    broadcasting,
    common_dtype,
    define,
    elementwise_shape,
    merge_type,
    sum_to,
)

Derivative = Callable[[Value, Value, Value], Value]


def _unary(name: str, doc: str, grad: Derivative | None, **fields: Any) -> None:
    def vjp(node: Node, grads: list[Value | None]) -> list[Value | None]:
        (g,) = grads
        assert grad is not None
        return [None if g is None else grad(node.inputs[0], node[0], g)]

    define(
        name,
        aliases=() if fields.get("internal") else ALIASES.get(name, ()),
        infer=elementwise_shape(name),
        vjp=vjp if grad is not None else None,
        nondiff=() if grad is not None else ("data",),
        reuse=((0, 0),),
        elementwise=fields.pop("elementwise", True),
        internal=fields.pop("internal", False),
        doc=f"{doc}, elementwise.\n\nArgs:\n    data: any shape.\n\n"
        "Returns:\n    Same shape and dtype.",
        **fields,
    )


def _where(condition: Value, x: Value | float, y: Value | float) -> Value:
    like = x if isinstance(x, Value) else y
    assert isinstance(like, Value)
    x = x if isinstance(x, Value) else constant(x, like.dtype)
    y = y if isinstance(y, Value) else constant(y, like.dtype)
    return emit("select", condition, x, y)


def _over_root(sign: float, offset: float, square: float) -> Derivative:
    """sign * g / sqrt(offset + square * x * x)."""

    def grad(x: Value, y: Value, g: Value) -> Value:
        return g * emit("rsqrt", x * x * square + offset) * sign

    return grad


def _polygamma(value: Value, n: int) -> Value:
    return emit("polygamma", value, n=n)


_SMOOTH: dict[str, tuple[str, Derivative]] = {
    "negative": ("-x", lambda x, y, g: -g),
    "abs": ("Absolute value", lambda x, y, g: g * emit("sign", x)),
    "square": ("x * x", lambda x, y, g: g * x * 2.0),
    "sqrt": ("Square root", lambda x, y, g: g * 0.5 / y),
    "rsqrt": ("1 / sqrt(x)", lambda x, y, g: g * y / x * -0.5),
    "cbrt": ("Cube root", lambda x, y, g: g / (y * y * 3.0)),
    "rcbrt": ("1 / cbrt(x)", lambda x, y, g: g * y / x * (-1.0 / 3.0)),
    "exp": ("e ** x", lambda x, y, g: g * y),
    "expm1": ("e ** x - 1", lambda x, y, g: g * (y + 1.0)),
    "log": ("Natural logarithm", lambda x, y, g: g / x),
    "log2": ("Logarithm to base 2", lambda x, y, g: g / (x * math.log(2.0))),
    "log10": ("Logarithm to base 10", lambda x, y, g: g / (x * math.log(10.0))),
    "log1p": ("log(1 + x)", lambda x, y, g: g / (x + 1.0)),
    "sin": ("Sine of x in radians", lambda x, y, g: g * emit("cos", x)),
    "cos": ("Cosine of x in radians", lambda x, y, g: -(g * emit("sin", x))),
    "tan": ("Tangent of x in radians", lambda x, y, g: g * (y * y + 1.0)),
    "arcsin": ("Arc sine in radians", _over_root(1.0, 1.0, -1.0)),
    "arccos": ("Arc cosine in radians", _over_root(-1.0, 1.0, -1.0)),
    "arctan": ("Arc tangent in radians", lambda x, y, g: g / (x * x + 1.0)),
    "sinh": ("Hyperbolic sine", lambda x, y, g: g * emit("cosh", x)),
    "cosh": ("Hyperbolic cosine", lambda x, y, g: g * emit("sinh", x)),
    "tanh": ("Hyperbolic tangent", lambda x, y, g: g * (1.0 - y * y)),
    "arcsinh": ("Inverse hyperbolic sine", _over_root(1.0, 1.0, 1.0)),
    "arccosh": ("Inverse hyperbolic cosine", _over_root(1.0, -1.0, 1.0)),
    "arctanh": ("Inverse hyperbolic tangent", lambda x, y, g: g / (1.0 - x * x)),
    "reciprocal": ("1 / x", lambda x, y, g: -(g * y * y)),
    "relu": ("max(x, 0)", lambda x, y, g: _where(emit("greater", y, constant(0, y.dtype)), g, 0.0)),
    "sigmoid": ("1 / (1 + e ** -x)", lambda x, y, g: g * y * (1.0 - y)),
    "softsign": ("x / (1 + abs(x))", lambda x, y, g: g / emit("square", emit("abs", x) + 1.0)),
    "erf": ("Error function", lambda x, y, g: g * emit("exp", -(x * x)) * (2 / math.sqrt(math.pi))),
    "erfinv": (
        "Inverse of the error function",
        lambda x, y, g: g * emit("exp", y * y) * (math.sqrt(math.pi) / 2),
    ),
    "gamma": ("Gamma function", lambda x, y, g: g * y * _polygamma(x, 0)),
    "gammaln": ("Logarithm of abs(gamma(x))", lambda x, y, g: g * _polygamma(x, 0)),
    "degrees": ("Radians to degrees", lambda x, y, g: g * (180.0 / math.pi)),
    "radians": ("Degrees to radians", lambda x, y, g: g * (math.pi / 180.0)),
}

_FLAT = {
    "sign": "Sign: -1, 0 or 1",
    "round": "Nearest integer, half away from zero",
    "rint": "Nearest integer, half to the lower one (as MXNet)",
    "ceil": "Smallest integer not below x",
    "floor": "Largest integer not above x",
    "trunc": "Nearest integer towards zero",
    "fix": "Nearest integer towards zero",
    "logical_not": "1 where x is 0, else 0",
}

for _name, (_doc, _grad) in _SMOOTH.items():
    _unary(_name, _doc, _grad)
for _name, _doc in _FLAT.items():
    _unary(_name, _doc, None)
_unary("identity", "x itself", lambda x, y, g: g, internal=True)


def _polygamma_vjp(node: Node, grads: list[Value | None]) -> list[Value | None]:
    (g,) = grads
    return [None if g is None else g * _polygamma(node.inputs[0], node.params["n"] + 1)]


define(
    "polygamma",
    params=(Param("n", Int),),
    infer=elementwise_shape("polygamma"),
    vjp=_polygamma_vjp,
    reuse=((0, 0),),
    doc="Derivative number n + 1 of log(gamma(x)). Not part of fused programs.",
)

# -- two inputs

#: (a, b, y, g) -> (gradient of a, gradient of b), before summing over broadcast axes.
Pair = Callable[[Value, Value, Value, Value], tuple[Value, Value]]


def _binary(name: str, doc: str, grad: Pair | None) -> None:
    def vjp(node: Node, grads: list[Value | None]) -> list[Value | None]:
        (g,) = grads
        assert grad is not None
        if g is None:
            return [None, None]
        a, b = node.inputs
        da, db = grad(a, b, node[0], g)
        return [sum_to(da, a.shape), sum_to(db, b.shape)]

    define(
        name,
        inputs=("lhs", "rhs"),
        infer=broadcasting(name),
        vjp=vjp if grad is not None else None,
        nondiff=() if grad is not None else ("lhs", "rhs"),
        reuse=((0, 0), (0, 1)),
        elementwise=True,
        doc=f"{doc}, elementwise with broadcasting.\n\n"
        "Args:\n    lhs, rhs: shapes that broadcast.\n"
        "\nReturns:\n    The broadcast shape, same dtype.",
    )


def _split(to_a: str, to_b: str) -> Pair:
    """The gradient goes to a or b where the condition holds; to none where either is NaN."""

    def grad(a: Value, b: Value, y: Value, g: Value) -> tuple[Value, Value]:
        return _where(emit(to_a, a, b), g, 0.0), _where(emit(to_b, a, b), g, 0.0)

    return grad


def _divide_grad(a: Value, b: Value, y: Value, g: Value) -> tuple[Value, Value]:
    return g / b, -(g * y / b)


def _power_grad(a: Value, b: Value, y: Value, g: Value) -> tuple[Value, Value]:
    return g * b * emit("power", a, b - 1.0), g * y * emit("log", a)


def _arctan2_grad(a: Value, b: Value, y: Value, g: Value) -> tuple[Value, Value]:
    scale = g / (a * a + b * b)
    return scale * b, -(scale * a)


_binary("add", "a + b", lambda a, b, y, g: (g, g))
_binary("subtract", "a - b", lambda a, b, y, g: (g, -g))
_binary("multiply", "a * b", lambda a, b, y, g: (g * b, g * a))
_binary("divide", "a / b (integers truncate towards zero)", _divide_grad)
_binary(
    "mod",
    "Remainder with the divisor's sign",
    lambda a, b, y, g: (g, -(g * emit("floor", a / b))),
)
_binary("power", "a ** b", _power_grad)
_binary("maximum", "The larger; NaN if either is", _split("greater_equal", "less"))
_binary("minimum", "The smaller; NaN if either is", _split("less_equal", "greater"))
_binary("hypot", "sqrt(a * a + b * b)", lambda a, b, y, g: (g * a / y, g * b / y))
_binary("arctan2", "Angle of the point (b, a) in radians", _arctan2_grad)
for _name in (
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
):
    _binary(_name, f"1 where {_name.replace('_', ' ')}, else 0", None)

# -- select and cast


def _select_infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
    dtype = common_dtype("select", [*ins[1:], *outs])
    shape = broadcast_shapes("select", *(t.shape for t in ins))
    ins = [ins[0], *(t._replace(dtype=dtype) for t in ins[1:])]
    return ins, [merge_type("select", "output", TensorType(shape, dtype), outs[0])]


def _select_vjp(node: Node, grads: list[Value | None]) -> list[Value | None]:
    (g,) = grads
    if g is None:
        return [None, None, None]
    condition, x, y = node.inputs
    dx, dy = _where(condition, g, 0.0), _where(condition, 0.0, g)
    return [None, sum_to(dx, x.shape), sum_to(dy, y.shape)]


define(
    "select",
    inputs=("condition", "x", "y"),
    infer=_select_infer,
    vjp=_select_vjp,
    nondiff=("condition",),
    reuse=((0, 1), (0, 2)),
    elementwise=True,
    doc="x where condition is not 0, else y; the condition may have any dtype. Shapes broadcast.",
)


def _cast_infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
    shape = elementwise_shape("cast")
    bare = [t._replace(dtype=None) for t in [*ins, *outs]]
    (a,), (b,) = shape(params, bare[:1], bare[1:])
    made = TensorType(b.shape, params["dtype"])
    return [a._replace(dtype=ins[0].dtype)], [merge_type("cast", "output", made, outs[0])]


def _cast_vjp(node: Node, grads: list[Value | None]) -> list[Value | None]:
    (g,) = grads
    source = node.inputs[0].dtype
    if g is None or not (dtypes.is_float(source) and dtypes.is_float(g.dtype)):
        return [None]
    return [g if g.dtype == source else emit("cast", g, dtype=source)]


define(
    "cast",
    params=(Param("dtype", DType),),
    infer=_cast_infer,
    vjp=_cast_vjp,
    reuse=((0, 0),),
    elementwise=True,
    doc="Another dtype, same shape. Floats truncate to integers; bool is x != 0.",
)
