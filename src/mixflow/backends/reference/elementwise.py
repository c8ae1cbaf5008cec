"""Elementwise kernels and fused programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ops.primitives.fused import parse
from . import special
from .common import KERNELS, Array, compute_dtype, computed, kernel

#: name -> function of arrays in a compute dtype.
FUNCTIONS: dict[str, Callable[..., Any]] = {}


def _real(fn: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """A function of real numbers: integers pass through float64; float32 stays float32."""

    def apply(x: Array) -> Array:
        wide = x.astype(np.float64) if x.dtype.kind in "iub" else x
        return np.asarray(fn(wide)).astype(wide.dtype, copy=False)

    return apply


def _rint(x: Array) -> Array:
    """Half goes to the lower integer, as MXNet has it."""
    low = np.floor(x)
    return low + (x - low > 0.5)


def _round(x: Array) -> Array:
    whole = np.trunc(x)
    return np.asarray(whole + np.sign(x) * (np.abs(x - whole) >= 0.5))


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _cbrt_inverse(x: Array) -> Array:
    return 1 / np.cbrt(x)


_REAL: dict[str, Callable[[Array], Any]] = {
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "rcbrt": _cbrt_inverse,
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "arcsin": np.arcsin,
    "arccos": np.arccos, "arctan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "arcsinh": np.arcsinh, "arccosh": np.arccosh, "arctanh": np.arctanh,
    "reciprocal": lambda x: 1 / x, "sigmoid": _sigmoid, "softsign": lambda x: x / (1 + np.abs(x)),
    "erf": special.erf, "erfinv": special.erfinv, "gamma": special.gamma,
    "gammaln": special.gammaln, "degrees": np.degrees, "radians": np.radians,
    "round": _round, "rint": _rint, "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc,
    "fix": np.trunc,
}  # fmt: skip
FUNCTIONS |= {name: _real(fn) for name, fn in _REAL.items()}
FUNCTIONS |= {
    "negative": np.negative,
    "abs": np.abs,
    "sign": lambda x: np.where(np.isnan(x), 0, np.sign(x)),
    "square": np.square,
    "relu": lambda x: np.maximum(x, 0),
    "logical_not": lambda x: x == 0,
    "identity": lambda x: x,
}


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    safe = np.where(b == 0, 1, b)
    whole = np.abs(a) // np.abs(safe) * np.sign(a) * np.sign(safe)
    return np.where(b == 0, 0, whole)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f" or np.all(b >= 0):
        return np.asarray(np.power(a, b))
    return np.asarray(np.power(a.astype(np.float64), b))


FUNCTIONS |= {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": _divide,
    "mod": np.mod, "power": _power, "maximum": np.maximum, "minimum": np.minimum,
    "hypot": np.hypot, "arctan2": np.arctan2, "equal": np.equal, "not_equal": np.not_equal,
    "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "select": lambda c, x, y: np.where(c != 0, x, y),
}  # fmt: skip


def _entry(fn: Callable[..., Any]) -> Any:
    def run(ins: Sequence[Array], params: Mapping[str, Any], key: Any) -> list[Array]:
        return [np.asarray(fn(*map(computed, ins)))]

    return run


for _name, _fn in FUNCTIONS.items():
    KERNELS[_name] = _entry(_fn)


@kernel("cast")
def cast(x: Array, params: Mapping[str, Any]) -> Array:
    """Rounds on store; bfloat16 widens first, since NumPy knows few casts of it."""
    return cast_to(computed(x), params["dtype"])


def cast_to(x: Array, dtype: np.dtype[Any]) -> Array:
    """`x` rounded to `dtype`, by way of int64 where a float becomes an integer."""
    if x.dtype.kind == "f" and dtype.kind in "iu":
        return x.astype(np.int64).astype(dtype)
    return x.astype(dtype)


@kernel("polygamma")
def polygamma(x: Array, params: Mapping[str, Any]) -> Array:
    """See special.polygamma."""
    return special.polygamma(params["n"], computed(x))


def _run_fused(ins: Sequence[Array], params: Mapping[str, Any], key: Any) -> list[Array]:
    program = parse(params["program"])
    registers = {f"i{k}": computed(x) for k, x in enumerate(ins)}
    shape = np.broadcast_shapes(*(x.shape for x in ins))
    for step in program.instructions:
        named = [registers[a] for a in step.args if isinstance(a, str)]
        dtype = named[-1].dtype if named else computed(ins[0]).dtype
        args = [registers[a] if isinstance(a, str) else np.asarray(a, dtype) for a in step.args]
        if step.op == "cast":
            assert step.dtype is not None
            made = cast_to(args[0], step.dtype).astype(compute_dtype(step.dtype))
        else:
            made = np.asarray(FUNCTIONS[step.op](*args)).astype(dtype, copy=False)
        registers[step.target] = made
    return [np.array(np.broadcast_to(registers[name], shape)) for name in program.outputs]


KERNELS["fused"] = _run_fused
