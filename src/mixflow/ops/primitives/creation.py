"""Constants."""

from __future__ import annotations

from typing import Any

from ...ir import DType, Float, Int, Param, Shape, TensorType
from .rules import Types, define, expect, forward


def _made(params: dict[str, Any], ins: Types) -> list[TensorType]:
    return [TensorType(params["shape"], params["dtype"])]


def _made_vector(params: dict[str, Any], ins: Types) -> list[TensorType]:
    expect(len(params["shape"]) == 1, "iota", "a shape of one dimension", params["shape"])
    expect(params["repeat"] > 0, "iota", "a positive repeat", params["repeat"])
    return _made(params, ins)


define(
    "full",
    inputs=(),
    params=(Param("value", Float), Param("shape", Shape), Param("dtype", DType)),
    infer=forward("full", _made),
    doc="Every element is `value`.",
)
define(
    "iota",
    inputs=(),
    params=(
        Param("start", Float, 0.0),
        Param("step", Float, 1.0),
        Param("repeat", Int, 1),
        Param("shape", Shape),
        Param("dtype", DType),
    ),
    infer=forward("iota", _made_vector),
    doc="Element i is start + step * (i // repeat); one dimension.",
)
