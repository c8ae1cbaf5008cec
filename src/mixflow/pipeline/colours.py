"""Random changes of colours, on whole pictures (h, w, channels) uint8, RGB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import extras
from ..arguments import check_fields, number, whole
from .draws import Draws

Array = np.ndarray[Any, Any]
_GREY = np.array([0.299, 0.587, 0.114], np.float32)
#: Principal components of the colours of ImageNet (Krizhevsky et al., 2012): values and vectors.
_PCA_VALUES = np.array([55.46, 4.794, 1.148], np.float32)
_PCA_VECTORS = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]],
    np.float32,
)


def _clipped(values: Array) -> Array:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class ColourJitter:
    """Changes in a random order; a picture of one channel takes brightness and contrast only.

    Attributes:
        brightness, contrast, saturation: largest relative change, e.g. 0.4: 0.6 to 1.4 times.
        pca_noise: deviation of the noise along the principal components (AlexNet's lighting).
        random_h, random_s, random_l: largest change of hue (of 180), saturation and lightness (of
            255).

    Raises:
        ParamError: a negative number, or none.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    pca_noise: float = 0.0
    random_h: int = 0
    random_s: int = 0
    random_l: int = 0

    def __post_init__(self) -> None:
        shares = dict.fromkeys(("brightness", "contrast", "saturation", "pca_noise"), number(0))
        steps = dict.fromkeys(("random_h", "random_s", "random_l"), whole(0, 255))
        check_fields("ImageRecordIter", self, **shares, **steps)

    def __bool__(self) -> bool:
        return any(value != 0 for value in vars(self).values())

    def apply(self, image: Array, draws: Draws) -> Array:
        """The picture with the changes that are not 0."""
        if not self:
            return image
        image = self._hls(image, draws)
        changes = [name for name in ("brightness", "contrast", "saturation") if getattr(self, name)]
        if changes:
            image = self._jittered(image, draws.shuffled(changes), draws)
        if self.pca_noise and image.shape[2] == 3:
            alpha = np.array([draws.normal(self.pca_noise) for _ in range(3)], np.float32)
            image = _clipped(image + _PCA_VECTORS @ (alpha * _PCA_VALUES))
        return image

    def _jittered(self, image: Array, changes: list[str], draws: Draws) -> Array:
        values = image.astype(np.float32)
        for name in changes:
            share = getattr(self, name)
            factor = np.float32(1.0 + draws.uniform(-share, share))
            if name == "brightness":
                values = values * factor
                continue
            grey = values @ _GREY if image.shape[2] == 3 else values[:, :, 0]
            middle: Any = grey.mean() if name == "contrast" else grey[:, :, None]
            values = values * factor + middle * (1 - factor)
        return _clipped(values)

    def _hls(self, image: Array, draws: Draws) -> Array:
        limits = (self.random_h, self.random_l, self.random_s)
        if not any(limits) or image.shape[2] != 3:
            return image
        cv2 = extras.load("cv2", "ImageRecordIter")
        shift = [draws.integer(2 * limit + 1) - limit for limit in limits]
        hls = cv2.cvtColor(image, cv2.COLOR_RGB2HLS).astype(np.int16) + np.array(shift, np.int16)
        changed = np.clip(hls, 0, (180, 255, 255)).astype(np.uint8)
        made: Array = cv2.cvtColor(changed, cv2.COLOR_HLS2RGB)
        return made
