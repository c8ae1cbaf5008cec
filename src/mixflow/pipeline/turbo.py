"""Decodes a part of a JPEG: the TurboJPEG 3 library, through ctypes.

The PyPI package `turbojpeg` (extra `jpeg`) carries the library; one of the system serves too. Rows
above and below the part are not transformed, columns beside it neither. ctypes releases the GIL.

Hazard: chroma is interpolated from neighbours, so pixels at the border of a part differ from those
of the whole image. Callers ask for a margin (`MARGIN`) and use what lies inside.

Hazard: a truncated image is a warning for the library, which goes on with grey; in a part it may
then wait for ever for a line that does not come. So a warning ends the decoding, and a decompressor
that met an error is not used again: it remembers half of the image.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import threading
from typing import Any

import numpy as np

from ..errors import FormatError

Array = np.ndarray[Any, Any]
#: Pixels around a part that may differ from those of the whole image.
MARGIN = 2
_DECOMPRESS, _RGB, _GREY = 1, 0, 6  # TJINIT_DECOMPRESS, TJPF_RGB, TJPF_GRAY
_STOP_ON_WARNING = 0
_SUBSAMPLING, _WIDTH, _HEIGHT = 4, 5, 6  # TJPARAM_*
#: Width of a block of whole chroma samples, by TJSAMP_* (444, 422, 420, grey, 440, 411, 441).
_BLOCK_WIDTHS = (8, 16, 16, 8, 8, 32, 8)


class _Region(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_int),
        ("y", ctypes.c_int),
        ("w", ctypes.c_int),
        ("h", ctypes.c_int),
    )


def _candidates() -> list[str]:
    found = []
    try:
        files = importlib.metadata.files("turbojpeg") or []
        found += [str(f.locate()) for f in files if f.name.startswith("libturbojpeg")]
    except importlib.metadata.PackageNotFoundError:
        pass
    return [*found, "libturbojpeg.so.0", "libturbojpeg.dylib", "turbojpeg.dll"]


@functools.cache
def library() -> Any | None:
    """The loaded library with its signatures; None where there is none of version 3."""
    for path in _candidates():
        try:
            loaded = ctypes.CDLL(path)
            pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
            for name, result, arguments in (
                ("tj3Init", pointer, (number,)),
                ("tj3Destroy", None, (pointer,)),
                ("tj3DecompressHeader", number, (pointer, pointer, size)),
                ("tj3Get", number, (pointer, number)),
                ("tj3Set", number, (pointer, number, number)),
                ("tj3GetErrorStr", ctypes.c_char_p, (pointer,)),
                ("tj3SetCroppingRegion", number, (pointer, _Region)),
                ("tj3Decompress8", number, (pointer, pointer, size, pointer, number, number)),
            ):
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError):
            continue
        return loaded
    return None


class _Decoder:
    """One decompressor; not thread-safe."""

    def __init__(self) -> None:
        loaded: Any = library()
        self.library = loaded
        self.handle = self.library.tj3Init(_DECOMPRESS)
        if not self.handle:
            raise FormatError("[turbojpeg] expected a decompressor, got none")
        self.check(self.library.tj3Set(self.handle, _STOP_ON_WARNING, 1))
        self._memory = np.empty(0, np.uint8)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.tj3Destroy(self.handle)

    def output(self, *shape: int) -> Array:
        """Memory for an image, the same again and again: fresh pages cost a third of a decode."""
        size = shape[0] * shape[1] * shape[2]
        if self._memory.size < size:
            self._memory = np.empty(size, np.uint8)
        return self._memory[:size].reshape(shape)

    def check(self, result: int) -> None:
        if result != 0:
            _local.__dict__.pop("decoder", None)  # it keeps parts of the bad image
            text = self.library.tj3GetErrorStr(self.handle).decode(errors="replace")
            raise FormatError(f"[turbojpeg] expected a whole JPEG image, got: {text}")


_local = threading.local()


def decode_part(data: Array, channels: int, rows: range, columns: range) -> tuple[Array, int, int]:
    """The pixels of at least `rows` and `columns`; those inside of the margin are exact.

    Args:
        data: (n,) uint8, C-contiguous: the JPEG. Its size was checked by the caller.
        channels: 1 or 3 (RGB).
        rows, columns: wanted pixels.

    Returns:
        Array (h, w, channels) uint8, and the row and column of its first pixel. Its memory is
        used again by this thread's next call.

    Raises:
        FormatError: damaged, or a kind of JPEG that cannot be cropped; decode it whole then.
    """
    if not hasattr(_local, "decoder"):
        _local.decoder = _Decoder()
    decoder: _Decoder = _local.decoder
    lib, handle = decoder.library, decoder.handle
    at, size = data.ctypes.data, data.size
    decoder.check(lib.tj3DecompressHeader(handle, at, size))
    width, height = lib.tj3Get(handle, _WIDTH), lib.tj3Get(handle, _HEIGHT)
    sampling = lib.tj3Get(handle, _SUBSAMPLING)
    if not 0 <= sampling < len(_BLOCK_WIDTHS):
        raise FormatError("[turbojpeg] expected a known subsampling, got another")
    top, bottom = max(0, rows.start - MARGIN), min(height, rows.stop + MARGIN)
    block = _BLOCK_WIDTHS[sampling]
    left = max(0, columns.start - MARGIN) // block * block
    right = min(width, columns.stop + MARGIN)
    region = _Region(left, top, right - left, bottom - top)
    decoder.check(lib.tj3SetCroppingRegion(handle, region))
    out = decoder.output(bottom - top, right - left, channels)
    kind = _GREY if channels == 1 else _RGB
    decoder.check(lib.tj3Decompress8(handle, at, size, out.ctypes.data, 0, kind))
    return out, top, left
