"""From encoded bytes to pixels: whole, only the part that is needed, or at a reduced scale."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from .. import extras
from ..arguments import checked, choice
from ..errors import FormatError
from ..image import codec
from ..image.header import Header, check_structure
from . import turbo

Array = np.ndarray[Any, Any]
#: A part that is larger than this share of the image is not worth a crop.
_WORTH = 0.9
_MODES = ("auto", "whole", "part", "reduced")


_local = threading.local()


class Pixels(NamedTuple):
    """Decoded pixels.

    Attributes:
        array: (h, w, channels) uint8, RGB or grey.
        top, left: place of its first pixel in the picture.
        height, width: size of the picture.
    """

    array: Array
    top: int
    left: int
    height: int
    width: int


class Decoder:
    """Decodes images after a look at their header. Thread-safe; releases the GIL.

    Args:
        channels: 1 (grey) or 3 (RGB).
        mode: 'whole'; 'part': only what a crop needs, by TurboJPEG's cropping (equal pixels);
            'auto': 'part' where the library is installed; 'reduced': JPEGs are decoded at 1/2, 1/4
            or 1/8 of their size where the result is still at least as large as needed. That is
            quicker and gives *other pixels*: it replaces part of the resizing.

    Raises:
        ParamError: another number of channels or mode.
        MissingExtraError: no OpenCV, or mode 'part' without the library.
    """

    @checked(channels=choice(1, 3), mode=choice(*_MODES))
    def __init__(self, channels: int = 3, mode: str = "auto") -> None:
        extras.load("cv2", "image pipeline")
        found = mode in ("auto", "part") and turbo.library() is not None
        if mode == "part" and not found:
            raise extras.MissingExtraError(
                "[Decoder] expected a TurboJPEG 3 library for decode='part', got none; "
                "pip install 'mixflow[jpeg]'"
            )
        self.channels, self.mode, self.parts = channels, mode, found

    def size(self, content: Any) -> tuple[int, int, Any]:
        """(height, width, format) from the header; refuses images above the pixel limit.

        Raises:
            FormatError: no image, or too large.
        """
        found = codec.header(content)
        codec.check_size(found.height, found.width, "image pipeline")
        return found.height, found.width, found.format

    def whole(self, content: Any) -> Array:
        """(h, w, channels) uint8: all pixels."""
        pixels = codec.decode(content, int(self.channels == 3), operator="image pipeline")
        # The allocator gives the memory of the last image back to the system when it is freed, and
        # fresh pages cost half as much as decoding. So each thread frees it one image later.
        _local.last = pixels
        return pixels

    def part(self, content: Any, size: tuple[int, int, Any], rows: range, columns: range) -> Pixels:
        """At least the pixels of `rows` and `columns`.

        The array may be overwritten by this thread's next call.

        Args:
            content: encoded image.
            size: as `size` gave it.
            rows, columns: pixels that are needed.
        """
        height, width, kind = size
        small = len(rows) * len(columns) < _WORTH * height * width
        if self.parts and small and kind == "jpeg":
            try:
                data = codec.bytes_of(content)
                check_structure(data.data, Header(height, width, self.channels, kind))
                array, top, left = turbo.decode_part(data, self.channels, rows, columns)
                return Pixels(array, top, left, height, width)
            except FormatError:
                pass  # CMYK and the like; damaged ones get OpenCV's opinion
        return Pixels(self.whole(content), 0, 0, height, width)

    def reduced(self, content: Any, size: tuple[int, int, Any], scale: float) -> Array | None:
        """All pixels at 1/2, 1/4 or 1/8, where that is at least `scale`; None where none is."""
        fitting = [d for d in (8, 4, 2) if 1.0 / d >= scale]
        if self.mode != "reduced" or size[2] != "jpeg" or not fitting:
            return None
        data = codec.bytes_of(content)
        check_structure(data.data, Header(size[0], size[1], self.channels, size[2]))
        cv2 = extras.load("cv2", "image pipeline")
        kind = "GRAYSCALE" if self.channels == 1 else "COLOR"
        flag = getattr(cv2, f"IMREAD_REDUCED_{kind}_{fitting[0]}") | cv2.IMREAD_IGNORE_ORIENTATION
        pixels = cv2.imdecode(data, flag)
        if pixels is None:
            return None
        if self.channels == 1:
            return np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], 1))
        rgb: Array = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
        return rgb


def begin_thread() -> None:
    """OpenCV's own threads are switched off: the pipeline's threads are all there should be."""
    extras.load("cv2", "image pipeline").setNumThreads(0)
