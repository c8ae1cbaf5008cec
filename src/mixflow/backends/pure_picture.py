"""The plain core's `picture`: bilinear resizing, crop, mirror and normalisation with NumPy.

Same weights and rounding as csrc/kernels/simd/picture.cpp, so that both give equal pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import MXNetError

Array = np.ndarray[Any, Any]
_ONE = 2048
_MOST = 1 << 28


def _taps(start: int, length: int, whole: int, resized: int) -> tuple[Array, Array, Array, Array]:
    """First and second source position of each place, and their weights of 1/2048."""
    scale = whole / resized
    place = ((np.arange(start, start + length) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(place).astype(np.int64)
    part = place - first.astype(np.float32)
    outside = (first < 0) | (first >= whole - 1)
    part[outside] = 0.0
    first = np.clip(first, 0, whole - 1)
    weights = [np.rint(w * np.float32(_ONE)).astype(np.int64) for w in (1 - part, part)]
    second = np.where(weights[1] == 0, first, np.minimum(first + 1, whole - 1))
    return first, second, weights[0], weights[1]


def _check(source: Array, out: Array, geometry: Sequence[int]) -> None:
    if source.dtype != np.uint8 or source.ndim != 3:
        raise MXNetError("[picture] expected a source (height, width, channels) of uint8")
    if out.dtype not in (np.float32, np.uint8, np.int8) or out.ndim != 3:
        raise MXNetError(
            "[picture] expected an output (channels, height, width) of float32, uint8 or int8"
        )
    if len(geometry) != 9:
        raise MXNetError(f"[picture] expected 9 numbers of geometry, got {len(geometry)}")
    if not 1 <= source.shape[2] <= 4 or out.shape[0] != source.shape[2]:
        raise MXNetError(
            "[picture] expected 1 to 4 channels in source and output, got "
            f"{source.shape[2]} and {out.shape[0]}"
        )
    for size in (*source.shape[:2], *geometry[2:6], *out.shape[1:]):
        if not 1 <= size < _MOST:
            raise MXNetError(f"[picture] expected sizes of at least one pixel, got {size}")
    height, width = out.shape[1:]
    y, x = geometry[6:8]
    if y < 0 or x < 0 or y + height > geometry[4] or x + width > geometry[5]:
        raise MXNetError(
            f"[picture] expected a part inside of {geometry[4]} x {geometry[5]} pixels, got "
            f"{height} x {width} at ({y}, {x})"
        )


def _check_region(rows: Array, columns: Array, source: Array, at: Sequence[int]) -> None:
    """`rows` and `columns` of the whole picture that are read must lie in the region."""
    inside = all(
        taken.min() >= start and taken.max() < start + size
        for taken, start, size in zip((rows, columns), at, source.shape, strict=False)
    )
    if not inside:
        raise MXNetError(
            f"[picture] expected rows {rows.min()} to {rows.max() + 1} and columns "
            f"{columns.min()} to {columns.max() + 1} of the picture, got a region of "
            f"{source.shape[0]} x {source.shape[1]} at ({at[0]}, {at[1]})"
        )


def _resized(source: Array, geometry: Sequence[int], height: int, width: int) -> Array:
    """(height, width, channels) uint8: the part of the resized picture."""
    region_y, region_x, whole_h, whole_w, resized_h, resized_w, y, x, mirror = geometry
    top, bottom, weight_top, weight_bottom = _taps(y, height, whole_h, resized_h)
    left, right, weight_left, weight_right = _taps(x, width, whole_w, resized_w)
    _check_region(
        np.concatenate([top, bottom]),
        np.concatenate([left, right]),
        source,
        (region_y, region_x),
    )
    pixels = source.astype(np.int64)
    row = (
        pixels[:, left - region_x] * weight_left[:, None]
        + pixels[:, right - region_x] * weight_right[:, None]
    ) >> 4
    made = (row[top - region_y] * weight_top[:, None, None]) >> 16
    made = made + ((row[bottom - region_y] * weight_bottom[:, None, None]) >> 16)
    pixels = ((made + 2) >> 2).astype(np.uint8)
    return np.flip(pixels, 1) if mirror else pixels


def picture(
    source: Array,
    out: Array,
    geometry: Sequence[int],
    order: Sequence[int] | None = None,
    mean: Sequence[float] | None = None,
    factor: Sequence[float] | None = None,
    bias: Sequence[float] | None = None,
    mean_image: Array | None = None,
) -> None:
    """See `_rt.Core`."""
    _check(source, out, geometry)
    channels, height, width = out.shape
    for what, values in (("mean", mean), ("factor", factor), ("bias", bias)):
        if values is not None and len(values) != channels:
            raise MXNetError(
                f"[picture] expected one {what} per channel ({channels}), got {len(values)}"
            )
    if order is not None and (len(order) != channels or not set(order) <= set(range(channels))):
        raise MXNetError(f"[picture] expected an order of {channels} channels, got {len(order)}")
    made = _resized(source, [int(g) for g in geometry], height, width).transpose(2, 0, 1)
    if order is not None:
        made = made[list(order)]
    if out.dtype == np.uint8:
        out[...] = made
        return

    def per_channel(values: Sequence[float] | None, default: float) -> Array:
        chosen = (default,) * channels if values is None else values
        return np.array(chosen, np.float32)[:, None, None]

    centre = per_channel(mean, 0.0)
    if mean_image is not None:
        if mean_image.dtype != np.float32 or mean_image.size != out.size:
            raise MXNetError(
                "[picture] expected a mean image of float32 of the output's size, got "
                f"{mean_image.nbytes} bytes"
            )
        centre = mean_image.reshape(out.shape)
    value = (made.astype(np.float32) - centre) * per_channel(factor, 1.0) + per_channel(bias, 0.0)
    out[...] = value if out.dtype == np.float32 else np.rint(np.clip(value, -128.0, 127.0))
