"""Reductions, matrix products, softmax and the norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .common import Array, factors, kernel, kernels, widened

P = Mapping[str, Any]


def _reduction(name: str, fn: Callable[..., Any]) -> None:
    @kernel(name)
    def run(x: Array, params: P) -> Array:
        return np.asarray(fn(widened(x), axis=params["axes"], keepdims=params["keepdims"]))


_reduction("reduce_sum", np.sum)
_reduction("reduce_prod", np.prod)
_reduction("reduce_max", np.max)
_reduction("reduce_min", np.min)


@kernel("arg_max")
def arg_max(x: Array, params: P) -> Array:
    """First position."""
    return np.asarray(np.argmax(widened(x), params["axis"], keepdims=params["keepdims"]))


@kernel("arg_min")
def arg_min(x: Array, params: P) -> Array:
    """First position."""
    return np.asarray(np.argmin(widened(x), params["axis"], keepdims=params["keepdims"]))


@kernel("matmul")
def matmul(a: Array, b: Array, params: P) -> Array:
    """NumPy's matmul."""
    a, b = factors(a, b)
    if params["transpose_a"]:
        a = a.swapaxes(-1, -2)
    if params["transpose_b"]:
        b = b.swapaxes(-1, -2)
    return np.asarray(np.matmul(a, b))


# -- softmax and the norms


@kernel("softmax")
def softmax(x: Array, params: P) -> Array:
    """Shifted by the maximum."""
    x = widened(x)
    made = np.exp(x - x.max(params["axis"], keepdims=True))
    return np.asarray(made / made.sum(params["axis"], keepdims=True))


@kernel("log_softmax")
def log_softmax(x: Array, params: P) -> Array:
    """Shifted by the maximum."""
    x = widened(x)
    x = x - x.max(params["axis"], keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(params["axis"], keepdims=True)))


def _per_channel(x: Array, axis: int) -> tuple[tuple[int, ...], Callable[[Array], Array]]:
    """The axes to sum over, and how to lay a vector along the channels."""
    axis %= x.ndim
    shape = tuple(-1 if i == axis else 1 for i in range(x.ndim))
    return tuple(i for i in range(x.ndim) if i != axis), lambda v: widened(v).reshape(shape)


@kernels("batch_norm_stats")
def batch_norm_stats(x: Array, params: P) -> tuple[Array, Array]:
    """Sums in float64."""
    axes, lay = _per_channel(x, params["axis"])
    x = widened(x)
    mean = x.mean(axes, dtype=np.float64).astype(x.dtype)
    return mean, np.square(x - lay(mean)).mean(axes, dtype=np.float64).astype(x.dtype)


@kernel("batch_norm")
def batch_norm(x: Array, gamma: Array, beta: Array, mean: Array, inv: Array, params: P) -> Array:
    """One multiplication and one addition for each element."""
    _, lay = _per_channel(x, params["axis"])
    return (widened(x) - lay(mean)) * lay(gamma * inv) + lay(beta)


@kernels("batch_norm_train")
def batch_norm_train(x: Array, gamma: Array, beta: Array, params: P) -> tuple[Array, Array, Array]:
    """Statistics, then the normalisation."""
    mean, var = batch_norm_stats(x, params)
    inv = 1 / np.sqrt(var + var.dtype.type(params["eps"]))
    return batch_norm(x, widened(gamma), beta, mean, inv, params), mean, var


@kernels("batch_norm_grad")
def batch_norm_grad(
    dy: Array, x: Array, gamma: Array, mean: Array, inv: Array, params: P
) -> tuple[Array, Array, Array]:
    """Ioffe and Szegedy, 2015, section 3."""
    axes, lay = _per_channel(x, params["axis"])
    dy, unit = widened(dy), (widened(x) - lay(mean)) * lay(inv)
    dbeta, dgamma = dy.sum(axes), (dy * unit).sum(axes)
    count = dy.dtype.type(x.size // max(dbeta.size, 1))
    dx = lay(widened(gamma) * widened(inv)) * (dy - lay(dbeta / count) - unit * lay(dgamma / count))
    return dx, dgamma, dbeta


def _channel_window(x: Array, size: int) -> Array:
    half = size // 2
    wide = np.zeros((x.shape[0], x.shape[1] + 2 * half, *x.shape[2:]), x.dtype)
    wide[:, half : half + x.shape[1]] = x
    made = np.zeros_like(x)
    for i in range(size):
        made += wide[:, i : i + x.shape[1]]
    return made


def _lrn_scale(x: Array, params: P) -> Array:
    around = _channel_window(x * x, params["nsize"])
    return np.asarray(params["knorm"] + params["alpha"] / params["nsize"] * around)


@kernel("lrn")
def lrn(x: Array, params: P) -> Array:
    """A window over channels."""
    x = widened(x)
    return np.asarray(x * _lrn_scale(x, params) ** -params["beta"])


@kernel("lrn_grad")
def lrn_grad(dy: Array, x: Array, y: Array, params: P) -> Array:
    """Direct term and the term through the neighbours' scales."""
    dy, x, y = widened(dy), widened(x), widened(y)
    scale = _lrn_scale(x, params)
    around = _channel_window(dy * y / scale, params["nsize"])
    factor = 2 * params["alpha"] * params["beta"] / params["nsize"]
    return np.asarray(dy * scale ** -params["beta"] - factor * x * around)
