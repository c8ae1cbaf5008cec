"""Pictures with boxes: MXNet's default augmenter for detection.

A label is `[header width, object width, further header..., objects...]`; an object is `[class,
left, top, right, bottom, ...]` with coordinates between 0 and 1. What moves the picture moves the
boxes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _rt, extras
from ..arguments import a, check_fields, choice, number, rising, several, whole
from ..errors import FormatError, MixflowError, ShapeError
from .draws import Draws
from .images import Array, Pictures, Target

_PREFIX = 4  # channels, height, width of the picture in the batch, and length of the label


@dataclass(frozen=True)
class CropSampler:
    """One way to choose a random part; a part counts when it meets all its limits.

    Attributes:
        scales: lowest and highest share of the area.
        aspect_ratios: of width / height.
        overlaps: of the intersection over the union with a box.
        sample_coverages, object_coverages: of the intersection over the part, and over a box.
        trials: tries.
    """

    scales: tuple[float, float]
    aspect_ratios: tuple[float, float]
    overlaps: tuple[float, float]
    sample_coverages: tuple[float, float]
    object_coverages: tuple[float, float]
    trials: int

    def __post_init__(self) -> None:
        limits = ("scales", "aspect_ratios", "overlaps", "sample_coverages", "object_coverages")
        kinds = dict.fromkeys(limits, rising(number(0)))
        check_fields("ImageDetRecordIter", self, trials=whole(0), **kinds)

    def part(self, boxes: Array, draws: Draws) -> tuple[float, float, float, float] | None:
        """(left, top, width, height) between 0 and 1; None when no try met the limits."""
        for _ in range(self.trials):
            scale = math.sqrt(draws.uniform(*self.scales))
            ratio = math.sqrt(draws.uniform(*self.aspect_ratios))
            width, height = scale * ratio, scale / ratio
            if width > 1 or height > 1 or width <= 0:
                continue
            left, top = draws.uniform(0, 1 - width), draws.uniform(0, 1 - height)
            if self._fits(boxes, left, top, width, height):
                return left, top, width, height
        return None

    def _fits(self, boxes: Array, left: float, top: float, width: float, height: float) -> bool:
        limits = (self.overlaps, self.sample_coverages, self.object_coverages)
        if all(limit[0] <= 0 and limit[1] >= 1 for limit in limits) or len(boxes) == 0:
            return True
        common = _common(boxes, left, top, width, height)
        own = (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 4] - boxes[:, 2])
        area = width * height
        found = common / (own + area - common), common / area, common / np.maximum(own, 1e-12)
        good = [(f >= low) & (f <= high) for f, (low, high) in zip(found, limits, strict=True)]
        return bool(np.logical_and.reduce(good).any())


def _common(boxes: Array, left: float, top: float, width: float, height: float) -> Array:
    """Areas that boxes share with a part."""
    wide = np.minimum(boxes[:, 3], left + width) - np.maximum(boxes[:, 1], left)
    tall = np.minimum(boxes[:, 4], top + height) - np.maximum(boxes[:, 2], top)
    shared: Array = np.maximum(wide, 0) * np.maximum(tall, 0)
    return shared


_SHARE = number(0, 1)
_KINDS = {
    "height": whole(1, 1 << 30),
    "width": whole(1, 1 << 30),
    "resize": whole(-1, 1 << 30),
    "rand_crop_prob": _SHARE,
    "samplers": several(a(CropSampler)),
    "crop_emit_mode": choice("center", "overlap"),
    "emit_overlap_thresh": number(0),
    "rand_pad_prob": _SHARE,
    "max_pad_scale": number(1),
    "max_random_hue": whole(0, 255),
    "random_hue_prob": _SHARE,
    "max_random_saturation": whole(0, 255),
    "random_saturation_prob": _SHARE,
    "max_random_illumination": whole(0, 255),
    "random_illumination_prob": _SHARE,
    "max_random_contrast": number(0),
    "random_contrast_prob": _SHARE,
    "rand_mirror_prob": _SHARE,
    "fill_value": whole(0, 255),
    "inter_method": choice(0, 1, 2, 3, 4, 9, 10),
    "resize_mode": choice("force", "fit", "shrink"),
}


@dataclass(frozen=True)
class DetectionRecipe:
    """MXNet's default augmenter for detection: colours, crop, border, mirror, resizing.

    Attributes:
        height, width: of the result.
        samplers: ways to crop, one of those that succeed is taken.
        (the others): as of `ImageDetRecordIter`.

    Raises:
        ParamError: an impossible value.
    """

    height: int
    width: int
    resize: int = -1
    rand_crop_prob: float = 0.0
    samplers: Sequence[CropSampler] = ()
    crop_emit_mode: str = "center"
    emit_overlap_thresh: float = 0.3
    rand_pad_prob: float = 0.0
    max_pad_scale: float = 1.0
    max_random_hue: int = 0
    random_hue_prob: float = 0.0
    max_random_saturation: int = 0
    random_saturation_prob: float = 0.0
    max_random_illumination: int = 0
    random_illumination_prob: float = 0.0
    max_random_contrast: float = 0.0
    random_contrast_prob: float = 0.0
    rand_mirror_prob: float = 0.0
    fill_value: int = 127
    inter_method: int = 1
    resize_mode: str = "force"
    one_pass: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_fields("ImageDetRecordIter", self, **_KINDS)

    def view(self, height: int, width: int, draws: Draws) -> None:
        """Never one pass: the boxes are needed too."""

    def apply(self, image: Array, draws: Draws) -> tuple[Array, bool]:
        """A picture without boxes; see `change`."""
        return self.change(image, np.empty((0, 5), np.float32), draws)[0], False

    def change(self, image: Array, boxes: Array, draws: Draws) -> tuple[Array, Array]:
        """The picture (at most height x width) and its boxes after all steps.

        Args:
            image: (h, w, channels) uint8.
            boxes: (objects, 5 or more) float32: class, left, top, right, bottom, rest.
        """
        cv2 = extras.load("cv2", "ImageDetRecordIter")
        if self.resize > 0:
            from ..image.codec import short_side_size

            size = short_side_size(image.shape[0], image.shape[1], self.resize)
            image = self._resized(cv2, image, size, draws)
        image = self._coloured(cv2, image, draws)
        if self.samplers and draws.coin(self.rand_crop_prob):
            image, boxes = self._cropped(image, boxes, draws)
        if self.max_pad_scale > 1 and draws.coin(self.rand_pad_prob):
            image, boxes = self._padded(image, boxes, draws)
        if draws.coin(self.rand_mirror_prob):
            image, boxes = image[:, ::-1], boxes.copy()
            boxes[:, [1, 3]] = 1 - boxes[:, [3, 1]]
        image = self._resized(cv2, np.ascontiguousarray(image), self._size(image), draws)
        return image, boxes

    def _size(self, image: Array) -> tuple[int, int]:
        height, width = image.shape[:2]
        if self.resize_mode == "force":
            return self.height, self.width
        ratio = min(self.height / height, self.width / width)
        if self.resize_mode == "shrink" and ratio >= 1:
            return height, width
        return max(1, int(height * ratio)), max(1, int(width * ratio))

    def _resized(self, cv2: Any, image: Array, size: tuple[int, int], draws: Draws) -> Array:
        from .recipe import interpolation

        method = interpolation(self.inter_method, image.shape[:2], size, draws)
        made: Array = cv2.resize(image, size[::-1], interpolation=method)
        return made.reshape(*size, image.shape[2])

    def _coloured(self, cv2: Any, image: Array, draws: Draws) -> Array:
        limits = (
            (self.max_random_hue, self.random_hue_prob),
            (self.max_random_illumination, self.random_illumination_prob),
            (self.max_random_saturation, self.random_saturation_prob),
        )
        shift = [
            draws.integer(2 * most + 1) - most if most and draws.coin(chance) else 0
            for most, chance in limits
        ]
        if any(shift) and image.shape[2] == 3:
            hls = cv2.cvtColor(image, cv2.COLOR_RGB2HLS).astype(np.int16) + np.array(shift)
            clipped = np.clip(hls, 0, (180, 255, 255)).astype(np.uint8)
            image = cv2.cvtColor(clipped, cv2.COLOR_HLS2RGB)
        if self.max_random_contrast and draws.coin(self.random_contrast_prob):
            factor = 1 + draws.uniform(-self.max_random_contrast, self.max_random_contrast)
            image = np.clip(np.rint(image * np.float32(factor)), 0, 255).astype(np.uint8)
        return image

    def _cropped(self, image: Array, boxes: Array, draws: Draws) -> tuple[Array, Array]:
        parts = [p for s in self.samplers if (p := s.part(boxes, draws)) is not None]
        if not parts:
            return image, boxes
        left, top, width, height = parts[draws.integer(len(parts))]
        kept = boxes[self._emitted(boxes, left, top, width, height)]
        if len(boxes) and not len(kept):
            return image, boxes
        rows, columns = image.shape[:2]
        y, x = int(top * rows), int(left * columns)
        bottom, right = max(y + 1, int((top + height) * rows)), int((left + width) * columns)
        return image[y:bottom, x : max(x + 1, right)], _moved(kept, left, top, width, height)

    def _emitted(self, boxes: Array, left: float, top: float, width: float, height: float) -> Array:
        """Which boxes stay: by their middle, or by how much of them the part has."""
        if self.crop_emit_mode == "center":
            x, y = (boxes[:, 1] + boxes[:, 3]) / 2, (boxes[:, 2] + boxes[:, 4]) / 2
            inside: Array = (x >= left) & (x <= left + width) & (y >= top) & (y <= top + height)
            return inside
        own = (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 4] - boxes[:, 2])
        shared = _common(boxes, left, top, width, height)
        enough: Array = shared > self.emit_overlap_thresh * own
        return enough

    def _padded(self, image: Array, boxes: Array, draws: Draws) -> tuple[Array, Array]:
        scale = draws.uniform(1.0, self.max_pad_scale)
        rows, columns, channels = image.shape
        height, width = int(rows * scale), int(columns * scale)
        top, left = draws.integer(height - rows + 1), draws.integer(width - columns + 1)
        made = np.full((height, width, channels), self.fill_value, np.uint8)
        made[top : top + rows, left : left + columns] = image
        moved = boxes.copy()
        moved[:, [1, 3]] = (moved[:, [1, 3]] * columns + left) / width
        moved[:, [2, 4]] = (moved[:, [2, 4]] * rows + top) / height
        return made, moved


def _moved(boxes: Array, left: float, top: float, width: float, height: float) -> Array:
    made = boxes.copy()
    made[:, [1, 3]] = np.clip((made[:, [1, 3]] - left) / width, 0, 1)
    made[:, [2, 4]] = np.clip((made[:, [2, 4]] - top) / height, 0, 1)
    return made


def split_label(label: Array) -> tuple[Array, Array]:
    """Header, and objects (objects, object width), of a detection label.

    Raises:
        FormatError: not of this form.
    """
    head, wide = (int(label[0]), int(label[1])) if label.size >= 2 else (0, 0)
    if head < 2 or wide < 5 or label.size < head or (label.size - head) % wide:
        raise FormatError(
            "[ImageDetRecordIter] expected a label [header width >= 2, object width >= 5, ..., "
            f"objects], got {label.size} numbers that begin with {label[:2].tolist()}"
        )
    return label[:head], label[head:].reshape(-1, wide)


class DetectionPictures(Pictures):
    """`Pictures` with boxes: `[channels, height, width, length, label..., padding]` per sample.

    Attributes:
        pad_value: of the padding.
    """

    pad_value: float = -1.0

    def fill(self, buffers: Target, position: int) -> None:
        """Writes one sample of a batch; what a smaller picture leaves free is 0."""
        index, epoch = buffers.plan.indices[position], buffers.plan.epochs[position]
        sample = self.source[index]
        try:
            head, boxes = split_label(sample.label)
            self.decoder.size(sample.content)
            image = self.decoder.whole(sample.content)
            recipe: Any = self.recipe
            image, boxes = recipe.change(image, boxes, Draws(self.seed, epoch, index))
            self._write(buffers.rows[position], np.ascontiguousarray(image))
            self._label(buffers.labels[position], head, boxes, image.shape)
        except MixflowError as error:
            error.args = (f"{error.args[0]} (sample {sample.key!r} of {self.source.name})",)
            raise
        buffers.keys[position] = sample.key

    def _write(self, out: Array, image: Array) -> None:
        height, width, channels = image.shape
        whole = (height, width) == out.shape[1:]
        part = out if whole else np.empty((channels, height, width), out.dtype)
        geometry = (0, 0, height, width, height, width, 0, 0, 0)
        normalise = self.normalise
        if normalise is None:
            _rt.core.picture(image, part, geometry)
        else:
            factor, _ = normalise.numbers(Draws(0, 0, 0))
            mean = normalise.mean
            _rt.core.picture(image, part, geometry, None, mean, factor)
        if not whole:
            out[...] = 0
            out[:, :height, :width] = part

    def _label(self, to: Array, head: Array, boxes: Array, shape: Sequence[int]) -> None:
        length = head.size + boxes.size
        if _PREFIX + length > to.size:
            raise ShapeError(
                f"[ImageDetRecordIter] expected labels of at most {to.size - _PREFIX} numbers, got "
                f"{length}; set label_pad_width"
            )
        to[:] = self.pad_value
        to[:_PREFIX] = shape[2], shape[0], shape[1], length
        to[_PREFIX : _PREFIX + length] = np.concatenate([head, boxes.reshape(-1)])
