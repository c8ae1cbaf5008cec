"""Geometry of boxes under crops and padding, on host arrays.

Boxes are rows (class, left, top, right, bottom, ...), edges as parts of the image's width and
height. Sizes of crops are whole pixels; the rounding is MXNet's, so that a seed gives its crops.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
#: (x, y, width, height) in pixels.
Place = tuple[int, int, int, int]


def areas(edges: Array) -> Array:
    """(n,) areas of (n, 4) edges; 0 where right lies left of left."""
    sides = np.maximum(0, edges[:, 2:4] - edges[:, 0:2])
    found: Array = sides[:, 0] * sides[:, 1]
    return found


def intersections(edges: Array, left: float, top: float, right: float, bottom: float) -> Array:
    """(n, 4) edges of what lies inside of a window; zeros where nothing does."""
    low = np.maximum(edges[:, 0:2], (left, top))
    high = np.minimum(edges[:, 2:4], (right, bottom))
    found = np.hstack([low, high])
    found[np.any(low >= high, axis=1)] = 0
    return found


def moved(label: Array, place: Place, height: int, width: int) -> Array:
    """Boxes of an image as boxes of a window of it; edges may lie outside of 0 to 1.

    Args:
        label: (n, 5 or more).
        place: the window, in pixels of the image; it may be larger.
        height, width: of the image, pixels.
    """
    x, y, w, h = place
    out = label.copy()
    out[:, (1, 3)] = (out[:, (1, 3)] - x / width) / (w / width)
    out[:, (2, 4)] = (out[:, (2, 4)] - y / height) / (h / height)
    return out


@dataclass(frozen=True)
class CropRules:
    """What a random crop must satisfy.

    Attributes:
        min_object_covered: of each object that is seen at all, more than this part is seen.
        aspect_ratio_range: width / height.
        area_range: parts of the image's area.
        min_eject_coverage: objects of which less is seen are dropped.
        max_attempts: before there is no crop.
    """

    min_object_covered: float
    aspect_ratio_range: tuple[float, float]
    area_range: tuple[float, float]
    min_eject_coverage: float
    max_attempts: int


def covers_enough(
    label: Array, place: Place, height: int, width: int, min_object_covered: float
) -> bool:
    """Whether a window shows some object, and enough of each object that it shows."""
    x, y, w, h = place
    if w * h < 2:
        return False
    sizes = areas(label[:, 1:])
    large = sizes * width * height > 2
    if not large.any():
        return False
    edges = (x / width, y / height, (x + w) / width, (y + h) / height)
    seen = areas(intersections(label[large, 1:], *edges)) / sizes[large]
    seen = seen[seen > 0]
    return seen.size > 0 and float(seen.min()) > min_object_covered


def cropped_boxes(
    label: Array, place: Place, height: int, width: int, min_eject_coverage: float
) -> Array | None:
    """Boxes of a crop, cut at its edges; None where all are dropped."""
    out = moved(label, place, height, width)
    out[:, 1:5] = np.clip(out[:, 1:5], 0, 1)
    whole = areas(label[:, 1:])
    seen = areas(out[:, 1:]) * (place[2] / width) * (place[3] / height)
    coverage = np.divide(seen, whole, out=np.zeros(len(whole)), where=whole > 0)
    kept = (out[:, 3] > out[:, 1]) & (out[:, 4] > out[:, 2]) & (coverage > min_eject_coverage)
    return out[kept] if kept.any() else None


def _crop_size(rules: CropRules, height: int, width: int) -> tuple[int, int] | None:
    """One draw of (width, height); None where rounding leaves the allowed areas."""
    low, high = (part * height * width for part in rules.area_range)
    ratio = random.uniform(*rules.aspect_ratio_range)
    if ratio <= 0:
        return None
    h, most = round(sqrt(low / ratio)), round(sqrt(high / ratio))
    if round(most * ratio) > width:
        most = int((width + 0.4999999) / ratio)
    most = min(most, height)
    h = random.randint(h, most) if h < most else most
    w = round(h * ratio)
    if w * h < low:
        h += 1
        w = round(h * ratio)
    if w * h > high:
        h -= 1
        w = round(h * ratio)
    fits = low <= w * h <= high and 0 <= w <= width and 0 <= h <= height
    return (w, h) if fits else None


def propose_crop(
    rules: CropRules, label: Array, height: int, width: int
) -> tuple[Place, Array] | None:
    """A random crop that satisfies the rules, with its boxes; None after too many tries."""
    if height <= 0 or width <= 0:
        return None
    for _ in range(rules.max_attempts):
        size = _crop_size(rules, height, width)
        if size is None:
            continue
        w, h = size
        y = random.randint(0, max(0, height - h))
        x = random.randint(0, max(0, width - w))
        place = (x, y, w, h)
        if covers_enough(label, place, height, width, rules.min_object_covered):
            boxes = cropped_boxes(label, place, height, width, rules.min_eject_coverage)
            if boxes is not None:
                return place, boxes
    return None


def propose_padding(
    aspect_ratio_range: tuple[float, float],
    area_range: tuple[float, float],
    max_attempts: int,
    height: int,
    width: int,
) -> Place | None:
    """Place of an image on a larger canvas: (x, y, width, height of the canvas), or None."""
    if height <= 0 or width <= 0:
        return None
    low, high = (part * height * width for part in area_range)
    for _ in range(max_attempts):
        ratio = random.uniform(*aspect_ratio_range)
        if ratio <= 0:
            continue
        h, most = round(sqrt(low / ratio)), round(sqrt(high / ratio))
        if round(h * ratio) < width:
            h = int((width + 0.499999) / ratio)
        h = min(max(h, height), most)
        if h < most:
            h = random.randint(h, most)
        w = round(h * ratio)
        if h - height < 2 or w - width < 2:  # a border of one pixel helps nothing
            continue
        y = random.randint(0, max(0, h - height))
        x = random.randint(0, max(0, w - width))
        return x, y, w, h
    return None
