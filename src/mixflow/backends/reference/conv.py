"""Convolution by windows and one matrix product for each group; pooling by window positions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .common import Array, factors, kernel, widened

P = Mapping[str, Any]
Spans = tuple[slice, ...]


def _padded(x: Array, pad: tuple[int, ...], after: tuple[int, ...], value: Any = 0) -> Array:
    if not any((*pad, *after)):
        return x
    shape = [d + b + a for d, b, a in zip(x.shape[2:], pad, after, strict=True)]
    made = np.full((*x.shape[:2], *shape), value, x.dtype)
    made[_inside(x.shape[2:], pad)] = x
    return made


def _inside(size: tuple[int, ...], pad: tuple[int, ...]) -> Any:
    """Index of the data inside its padding."""
    return (..., *(slice(p, p + d) for d, p in zip(size, pad, strict=True)))


def _zip_groups(x: Array | int, f: int, groups: int) -> Iterator[tuple[slice, slice]]:
    """Channels of the data and channels of the output of each group."""
    channels = x if isinstance(x, int) else x.shape[1]
    return zip(_groups(channels, groups), _groups(f, groups), strict=True)


def _windows(x: Array, size: tuple[int, ...], params: P) -> Array:
    """(N, C, *O, *K): every window of the padded data."""
    x = _padded(x, params["pad"], params["pad"])
    reach = tuple(d * (k - 1) + 1 for d, k in zip(params["dilate"], size, strict=True))
    axes = tuple(range(2, x.ndim))
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
    steps = [slice(None, None, s) for s in params["stride"]]
    inner = [slice(None, None, d) for d in params["dilate"]]
    return np.asarray(seen[(slice(None), slice(None), *steps, *inner)])


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
    for c, f in _zip_groups(x, w.shape[0], params["groups"]):
        made = np.tensordot(windows[:, c], w[f], ([1, *inner], weight_axes))
        parts.append(np.moveaxis(made, -1, 1))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


@kernel("conv")
def conv(x: Array, w: Array, *rest: Any) -> Array:
    """Data, weight, bias where there is one, parameters."""
    *bias, params = rest
    y = _conv(*factors(x, w), params)
    return y + np.asarray(widened(bias[0])).reshape(-1, *[1] * (x.ndim - 2)) if bias else y


@kernel("conv_weight_grad")
def conv_weight_grad(dy: Array, x: Array, params: P) -> Array:
    """Windows of the data times the output's gradient."""
    dy, x = factors(dy, x)
    windows = _windows(x, params["shape"][2:], params)
    outer, _ = _axes(x.ndim - 2)
    over = [0, *outer]
    pairs = _zip_groups(x, dy.shape[1], params["groups"])
    parts = [np.tensordot(dy[:, f], windows[:, c], (over, over)) for c, f in pairs]
    return np.concatenate(parts, 0)


def _places(size: tuple[int, ...], out: tuple[int, ...], stride: Any, dilate: Any) -> Iterator[Any]:
    """For each kernel position: its index, and the slices of the padded data that it meets."""
    for at in itertools.product(*map(range, size)):
        spans = zip(at, out, stride, dilate, strict=True)
        yield at, tuple(slice(k * d, k * d + (o - 1) * s + 1, s) for k, o, s, d in spans)


@kernel("conv_data_grad")
def conv_data_grad(dy: Array, w: Array, params: P) -> Array:
    """The output's gradient spread over the windows it came from."""
    dy, w = factors(dy, w)
    shape, pad, groups = params["shape"], params["pad"], params["groups"]
    room = [d + 2 * p for d, p in zip(shape[2:], pad, strict=True)]
    made = np.zeros((*shape[:2], *room), dy.dtype)
    for c, f in _zip_groups(shape[1], w.shape[0], groups):
        spread = np.tensordot(w[f], dy[:, f], (0, 1))  # (Cg, *K, N, *O)
        for at, spans in _places(w.shape[2:], dy.shape[2:], params["stride"], params["dilate"]):
            made[(slice(None), c, *spans)] += np.moveaxis(spread[(slice(None), *at)], 0, 1)
    return np.asarray(made[_inside(shape[2:], pad)])


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
    pads = zip(params["pad"], params["pad_after"], strict=True)
    room = [d + b + a for d, (b, a) in zip(size, pads, strict=True)]
    windows = zip(room, params["kernel"], params["stride"], strict=True)
    return tuple((d - k) // s + 1 for d, k, s in windows)


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
        return np.cbrt(made) if power == 3 else np.asarray(made ** (1 / power))
    return made


def _average(total: Array, count: Array) -> Array:
    if total.dtype.kind == "f":
        return np.asarray(total / count.astype(total.dtype))
    return np.asarray(total // count)


def _first_max(x: Array, params: P, out: tuple[int, ...]) -> Array:
    return np.asarray(np.argmax(np.stack(_pool_parts(x, params, out)), 0))


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
    return np.asarray(made[_inside(x.shape[2:], params["pad"])])


@kernel("pool_take")
def pool_take(values: Array, x: Array, params: P) -> Array:
    """The value at the first maximum of each window of x."""
    out = _pool_out(x.shape[2:], params)
    first = _first_max(widened(x), params, out)
    parts = np.stack(_pool_parts(widened(values), {**params, "mode": "sum"}, out))
    return np.asarray(np.take_along_axis(parts, first[None], 0)[0])
