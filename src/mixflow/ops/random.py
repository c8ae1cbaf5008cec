"""Random draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ParamError
from ..ir import Bool, DType, Float, Int, Param, Shape, Value, binary, emit
from .common import (
    broadcast_to,
    cast,
    define,
    expand,
    filled,
    less,
    need,
    reduce,
    reshape,
    size,
)
from .creation import CTX

_FLOAT32 = np.dtype(np.float32)
_SHAPE = Param("shape", Shape, None, nullable=True, doc="shape of the output; None = (1,)")
_DTYPE = Param("dtype", DType, None, nullable=True, doc="dtype of the output; None = float32")
_DRAW: dict[str, Any] = {"random": True, "differentiable": "no"}


def uniform(shape: tuple[int, ...], dtype: Any) -> Value:
    """A draw from [0, 1)."""
    return emit("random_uniform", low=0.0, high=1.0, shape=shape, dtype=dtype)


def _normal(shape: tuple[int, ...], dtype: Any) -> Value:
    return emit("random_normal", loc=0.0, scale=1.0, shape=shape, dtype=dtype)


def _scaled(unit: Value, low: Any, width: Any) -> Value:
    return binary("add", binary("multiply", unit, width), low)


def _exponential(shape: tuple[int, ...], dtype: Any, rate: Any) -> Value:
    return binary("divide", -emit("log", 1.0 - uniform(shape, dtype)), rate)


def _number(name: str, default: float, doc: str) -> Param:
    return Param(name, Float, default, runtime=True, doc=doc)


#: name stem -> (parameters, draw of a shape and dtype from them, distribution).
_DISTRIBUTIONS: dict[str, tuple[tuple[Param, ...], Any, str]] = {
    "uniform": (
        (_number("low", 0.0, "smallest value"), _number("high", 1.0, "bound, not reached")),
        lambda shape, dtype, low, high: _scaled(uniform(shape, dtype), low, high - low),
        "Uniform on [low, high)",
    ),
    "normal": (
        (_number("loc", 0.0, "mean"), _number("scale", 1.0, "standard deviation")),
        lambda shape, dtype, loc, scale: _scaled(_normal(shape, dtype), loc, scale),
        "Normal distribution",
    ),
    "exponential": (
        (_number("lam", 1.0, "rate"),),
        _exponential,
        "Exponential distribution",
    ),
}


def _define_draw(stem: str, params: tuple[Param, ...], draw: Any, what: str) -> None:
    names = [p.name for p in params]

    def compose(*, shape: Any, ctx: str, dtype: Any, **numbers: Any) -> Any:
        return draw(shape or (1,), dtype or _FLOAT32, *(numbers[n] for n in names))

    def like(data: Value, **numbers: Any) -> Any:
        return draw(data.shape, data.dtype, *(numbers[n] for n in names))

    define(
        f"_random_{stem}",
        inputs=(),
        params=(*params, _SHAPE, CTX, _DTYPE),
        dtypes=lambda p: "->@dtype" if p["dtype"] else "->float32",
        doc=f"{what}.\n\nArgs:\n    shape: of the output.\n\nReturns:\n    `shape`.",
        **_DRAW,
    )(compose)
    define(
        f"_random_{stem}_like",
        params=params,
        nondiff=("data",),
        doc=f"{what}.\n\nArgs:\n    data: any shape.\n\nReturns:\n    The shape of data.",
        **_DRAW,
    )(like)


for _stem, (_params, _draw, _what) in _DISTRIBUTIONS.items():
    _define_draw(_stem, _params, _draw, _what)


def _define_sample(stem: str, inputs: tuple[str, ...], draw: Any, what: str) -> None:
    def compose(*numbers: Value, shape: tuple[int, ...], dtype: Any) -> Any:
        own = numbers[0].shape
        need(all(n.shape == own for n in numbers), "expected parameters of one shape, got others")
        wide = [cast(reshape(n, own + (1,) * len(shape)), dtype or _FLOAT32) for n in numbers]
        return draw((*own, *shape), dtype or _FLOAT32, *wide)

    define(
        f"_sample_{stem}",
        inputs=inputs,
        params=(
            Param("shape", Shape, (), doc="draws for each parameter"),
            Param("dtype", DType, None, nullable=True, doc="dtype of the output; None = float32"),
        ),
        dtypes=lambda p: "T...->@dtype" if p["dtype"] else "T...->float32",
        nondiff=inputs,
        doc=f"{what}, one for each element of the parameters.\n\nArgs:\n    "
        f"{', '.join(inputs)}: (s0, ...).\n\nReturns:\n    (s0, ..., *shape).",
        **_DRAW,
    )(compose)


for _stem, _inputs in (
    ("uniform", ("low", "high")),
    ("normal", ("mu", "sigma")),
    ("exponential", ("lam",)),
):
    _define_sample(_stem, _inputs, _DISTRIBUTIONS[_stem][1], _DISTRIBUTIONS[_stem][2])


@define(
    "_random_randint",
    inputs=(),
    params=(
        Param("low", Int, doc="smallest value"),
        Param("high", Int, doc="bound, not reached"),
        _SHAPE,
        CTX,
        Param("dtype", DType, None, nullable=True, doc="int32 or int64; None = int32"),
    ),
    dtypes=lambda p: "->@dtype" if p["dtype"] else "->int32",
    **_DRAW,
)
def _randint(*, low: int, high: int, shape: Any, ctx: str, dtype: Any) -> Value:
    """Uniform whole numbers of [low, high).

    Args:
        shape: of the output.

    Returns:
        `shape`.
    """
    if not 0 < high - low < 2**31:
        raise ParamError(f"[_random_randint] expected low < high < low + 2**31, got {low}, {high}")
    wide = cast(emit("random_bits", shape=tuple(shape or (1,))), np.int64)
    bound = filled(float(high - low), (), np.int64)
    return cast(binary("add", binary("mod", wide, bound), float(low)), dtype or np.int32)


@define("_shuffle", **_DRAW)
def _shuffle(data: Value) -> Value:
    """The slices of the first axis in random order.

    Args:
        data: (d0, ...).

    Returns:
        The shape of data.
    """
    need(data.ndim, "expected at least one axis, got none")
    keys = uniform(data.shape[:1], _FLOAT32)
    order = emit("argsort", keys, axis=0, is_ascend=True, dtype=np.dtype(np.int64))
    return emit("gather", data, order, axis=0, mode="clip")


def _multinomial_outputs(params: dict[str, Any]) -> tuple[str, ...]:
    return ("output0", "output1") if params["get_prob"] else ("output",)


@define(
    "_sample_multinomial",
    params=(
        Param("shape", Shape, (), doc="draws for each distribution; () = one"),
        Param("get_prob", Bool, False, doc="also the logarithm of the drawn probabilities"),
        Param("dtype", DType, np.dtype(np.int32), doc="dtype of the indices"),
    ),
    outputs=_multinomial_outputs,
    dtypes=lambda p: "T->@dtype,T",
    nondiff=("data",),
    **_DRAW,
)
def _multinomial(data: Value, *, shape: tuple[int, ...], get_prob: bool, dtype: Any) -> Any:
    """Indices drawn with given probabilities.

    Args:
        data: (k,) or (n, k), probabilities that sum to 1 along the last axis.

    Returns:
        (*shape) or (n, *shape); (1,) for one draw of one distribution.
    """
    need(data.ndim in (1, 2), f"expected (k,) or (n, k), got {data.shape}")
    lead, kinds, draws = data.shape[:-1], data.shape[-1], size(shape)
    bounds = expand(emit("cumsum", data, axis=data.ndim - 1), data.ndim - 1)
    points = uniform((*lead, draws, 1), data.dtype)
    wide = (*lead, draws, kinds)
    below = less(broadcast_to(bounds, wide), broadcast_to(points, wide))
    found = reduce("sum", below, (len(lead) + 1,))
    found = binary("minimum", found, float(kinds - 1))
    out = (*lead, *shape) or (1,)
    index = cast(reshape(found, out), dtype)
    if not get_prob:
        return index
    chosen = emit("take_along", data, found, axis=data.ndim - 1, mode="clip")
    return index, reshape(emit("log", chosen), out)
