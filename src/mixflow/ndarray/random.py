"""mx.nd.random: draws from distributions, and the state of the generators."""

from __future__ import annotations

from typing import Any

from .. import _rt
from ..context import Context
from .register import function


def seed(seed_state: int, ctx: Context | str = "all") -> None:
    """Starts the random generators again, those of all contexts or of one."""
    if not isinstance(seed_state, int):
        raise ValueError("sd must be int")
    _rt.core.seed(seed_state % 2**64, None if ctx == "all" else ctx.key)  # type: ignore[union-attr]


def _draw(scalar: str, sample: str, params: dict[str, Any], rest: dict[str, Any]) -> Any:
    """Calls the operator for numbers, or the one that draws for each element of arrays."""
    options = {k: v for k, v in rest.items() if v is not None}
    given = [isinstance(v, _rt.core.Array) for v in params.values()]
    if all(given):
        options.pop("ctx", None)
        return function(sample)(*params.values(), **options)
    if any(given):
        raise ValueError(
            "Distribution parameters must all have the same type, got numbers and arrays"
        )
    options.setdefault("shape", (1,))
    if options.get("out") is not None:
        options["shape"] = options["out"].shape
        options.setdefault("ctx", options["out"].context)
        options.setdefault("dtype", options["out"].dtype)
    return function(scalar)(**params, **options)


def uniform(
    low: Any = 0,
    high: Any = 1,
    shape: Any = None,
    dtype: Any = None,
    ctx: Any = None,
    out: Any = None,
    **kwargs: Any,
) -> Any:
    """Uniform in [low, high)."""
    rest = {"shape": shape, "dtype": dtype, "ctx": ctx, "out": out, **kwargs}
    return _draw("_random_uniform", "_sample_uniform", {"low": low, "high": high}, rest)


def normal(
    loc: Any = 0,
    scale: Any = 1,
    shape: Any = None,
    dtype: Any = None,
    ctx: Any = None,
    out: Any = None,
    **kwargs: Any,
) -> Any:
    """Normal with mean `loc` and standard deviation `scale`."""
    rest = {"shape": shape, "dtype": dtype, "ctx": ctx, "out": out, **kwargs}
    return _draw_normal({"loc": loc, "scale": scale}, rest)


def _draw_normal(params: dict[str, Any], rest: dict[str, Any]) -> Any:
    if all(isinstance(v, _rt.core.Array) for v in params.values()):
        params = {"mu": params["loc"], "sigma": params["scale"]}
    return _draw("_random_normal", "_sample_normal", params, rest)


def randn(*shape: int, **kwargs: Any) -> Any:
    """Normal with mean `loc` (0) and standard deviation `scale` (1) in `shape`."""
    loc, scale = kwargs.pop("loc", 0), kwargs.pop("scale", 1)
    return normal(loc, scale, shape or (1,), **kwargs)


def poisson(
    lam: Any = 1,
    shape: Any = None,
    dtype: Any = None,
    ctx: Any = None,
    out: Any = None,
    **kwargs: Any,
) -> Any:
    """Poisson with mean `lam`."""
    rest = {"shape": shape, "dtype": dtype, "ctx": ctx, "out": out, **kwargs}
    return _draw("_random_poisson", "_sample_poisson", {"lam": lam}, rest)


def exponential(
    scale: Any = 1,
    shape: Any = None,
    dtype: Any = None,
    ctx: Any = None,
    out: Any = None,
    **kwargs: Any,
) -> Any:
    """Exponential with mean `scale`."""
    rest = {"shape": shape, "dtype": dtype, "ctx": ctx, "out": out, **kwargs}
    return _draw("_random_exponential", "_sample_exponential", {"lam": 1.0 / scale}, rest)


def gamma(
    alpha: Any = 1,
    beta: Any = 1,
    shape: Any = None,
    dtype: Any = None,
    ctx: Any = None,
    out: Any = None,
    **kwargs: Any,
) -> Any:
    """Gamma with shape `alpha` and scale `beta`."""
    rest = {"shape": shape, "dtype": dtype, "ctx": ctx, "out": out, **kwargs}
    return _draw("_random_gamma", "_sample_gamma", {"alpha": alpha, "beta": beta}, rest)


def negative_binomial(
    k: Any = 1,
    p: Any = 1,
    shape: Any = None,
    dtype: Any = None,
    ctx: Any = None,
    out: Any = None,
    **kwargs: Any,
) -> Any:
    """Negative binomial: failures before `k` successes of probability `p`."""
    rest = {"shape": shape, "dtype": dtype, "ctx": ctx, "out": out, **kwargs}
    return _draw("_random_negative_binomial", "_sample_negative_binomial", {"k": k, "p": p}, rest)


def generalized_negative_binomial(
    mu: Any = 1,
    alpha: Any = 1,
    shape: Any = None,
    dtype: Any = None,
    ctx: Any = None,
    out: Any = None,
    **kwargs: Any,
) -> Any:
    """Negative binomial by its mean `mu` and dispersion `alpha`."""
    rest = {"shape": shape, "dtype": dtype, "ctx": ctx, "out": out, **kwargs}
    return _draw(
        "_random_generalized_negative_binomial",
        "_sample_generalized_negative_binomial",
        {"mu": mu, "alpha": alpha},
        rest,
    )


def randint(
    low: int,
    high: int,
    shape: Any = None,
    dtype: Any = None,
    ctx: Any = None,
    out: Any = None,
    **kwargs: Any,
) -> Any:
    """Whole numbers in [low, high)."""
    rest = {"shape": shape, "dtype": dtype, "ctx": ctx, "out": out, **kwargs}
    return _draw("_random_randint", "_random_randint", {"low": low, "high": high}, rest)


def multinomial(
    data: Any,
    shape: Any = None,
    get_prob: bool = False,
    out: Any = None,
    dtype: Any = "int32",
    **kwargs: Any,
) -> Any:
    """Category numbers by the probabilities in the last axis of `data`."""
    options = {} if shape is None else {"shape": shape}
    return function("_sample_multinomial")(data, get_prob=get_prob, out=out, dtype=dtype, **options)


def shuffle(data: Any, **kwargs: Any) -> Any:
    """The rows in random order."""
    return function("_shuffle")(data, **kwargs)


#: Public name -> operator's name, for those without a function above (`uniform_like`).
_table: dict[str, str] = {}


def __getattr__(name: str) -> Any:
    if name not in _table:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return function(_table[name])
