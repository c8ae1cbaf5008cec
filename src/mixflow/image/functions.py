"""Functions of ``mx.image``: host work of `codec` with NDArray at both ends.

Random draws are those of Python's `random` and `numpy.random`, in MXNet's order, so that a seed
gives what it gives there.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np

from .. import ndarray as nd
from ..arguments import (
    a,
    checked,
    choice,
    flag,
    number,
    numbers,
    optional,
    rising,
    several,
    whole,
)
from ..errors import DTypeError, FormatError, ParamError, ShapeError
from ..ndarray import NDArray
from . import codec
from .kinds import AREA, INTERP, RATIOS, SIDE, SIZE
from .rotate import rotate

Array = np.ndarray[Any, Any]
Size = Sequence[int]
#: Of a random crop of random size, before the middle is taken instead.
CROP_ATTEMPTS = 10


_PLACE: dict[str, Any] = {
    "x0": whole(),
    "y0": whole(),
    "w": whole(),
    "h": whole(),
    "size": optional(SIZE),
    "interp": INTERP,
}


def host(src: Any, operator: str) -> Array:
    """The host copy of an image.

    Args:
        src: NDArray or NumPy array.

    Raises:
        DTypeError: something else.
    """
    if isinstance(src, NDArray):
        return src.asnumpy()
    if isinstance(src, np.ndarray):
        return src
    raise DTypeError(f"[{operator}] expected an NDArray, got {type(src).__name__}")


def device(image: Array) -> NDArray:
    """An NDArray with the values and dtype of a host array."""
    return nd.array(image, dtype=image.dtype)


def _finish(image: Array, out: NDArray | None, operator: str) -> NDArray:
    if out is None:
        return device(image)
    if tuple(out.shape) != image.shape:
        raise ShapeError(f"[{operator}] expected out of shape {image.shape}, got {out.shape}")
    out[:] = device(image).astype(out.dtype)
    return out


@checked(flag=whole(), to_rgb=flag, out=optional(a(NDArray)))
def imdecode(buf: Any, flag: int = 1, to_rgb: bool = True, out: NDArray | None = None) -> NDArray:
    """The pixels of an encoded image (JPEG, PNG, BMP, TIFF, GIF, WebP, PNM).

    The header is checked against `mx.config.current().image_pixel_limit` before anything is
    decoded. The orientation in EXIF is ignored.

    Args:
        buf: bytes, bytearray, memoryview, or a uint8 array (NDArray or NumPy).
        flag: 1 = colour, 3 channels; 0 = grey, 1 channel.
        to_rgb: channels in the order RGB, else BGR.
        out: array to write into.

    Returns:
        (height, width, channels) uint8.

    Raises:
        FormatError: not an image, corrupt, or above the limit.
        DTypeError: `buf` is of another type.
        ShapeError: `out` has another shape.
    """
    encoded = buf.asnumpy() if isinstance(buf, NDArray) else buf
    return _finish(codec.decode(encoded, int(flag), bool(to_rgb)), out, "imdecode")


@checked(flag=whole(), to_rgb=flag, out=optional(a(NDArray)))
def imread(
    filename: str, flag: int = 1, to_rgb: bool = True, out: NDArray | None = None
) -> NDArray:
    """The pixels of an image file; arguments and result as `imdecode`.

    Args:
        filename: path of the file.
        flag, to_rgb, out: as `imdecode`.

    Raises:
        FileError: the file cannot be read.
        FormatError: not an image, corrupt, or above the limit.
    """
    encoded = codec.read_file(filename)
    try:
        pixels = codec.decode(encoded, int(flag), bool(to_rgb), operator="imread")
    except FormatError as error:
        raise FormatError(f"{error}; file {filename}") from None
    return _finish(pixels, out, "imread")


@checked(w=whole(), h=whole(), interp=choice(0, 1, 2, 3, 4), out=optional(a(NDArray)))
def imresize(src: Any, w: int, h: int, interp: int = 1, out: NDArray | None = None) -> NDArray:
    """An image at another size, same dtype.

    Args:
        src: (height, width, channels) uint8, int16, uint16, float32 or float64.
        w, h: new width and height in pixels, at least 1.
        interp: 0 nearest, 1 bilinear, 2 cubic, 3 area, 4 Lanczos.
        out: array to write into.

    Raises:
        ShapeError, DTypeError, ParamError, FormatError: as `codec.resize`.
    """
    return _finish(codec.resize(host(src, "imresize"), w, h, interp), out, "imresize")


@checked(
    **dict.fromkeys(("top", "bot", "left", "right"), whole()),
    type=choice(0, 1, 2, 3, 4),
    value=number(),
    values=several(number()),
    out=optional(a(NDArray)),
)
def copyMakeBorder(
    src: Any,
    top: int,
    bot: int,
    left: int,
    right: int,
    type: int = 0,
    value: float = 0.0,
    values: Sequence[float] = (),
    out: NDArray | None = None,
) -> NDArray:
    """An image with a border.

    Args:
        src: (height, width, channels).
        top, bot, left, right: pixels, at least 0.
        type: 0 = constant, 1 = edge pixel repeated, 2 = mirrored with the edge, 3 = wrapped,
            4 = mirrored without the edge.
        value: of every channel, for type 0.
        values: one per channel, instead of `value`.
        out: array to write into.

    Raises:
        ParamError: a negative width, or another type.
        ShapeError, FormatError: not an image, or a result above the pixel limit.
    """
    made = codec.border(host(src, "copyMakeBorder"), top, bot, left, right, type, value, values)
    return _finish(made, out, "copyMakeBorder")


scale_down = codec.scale_down


@checked(size=SIDE, interp=INTERP)
def resize_short(src: Any, size: int, interp: int = 2) -> NDArray:
    """Resized so that the shorter side has `size` pixels.

    Args:
        src: (height, width, channels).
        size: pixels, at least 1.
        interp: 0 to 4 as `imresize`; 9 = cubic to enlarge, area to shrink, else bilinear;
            10 = random.

    Raises:
        ParamError: another interp.
    """
    return device(codec.resize_short(host(src, "resize_short"), size, interp))


@checked(**_PLACE)
def fixed_crop(
    src: Any, x0: int, y0: int, w: int, h: int, size: Size | None = None, interp: int = 2
) -> NDArray:
    """A part of an image, resized to `size` where that differs.

    Args:
        src: (height, width, channels).
        x0, y0: left and upper edge, pixels.
        w, h: size of the part.
        size: (width, height) of the result; None = (w, h).
        interp: as `resize_short`.

    Raises:
        ShapeError: the part does not lie inside of the image.
    """
    return device(codec.fixed_crop(host(src, "fixed_crop"), x0, y0, w, h, size, interp))


Placed = tuple[Array, tuple[int, int, int, int]]


def random_crop_host(image: Array, size: Size, interp: int = 2) -> Placed:
    """`random_crop` on host arrays."""
    rows, columns = codec.checked_image(image, "random_crop").shape[:2]
    width, height = codec.scale_down((columns, rows), size)
    x0 = random.randint(0, columns - width)
    y0 = random.randint(0, rows - height)
    made = codec.fixed_crop(image, x0, y0, width, height, size, interp, "random_crop")
    return made, (x0, y0, width, height)


@checked(size=SIZE, interp=INTERP)
def random_crop(src: Any, size: Size, interp: int = 2) -> tuple[NDArray, tuple[int, int, int, int]]:
    """A part at a random place, scaled up where the image is smaller than `size`.

    Args:
        src: (height, width, channels).
        size: (width, height).
        interp: as `resize_short`.

    Returns:
        The part, and (x0, y0, width, height) of it in the image.
    """
    image, place = random_crop_host(host(src, "random_crop"), size, interp)
    return device(image), place


@checked(size=SIZE, interp=INTERP)
def center_crop(src: Any, size: Size, interp: int = 2) -> tuple[NDArray, tuple[int, int, int, int]]:
    """The middle of an image, scaled up where the image is smaller than `size`.

    Args:
        src: (height, width, channels).
        size: (width, height).
        interp: as `resize_short`.

    Returns:
        The part, and (x0, y0, width, height) of it in the image.
    """
    image, place = codec.center_crop(host(src, "center_crop"), size, interp)
    return device(image), place


def area_range(area: Any, options: dict[str, Any]) -> tuple[float, float]:
    """(smallest, largest) part of the area, from a number, a pair, or the old name `min_area`.

    Raises:
        ParamError: other options.
    """
    if "min_area" in options:
        warnings.warn(
            "[random_size_crop] min_area is the old name of area", DeprecationWarning, stacklevel=3
        )
        area = options.pop("min_area")
    if options:
        raise ParamError(
            f"[random_size_crop] expected no options but min_area, got {', '.join(options)}"
        )
    if area is None:
        raise ParamError("[random_size_crop] expected an area, got None")
    return (area, 1.0) if isinstance(area, Number) else area  # type: ignore[return-value]


def random_size_crop_host(
    image: Array, size: Size, area: tuple[float, float], ratio: Sequence[float], interp: int = 2
) -> Placed:
    """`random_size_crop` on host arrays."""
    rows, columns = codec.checked_image(image, "random_size_crop").shape[:2]
    ratios = (np.log(ratio[0]), np.log(ratio[1]))
    for _ in range(CROP_ATTEMPTS):
        wanted = random.uniform(area[0], area[1]) * (rows * columns)
        proportion = np.exp(random.uniform(*ratios))
        width = round(np.sqrt(wanted * proportion))
        height = round(np.sqrt(wanted / proportion))
        if width <= columns and height <= rows:
            x0 = random.randint(0, columns - width)
            y0 = random.randint(0, rows - height)
            made = codec.fixed_crop(image, x0, y0, width, height, size, interp, "random_size_crop")
            return made, (x0, y0, width, height)
    return codec.center_crop(image, size, interp)


@checked(
    size=SIZE,
    area=AREA,
    ratio=RATIOS,
    interp=INTERP,
)
def random_size_crop(
    src: Any, size: Size, area: Any, ratio: Sequence[float], interp: int = 2, **kwargs: Any
) -> tuple[NDArray, tuple[int, int, int, int]]:
    """A part of random size, proportions and place, resized to `size`.

    Ten tries; then the middle of the image.

    Args:
        src: (height, width, channels).
        size: (width, height) of the result.
        area: (smallest, largest) part of the image's area, or the smallest alone.
        ratio: (smallest, largest) width / height.
        interp: as `resize_short`.
        **kwargs: `min_area`, the old name of `area`.

    Returns:
        The part, and (x0, y0, width, height) of it in the image.

    Raises:
        ParamError: other keywords.

    Source: Szegedy et al. 2014, Going deeper with convolutions.
    """
    chosen = area_range(area, kwargs)
    image = host(src, "random_size_crop")
    made, place = random_size_crop_host(image, size, chosen, ratio, interp)
    return device(made), place


def color_normalize(src: Any, mean: Any, std: Any = None) -> NDArray:
    """(src - mean) / std.

    Args:
        src: (height, width, channels) float.
        mean, std: numbers or arrays (channels,); None leaves that step out.

    Returns:
        Same shape and dtype; the argument keeps its values.
    """
    image = host(src, "color_normalize")
    return device(normalize_host(image, constant(mean), constant(std)))


def constant(value: Any) -> Array | None:
    """A mean or deviation as host array."""
    if value is None:
        return None
    return value.asnumpy() if isinstance(value, NDArray) else np.asarray(value)


def normalize_host(image: Array, mean: Array | None, std: Array | None) -> Array:
    """`color_normalize` on host arrays.

    Raises:
        DTypeError: an image of whole numbers.
    """
    if mean is None and std is None:
        return image
    if image.dtype.kind != "f":
        raise DTypeError(
            f"[color_normalize] expected a float image, got {image.dtype}; cast it first"
        )
    if mean is not None:
        image = image - mean.astype(image.dtype)
    return image if std is None else image / std.astype(image.dtype)


def _angles(degrees: Any, count: int, single: bool) -> Array:
    if single and not isinstance(degrees, Number):
        raise DTypeError(
            f"[imrotate] expected one angle for one image, got {type(degrees).__name__}"
        )
    found = constant(degrees)
    assert found is not None
    angles = np.repeat(found, count) if found.ndim == 0 else found.reshape(-1)
    if len(angles) != count:
        raise ShapeError(f"[imrotate] expected {count} angles, got {len(angles)}")
    return angles


@checked(rotation_degrees=numbers(), zoom_in=flag, zoom_out=flag)
def imrotate(
    src: Any, rotation_degrees: Any, zoom_in: bool = False, zoom_out: bool = False
) -> NDArray:
    """Images turned about their centre, bilinear; what comes in from outside is 0.

    Args:
        src: (channels, height, width) or (N, channels, height, width) float32.
        rotation_degrees: a number, or one per image.
        zoom_in: scale up so that nothing from outside is seen.
        zoom_out: scale down so that all of the image is seen.

    Returns:
        Same shape, float32.

    Raises:
        ParamError: both zooms.
        DTypeError: not float32, or an array of angles for a single image.
        ShapeError: another number of axes or of angles.
    """
    if zoom_in and zoom_out:
        raise ParamError("[imrotate] expected zoom_in or zoom_out, got both")
    images = host(src, "imrotate")
    if images.dtype != np.float32:
        raise DTypeError(f"[imrotate] expected float32, got {images.dtype}")
    if images.ndim not in (3, 4):
        raise ShapeError(f"[imrotate] expected 3 or 4 axes, got shape {images.shape}")
    single = images.ndim == 3
    batch = images[None] if single else images
    angles = _angles(rotation_degrees, len(batch), single)
    made = [rotate(x, a, zoom_in, zoom_out) for x, a in zip(batch, angles, strict=True)]
    return device(made[0] if single else np.stack(made))


@checked(angle_limits=rising(number()), zoom_in=flag, zoom_out=flag)
def random_rotate(
    src: Any, angle_limits: Sequence[float], zoom_in: bool = False, zoom_out: bool = False
) -> NDArray:
    """Images turned by random angles, one draw of `numpy.random` for each.

    Args:
        src, zoom_in, zoom_out: as `imrotate`.
        angle_limits: (smallest, largest) in degrees.

    Raises:
        As `imrotate`.
    """
    low, high = angle_limits
    src = host(src, "random_rotate")
    if len(src.shape) == 3:
        return imrotate(src, np.random.uniform(low, high), zoom_in, zoom_out)
    return imrotate(src, np.random.uniform(low, high, size=len(src)), zoom_in, zoom_out)
