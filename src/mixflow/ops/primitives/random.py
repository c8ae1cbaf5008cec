"""Random draws: counter-based (Philox4x32-10), equal on every backend.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import dtype as dtypes
from ...errors import DTypeError
from ...ir import DType, Float, Int, Param, Shape, TensorType
from .rules import Types, define, forward

_DRAW = Param("draw", Int, None, doc="recorded draw number; None takes a new one at run")


def _bits(params: dict[str, Any], ins: Types) -> list[TensorType]:
    return [TensorType(params["shape"], np.dtype(np.int32))]


def _floats(name: str) -> Any:
    def rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
        if not dtypes.is_float(params["dtype"]):
            raise DTypeError(f"[{name}] expected a floating dtype, got {params['dtype'].name}")
        return [TensorType(params["shape"], params["dtype"])]

    return forward(name, rule)


define(
    "random_bits",
    inputs=(),
    params=(Param("shape", Shape), _DRAW),
    infer=forward("random_bits", _bits),
    random=True,
    doc="Uniform 32-bit words as int32.",
)
define(
    "random_uniform",
    inputs=(),
    params=(
        Param("low", Float, 0.0),
        Param("high", Float, 1.0),
        Param("shape", Shape),
        Param("dtype", DType),
        _DRAW,
    ),
    infer=_floats("random_uniform"),
    random=True,
    doc="Uniform on [low, high).",
)
define(
    "random_normal",
    inputs=(),
    params=(
        Param("loc", Float, 0.0),
        Param("scale", Float, 1.0),
        Param("shape", Shape),
        Param("dtype", DType),
        _DRAW,
    ),
    infer=_floats("random_normal"),
    random=True,
    doc="Normal with mean loc and standard deviation scale (Box and Muller, 1958).",
)
