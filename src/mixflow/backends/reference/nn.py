"""Reductions, matrix products, convolution, pooling, softmax and the norms."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .common import Array, kernel, kernels, widened

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
    a, b = widened(a), widened(b)
    if params["transpose_a"]:
        a = a.swapaxes(-1, -2)
    if params["transpose_b"]:
        b = b.swapaxes(-1, -2)
    return np.matmul(a, b)


# -- convolution by windows and one matrix product for each group


def _padded(x: Array, pad: tuple[int, ...], after: tuple[int, ...], value: Any = 0) -> Array:
    if not any((*pad, *after)):
        return x
    shape = [d + b + a for d, b, a in zip(x.shape[2:], pad, after, strict=True)]
    made = np.full((*x.shape[:2], *shape), value, x.dtype)
    made[(..., *(slice(b, b + d) for d, b in zip(x.shape[2:], pad, strict=True)))] = x
    return made


def _windows(x: Array, size: tuple[int, ...], params: P) -> Array:
    """(N, C, *O, *K): every window of the padded data."""
    x = _padded(x, params["pad"], params["pad"])
    reach = tuple(d * (k - 1) + 1 for d, k in zip(params["dilate"], size, strict=True))
    axes = tuple(range(2, x.ndim))
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
    steps = [slice(None, None, s) for s in params["stride"]]
    inner = [slice(None, None, d) for d in params["dilate"]]
    return seen[(slice(None), slice(None), *steps, *inner)]


def _groups(channels: int, groups: int) -> Iterator[slice]:
    size = channels // groups
    return (slice(i * size, (i + 1) * size) for i in range(groups))


def _axes(rank: int) -> tuple[list[int], list[int]]:
    """Output axes and kernel axes of a window array of `rank` spatial axes."""
    return list(range(2, 2 + rank)), list(range(2 + rank, 2 + 2 * rank))


def _conv(x: Array, w: Array, params: P) -> Array:
    rank = x.ndim - 2
    windows = _windows(x, w.shape[2:], params)
    _, inner = _axes(rank)
    weight_axes = list(range(1, 2 + rank))
    parts = []
    pairs = zip(_groups(x.shape[1], params["groups"]), _groups(w.shape[0], params["groups"]), strict=True)
    for c, f in pairs:
        made = np.tensordot(windows[:, c], w[f], ([1, *inner], weight_axes))
        parts.append(np.moveaxis(made, -1, 1))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


@kernel("conv")
def conv(x: Array, w: Array, *rest: Any) -> Array:
    """Data, weight, bias where there is one, parameters."""
    *bias, params = rest
    y = _conv(widened(x), widened(w), params)
    return y + widened(bias[0]).reshape(-1, *[1] * (x.ndim - 2)) if bias else y


@kernel("conv_weight_grad")
def conv_weight_grad(dy: Array, x: Array, params: P) -> Array:
    """Windows of the data times the output's gradient."""
    dy, x = widened(dy), widened(x)
    windows = _windows(x, params["shape"][2:], params)
    outer, _ = _axes(x.ndim - 2)
    over = [0, *outer]
    pairs = zip(_groups(x.shape[1], params["groups"]), _groups(dy.shape[1], params["groups"]), strict=True)
    return np.concatenate([np.tensordot(dy[:, f], windows[:, c], (over, over)) for c, f in pairs], 0)


def _places(size: tuple[int, ...], out: tuple[int, ...], stride: Any, dilate: Any) -> Iterator[Any]:
    """For each kernel position: its index, and the slices of the padded data that it meets."""
    for at in itertools.product(*map(range, size)):
        spans = zip(at, out, stride, dilate, strict=True)
        yield at, tuple(slice(k * d, k * d + (o - 1) * s + 1, s) for k, o, s, d in spans)


@kernel("conv_data_grad")
def conv_data_grad(dy: Array, w: Array, params: P) -> Array:
    """The output's gradient spread over the windows it came from."""
    dy, w = widened(dy), widened(w)
    shape, pad, groups = params["shape"], params["pad"], params["groups"]
    made = np.zeros((*shape[:2], *(d + 2 * p for d, p in zip(shape[2:], pad, strict=True))), dy.dtype)
    for c, f in zip(_groups(shape[1], groups), _groups(w.shape[0], groups), strict=True):
        spread = np.tensordot(w[f], dy[:, f], (0, 1))  # (Cg, *K, N, *O)
        for at, spans in _places(w.shape[2:], dy.shape[2:], params["stride"], params["dilate"]):
            made[(slice(None), c, *spans)] += np.moveaxis(spread[(slice(None), *at)], 0, 1)
    return made[(..., *(slice(p, p + d) for d, p in zip(shape[2:], pad, strict=True)))]


# -- pooling


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _pool_parts(x: Array, params: P, out: tuple[int, ...]) -> list[Array]:
    """One view (N, C, *O) for each position of the window."""
    low = _lowest(x.dtype) if params["mode"] == "max" else 0
    x = _padded(x, params["pad"], params["pad_after"], low)
    ones = (1,) * len(out)
    return [x[(..., *s)] for _, s in _places(params["kernel"], out, params["stride"], ones)]


def _pool_out(size: tuple[int, ...], params: P) -> tuple[int, ...]:
    sides = zip(size, params["pad"], params["pad_after"], params["kernel"], params["stride"], strict=True)
    return tuple((d + b + a - k) // s + 1 for d, b, a, k, s in sides)


def _counts(size: tuple[int, ...], out: tuple[int, ...], params: P) -> Array:
    """How many positions each window averages over, shape (*O,)."""
    total: Any = 1
    for i, (d, o) in enumerate(zip(size, out, strict=True)):
        pad = params["pad"][i]
        begin = np.arange(o) * params["stride"][i] - pad
        low, high = (-pad, d + pad) if params["count_include_pad"] else (0, d)
        span = np.minimum(begin + params["kernel"][i], high) - np.maximum(begin, low)
        total = np.multiply.outer(total, np.maximum(span, 1))
    return np.asarray(total)


@kernel("pool")
def pool(x: Array, params: P) -> Array:
    """Loops over the positions of the window."""
    x = widened(x)
    out = _pool_out(x.shape[2:], params)
    parts = _pool_parts(x, params, out)
    mode, power = params["mode"], params["p_value"]
    if mode == "lp":
        parts = [part**power for part in parts]
    made = parts[0].copy()
    for part in parts[1:]:
        np.maximum(made, part, out=made) if mode == "max" else np.add(made, part, out=made)
    if mode == "avg":
        return _average(made, _counts(x.shape[2:], out, params))
    if mode == "lp" and power > 1:
        return {2: np.sqrt, 3: np.cbrt}.get(power, lambda v: v ** (1 / power))(made)
    return made


def _average(total: Array, count: Array) -> Array:
    if total.dtype.kind == "f":
        return total / count.astype(total.dtype)
    return total // count


def _first_max(x: Array, params: P, out: tuple[int, ...]) -> Array:
    return np.argmax(np.stack(_pool_parts(x, params, out)), 0)


@kernel("pool_grad")
def pool_grad(dy: Array, x: Array, y: Array, params: P) -> Array:
    """Spreads the gradient over the window, or onto its first maximum."""
    dy, x = widened(dy), widened(x)
    out = dy.shape[2:]
    spatial = zip(x.shape[2:], params["pad"], params["pad_after"], strict=True)
    made = np.zeros((*x.shape[:2], *(d + b + a for d, b, a in spatial)), dy.dtype)
    first = _first_max(x, params, out) if params["mode"] == "max" else None
    share = _average(dy, _counts(x.shape[2:], out, params)) if params["mode"] == "avg" else dy
    places = _places(params["kernel"], out, params["stride"], (1,) * len(out))
    for number, (_, spans) in enumerate(places):
        made[(..., *spans)] += share if first is None else np.where(first == number, share, 0)
    begin = zip(x.shape[2:], params["pad"], strict=True)
    return made[(..., *(slice(p, p + d) for d, p in begin))]


@kernel("pool_take")
def pool_take(values: Array, x: Array, params: P) -> Array:
    """The value at the first maximum of each window of x."""
    out = _pool_out(x.shape[2:], params)
    first = _first_max(widened(x), params, out)
    parts = np.stack(_pool_parts(widened(values), {**params, "mode": "sum"}, out))
    return np.take_along_axis(parts, first[None], 0)[0]


# -- softmax and the norms


@kernel("softmax")
def softmax(x: Array, params: P) -> Array:
    """Shifted by the maximum."""
    x = widened(x)
    made = np.exp(x - x.max(params["axis"], keepdims=True))
    return made / made.sum(params["axis"], keepdims=True)


@kernel("log_softmax")
def log_softmax(x: Array, params: P) -> Array:
    """Shifted by the maximum."""
    x = widened(x)
    x = x - x.max(params["axis"], keepdims=True)
    return x - np.log(np.exp(x).sum(params["axis"], keepdims=True))


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
    return params["knorm"] + params["alpha"] / params["nsize"] * _channel_window(x * x, params["nsize"])


@kernel("lrn")
def lrn(x: Array, params: P) -> Array:
    """A window over channels."""
    x = widened(x)
    return x * _lrn_scale(x, params) ** -params["beta"]


@kernel("lrn_grad")
def lrn_grad(dy: Array, x: Array, y: Array, params: P) -> Array:
    """Direct term and the term through the neighbours' scales."""
    dy, x, y = widened(dy), widened(x), widened(y)
    scale = _lrn_scale(x, params)
    around = _channel_window(dy * y / scale, params["nsize"])
    factor = 2 * params["alpha"] * params["beta"] / params["nsize"]
    return dy * scale ** -params["beta"] - factor * x * around
