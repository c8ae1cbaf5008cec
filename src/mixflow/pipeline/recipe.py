"""What happens to a picture: MXNet's default augmenter, as a view where one pass is enough.

A recipe that only resizes, crops and mirrors becomes a `View`, known before anything is decoded:
then only the pixels that are needed are decoded, and one native pass does the rest. The other steps
(rotation, border, colours) run on whole arrays in OpenCV.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .. import extras
from ..arguments import a, check_fields, choice, either, flag, number, optional, whole
from ..errors import ParamError, ShapeError, describe_unknown
from ..image.codec import short_side_size
from .colours import ColourJitter
from .draws import Draws

Array = np.ndarray[Any, Any]
_TRIES = 10


class View(NamedTuple):
    """A window of a picture, resized, and a part of that, mirrored or not; in pixels.

    Attributes:
        window: (top, left, height, width) in the picture.
        resized: (height, width) of the window after resizing.
        corner: (top, left) of the part in the resized window.
        mirror: left and right change places.
    """

    window: tuple[int, int, int, int]
    resized: tuple[int, int]
    corner: tuple[int, int]
    mirror: bool


def interpolation(method: int, old: tuple[int, int], new: tuple[int, int], draws: Draws) -> int:
    """OpenCV's interpolation of MXNet's `inter_method`: 9 = by the sizes, 10 = random."""
    if method == 9:
        if new[0] > old[0] and new[1] > old[1]:
            return 2
        return 3 if new[0] < old[0] and new[1] < old[1] else 1
    return draws.integer(5) if method == 10 else method


#: 0 nearest, 1 bilinear, 2 cubic, 3 area, 4 Lanczos, 9 by the sizes, 10 random.
METHODS = choice(0, 1, 2, 3, 4, 9, 10)
_SIDE = whole(1, 1 << 30)
_KINDS = {
    "height": _SIDE,
    "width": _SIDE,
    "resize": either(choice(-1), whole(0, 1 << 30)),
    "rand_crop": flag,
    "random_resized_crop": flag,
    "max_rotate_angle": whole(0, 360),
    "max_aspect_ratio": number(0),
    "min_aspect_ratio": optional(number(above=0)),
    "max_shear_ratio": number(0),
    "max_crop_size": either(choice(-1), _SIDE),
    "min_crop_size": either(choice(-1), _SIDE),
    "max_random_scale": number(above=0),
    "min_random_scale": number(above=0),
    "max_random_area": number(),
    "min_random_area": number(),
    "max_img_size": number(above=0),
    "min_img_size": number(0),
    "rotate": whole(-1, 360),
    "fill_value": whole(0, 255),
    "inter_method": METHODS,
    "pad": whole(0, 1 << 30),
    "mirror": flag,
    "rand_mirror": flag,
    "colours": a(ColourJitter),
}


@dataclass(frozen=True)
class DefaultRecipe:
    """MXNet's default augmenter; the parameters have its names and meanings.

    Steps in order: resize the shorter side, affine change (rotation, shear, scale, aspect ratio),
    border, crop, colours, mirror.

    Attributes:
        height, width: of the result.
        resize: shorter side before anything else; -1: not at all.
        rand_crop: crop at a random place, else in the middle.
        random_resized_crop: crop of a random area and proportion, resized to the result.
        max_rotate_angle, rotate: degrees; random up to a limit, or fixed (`rotate` above 0).
        max_aspect_ratio, min_aspect_ratio, max_shear_ratio: of the affine change, or of
            `random_resized_crop`.
        max_crop_size, min_crop_size: of a random square crop that is resized to the result.
        max_random_scale, min_random_scale, max_img_size, min_img_size: of the affine change.
        max_random_area, min_random_area: shares of the area for `random_resized_crop`.
        fill_value: of pixels that come in.
        inter_method: 0 to 4 as in OpenCV, 9 by the sizes, 10 random.
        pad: border on each side, before the crop.
        mirror, rand_mirror: always, or by a coin.
        colours: changes of the colours.

    Raises:
        ParamError: a combination that has no meaning.
    """

    height: int
    width: int
    resize: int = -1
    rand_crop: bool = False
    random_resized_crop: bool = False
    max_rotate_angle: int = 0
    max_aspect_ratio: float = 0.0
    min_aspect_ratio: float | None = None
    max_shear_ratio: float = 0.0
    max_crop_size: int = -1
    min_crop_size: int = -1
    max_random_scale: float = 1.0
    min_random_scale: float = 1.0
    max_random_area: float = 1.0
    min_random_area: float = 1.0
    max_img_size: float = 1e10
    min_img_size: float = 0.0
    rotate: int = -1
    fill_value: int = 255
    inter_method: int = 1
    pad: int = 0
    mirror: bool = False
    rand_mirror: bool = False
    colours: ColourJitter = field(default_factory=ColourJitter)

    def __post_init__(self) -> None:
        check_fields("ImageRecordIter", self, **_KINDS)
        sized = self.max_crop_size != -1 or self.min_crop_size != -1
        scaled = (self.max_random_scale, self.min_random_scale) != (1.0, 1.0)
        if self.random_resized_crop and (sized or scaled or self.rand_crop):
            raise ParamError(
                "[ImageRecordIter] expected random_resized_crop without rand_crop, *_crop_size and "
                "*_random_scale, got both; it chooses size and place by itself"
            )
        if self.min_aspect_ratio is not None and not self.random_resized_crop:
            raise ParamError(
                "[ImageRecordIter] expected min_aspect_ratio with random_resized_crop, got it "
                "alone; max_aspect_ratio alone changes the proportions by a random share"
            )
        if sized and not 1 <= self.min_crop_size <= self.max_crop_size:
            raise ParamError(
                "[ImageRecordIter] expected 1 <= min_crop_size <= max_crop_size, got "
                f"{self.min_crop_size} and {self.max_crop_size}"
            )
        if not 0 < self.min_random_area <= self.max_random_area <= 1:
            raise ParamError(
                "[ImageRecordIter] expected 0 < min_random_area <= max_random_area <= 1, got "
                f"{self.min_random_area} and {self.max_random_area}"
            )
        if self.min_random_scale > self.max_random_scale or self.min_img_size > self.max_img_size:
            raise ParamError(
                "[ImageRecordIter] expected min_random_scale <= max_random_scale and min_img_size "
                f"<= max_img_size, got {self.min_random_scale} and {self.max_random_scale}, "
                f"{self.min_img_size} and {self.max_img_size}"
            )
        low, high = self.aspect_ratios
        if self.random_resized_crop and not 0 < low <= high:
            raise ParamError(
                "[ImageRecordIter] expected 0 < min_aspect_ratio <= max_aspect_ratio, got "
                f"{low} and {high}"
            )

    @property
    def aspect_ratios(self) -> tuple[float, float]:
        """Lowest and highest width / height of `random_resized_crop`."""
        if self.min_aspect_ratio is None:
            return 1.0, max(1.0, self.max_aspect_ratio)
        return self.min_aspect_ratio, self.max_aspect_ratio

    @property
    def affine(self) -> bool:
        """Whether there is a rotation, shear, scale or change of proportions."""
        return (
            self.max_rotate_angle > 0
            or self.max_shear_ratio > 0
            or self.rotate > 0
            or (self.max_random_scale, self.min_random_scale) != (1.0, 1.0)
            or (self.max_aspect_ratio != 0 and not self.random_resized_crop)
            or self.max_img_size != 1e10
            or self.min_img_size != 0.0
        )

    @property
    def one_pass(self) -> bool:
        """Whether `view` may say all there is to do."""
        cut_and_resized = self.random_resized_crop or self.max_crop_size != -1
        return (
            not self.affine
            and self.pad == 0
            and not self.colours
            and self.inter_method == 1
            and not (self.resize > 0 and cut_and_resized)
        )

    def view(self, height: int, width: int, draws: Draws) -> View | None:
        """What a recipe with `one_pass` takes from a picture of this size.

        None where it takes more than one pass: too small a picture is resized twice.
        """
        resized = height, width
        if self.resize > 0:
            resized = short_side_size(height, width, self.resize)
        enlarged = self._enlargements(*resized)
        if len(enlarged) + (self.resize > 0) + (self.max_crop_size != -1) > 1 and enlarged:
            return None
        resized = enlarged[-1] if enlarged else resized
        top, left, rows, columns = self._crop(*resized, draws)
        mirror = self._mirror(draws)
        if (rows, columns) == (self.height, self.width):
            return View((0, 0, height, width), resized, (top, left), mirror)
        return View((top, left, rows, columns), (self.height, self.width), (0, 0), mirror)

    def apply(self, image: Array, draws: Draws) -> tuple[Array, bool]:
        """All steps on a decoded picture, but the mirror.

        Args:
            image: (h, w, channels) uint8.

        Returns:
            (height, width, channels) uint8, C-contiguous, and whether to mirror it.
        """
        cv2 = extras.load("cv2", "ImageRecordIter")
        channels = image.shape[2]
        if self.resize > 0:
            size = short_side_size(image.shape[0], image.shape[1], self.resize)
            image = self._resized(cv2, image, size, draws)
        if self.affine:
            image = self._warped(cv2, image, draws)
        if self.pad > 0:
            filling = (self.fill_value,) * 4
            image = cv2.copyMakeBorder(image, *(self.pad,) * 4, cv2.BORDER_CONSTANT, value=filling)
        for enlarged in self._enlargements(image.shape[0], image.shape[1]):
            image = self._resized(cv2, image, enlarged, draws)
        top, left, rows, columns = self._crop(image.shape[0], image.shape[1], draws)
        image = image[top : top + rows, left : left + columns]
        if (rows, columns) != (self.height, self.width):
            image = self._resized(cv2, image, (self.height, self.width), draws)
        image = image.reshape(self.height, self.width, channels)
        image = self.colours.apply(image, draws)
        return np.ascontiguousarray(image), self._mirror(draws)

    def _mirror(self, draws: Draws) -> bool:
        return self.mirror or (self.rand_mirror and draws.coin())

    def _resized(self, cv2: Any, image: Array, size: tuple[int, int], draws: Draws) -> Array:
        method = interpolation(self.inter_method, image.shape[:2], size, draws)
        made: Array = cv2.resize(image, size[::-1], interpolation=method)
        return made

    def _warped(self, cv2: Any, image: Array, draws: Draws) -> Array:
        """Rotation, shear, scale and proportions around the middle, in one affine change."""
        shear = draws.uniform(-self.max_shear_ratio, self.max_shear_ratio)
        angle = draws.integer(2 * self.max_rotate_angle + 1) - self.max_rotate_angle
        if self.rotate > 0:
            angle = self.rotate
        cosine, sine = math.cos(angle * math.pi / 180), math.sin(angle * math.pi / 180)
        scale = draws.uniform(self.min_random_scale, self.max_random_scale)
        aspect = 0.0 if self.random_resized_crop else self.max_aspect_ratio
        ratio = 1.0 + draws.uniform(-aspect, aspect)
        tall = 2 * scale / (1 + ratio)
        wide = ratio * tall
        rows, columns = image.shape[:2]
        limits = self.min_img_size, self.max_img_size
        new_width = int(max(limits[0], min(limits[1], scale * columns)))
        new_height = int(max(limits[0], min(limits[1], scale * rows)))
        matrix = np.array(
            [
                [tall * cosine - shear * sine * wide, tall * sine + shear * cosine * wide, 0.0],
                [-sine * wide, cosine * wide, 0.0],
            ],
            np.float32,
        )
        centre = matrix[:, :2] @ np.array([columns, rows], np.float32)
        matrix[:, 2] = (np.array([new_width, new_height], np.float32) - centre) / 2
        size = (new_width, new_height)
        method = interpolation(self.inter_method, (rows, columns), size[::-1], draws)
        made: Array = cv2.warpAffine(
            image,
            matrix,
            size,
            flags=method,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=(self.fill_value,) * 4,
        )
        return made

    def _enlargements(self, height: int, width: int) -> list[tuple[int, int]]:
        """The sizes that a picture too small for the crop is resized to, one after the other."""
        sizes: list[tuple[int, int]] = []
        if self.random_resized_crop:
            return sizes
        if height < self.height:
            height, width = self.height, int(np.float32(self.height) / np.float32(height) * width)
            sizes.append((height, width))
        if width < self.width:
            height, width = int(np.float32(self.width) / np.float32(width) * height), self.width
            sizes.append((height, width))
        return sizes

    def _crop(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int]:
        """(top, left, height, width) of the crop in a picture of this size."""
        if self.random_resized_crop:
            return self._random_area(height, width, draws)
        rows, columns = self.height, self.width
        if self.max_crop_size != -1:
            rows = self.min_crop_size + draws.integer(self.max_crop_size - self.min_crop_size + 1)
            columns = rows
        if height < rows or width < columns:
            raise ShapeError(
                f"[ImageRecordIter] expected images of at least {rows} x {columns} pixels, got "
                f"{height} x {width}; set resize"
            )
        if self.rand_crop:
            return (
                draws.integer(height - rows + 1),
                draws.integer(width - columns + 1),
                rows,
                columns,
            )
        return (height - rows) // 2, (width - columns) // 2, rows, columns

    def _random_area(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int]:
        for _ in range(_TRIES):
            area = draws.uniform(self.min_random_area, self.max_random_area) * height * width
            ratio = draws.uniform(*self.aspect_ratios)
            columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if draws.coin():
                columns, rows = rows, columns
            if 1 <= rows <= height and 1 <= columns <= width:
                top, left = draws.integer(height - rows + 1), draws.integer(width - columns + 1)
                return top, left, rows, columns
        # As large a part of the result's proportions as fits, in the middle.
        scale = min(height / self.height, width / self.width)
        rows, columns = max(1, int(self.height * scale)), max(1, int(self.width * scale))
        return (height - rows) // 2, (width - columns) // 2, rows, columns


def make_recipe(shape: tuple[int, int, int], augmentation: Mapping[str, Any]) -> DefaultRecipe:
    """The default augmenter of an iterator's parameters.

    Raises:
        ParamError: an unknown one; the text names the nearest.
    """
    colours = set(vars(ColourJitter()))
    known = (set(DefaultRecipe.__dataclass_fields__) | colours) - {"height", "width", "colours"}
    for name in augmentation:
        if name not in known:
            raise ParamError(describe_unknown("ImageRecordIter", name, sorted(known)))
    jitter = ColourJitter(**{k: v for k, v in augmentation.items() if k in colours})
    others = {k: v for k, v in augmentation.items() if k not in colours}
    return DefaultRecipe(shape[1], shape[2], **others, colours=jitter)
