"""From an image file to the bytes of its record."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from .. import extras, recordio
from ..arguments import check, choice, flag, whole
from ..errors import FormatError, MixflowError, ParamError
from ..files import read_regular
from ..image import codec
from .lists import Item

Array = np.ndarray[Any, Any]
COLORS = (-1, 0, 1)
ENCODINGS = (".jpg", ".png")
_MOST_PNG = 9


class Options(NamedTuple):
    """How images become records; names and meaning are those of MXNet's tool.

    Attributes:
        pass_through: the file's bytes as they are.
        resize: pixels of the shorter side; 0 = as it is.
        center_crop: cut the middle square first.
        quality: of JPEG 1 to 100; of PNG the compression, 9 at most.
        color: 1 = colour, 0 = grey, -1 = as it is.
        encoding: '.jpg' or '.png'.
        pack_label: all labels of a line, not only the first.
    """

    pass_through: bool = False
    resize: int = 0
    center_crop: bool = False
    quality: int = 95
    color: int = 1
    encoding: str = ".jpg"
    pack_label: bool = False


_KINDS = {
    "pass_through": flag,
    "resize": whole(0),
    "center_crop": flag,
    "quality": whole(0, 100),
    "color": choice(*COLORS),
    "encoding": choice(*ENCODINGS),
    "pack_label": flag,
}


def check_options(options: Options) -> Options:
    """The options with typed values; ParamError for a value that is none."""
    if not isinstance(options, Options):
        raise ParamError(f"[im2rec] expected Options, got {type(options).__name__}")
    typed = {n: check("im2rec", n, getattr(options, n), k) for n, k in _KINDS.items()}
    return Options(**typed)


def make_record(item: Item, root: str, options: Options) -> bytes:
    """The record of one image. Thread-safe; OpenCV works without the GIL.

    Args:
        item: the image.
        root: folder of its path.
        options: what to do with it.

    Raises:
        FileError: the file cannot be read.
        MixflowError: no regular file or no image, too large, or its header cannot hold the item.
    """
    several = len(item.labels) > 1 and options.pack_label
    header = recordio.IRHeader(0, item.labels if several else item.labels[0], item.id, 0)
    raw = read_regular(os.path.join(root, item.path), "im2rec")
    if options.pass_through:
        return recordio.pack(header, raw)
    return recordio.pack(header, recode(raw, options))


def recode(raw: bytes, options: Options) -> bytes:
    """Decodes, crops, resizes and encodes.

    Raises:
        FormatError: no image, or more pixels, before or after, than the limit of `mx.config`.
    """
    cv2 = extras.load("cv2", "im2rec")
    found = codec.header(raw)
    codec.check_size(found.height, found.width, "im2rec")
    try:
        image = cv2.imdecode(np.frombuffer(raw, np.uint8), options.color)
    except (cv2.error, MemoryError):
        image = None
    if image is None:
        raise FormatError(f"[im2rec] expected a whole {found.format} image, got a damaged one")
    if options.center_crop:
        image = middle_square(image)
    if options.resize:
        size = shorter_side(image.shape[0], image.shape[1], options.resize)
        image = codec.resize(codec.as_three_axes(image), *size, operator="im2rec")
    quality = options.quality if options.encoding == ".jpg" else min(options.quality, _MOST_PNG)
    return recordio.encode_image(image, quality, options.encoding)


def middle_square(image: Array) -> Array:
    """The square in the middle of (H, W, ...)."""
    height, width = image.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return image[top : top + side, left : left + side]


def shorter_side(height: int, width: int, size: int) -> tuple[int, int]:
    """(width, height) with a shorter side of `size`; the other is rounded down."""
    if height > width:
        return size, height * size // width
    return width * size // height, size


def reason(error: Exception) -> str:
    """One line for the list of bad images."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


#: What makes an image a bad one rather than the program.
BAD = (MixflowError, OSError)
