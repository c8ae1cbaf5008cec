"""Image records: a header of 24 bytes with the label, then the encoded image."""

from __future__ import annotations

import numbers
import struct
from typing import Any, NamedTuple

import numpy as np

from .. import extras
from ..arguments import checked, whole
from ..errors import FormatError, ParamError
from .framing import Buffer

Array = np.ndarray[Any, Any]
_FORMAT = struct.Struct("<IfQQ")
_JPEG, _PNG = (".jpg", ".jpeg"), (".png",)


class IRHeader(NamedTuple):
    """Header of an image record.

    Attributes:
        flag: 0, or how many labels there are; `pack` sets it.
        label: number, or (labels,) float32.
        id: number of the image.
        id2: its upper half; 0 as a rule.
    """

    flag: int
    label: Any
    id: int
    id2: int

    def __repr__(self) -> str:
        return f"HEADER(flag={self.flag!r}, label={self.label!r}, id={self.id!r}, id2={self.id2!r})"


def pack(header: IRHeader | tuple[Any, ...], s: Buffer) -> bytes:
    """Header and content as one record.

    Args:
        header: `label` is a number (then `flag` becomes 0), or an array or sequence of them,
            which is stored as float32 in front of the content (`flag` becomes their number).
        s: content, e.g. an encoded image.

    Raises:
        ParamError: a field that is no number or does not fit into its bytes; a text as content.
    """
    try:
        _, label, first, second = header
        if isinstance(label, numbers.Number):
            return _FORMAT.pack(0, label, first, second) + bytes(memoryview(s))
        labels = _labels(label)
        head = _FORMAT.pack(labels.size, 0, first, second)
        return b"".join((head, labels.tobytes(), s))
    except (TypeError, ValueError, struct.error, OverflowError) as error:
        raise ParamError(
            "[recordio.pack] expected a header (flag, label, id, id2) of numbers and bytes, got "
            f"{header!r:.200} and {type(s).__name__}: {error}"
        ) from None


def _labels(label: Any) -> Array:
    """float32 labels; ValueError for what NumPy would make nan or numbers of: None, texts, gaps."""
    found = np.asarray(label.asnumpy() if hasattr(label, "asnumpy") else label)
    if found.size and found.dtype.kind not in "biufV":
        raise ValueError(f"labels of {found.dtype}")
    if np.ma.is_masked(label):
        raise ValueError("masked labels")
    return np.asarray(found, np.float32)


def unpack(s: Buffer) -> tuple[IRHeader, Any]:
    """Header and content of a record.

    Args:
        s: bytes, or a view of a record: then the content is a view too and nothing is copied.

    Returns:
        Header (`label` is a (flag,) float32 array where `flag` > 0), and content.

    Raises:
        FormatError: fewer bytes than the header, or than the labels that it announces.
        ParamError: no bytes.
    """
    try:
        size = memoryview(s).nbytes
    except TypeError:
        raise ParamError(
            f"[recordio.unpack] expected the bytes of a record, got {type(s).__name__}"
        ) from None
    if size < _FORMAT.size:
        raise FormatError(
            f"[recordio.unpack] expected at least {_FORMAT.size} bytes of header, got {size}"
        )
    flag, label, first, second = _FORMAT.unpack_from(s)
    if not flag:
        return IRHeader(flag, label, first, second), s[_FORMAT.size :]
    start = _FORMAT.size + 4 * flag
    if start > size:
        raise FormatError(
            f"[recordio.unpack] expected {flag} labels of 4 bytes, got {size - _FORMAT.size} bytes"
        )
    labels = np.frombuffer(s, "<f4", flag, _FORMAT.size)
    return IRHeader(flag, labels, first, second), s[start:]


def pack_img(
    header: IRHeader | tuple[Any, ...], img: Array, quality: int = 95, img_fmt: str = ".jpg"
) -> bytes:
    """Encodes an image and packs it.

    Args:
        header: as of `pack`.
        img: (H, W) or (H, W, C) uint8, channels in OpenCV's order (blue first).
        quality: of JPEG 1 to 100; of PNG the compression 1 to 9.
        img_fmt: ending of the encoding, e.g. '.jpg' or '.png'.

    Raises:
        ParamError: an unknown ending, or an image that it cannot hold.
        MissingExtraError: OpenCV is not installed.
    """
    return pack(header, encode_image(img, quality, img_fmt))


def encode_image(img: Array, quality: int = 95, img_fmt: str = ".jpg") -> bytes:
    """The encoded image; arguments and errors of `pack_img`."""
    cv2 = extras.load("cv2", "recordio.pack_img")
    options = []
    if img_fmt.lower() in _JPEG:
        options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    elif img_fmt.lower() in _PNG:
        options = [cv2.IMWRITE_PNG_COMPRESSION, quality]
    try:
        done, content = cv2.imencode(img_fmt, img, options)
    except (cv2.error, TypeError, ValueError) as error:
        done, content = False, error
    if not done:
        raise ParamError(
            f"[recordio.pack_img] expected an image and an encoding such as .jpg or .png, got "
            f"{type(img).__name__} {getattr(img, 'shape', '')} and '{img_fmt}': {content!s:.200}"
        )
    encoded: bytes = content.tobytes()
    return encoded


@checked("recordio.unpack_img", iscolor=whole(-1, 1 << 16))
def unpack_img(s: Buffer, iscolor: int = -1) -> tuple[IRHeader, Any]:
    """Header and decoded image of a record.

    Args:
        s: the record.
        iscolor: 1 = colour (blue first), 0 = grey, -1 = as it is stored.

    Returns:
        Header, and (H, W) or (H, W, C) uint8; None where the content is no image, as in MXNet.

    Raises:
        FormatError: as of `unpack`.
        MissingExtraError: OpenCV is not installed.
    """
    header, content = unpack(s)
    cv2 = extras.load("cv2", "recordio.unpack_img")
    raw = np.frombuffer(content, np.uint8)
    return header, cv2.imdecode(raw, iscolor) if raw.size else None
