"""Functions of mx.sym that MXNet writes by hand: constants, and operators that take numbers too."""

from __future__ import annotations

from typing import Any

from ..errors import GraphError, ParamError
from ..ir import get
from .register import make
from .symbol import Symbol


def _constant(op: str, name: str | None, **params: Any) -> Symbol:
    return make(get(op), op, {}, {k: v for k, v in params.items() if v is not None}, name)


def zeros(shape: Any, dtype: Any = None, name: str | None = None, **kwargs: Any) -> Symbol:
    """Zeros of a shape."""
    return _constant("_zeros", name, shape=shape, dtype=dtype or "float32", **kwargs)


def ones(shape: Any, dtype: Any = None, name: str | None = None, **kwargs: Any) -> Symbol:
    """Ones of a shape."""
    return _constant("_ones", name, shape=shape, dtype=dtype or "float32", **kwargs)


def full(
    shape: Any, val: float, dtype: Any = None, name: str | None = None, **kwargs: Any
) -> Symbol:
    """One number in a shape."""
    return _constant(
        "_full", name, shape=shape, value=float(val), dtype=dtype or "float32", **kwargs
    )


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool = False,
    name: str | None = None,
    dtype: Any = None,
) -> Symbol:
    """Numbers from start to before stop by step, each `repeat` times."""
    return _constant(
        "_arange", name, start=start, stop=stop, step=step, repeat=repeat,
        infer_range=infer_range, dtype=dtype or "float32",
    )  # fmt: skip


def eye(N: int, M: int = 0, k: int = 0, name: str | None = None, dtype: Any = None) -> Symbol:
    """Ones on diagonal k of an N by M matrix (M = 0: square)."""
    return _constant("_eye", name, N=N, M=M, k=k, dtype=dtype or "float32")


def linspace(
    start: float,
    stop: float,
    num: int,
    endpoint: bool = True,
    name: str | None = None,
    dtype: Any = None,
) -> Symbol:
    """`num` numbers from start to stop."""
    return _constant(
        "_linspace", name, start=start, stop=stop, num=num, endpoint=endpoint,
        dtype=dtype or "float32",
    )  # fmt: skip


def _either(a: Any, b: Any, names: tuple[str, str, str], numbers: Any) -> Any:
    """`names`: operator of two symbols, of symbol and number, of number and symbol."""
    if isinstance(a, Symbol) and isinstance(b, Symbol):
        op = get(names[0])
        return make(op, names[0].lower(), dict(zip(op.input_names({}), (a, b), strict=True)), {})
    if isinstance(a, Symbol) or isinstance(b, Symbol):
        symbol, number = (a, b) if isinstance(a, Symbol) else (b, a)
        name = names[1] if symbol is a else names[2]
        if isinstance(number, bool) or not hasattr(number, "__float__"):
            raise ParamError(f"[symbol] expected a number, got {type(number).__name__}")
        op = get(name)
        return make(op, name.lower(), {op.input_names({})[0]: symbol}, {"scalar": float(number)})
    if not hasattr(a, "__float__") or not hasattr(b, "__float__"):
        raise GraphError(f"[symbol] expected symbols or numbers, got {type(a).__name__}")
    return numbers(a, b)


def maximum(left: Any, right: Any) -> Any:
    """Elementwise maximum of symbols or numbers."""
    return _either(left, right, ("_Maximum", "_MaximumScalar", "_MaximumScalar"), max)


def minimum(left: Any, right: Any) -> Any:
    """Elementwise minimum of symbols or numbers."""
    return _either(left, right, ("_Minimum", "_MinimumScalar", "_MinimumScalar"), min)


def hypot(left: Any, right: Any) -> Any:
    """Elementwise sqrt(left**2 + right**2) of symbols or numbers."""
    import math

    return _either(left, right, ("_Hypot", "_HypotScalar", "_HypotScalar"), math.hypot)


def pow(base: Any, exp: Any) -> Any:
    """Elementwise base ** exp of symbols or numbers."""
    return _either(base, exp, ("_Power", "_PowerScalar", "_RPowerScalar"), lambda a, b: a**b)


power = pow
