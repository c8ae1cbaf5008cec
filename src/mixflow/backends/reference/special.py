"""Special functions without SciPy: erf, its inverse, gamma and its logarithmic derivatives.

Asymptotic series: Abramowitz and Stegun, "Handbook of Mathematical Functions", 6.3 and 6.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .common import Array

#: Bernoulli numbers B2, B4, ... B16.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def _mapped(fn: Callable[[float], float]) -> Callable[[Array], Array]:
    call = np.frompyfunc(fn, 1, 1)

    def apply(x: Array) -> Array:
        return np.asarray(call(np.asarray(x, np.float64))).astype(np.float64)

    return apply


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.copysign(math.inf, x) if x == 0 else math.nan


def _gammaln(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):
        return math.inf


erf = _mapped(math.erf)
gamma = _mapped(_gamma)
gammaln = _mapped(_gammaln)
_erfc = _mapped(math.erfc)


def erfinv(x: Array) -> Array:
    """Winitzki's approximation, then Halley's steps on erfc, which keeps digits near 1."""
    x = np.asarray(x, np.float64)
    rest = 1 - np.abs(x)
    log = np.log(rest * (2 - rest)) / 2
    a = 2 / (math.pi * 0.147) + log
    y = np.sqrt(np.sqrt(a * a - 2 * log / 0.147) - a)
    for _ in range(3):
        step = (_erfc(y) - rest) / (2 / math.sqrt(math.pi) * np.exp(-y * y))
        y = y + step / (1 + y * step)
    y = np.where(rest == 0, np.inf, np.where(x == 0, 0.0, y))
    return np.asarray(np.copysign(y, x))


def polygamma(n: int, x: Array) -> Array:
    """Derivative n + 1 of log(gamma(x)); needs x > -1000 where n > 0."""
    x = np.asarray(x, np.float64)
    if n == 0:
        return _digamma(x)
    return np.where(x > -1000, polygamma_positive(n, np.maximum(x, -1000)), np.nan)


def _digamma(x: Array) -> Array:
    """Reflected for negative arguments; inf at the poles."""
    positive = polygamma_positive(0, np.where(x > 0, x, 1 - x))
    reflected = positive - math.pi / np.tan(math.pi * x)
    poles = (x <= 0) & (x == np.floor(x))
    return np.where(poles, np.inf, np.where(x > 0, positive, reflected))


def polygamma_positive(n: int, x: Array) -> Array:
    """Recurrence up to a large argument, then the asymptotic series."""
    sign = (-1.0) ** n * math.factorial(n)
    total: Any = np.zeros_like(x)
    while np.any(x < 15 + n):
        low = x < 15 + n
        total = total - np.where(low, sign / x ** (n + 1), 0.0)
        x = np.where(low, x + 1, x)
    if n == 0:
        series = np.log(x) - 0.5 / x
        terms = [b / (2 * k * x ** (2 * k)) for k, b in enumerate(_BERNOULLI, 1)]
        return np.asarray(total + series - sum(terms))
    series = math.factorial(n - 1) / x**n + math.factorial(n) / (2 * x ** (n + 1))
    for k, b in enumerate(_BERNOULLI, 1):
        factor = math.factorial(2 * k + n - 1) / math.factorial(2 * k)
        series = series + b * factor / x ** (2 * k + n)
    return np.asarray(total - (-1.0) ** n * series)
