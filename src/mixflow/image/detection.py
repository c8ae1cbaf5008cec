"""Augmenters of images with boxes (``mx.image.detection``)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np

from ..arguments import checked, either, kept, number, several, whole
from ..errors import DTypeError, ParamError
from . import boxes, codec
from . import functions as F
from .augment import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Augmenter,
    CastAug,
    ColorNormalizeAug,
    ForceResizeAug,
    HostAugmenter,
    ResizeAug,
    colour_augmenters,
    plain,
    run_host,
    statistics,
)
from .kinds import MAKER, SHARE

Array = np.ndarray[Any, Any]
Pair = tuple[Any, Array]


_TRIES = whole(0, 1 << 30)
_LEVEL = kept(either(number(), several(number())))


class DetAugmenter:
    """Base of augmenters of an image and its boxes. A subclass gives `__call__`.

    Args:
        **kwargs: parameters that `dumps` shows; arrays become lists.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = {name: plain(value) for name, value in kwargs.items()}

    def dumps(self) -> Any:
        """Name and parameters as JSON; those that hold others give a list."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, src: Any, label: Array) -> Pair:
        """The changed image and its boxes.

        Args:
            src: (height, width, channels).
            label: (n, 5 or more) host array of (class, left, top, right, bottom, ...), edges as
                parts of width and height.

        Raises:
            NotImplementedError: the subclass gives none.
        """
        raise NotImplementedError(f"{type(self).__name__} gives no __call__")


class HostDetAugmenter(DetAugmenter):
    """Base of those that work on host arrays. A subclass gives `apply`."""

    def apply(self, image: Array, label: Array) -> tuple[Array, Array]:
        """The changed image and its boxes; the arguments keep their values.

        Args:
            image: (height, width, channels).
            label: (n, 5 or more).
        """
        raise NotImplementedError(f"{type(self).__name__} gives no apply")

    def __call__(self, src: Any, label: Array) -> Pair:
        """The changed image and its boxes.

        Args:
            src: (height, width, channels), NDArray or NumPy array.
            label: (n, 5 or more).
        """
        image, found = self.apply(F.host(src, type(self).__name__), np.asarray(label))
        return F.device(image), found


def run_det_host(augmenter: Any, image: Array, label: Array) -> tuple[Array, Array]:
    """Applies any augmenter, also a user's that knows NDArray only, to host arrays."""
    on_host = isinstance(augmenter, HostDetAugmenter)
    if on_host and type(augmenter).__call__ is HostDetAugmenter.__call__:
        return augmenter.apply(image, label)  # type: ignore[no-any-return]
    made, found = augmenter(F.device(image), label)
    return F.host(made, type(augmenter).__name__), found


class DetBorrowAug(HostDetAugmenter):
    """An augmenter of images alone; the boxes stay as they are.

    Args:
        augmenter: one that moves nothing.

    Raises:
        DTypeError: no `Augmenter`.
    """

    def __init__(self, augmenter: Augmenter) -> None:
        if not isinstance(augmenter, Augmenter):
            raise DTypeError(
                f"[DetBorrowAug] expected an Augmenter, got {type(augmenter).__name__}"
            )
        super().__init__(augmenter=augmenter.dumps())
        self.augmenter = augmenter

    def dumps(self) -> Any:
        """[name, what the augmenter gives]."""
        return [type(self).__name__.lower(), self.augmenter.dumps()]

    def apply(self, image: Array, label: Array) -> tuple[Array, Array]:
        """The augmenter on the image."""
        return run_host(self.augmenter, image), label


class DetRandomSelectAug(HostDetAugmenter):
    """One augmenter of a list, at random, or none.

    Args:
        aug_list: one or several `DetAugmenter`; its order changes. With none, nothing is done.
        skip_prob: probability of none.

    Raises:
        DTypeError: something else in the list.
    """

    @checked(skip_prob=SHARE)
    def __init__(self, aug_list: Any, skip_prob: float = 0) -> None:
        super().__init__(skip_prob=skip_prob)
        self.aug_list = list(aug_list) if isinstance(aug_list, (list, tuple)) else [aug_list]
        for augmenter in self.aug_list:
            if not isinstance(augmenter, DetAugmenter):
                raise DTypeError(
                    "[DetRandomSelectAug] expected only DetAugmenter in aug_list, got "
                    f"{type(augmenter).__name__}"
                )
        self.skip_prob: float = skip_prob if self.aug_list else 1

    def dumps(self) -> Any:
        """[name, what each gives]."""
        return [type(self).__name__.lower(), [x.dumps() for x in self.aug_list]]

    def apply(self, image: Array, label: Array) -> tuple[Array, Array]:
        """One draw of `random.random`, then one `random.shuffle`."""
        if random.random() < self.skip_prob:
            return image, label
        random.shuffle(self.aug_list)
        return run_det_host(self.aug_list[0], image, label)


class DetHorizontalFlipAug(HostDetAugmenter):
    """Mirrors left and right, with probability p.

    Args:
        p: from 0 to 1.
    """

    @checked(p=SHARE)
    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def apply(self, image: Array, label: Array) -> tuple[Array, Array]:
        """One draw of `random.random`."""
        if random.random() >= self.p:
            return image, label
        flipped = label.copy()
        flipped[:, (1, 3)] = 1.0 - label[:, (3, 1)]
        return image[:, ::-1], flipped


def _range(value: Any, name: str, operator: str) -> tuple[float, float]:
    """A pair in rising order above 0; a number stands twice.

    Raises:
        ParamError: another value.
    """
    try:
        pair: tuple[float, float] = (value, value) if isinstance(value, Number) else tuple(value)
        low, high = pair
        if high > 0 and 0 <= low <= high < float("inf"):
            return pair
    except (TypeError, ValueError):
        pass
    raise ParamError(
        f"[{operator}] expected two numbers in rising order, the second above 0, for {name}, "
        f"got {value!r}"
    )


class DetRandomCropAug(HostDetAugmenter):
    """A random part of the image that shows enough of its objects.

    Without such a part after `max_attempts` tries, the image stays as it is.

    Args:
        min_object_covered: of each object that the part shows, more than this part is seen.
        aspect_ratio_range: (smallest, largest) width / height, or one number.
        area_range: (smallest, largest) part of the image's area, or the smallest alone.
        min_eject_coverage: objects of which no more than this is seen lose their box.
        max_attempts: tries.

    Raises:
        ParamError: a range that is none.

    Source: Liu et al. 2016, SSD: single shot multibox detector.
    """

    @checked(min_object_covered=number(0), min_eject_coverage=number(0), max_attempts=_TRIES)
    def __init__(
        self,
        min_object_covered: float = 0.1,
        aspect_ratio_range: Any = (0.75, 1.33),
        area_range: Any = (0.05, 1.0),
        min_eject_coverage: float = 0.3,
        max_attempts: int = 50,
    ) -> None:
        ratios = _range(aspect_ratio_range, "aspect_ratio_range", "DetRandomCropAug")
        parts = (area_range, 1.0) if isinstance(area_range, Number) else area_range
        parts = _range(parts, "area_range", "DetRandomCropAug")
        super().__init__(
            min_object_covered=min_object_covered,
            aspect_ratio_range=ratios,
            area_range=parts,
            min_eject_coverage=min_eject_coverage,
            max_attempts=max_attempts,
        )
        self.min_object_covered, self.min_eject_coverage = min_object_covered, min_eject_coverage
        self.aspect_ratio_range, self.area_range = ratios, parts
        self.max_attempts, self.enabled = max_attempts, True

    def apply(self, image: Array, label: Array) -> tuple[Array, Array]:
        """Draws of `random.uniform` and `random.randint`, some for each try."""
        rules = boxes.CropRules(
            self.min_object_covered,
            self.aspect_ratio_range,
            self.area_range,
            self.min_eject_coverage,
            self.max_attempts,
        )
        found = boxes.propose_crop(rules, label, *image.shape[:2])
        if found is None:
            return image, label
        place, kept = found
        return codec.crop(image, *place, operator="DetRandomCropAug"), kept


class DetRandomPadAug(HostDetAugmenter):
    """The image at a random place of a larger canvas, so that its objects become smaller.

    Args:
        aspect_ratio_range: (smallest, largest) width / height of the canvas, or one number.
        area_range: (smallest, largest) area of the canvas in areas of the image, or one number.
        max_attempts: tries; then the image stays as it is.
        pad_val: level of the canvas, one or one per channel.

    Raises:
        ParamError: a range that is none.

    Source: Liu et al. 2016, SSD: single shot multibox detector.
    """

    @checked(max_attempts=_TRIES, pad_val=_LEVEL)
    def __init__(
        self,
        aspect_ratio_range: Any = (0.75, 1.33),
        area_range: Any = (1.0, 3.0),
        max_attempts: int = 50,
        pad_val: Any = (128, 128, 128),
    ) -> None:
        ratios = _range(aspect_ratio_range, "aspect_ratio_range", "DetRandomPadAug")
        parts = _range(area_range, "area_range", "DetRandomPadAug")
        super().__init__(
            aspect_ratio_range=ratios,
            area_range=parts,
            max_attempts=max_attempts,
            pad_val=pad_val,
        )
        self.pad_val = pad_val
        self.aspect_ratio_range, self.area_range = ratios, parts
        self.max_attempts, self.enabled = max_attempts, parts[1] > 1.0

    def apply(self, image: Array, label: Array) -> tuple[Array, Array]:
        """Draws of `random.uniform` and `random.randint`, some for each try."""
        rows, columns = image.shape[:2]
        if not self.enabled:
            return image, label
        place = boxes.propose_padding(
            self.aspect_ratio_range, self.area_range, self.max_attempts, rows, columns
        )
        if place is None:
            return image, label
        x, y, width, height = place
        values = (self.pad_val,) * 4 if isinstance(self.pad_val, Number) else tuple(self.pad_val)
        made = codec.border(image, y, height - y - rows, x, width - x - columns, values=values)
        return made, boxes.moved(label, (-x, -y, width, height), rows, columns)


@checked(skip_prob=SHARE)
def CreateMultiRandCropAugmenter(
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = (0.75, 1.33),
    area_range: Any = (0.05, 1.0),
    min_eject_coverage: Any = 0.3,
    max_attempts: Any = 50,
    skip_prob: float = 0,
) -> DetRandomSelectAug:
    """Several `DetRandomCropAug`, of which one is chosen for each image.

    Args:
        min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts: as
            `DetRandomCropAug`; a list gives one augmenter per entry.
        skip_prob: probability that the image stays as it is.

    Raises:
        ParamError: lists of different length.
    """
    given = (min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts)
    lists = [value if isinstance(value, list) else [value] for value in given]
    count = max(len(value) for value in lists)
    if any(len(value) not in (1, count) for value in lists):
        raise ParamError(
            "[CreateMultiRandCropAugmenter] expected lists of one length, got "
            f"{[len(value) for value in lists]}"
        )
    full = [value * count if len(value) == 1 else value for value in lists]
    made = [DetRandomCropAug(*chosen) for chosen in zip(*full, strict=True)]
    return DetRandomSelectAug(made, skip_prob)


@checked(rand_crop=SHARE, rand_pad=SHARE, pad_val=_LEVEL, **MAKER)
def CreateDetAugmenter(
    data_shape: Sequence[int],
    resize: int = 0,
    rand_crop: float = 0,
    rand_pad: float = 0,
    rand_gray: float = 0,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    pca_noise: float = 0,
    hue: float = 0,
    inter_method: int = 2,
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = (0.75, 1.33),
    area_range: Any = (0.05, 3.0),
    min_eject_coverage: Any = 0.3,
    max_attempts: Any = 50,
    pad_val: Any = (127, 127, 127),
) -> list[DetAugmenter]:
    """The usual list: resize, crop, mirror, pad, resize to fit, cast, colour, normalise.

    Args:
        data_shape: (channels, height, width) of the result.
        resize: pixels of the shorter side at the start; 0 = as it is.
        rand_crop, rand_pad: probability of a random crop, of padding.
        rand_gray: probability of grey.
        rand_mirror: mirror half of the images.
        mean, std: (1,) or (3,) arrays; True = those of ImageNet.
        brightness, contrast, saturation, hue: ranges of the jitters.
        pca_noise: deviation of the lighting noise.
        inter_method: as `resize_short`.
        min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts: as
            `CreateMultiRandCropAugmenter`. Padding takes the upper end of `area_range`.
        pad_val: level of the padding.

    Raises:
        ParamError: as the augmenters.
    """
    borrowed: list[HostAugmenter] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    chosen: list[DetAugmenter] = [DetBorrowAug(x) for x in borrowed]
    if rand_crop > 0:
        chosen.append(
            CreateMultiRandCropAugmenter(
                min_object_covered,
                aspect_ratio_range,
                area_range,
                min_eject_coverage,
                max_attempts,
                1 - rand_crop,
            )
        )
    if rand_mirror:
        chosen.append(DetHorizontalFlipAug(0.5))
    if rand_pad > 0:
        upper = area_range[1] if isinstance(area_range, (list, tuple)) else area_range
        canvas = (1.0, upper)
        padding = DetRandomPadAug(aspect_ratio_range, canvas, max_attempts, pad_val)
        chosen.append(DetRandomSelectAug([padding], 1 - rand_pad))
    size = (data_shape[2], data_shape[1])
    alone: list[Augmenter] = [ForceResizeAug(size, inter_method), CastAug()]
    alone += colour_augmenters(brightness, contrast, saturation, hue, pca_noise, rand_gray)
    centre = statistics(mean, np.array(IMAGENET_MEAN), "mean")
    spread = statistics(std, np.array(IMAGENET_STD), "std")
    if centre is not None or spread is not None:
        alone.append(ColorNormalizeAug(centre, spread))
    return chosen + [DetBorrowAug(x) for x in alone]
