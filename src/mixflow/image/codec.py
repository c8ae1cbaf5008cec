"""Decoding, resizing and cropping of host arrays: OpenCV behind checks, without NDArray.

Every function takes and gives arrays (height, width, channels), and releases the GIL while OpenCV
works. Thread-safe. `mx.image` and the image pipeline are built on it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import config, extras
from ..errors import DTypeError, FormatError, ParamError, ShapeError
from ..files import read_regular
from .header import FORMATS, Header, check_structure
from .header import header as _read_header

__all__ = [
    "FORMATS",
    "Header",
    "as_three_axes",
    "border",
    "center_crop",
    "check_size",
    "checked_image",
    "crop",
    "decode",
    "fixed_crop",
    "header",
    "interpolation",
    "read_file",
    "resize",
    "resize_short",
    "scale_down",
]

Array = np.ndarray[Any, Any]

#: interp -> what it is; 9 and 10 choose one of the first five.
INTERPOLATIONS = {
    0: "nearest",
    1: "bilinear",
    2: "cubic",
    3: "area",
    4: "Lanczos",
    9: "cubic to enlarge, area to shrink, else bilinear",
    10: "random",
}
#: Longest side that OpenCV's functions take.
_LONGEST_SIDE = (1 << 31) - 1


def _cv2() -> Any:
    return extras.load("cv2", "mx.image")


def bytes_of(buffer: Any, operator: str = "imdecode") -> Array:
    """An encoded image as (n,) uint8 without a copy.

    Args:
        buffer: bytes, bytearray, memoryview, or a uint8 array.

    Raises:
        DTypeError: something else.
    """
    if isinstance(buffer, np.ndarray):
        if buffer.dtype != np.uint8:
            raise DTypeError(f"[{operator}] expected encoded bytes, got {buffer.dtype} elements")
        return np.ascontiguousarray(buffer).reshape(-1)
    try:
        return np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
    except (TypeError, ValueError, BufferError):
        raise DTypeError(
            f"[{operator}] expected bytes, bytearray, memoryview or a uint8 array, got "
            f"{type(buffer).__name__}"
        ) from None


def header(buffer: Any) -> Header:
    """(height, width, channels, format) of an encoded image; nothing is decoded.

    Args:
        buffer: bytes, bytearray, memoryview or uint8 array; its start is enough.

    Raises:
        FormatError: no image of a known format, or a broken header.
    """
    return _read_header(bytes_of(buffer, "image header").data)


def check_size(height: int, width: int, operator: str, pixel_limit: int | None = None) -> None:
    """Raises FormatError where an image would have more pixels than allowed.

    Args:
        height, width: pixels.
        pixel_limit: None = `config.current().image_pixel_limit`.
    """
    limit = config.current().image_pixel_limit if pixel_limit is None else pixel_limit
    if height * width > limit:
        raise FormatError(
            f"[{operator}] expected at most {limit} pixels, got {height} x {width}; "
            "mx.config.update(image_pixel_limit=...) allows more"
        )


def decode(
    buffer: Any,
    flag: int = 1,
    to_rgb: bool = True,
    pixel_limit: int | None = None,
    operator: str = "imdecode",
) -> Array:
    """The pixels of an encoded image, (height, width, channels) uint8.

    An orientation that the file notes (EXIF) is ignored, as MXNet does: labels in pixels stay true.

    Args:
        buffer: bytes, bytearray, memoryview or uint8 array.
        flag: 1 = colour, 3 channels; 0 = grey, 1 channel.
        to_rgb: channels in the order RGB, else BGR.
        pixel_limit: most pixels; None = `config.current().image_pixel_limit`.
        operator: name for errors.

    Raises:
        FormatError: not an image, corrupt or truncated, or above the limit.
        ParamError: another flag.
        MissingExtraError: no OpenCV.
    """
    if flag not in (0, 1):
        raise ParamError(f"[{operator}] expected flag 0 (grey) or 1 (colour), got {flag!r}")
    data = bytes_of(buffer, operator)
    if data.size == 0:
        raise FormatError(f"[{operator}] expected an encoded image, got no bytes")
    found = _checked_header(data, operator, pixel_limit)
    cv2 = _cv2()
    mode = (cv2.IMREAD_COLOR_RGB if to_rgb else cv2.IMREAD_COLOR) if flag else cv2.IMREAD_GRAYSCALE
    try:
        pixels = cv2.imdecode(data, mode | cv2.IMREAD_IGNORE_ORIENTATION)
    except (cv2.error, MemoryError) as error:
        raise _corrupt(operator, found, data, str(error)) from None
    if pixels is None:
        raise _corrupt(operator, found, data, "the decoder gives up")
    return as_three_axes(pixels)


def _checked_header(data: Array, operator: str, pixel_limit: int | None) -> Header:
    """The header of a file that a decoder may see."""
    try:
        found = _read_header(data.data)
        check_size(found.height, found.width, operator, pixel_limit)
        check_structure(data.data, found)
        return found
    except FormatError as error:
        raise FormatError(str(error).replace("[image header]", f"[{operator}]", 1)) from None


def _corrupt(operator: str, found: Header, data: Array, reason: str) -> FormatError:
    size = f"{found.height} x {found.width}"
    return FormatError(
        f"[{operator}] expected a whole {found.format} image of {size} pixels, got {data.size} "
        f"bytes that are corrupt or truncated ({reason.strip().splitlines()[-1]})"
    )


def read_file(path: str, operator: str = "imread") -> bytes:
    """The content of an image file.

    Raises:
        FormatError, FileError: no regular file, or it cannot be read.
    """
    if isinstance(path, (int, float)):  # Python would take it for an open file
        raise DTypeError(f"[{operator}] expected the path of an image, got {path!r}")
    return read_regular(path, operator)


def as_three_axes(image: Array) -> Array:
    """(height, width, channels), also of a grey image without the last axis."""
    return image[:, :, None] if image.ndim == 2 else image


def checked_image(image: Array, operator: str) -> Array:
    """The image itself; ShapeError where it is none."""
    if image.ndim != 3 or 0 in image.shape:
        raise ShapeError(
            f"[{operator}] expected an image (height, width, channels), got shape {image.shape}"
        )
    return image


def interpolation(interp: int, sizes: Sequence[int] | None = None, operator: str = "interp") -> int:
    """The interpolation to use, 0 to 4.

    Args:
        interp: 0 nearest, 1 bilinear, 2 cubic, 3 area, 4 Lanczos, 9 by the sizes, 10 random (one
            draw of Python's `random`).
        sizes: (old height, old width, new height, new width), for 9.

    Raises:
        ParamError: another number.
    """
    if interp == 9:
        if not sizes:
            return 2
        old_height, old_width, height, width = sizes
        if height > old_height and width > old_width:
            return 2
        return 3 if height < old_height and width < old_width else 1
    if interp == 10:
        return random.randint(0, 4)
    if interp not in INTERPOLATIONS:
        known = ", ".join(f"{k} ({v})" for k, v in INTERPOLATIONS.items())
        raise ParamError(f"[{operator}] expected interp among {known}, got {interp!r}")
    return int(interp)


def resize(
    image: Array, width: int, height: int, interp: int = 1, operator: str = "imresize"
) -> Array:
    """An image at another size, same dtype.

    Args:
        image: (h, w, channels), uint8, uint16, int16, float32 or float64.
        width, height: new size in pixels, at least 1.
        interp: 0 nearest, 1 bilinear, 2 cubic, 3 area, 4 Lanczos.

    Raises:
        ShapeError: not an image, or a size below 1.
        FormatError: more pixels than `config.current().image_pixel_limit`.
        DTypeError: another dtype.
        ParamError: another interp.
    """
    checked_image(image, operator)
    if interp not in range(5):
        raise ParamError(f"[{operator}] expected interp 0 to 4, got {interp!r}")
    width, height = int(width), int(height)
    if width < 1 or height < 1:
        raise ShapeError(f"[{operator}] expected at least one pixel, got {height} x {width}")
    check_size(height, width, operator)
    if image.dtype not in (np.uint8, np.uint16, np.int16, np.float32, np.float64):
        raise DTypeError(
            f"[{operator}] expected uint8, uint16, int16, float32 or float64, got {image.dtype}"
        )
    cv2 = _cv2()
    try:
        return as_three_axes(cv2.resize(image, (width, height), interpolation=interp))
    except cv2.error as error:
        raise ShapeError(
            f"[{operator}] expected an image that OpenCV resizes, got shape {image.shape} "
            f"({str(error).strip().splitlines()[-1]})"
        ) from None


def short_side_size(height: int, width: int, size: int) -> tuple[int, int]:
    """(height, width) whose shorter side is `size`, the other in proportion, rounded down."""
    if height > width:
        return size * height // width, size
    return size, size * width // height


def resize_short(image: Array, size: int, interp: int = 2) -> Array:
    """Resized so that the shorter side has `size` pixels.

    Args:
        image: (h, w, channels).
        size: pixels, at least 1.
        interp: as `interpolation`.
    """
    checked_image(image, "resize_short")
    old_height, old_width = image.shape[:2]
    height, width = short_side_size(old_height, old_width, size)
    chosen = interpolation(interp, (old_height, old_width, height, width), "resize_short")
    return resize(image, width, height, chosen, "resize_short")


def crop(image: Array, x: int, y: int, width: int, height: int, operator: str = "crop") -> Array:
    """The part of an image whose top left corner is (x, y); a view.

    Raises:
        ShapeError: it does not lie inside of the image.
    """
    checked_image(image, operator)
    rows, columns = image.shape[:2]
    inside = x >= 0 and y >= 0 and width >= 1 and height >= 1
    if not inside or x + width > columns or y + height > rows:
        raise ShapeError(
            f"[{operator}] expected a part inside of {rows} x {columns} pixels, got "
            f"x={x} y={y} width={width} height={height}"
        )
    return image[y : y + height, x : x + width]


def fixed_crop(
    image: Array,
    x0: int,
    y0: int,
    w: int,
    h: int,
    size: Sequence[int] | None = None,
    interp: int = 2,
    operator: str = "fixed_crop",
) -> Array:
    """A part of an image, resized to `size` where that differs.

    Args:
        image: (h, w, channels).
        x0, y0: top left corner.
        w, h: size of the part.
        size: (width, height) of the result; None = (w, h).
        interp: as `interpolation`.
    """
    part = crop(image, x0, y0, w, h, operator)
    if size is None or (w, h) == tuple(size):
        return part
    chosen = interpolation(interp, (h, w, size[1], size[0]), operator)
    return resize(part, size[0], size[1], chosen, operator)


def scale_down(src_size: Sequence[int], size: Sequence[int]) -> tuple[int, int]:
    """The largest (width, height) of `size`'s proportions that fits into `src_size`.

    Args:
        src_size: (width, height) of the image.
        size: wanted (width, height).
    """
    width, height = float(size[0]), float(size[1])
    most_width, most_height = src_size
    if most_height < height:
        width, height = width * most_height / height, most_height
    if most_width < width:
        width, height = most_width, height * most_width / width
    return int(width), int(height)


def center_crop(
    image: Array, size: Sequence[int], interp: int = 2
) -> tuple[Array, tuple[int, int, int, int]]:
    """The middle of an image, scaled up where the image is smaller than `size`.

    Args:
        image: (h, w, channels).
        size: (width, height).
        interp: as `interpolation`.

    Returns:
        The part, and (x0, y0, width, height) of it in the image.
    """
    checked_image(image, "center_crop")
    rows, columns = image.shape[:2]
    width, height = scale_down((columns, rows), size)
    x0, y0 = (columns - width) // 2, (rows - height) // 2
    part = fixed_crop(image, x0, y0, width, height, size, interp, "center_crop")
    return part, (x0, y0, width, height)


def border(
    image: Array,
    top: int,
    bot: int,
    left: int,
    right: int,
    type: int = 0,
    value: float = 0.0,
    values: Sequence[float] = (),
) -> Array:
    """An image with a border around it.

    Args:
        image: (h, w, channels).
        top, bot, left, right: pixels, at least 0.
        type: 0 = constant, 1 = edge pixel repeated, 2 = mirrored with the edge, 3 = wrapped,
            4 = mirrored without the edge.
        value: of every channel, for type 0.
        values: one per channel, instead of `value`.

    Raises:
        ParamError: negative width, or another type.
        ShapeError, FormatError: not an image, or too large a result.
    """
    checked_image(image, "copyMakeBorder")
    if min(top, bot, left, right) < 0 or type not in range(5):
        raise ParamError(
            "[copyMakeBorder] expected widths of at least 0 and type 0 to 4, got "
            f"{(top, bot, left, right)} and {type!r}"
        )
    rows, columns, channels = image.shape
    check_size(rows + top + bot, columns + left + right, "copyMakeBorder")
    filling = tuple(values) if len(values) else (value,) * max(channels, 4)
    cv2 = _cv2()
    try:
        made = cv2.copyMakeBorder(image, top, bot, left, right, type, value=filling[:4])
    except cv2.error as error:
        raise ShapeError(
            f"[copyMakeBorder] expected an image that OpenCV extends, got {image.dtype} "
            f"{image.shape} ({str(error).strip().splitlines()[-1]})"
        ) from None
    return as_three_axes(made)
