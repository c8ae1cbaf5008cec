"""Arrays from nothing, or from another's shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import ParamError
from ..ir import Bool, DType, Float, Int, Param, Shape, Str, Value, emit
from .common import cast, define, filled, iota, reshape, same_shape, size
from .index import band

_FLOAT32 = np.dtype(np.float32)
CTX = Param("ctx", Str, "", doc="device, as cpu(0)")
_SHAPE = Param("shape", Shape, (), doc="shape of the output")
_DTYPE = Param("dtype", DType, _FLOAT32, doc="dtype of the output")
_NEW: dict[str, Any] = {"inputs": (), "differentiable": "no", "dtypes": "->@dtype"}


def _define_constant(name: str, value: float) -> None:
    def compose(*, shape: tuple[int, ...], ctx: str, dtype: Any) -> Value:
        return filled(value, shape, dtype)

    doc = (
        f"Every element is {value:g}.\n\nArgs:\n    shape: of the output.\n\nReturns:\n    `shape`."
    )
    define(name, params=(_SHAPE, CTX, _DTYPE), doc=doc, **_NEW)(compose)


_define_constant("_zeros", 0.0)
_define_constant("_ones", 1.0)


def _define_like(name: str, value: float) -> None:
    def compose(data: Value) -> Value:
        return filled(value, data.shape, data.dtype)

    doc = (
        f"Every element is {value:g}.\n\nArgs:\n    data: any shape.\n\n"
        "Returns:\n    The shape of data."
    )
    define(name, shapes=same_shape, nondiff=("data",), doc=doc)(compose)


_define_like("zeros_like", 0.0)
_define_like("ones_like", 1.0)


@define(
    "_full",
    params=(
        Param("shape", Shape, None, nullable=True, doc="shape of the output; None = ()"),
        CTX,
        _DTYPE,
        Param("value", Float, doc="of every element"),
    ),
    **_NEW,
)
def _full(*, shape: Any, ctx: str, dtype: Any, value: float) -> Value:
    """Every element is `value`.

    Args:
        shape: of the output.

    Returns:
        `shape`.
    """
    return filled(value, shape or (), dtype)


@define(
    "_arange",
    params=(
        Param("start", Float, doc="first number; the end if stop is None"),
        Param("stop", Float, None, nullable=True, doc="end, not reached"),
        Param("step", Float, 1.0, doc="difference"),
        Param("repeat", Int, 1, doc="how often each number stands"),
        Param("infer_range", Bool, False, doc="end from the wanted shape; not supported"),
        CTX,
        _DTYPE,
    ),
    **_NEW,
)
def _arange(
    *, start: float, stop: Any, step: float, repeat: int, infer_range: bool, ctx: str, dtype: Any
) -> Value:
    """start, start + step, ... below stop.

    Args:
        start, stop, step: numbers.

    Returns:
        (ceil((stop - start) / step) * repeat,).
    """
    if stop is None:
        start, stop = 0.0, start
    if step == 0 or repeat < 1:
        raise ParamError(
            f"[_arange] expected a step other than 0 and repeat > 0, got {step}, {repeat}"
        )
    count = max(0, math.ceil((stop - start) / step)) * repeat
    return emit("iota", start=start, step=step, repeat=repeat, shape=(count,), dtype=dtype)


@define(
    "_linspace",
    params=(
        Param("start", Float, doc="first number"),
        Param("stop", Float, doc="last number"),
        CTX,
        _DTYPE,
        Param("num", Int, doc="how many"),
        Param("endpoint", Bool, True, doc="reach stop"),
    ),
    **_NEW,
)
def _linspace(
    *, start: float, stop: float, ctx: str, dtype: Any, num: int, endpoint: bool
) -> Value:
    """Evenly spaced numbers.

    Args:
        start, stop: first and last number.

    Returns:
        (num,).
    """
    step = (stop - start) / max(1, num - 1 if endpoint else num)
    return iota(num, dtype, start, step)


@define(
    "_eye",
    params=(
        Param("N", Int, doc="rows"),
        Param("M", Int, 0, doc="columns; 0 = as many"),
        Param("k", Int, 0, doc="diagonal; above the main one if positive"),
        CTX,
        _DTYPE,
    ),
    **_NEW,
)
def _eye(*, N: int, M: int, k: int, ctx: str, dtype: Any) -> Value:
    """Ones on a diagonal, zeros elsewhere.

    Args:
        N, M: rows and columns.

    Returns:
        (N, M).
    """
    return cast(band(N, M or N, k), dtype)


@define(
    "_contrib_arange_like",
    params=(
        Param("start", Float, 0.0, doc="first number"),
        Param("step", Float, 1.0, doc="difference"),
        Param("repeat", Int, 1, doc="how often each number stands"),
        CTX,
        Param("axis", Int, None, nullable=True, doc="axis that gives the length; None = the size"),
    ),
    nondiff=("data",),
    differentiable="no",
)
def _arange_like(
    data: Value, *, start: float, step: float, repeat: int, ctx: str, axis: Any
) -> Value:
    """start, start + step, ... as many as an array has elements or an axis has steps.

    Args:
        data: any shape.

    Returns:
        The shape of data if axis is None, else (d[axis],).
    """
    count = size(data.shape) if axis is None else data.shape[axis]
    made = emit("iota", start=start, step=step, repeat=repeat, shape=(count,), dtype=data.dtype)
    return reshape(made, data.shape) if axis is None else made
