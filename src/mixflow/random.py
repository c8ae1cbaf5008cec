"""Random numbers (``mx.random``): draws on the engine, and the host generator that shuffles."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _rt
from .context import Context, current_context
from .errors import FormatError
from .ndarray.random import (
    exponential,
    gamma,
    generalized_negative_binomial,
    multinomial,
    negative_binomial,
    normal,
    poisson,
    randint,
    randn,
    shuffle,
    uniform,
)
from .ndarray.random import seed as _seed_core

__all__ = [
    "exponential",
    "gamma",
    "generalized_negative_binomial",
    "get_state",
    "host_generator",
    "multinomial",
    "negative_binomial",
    "normal",
    "poisson",
    "randint",
    "randn",
    "seed",
    "set_state",
    "shuffle",
    "uniform",
]

_lock = threading.Lock()
_host = np.random.default_rng(0)


def seed(seed_state: int, ctx: Context | str = "all") -> None:
    """Starts every generator again: those of the contexts (or of `ctx`) and the host's.

    Args:
        seed_state: whole number.
        ctx: 'all' or one context.
    """
    global _host
    _seed_core(seed_state, ctx)
    if ctx == "all":
        with _lock:
            _host = np.random.default_rng(seed_state % 2**64)


def host_generator() -> np.random.Generator:
    """The generator that iterators shuffle with; `seed` starts it again."""
    return _host


def get_state(ctx: Context | None = None) -> dict[str, Any]:
    """The state of a context's generator and of the host's, as plain values that JSON holds.

    Args:
        ctx: context; None = the current one.
    """
    seed_and_draw = _rt.core.rng_state((ctx or current_context()).key)
    return {"device": list(seed_and_draw), "host": _host.bit_generator.state}


def set_state(state: Mapping[str, Any], ctx: Context | None = None) -> None:
    """Goes on where `get_state` was called.

    Raises:
        FormatError: not such a state.
    """
    global _host
    try:
        seed_value, draw = (int(number) for number in state["device"])
        generator = np.random.default_rng(0)
        generator.bit_generator.state = state["host"]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"[random] expected a state of get_state, got {error!r}") from None
    _rt.core.set_rng_state((seed_value, draw), (ctx or current_context()).key)
    with _lock:
        _host = generator
