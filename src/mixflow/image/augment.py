"""Augmenters of ``mx.image``: objects that change one image, most of them at random.

Hazard: an image passes ten augmenters, and an array on the engine costs more than the arithmetic on
a small image. So each augmenter works on host arrays (`apply`); only a call from outside, with an
NDArray, converts at its ends. None changes its argument.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import dtype as dtypes
from .. import ndarray as nd
from ..arguments import checked, flag, optional
from ..errors import DTypeError, ParamError, ShapeError
from ..ndarray import NDArray
from . import codec
from . import functions as F
from .kinds import (
    AREA,
    AUGMENTERS,
    DTYPE,
    INTERP,
    JITTER,
    LEVELS,
    MAKER,
    MATRIX,
    RATIOS,
    SHARE,
    SIDE,
    SIZE,
    SPREADS,
)

Array = np.ndarray[Any, Any]

#: Weights of red, green and blue in brightness (ITU-R BT.601).
LUMA = (0.299, 0.587, 0.114)
#: RGB to YIQ, and back, three decimals each as in MXNet: not quite inverses of each other.
TO_YIQ = ((0.299, 0.587, 0.114), (0.596, -0.274, -0.321), (0.211, -0.523, 0.311))
FROM_YIQ = ((1.0, 0.956, 0.621), (1.0, -0.272, -0.647), (1.0, -1.107, 1.705))
#: Weights of `RandomGrayAug`.
GREY = (0.21, 0.72, 0.07)
#: Mean, deviation and principal components of the pixels of ImageNet, in levels (0 to 255).
IMAGENET_MEAN = (123.68, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
IMAGENET_EIGVAL = (55.46, 4.794, 1.148)
IMAGENET_EIGVEC = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)


def plain(value: Any) -> Any:
    """A parameter in a form that JSON knows."""
    if isinstance(value, NDArray):
        value = value.asnumpy()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return value


def colour(image: Array, operator: str) -> Array:
    """The image itself, which must have three channels of floats.

    Raises:
        DTypeError, ShapeError: whole numbers; other than three channels.
    """
    if image.dtype.kind != "f":
        raise DTypeError(f"[{operator}] expected a float image, got {image.dtype}; cast it first")
    if image.ndim != 3 or image.shape[2] != 3:
        raise ShapeError(
            f"[{operator}] expected an image (height, width, 3), got shape {image.shape}"
        )
    return image


class Augmenter:
    """Base of the augmenters. A subclass gives `__call__`.

    Args:
        **kwargs: parameters that `dumps` shows; arrays become lists.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = {name: plain(value) for name, value in kwargs.items()}

    def dumps(self) -> Any:
        """Name and parameters as JSON; those that hold others give a list."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, src: Any) -> Any:
        """The changed image.

        Args:
            src: (height, width, channels).

        Raises:
            NotImplementedError: the subclass gives none.
        """
        raise NotImplementedError(f"{type(self).__name__} gives no __call__")


class HostAugmenter(Augmenter):
    """Base of those that work on host arrays. A subclass gives `apply`."""

    def apply(self, image: Array) -> Array:
        """The changed image; the argument keeps its values.

        Args:
            image: (height, width, channels).
        """
        raise NotImplementedError(f"{type(self).__name__} gives no apply")

    def __call__(self, src: Any) -> NDArray:
        """The changed image.

        Args:
            src: (height, width, channels), NDArray or NumPy array.
        """
        return F.device(self.apply(F.host(src, type(self).__name__)))


def run_host(augmenter: Any, image: Array) -> Array:
    """Applies any augmenter, also a user's that knows NDArray only, to a host array."""
    on_host = isinstance(augmenter, HostAugmenter)
    if on_host and type(augmenter).__call__ is HostAugmenter.__call__:
        return augmenter.apply(image)  # type: ignore[no-any-return]
    return F.host(augmenter(F.device(image)), type(augmenter).__name__)


class SequentialAug(HostAugmenter):
    """Augmenters one after the other.

    Args:
        ts: list of augmenters.
    """

    @checked(ts=AUGMENTERS)
    def __init__(self, ts: Sequence[Augmenter]) -> None:
        super().__init__()
        self.ts = ts

    def dumps(self) -> Any:
        """[name, what each gives]."""
        return [type(self).__name__.lower(), [x.dumps() for x in self.ts]]

    def apply(self, image: Array) -> Array:
        """All of them in order."""
        for augmenter in self.ts:
            image = run_host(augmenter, image)
        return image


class RandomOrderAug(HostAugmenter):
    """Augmenters in a random order, new for each image (one `random.shuffle`).

    Args:
        ts: list of augmenters; its order changes.
    """

    @checked(ts=AUGMENTERS)
    def __init__(self, ts: list[Augmenter]) -> None:
        super().__init__()
        self.ts = ts

    def dumps(self) -> Any:
        """[name, what each gives]."""
        return [type(self).__name__.lower(), [x.dumps() for x in self.ts]]

    def apply(self, image: Array) -> Array:
        """All of them in a new order."""
        random.shuffle(self.ts)
        for augmenter in self.ts:
            image = run_host(augmenter, image)
        return image


class ResizeAug(HostAugmenter):
    """Resizes so that the shorter side has `size` pixels.

    Args:
        size: pixels.
        interp: as `resize_short`.
    """

    @checked(size=SIDE, interp=INTERP)
    def __init__(self, size: int, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def apply(self, image: Array) -> Array:
        """`resize_short`."""
        return codec.resize_short(image, self.size, self.interp)


class ForceResizeAug(HostAugmenter):
    """Resizes to a fixed size, whatever the proportions.

    Args:
        size: (width, height).
        interp: as `resize_short`.
    """

    @checked(size=SIZE, interp=INTERP)
    def __init__(self, size: Sequence[int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def apply(self, image: Array) -> Array:
        """`imresize` to the size."""
        width, height = self.size
        sizes = (*image.shape[:2], height, width)
        interp = codec.interpolation(self.interp, sizes, "ForceResizeAug")
        return codec.resize(image, width, height, interp, "ForceResizeAug")


class RandomCropAug(HostAugmenter):
    """A part at a random place.

    Args:
        size: (width, height).
        interp: as `resize_short`.
    """

    @checked(size=SIZE, interp=INTERP)
    def __init__(self, size: Sequence[int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def apply(self, image: Array) -> Array:
        """`random_crop`."""
        return F.random_crop_host(image, self.size, self.interp)[0]


class RandomSizedCropAug(HostAugmenter):
    """A part of random size, proportions and place.

    Args:
        size: (width, height) of the result.
        area: (smallest, largest) part of the image's area, or the smallest alone.
        ratio: (smallest, largest) width / height.
        interp: as `resize_short`.
        **kwargs: `min_area`, the old name of `area`.

    Raises:
        ParamError: other keywords.
    """

    @checked(size=SIZE, area=AREA, min_area=AREA, ratio=RATIOS, interp=INTERP)
    def __init__(
        self, size: Sequence[int], area: Any, ratio: Sequence[float], interp: int = 2, **kwargs: Any
    ) -> None:
        super().__init__(size=size, area=area, ratio=ratio, interp=interp)
        self.size, self.ratio, self.interp = size, ratio, interp
        self.area = kwargs.get("min_area", area)
        self._range = F.area_range(area, kwargs)

    def apply(self, image: Array) -> Array:
        """`random_size_crop`."""
        return F.random_size_crop_host(image, self.size, self._range, self.ratio, self.interp)[0]


class CenterCropAug(HostAugmenter):
    """The middle of the image.

    Args:
        size: (width, height).
        interp: as `resize_short`.
    """

    @checked(size=SIZE, interp=INTERP)
    def __init__(self, size: Sequence[int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def apply(self, image: Array) -> Array:
        """`center_crop`."""
        return codec.center_crop(image, self.size, self.interp)[0]


class BrightnessJitterAug(HostAugmenter):
    """Multiplies by a random number of [1 - brightness, 1 + brightness].

    Args:
        brightness: at least 0.
    """

    @checked(brightness=JITTER)
    def __init__(self, brightness: float) -> None:
        super().__init__(brightness=brightness)
        self.brightness = brightness

    def apply(self, image: Array) -> Array:
        """One draw of `random.uniform`."""
        alpha = 1.0 + random.uniform(-self.brightness, self.brightness)
        if image.dtype.kind != "f":
            raise DTypeError(
                f"[BrightnessJitterAug] expected a float image, got {image.dtype}; cast it first"
            )
        made: Array = image * image.dtype.type(alpha)
        return made


class ContrastJitterAug(HostAugmenter):
    """Moves pixels away from the mean brightness, or towards it, by a random factor.

    Args:
        contrast: the factor lies in [1 - contrast, 1 + contrast].
    """

    @checked(contrast=JITTER)
    def __init__(self, contrast: float) -> None:
        super().__init__(contrast=contrast)
        self.contrast = contrast
        self.coef = nd.array([[LUMA]])

    def apply(self, image: Array) -> Array:
        """One draw of `random.uniform`."""
        alpha = 1.0 + random.uniform(-self.contrast, self.contrast)
        image = colour(image, "ContrastJitterAug")
        grey = image @ np.array(LUMA, image.dtype)
        shift = (1.0 - alpha) * float(grey.mean(dtype=np.float64))
        made: Array = image * image.dtype.type(alpha) + image.dtype.type(shift)
        return made


class SaturationJitterAug(HostAugmenter):
    """Moves pixels away from their own grey, or towards it, by a random factor.

    Args:
        saturation: the factor lies in [1 - saturation, 1 + saturation].
    """

    @checked(saturation=JITTER)
    def __init__(self, saturation: float) -> None:
        super().__init__(saturation=saturation)
        self.saturation = saturation
        self.coef = nd.array([[LUMA]])

    def apply(self, image: Array) -> Array:
        """One draw of `random.uniform`."""
        alpha = 1.0 + random.uniform(-self.saturation, self.saturation)
        image = colour(image, "SaturationJitterAug")
        grey = image @ np.array(LUMA, image.dtype)
        kind = image.dtype.type
        made: Array = image * kind(alpha) + (grey * kind(1.0 - alpha))[:, :, None]
        return made


class HueJitterAug(HostAugmenter):
    """Turns the colours about the grey axis of YIQ by a random angle.

    Args:
        hue: the angle lies in [-hue, hue], in half turns.
    """

    @checked(hue=JITTER)
    def __init__(self, hue: float) -> None:
        super().__init__(hue=hue)
        self.hue = hue
        self.tyiq, self.ityiq = np.array(TO_YIQ), np.array(FROM_YIQ)

    def apply(self, image: Array) -> Array:
        """One draw of `random.uniform`."""
        angle = random.uniform(-self.hue, self.hue) * np.pi
        image = colour(image, "HueJitterAug")
        cosine, sine = np.cos(angle), np.sin(angle)
        turn = np.array([[1.0, 0.0, 0.0], [0.0, cosine, -sine], [0.0, sine, cosine]])
        matrix = (self.ityiq @ turn @ self.tyiq).T
        made: Array = image @ matrix.astype(image.dtype)
        return made


class ColorJitterAug(RandomOrderAug):
    """Brightness, contrast and saturation in a random order; those of 0 are left out.

    Args:
        brightness, contrast, saturation: as of the three augmenters.
    """

    @checked(brightness=JITTER, contrast=JITTER, saturation=JITTER)
    def __init__(self, brightness: float, contrast: float, saturation: float) -> None:
        chosen: list[Augmenter] = []
        if brightness > 0:
            chosen.append(BrightnessJitterAug(brightness))
        if contrast > 0:
            chosen.append(ContrastJitterAug(contrast))
        if saturation > 0:
            chosen.append(SaturationJitterAug(saturation))
        super().__init__(chosen)


class LightingAug(HostAugmenter):
    """Adds a random mixture of the principal components of colour.

    Args:
        alphastd: deviation of the three normal factors.
        eigval: (3,) eigenvalues.
        eigvec: (3, 3) eigenvectors, one a column.

    Source: Krizhevsky et al. 2012, ImageNet classification with deep neural networks.
    """

    @checked(alphastd=JITTER, eigval=LEVELS, eigvec=MATRIX)
    def __init__(self, alphastd: float, eigval: Any, eigvec: Any) -> None:
        super().__init__(alphastd=alphastd, eigval=eigval, eigvec=eigvec)
        self.alphastd, self.eigval, self.eigvec = alphastd, eigval, eigvec

    def apply(self, image: Array) -> Array:
        """One draw of three numbers of `numpy.random.normal`."""
        alpha = np.random.normal(0, self.alphastd, size=(3,))
        image = colour(image, "LightingAug")
        vectors, values = F.constant(self.eigvec), F.constant(self.eigval)
        assert vectors is not None and values is not None
        made: Array = image + ((vectors * alpha) @ values).astype(image.dtype)
        return made


class ColorNormalizeAug(HostAugmenter):
    """(image - mean) / std.

    Args:
        mean, std: (channels,) or numbers; None leaves that step out.
    """

    @checked(mean=optional(LEVELS), std=optional(SPREADS))
    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__(mean=mean, std=std)
        self._mean, self._std = F.constant(mean), F.constant(std)
        self.mean = None if self._mean is None else nd.array(self._mean)
        self.std = None if self._std is None else nd.array(self._std)

    def apply(self, image: Array) -> Array:
        """`color_normalize`."""
        return F.normalize_host(image, self._mean, self._std)


class RandomGrayAug(HostAugmenter):
    """Makes the three channels equal, with probability p.

    Args:
        p: from 0 to 1.
    """

    @checked(p=SHARE)
    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p
        self._matrix = np.repeat(np.array(GREY)[:, None], 3, axis=1)
        self.mat = nd.array(self._matrix)

    def apply(self, image: Array) -> Array:
        """One draw of `random.random`."""
        if random.random() >= self.p:
            return image
        image = colour(image, "RandomGrayAug")
        made: Array = image @ self._matrix.astype(image.dtype)
        return made


class HorizontalFlipAug(HostAugmenter):
    """Mirrors left and right, with probability p.

    Args:
        p: from 0 to 1.
    """

    @checked(p=SHARE)
    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def apply(self, image: Array) -> Array:
        """One draw of `random.random`."""
        return image[:, ::-1] if random.random() < self.p else image


class CastAug(HostAugmenter):
    """Another dtype.

    Args:
        typ: name of the dtype.
    """

    @checked(typ=DTYPE)
    def __init__(self, typ: str = "float32") -> None:
        super().__init__(type=typ)
        self.typ = typ

    def apply(self, image: Array) -> Array:
        """The image as `typ`."""
        return image.astype(dtypes.canonical(self.typ))


def statistics(value: Any, standard: Array, name: str) -> Array | None:
    """A mean or deviation of 1 or 3 channels: True stands for that of ImageNet (`standard`).

    Raises:
        ParamError: another size.
    """
    if value is None or value is False:
        return None
    found = standard if value is True else F.constant(value)
    assert found is not None
    if found.ndim != 1 or found.shape[0] not in (1, 3):
        raise ParamError(
            f"[CreateAugmenter] expected 1 or 3 numbers for {name}, got shape {found.shape}"
        )
    return found


def colour_augmenters(
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
    pca_noise: float,
    rand_gray: float,
) -> list[Augmenter]:
    """Those of colour, in MXNet's order; those of 0 are left out."""
    chosen: list[Augmenter] = []
    if brightness or contrast or saturation:
        chosen.append(ColorJitterAug(brightness, contrast, saturation))
    if hue:
        chosen.append(HueJitterAug(hue))
    if pca_noise > 0:
        chosen.append(LightingAug(pca_noise, np.array(IMAGENET_EIGVAL), np.array(IMAGENET_EIGVEC)))
    if rand_gray > 0:
        chosen.append(RandomGrayAug(rand_gray))
    return chosen


@checked(rand_crop=flag, rand_resize=flag, **MAKER)
def CreateAugmenter(
    data_shape: Sequence[int],
    resize: int = 0,
    rand_crop: bool = False,
    rand_resize: bool = False,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    hue: float = 0,
    pca_noise: float = 0,
    rand_gray: float = 0,
    inter_method: int = 2,
) -> list[Augmenter]:
    """The usual list: resize, crop, mirror, cast to float32, colour, normalise.

    Args:
        data_shape: (channels, height, width) of the result.
        resize: pixels of the shorter side before the crop; 0 = as it is.
        rand_crop: a part at a random place instead of the middle.
        rand_resize: a part of random size (8 % of the area and more); needs `rand_crop`.
        rand_mirror: mirror half of the images.
        mean, std: (1,) or (3,) arrays; True = those of ImageNet.
        brightness, contrast, saturation, hue: ranges of the jitters.
        pca_noise: deviation of the lighting noise.
        rand_gray: probability of grey.
        inter_method: as `resize_short`.

    Raises:
        ParamError: `rand_resize` without `rand_crop`; mean or std of another size.
    """
    size = (data_shape[2], data_shape[1])
    chosen: list[Augmenter] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    if rand_resize:
        if not rand_crop:
            raise ParamError("[CreateAugmenter] expected rand_crop=True with rand_resize")
        chosen.append(RandomSizedCropAug(size, 0.08, (3.0 / 4.0, 4.0 / 3.0), inter_method))
    else:
        chosen.append((RandomCropAug if rand_crop else CenterCropAug)(size, inter_method))
    if rand_mirror:
        chosen.append(HorizontalFlipAug(0.5))
    chosen.append(CastAug())
    chosen += colour_augmenters(brightness, contrast, saturation, hue, pca_noise, rand_gray)
    centre = statistics(mean, np.array(IMAGENET_MEAN, np.float32), "mean")
    spread = statistics(std, np.array(IMAGENET_STD, np.float32), "std")
    if centre is not None or spread is not None:
        chosen.append(ColorNormalizeAug(centre, spread))
    return chosen
