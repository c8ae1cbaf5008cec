"""Random numbers (``mx.random``): draws on the engine, and the host generator that shuffles."""

from __future__ import annotations

import threading

import numpy as np

from .context import Context
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
    "host_generator",
    "multinomial",
    "negative_binomial",
    "normal",
    "poisson",
    "randint",
    "randn",
    "seed",
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
