"""Rotation of images about their centre, with bilinear sampling, on host arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def zoom_factor(height: int, width: int, angle: float, zoom_in: bool) -> float:
    """By how much the sampled area must change so that it fits.

    Args:
        height, width: pixels.
        angle: radians.
        zoom_in: True = nothing from outside of the image is seen (at most 1), False = every corner
            of the image is seen (at least 1).
    """
    cosine, sine = abs(np.cos(angle)), abs(np.sin(angle))
    wide, high = width * cosine + height * sine, height * cosine + width * sine
    if zoom_in:
        return float(min(width / wide, height / high))
    return float(max(wide / width, high / height))


def _sample(image: Array, x: Array, y: Array) -> Array:
    """Bilinear samples (channels, h, w) at pixel positions; outside of the image is 0."""
    height, width = image.shape[1:]
    left, top = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    result = np.zeros(image.shape, np.float32)
    for down in (0, 1):
        for right in (0, 1):
            rows, columns = top + down, left + right
            inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
            weight = (1 - np.abs(y - rows)) * (1 - np.abs(x - columns)) * inside
            found = image[:, rows.clip(0, height - 1), columns.clip(0, width - 1)]
            result += found * weight.astype(np.float32)
    return result


def rotate(image: Array, degrees: float, zoom_in: bool = False, zoom_out: bool = False) -> Array:
    """An image turned about its centre; what comes in from outside is 0.

    Args:
        image: (channels, height, width) float32.
        degrees: anticlockwise as seen with the first row on top.
        zoom_in: scale up so that nothing from outside is seen.
        zoom_out: scale down so that the whole image is seen.

    Returns:
        Same shape, float32.
    """
    height, width = image.shape[1:]
    angle = np.deg2rad(float(degrees))
    middle_y, middle_x = (height - 1) / 2, (width - 1) / 2
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    y, x = y - middle_y, x - middle_x
    scale = zoom_factor(height, width, angle, zoom_in) if zoom_in or zoom_out else 1.0
    cosine, sine = np.cos(angle) * scale, np.sin(angle) * scale
    return _sample(image, x * cosine - y * sine + middle_x, x * sine + y * cosine + middle_y)
