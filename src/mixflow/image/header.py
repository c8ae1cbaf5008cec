"""Reads the size of an image from its header, before anything is decoded.

Hazard: a decoder allocates what a header asks for, and a few bytes can ask for terabytes. So the
size is read here first, by code that allocates nothing, and formats without a reader here are not
decoded at all.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from ..errors import FormatError

#: Marker segments of a JPEG, or bytes of a PNM, that may stand before the size.
_MOST_PARTS = 10_000
#: Scans of a JPEG; encoders write about ten.
_MOST_SCANS = 500


class Header(NamedTuple):
    """What a header says.

    Attributes:
        height, width: pixels, at least 1.
        channels: 1 to 4; 3 for a palette.
        format: 'jpeg', 'png', 'bmp', 'tiff', 'gif', 'webp' or 'pnm'.
    """

    height: int
    width: int
    channels: int
    format: str


def header(buffer: bytes | memoryview) -> Header:
    """The header of an encoded image.

    Args:
        buffer: the file's content, or at least its start up to the size.

    Raises:
        FormatError: not an image of a known format, truncated, or of size 0.
    """
    view = memoryview(buffer).cast("B")
    start = bytes(view[:16])
    for name, matches, read in _READERS:
        if matches(start):
            try:
                height, width, channels = read(view)
            except (struct.error, IndexError, ValueError):
                raise FormatError(
                    f"[image header] expected a whole {name} header, got {len(view)} bytes that "
                    "end or break off inside of it"
                ) from None
            if height < 1 or width < 1:
                raise FormatError(
                    f"[image header] expected at least one pixel, got a {name} of "
                    f"{height} x {width}"
                )
            return Header(height, width, min(max(channels, 1), 4), name)
    raise FormatError(
        f"[image header] expected an image ({', '.join(FORMATS)}), got {len(view)} bytes that "
        f"start with {start[:8]!r}"
    )


def _jpeg(view: memoryview) -> tuple[int, int, int]:
    """Size from the first frame header, going from marker to marker as decoders do."""
    at = 2
    for _ in range(_MOST_PARTS):
        while view[at] != 0xFF:  # decoders skip what is no marker
            found = bytes(view[at : at + 4096]).find(0xFF)
            at += found if found >= 0 else 4096
        while view[at] == 0xFF:
            at += 1
        marker = view[at]
        at += 1
        if marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8:
            continue
        if marker in (0xD9, 0xDA):
            break
        (length,) = struct.unpack_from(">H", view, at)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            _, height, width, channels = struct.unpack_from(">BHHB", view, at + 2)
            return height, width, channels
        at += max(length, 2)
    raise ValueError("no frame header")


def _png(view: memoryview) -> tuple[int, int, int]:
    length, kind, width, height, _, colour = struct.unpack_from(">I4sIIBB", view, 8)
    if kind != b"IHDR" or length != 13:
        raise ValueError("no IHDR")
    return height, width, {2: 3, 3: 3, 4: 2, 6: 4}.get(colour, 1)


def _gif(view: memoryview) -> tuple[int, int, int]:
    width, height = struct.unpack_from("<HH", view, 6)
    return height, width, 3


def _bmp(view: memoryview) -> tuple[int, int, int]:
    (size,) = struct.unpack_from("<I", view, 14)
    if size == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", view, 18)
    else:
        width, height, _, bits = struct.unpack_from("<iiHH", view, 18)
    return abs(height), abs(width), 4 if bits == 32 else 3


def _webp(view: memoryview) -> tuple[int, int, int]:
    kind = bytes(view[12:16])
    if kind == b"VP8X":
        flags = view[20]
        width = int.from_bytes(view[24:27], "little") + 1
        height = int.from_bytes(view[27:30], "little") + 1
        view[29]  # all of it is there
        return height, width, 4 if flags & 0x10 else 3
    if kind == b"VP8L":
        signature, bits = struct.unpack_from("<BI", view, 20)
        if signature != 0x2F:
            raise ValueError("no lossless signature")
        alpha = bits >> 28 & 1
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, 4 if alpha else 3
    if kind != b"VP8 ":
        raise ValueError("no known chunk")
    start, width, height = struct.unpack_from("<3sHH", view, 23)
    if start != b"\x9d\x01\x2a":
        raise ValueError("no start code")
    return height & 0x3FFF, width & 0x3FFF, 3


#: Bytes and code of struct of the integer types of TIFF fields.
_TIFF_TYPES = {1: "B", 3: "H", 4: "I", 16: "Q"}


def _tiff(view: memoryview) -> tuple[int, int, int]:
    """Size from the first directory; a tile larger than the image counts as the image."""
    order = "<" if view[0] == 0x49 else ">"
    big = struct.unpack_from(order + "H", view, 2)[0] == 43
    at = struct.unpack_from(order + ("Q" if big else "I"), view, 8 if big else 4)[0]
    count = struct.unpack_from(order + ("Q" if big else "H"), view, at)[0]
    at += 8 if big else 2
    step, value_at = (20, 12) if big else (12, 8)
    tags: dict[int, int] = {}
    for _ in range(min(count, _MOST_PARTS)):
        tag, kind = struct.unpack_from(order + "HH", view, at)
        if tag in (256, 257, 277, 322, 323) and kind in _TIFF_TYPES:
            found = struct.unpack_from(order + _TIFF_TYPES[kind], view, at + value_at)[0]
            tags[tag] = max(found, tags.get(tag, 0))
        at += step
    height = max(tags.get(257, 0), tags.get(323, 0) if tags.get(257) else 0)
    width = max(tags.get(256, 0), tags.get(322, 0) if tags.get(256) else 0)
    return height, width, tags.get(277, 1)


# As OpenCV reads it, which takes the byte after a number for white space, and ends a comment at a
# carriage return too: a header that the two could read differently is refused.
_GAP = rb"\s(?:\s|#[^\n\r]*[\n\r])*"
_PNM = re.compile(rb"P[1-6]" + _GAP + rb"(\d{1,10})" + _GAP + rb"(\d{1,10})\s")


def _pnm(view: memoryview) -> tuple[int, int, int]:
    """Size from the text header (P1 to P6); comments run to the end of a line."""
    found = _PNM.match(bytes(view[:_MOST_PARTS]))
    if found is None:
        raise ValueError("no size")
    return int(found[2]), int(found[1]), 3 if view[1] in b"36" else 1


def check_structure(buffer: bytes | memoryview, found: Header) -> None:
    """Refuses what costs a decoder far more than the size of the image tells.

    A chunk of a PNG that is longer than the file (OpenCV allocates its length), and a JPEG of many
    scans (each a pass over the image, whatever its bytes).

    Args:
        buffer: the whole file.
        found: its header.

    Raises:
        FormatError: as said.
    """
    view = memoryview(buffer).cast("B")
    if found.format == "jpeg":
        scans = bytes(view).count(b"\xff\xda")
        if scans > _MOST_SCANS:
            raise FormatError(
                f"[image header] expected at most {_MOST_SCANS} scans in a jpeg, got {scans}"
            )
    elif found.format == "png":
        _check_chunks(view)


def _check_chunks(view: memoryview) -> None:
    at, size = 8, len(view)
    while at < size:
        if at + 12 > size:
            break
        length, kind = struct.unpack_from(">I4s", view, at)
        if length > size - at - 12:
            break
        if kind == b"IEND":
            return
        at += 12 + length
    raise FormatError(
        f"[image header] expected a whole png, got {size} bytes that end inside of the chunk at "
        f"byte {at}"
    )


#: Name, whether the first 16 bytes are such a file, reader of (height, width, channels).
_READERS: list[tuple[str, Callable[[bytes], bool], Callable[[memoryview], tuple[int, int, int]]]]
_READERS = [
    ("jpeg", lambda b: b[:3] == b"\xff\xd8\xff", _jpeg),
    ("png", lambda b: b[:8] == b"\x89PNG\r\n\x1a\n", _png),
    ("bmp", lambda b: b[:2] == b"BM", _bmp),
    ("tiff", lambda b: b[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), _tiff),
    ("gif", lambda b: b[:6] in (b"GIF87a", b"GIF89a"), _gif),
    ("webp", lambda b: b[:4] == b"RIFF" and b[8:12] == b"WEBP", _webp),
    ("pnm", lambda b: b[:1] == b"P" and b[1:2] in b"123456" and len(b) > 2, _pnm),
]
#: The formats that are decoded.
FORMATS = tuple(name for name, _, _ in _READERS)
