"""How records lie in a file: the framing of dmlc's RecordIO, which MXNet 1.x reads and writes.

A part is four bytes of magic number, four bytes that hold a kind (top 3 bits) and a length (29
bits), the payload, and zeros up to a multiple of four bytes; all little-endian. A record is one
part of kind `WHOLE`. Where the magic number stands in a payload at a multiple of four bytes, the
writer leaves it out and begins a new part there (`FIRST`, `MIDDLE`..., `LAST`), so that in a file
the magic number at a multiple of four is always the head of a part.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from ..errors import FormatError, ParamError

MAGIC = 0xCED7230A
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
HEAD = struct.Struct("<II")
HEAD_BYTES = 8
WHOLE, FIRST, MIDDLE, LAST = range(4)
KIND_SHIFT = 29
LENGTH_MASK = (1 << KIND_SHIFT) - 1
#: Below this size a search by bytes is quicker than one by NumPy.
_SMALL = 512
_BLOCK = 1 << 20

Buffer = bytes | bytearray | memoryview


class TornRecordError(FormatError):
    """The file ends inside of a record, as after a crash of its writer; all before it is whole.

    Attributes:
        position: byte at which the torn record begins.
    """

    def __init__(self, text: str, position: int) -> None:
        super().__init__(text)
        self.position = position

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.position)


class Scan(NamedTuple):
    """What `scan` found.

    Attributes:
        positions: (records,) int64, first byte of each whole record.
        end: byte after the last whole record.
        error: why the scan ended before the end of the file; None where it did not.
    """

    positions: np.ndarray[Any, Any]
    end: int
    error: FormatError | None


def padded(length: int) -> int:
    """The length with padding."""
    return (length + 3) & ~3


def magic_offsets(payload: Buffer) -> list[int]:
    """Multiples of four at which the magic number stands in a payload."""
    words = len(payload) // 4
    if len(payload) >= _SMALL:
        found = np.frombuffer(payload, "<u4", words) == MAGIC
        return [] if not found.any() else [int(i) * 4 for i in np.flatnonzero(found)]
    raw, offsets, at = bytes(payload), [], -1
    while (at := raw.find(MAGIC_BYTES, at + 1)) >= 0:
        if at % 4 == 0:
            offsets.append(at)
    return offsets


def frame(payload: Buffer) -> list[Buffer]:
    """The pieces of bytes that stand for a record, to be written one after the other.

    Args:
        payload: below 2^29 bytes.

    Raises:
        ParamError: the payload is too long for the format.
    """
    size = len(payload)
    if size > LENGTH_MASK:
        raise ParamError(
            f"[recordio] expected a record below {LENGTH_MASK + 1} bytes, got {size}; "
            "split it into several"
        )
    tail = b"\0" * (padded(size) - size)
    cuts = magic_offsets(payload)
    if not cuts:
        return [HEAD.pack(MAGIC, size), payload, tail]
    view, start = memoryview(payload), 0
    pieces: list[Buffer] = []
    for number, cut in enumerate(cuts):
        kind = MIDDLE if number else FIRST
        pieces += [HEAD.pack(MAGIC, kind << KIND_SHIFT | (cut - start)), view[start:cut]]
        start = cut + 4
    pieces += [HEAD.pack(MAGIC, LAST << KIND_SHIFT | (size - start)), view[start:], tail]
    return [b"".join(pieces)]


def read_record(view: memoryview, position: int, source: str) -> tuple[Buffer, int]:
    """The record that begins at a byte, and the byte after it.

    Args:
        view: the whole file.
        position: first byte of the record.
        source: the file's name, for errors.

    Returns:
        A part of `view` where the record is one part, else new bytes.

    Raises:
        FormatError: no record begins there.
        TornRecordError: the file ends inside of the record.
    """
    size = len(view)
    if 0 <= position <= size - HEAD_BYTES:
        magic, word = HEAD.unpack_from(view, position)
        start = position + HEAD_BYTES
        end = start + word
        if magic == MAGIC and word <= LENGTH_MASK and end + 3 & ~3 <= size:
            return view[start:end], (end + 3) & ~3
    pieces: list[Buffer] = []
    at, kind = position, FIRST
    while kind not in (WHOLE, LAST):
        start, end, kind = _part(view, at, position, bool(pieces), source)
        pieces += [MAGIC_BYTES, view[start:end]] if pieces else [view[start:end]]
        at = padded(end)
    return b"".join(pieces), at


def skip_record(view: memoryview, position: int, source: str) -> int:
    """The byte after the record that begins at a byte; errors as of `read_record`."""
    at, kind, inside = position, FIRST, False
    while kind not in (WHOLE, LAST):
        _, end, kind = _part(view, at, position, inside, source)
        at, inside = padded(end), True
    return at


def _part(
    view: memoryview, at: int, position: int, inside: bool, source: str
) -> tuple[int, int, int]:
    """(first byte, end, kind) of the payload of one part, checked."""
    size = len(view)
    if not 0 <= position < size:
        raise FormatError(
            f"[recordio] expected a position below {size} in {source}, got {position}; "
            "is the index that of another file?"
        )
    if at + HEAD_BYTES > size:
        raise _torn(position, size, source)
    magic, word = HEAD.unpack_from(view, at)
    kind, start = word >> KIND_SHIFT, at + HEAD_BYTES
    end = start + (word & LENGTH_MASK)
    if magic != MAGIC:
        if not magic and _only_zeros(view, at):  # what a file system leaves after a power cut
            raise _torn(position, at, source)
        raise FormatError(
            f"[recordio] expected the magic number {MAGIC:#x} at byte {at} of {source}, got "
            f"{magic:#x}; is the file damaged, or the index that of another file?"
        )
    if kind not in ((MIDDLE, LAST) if inside else (WHOLE, FIRST)):
        raise FormatError(
            f"[recordio] expected the {'rest' if inside else 'beginning'} of a record at byte {at} "
            f"of {source}, got a part of kind {kind}"
        )
    if padded(end) > size:
        raise _torn(position, size, source)
    return start, end, kind


def _only_zeros(view: memoryview, at: int) -> bool:
    blocks = (view[i : i + _BLOCK] for i in range(at, len(view), _BLOCK))
    return not any(np.frombuffer(block, np.uint8).any() for block in blocks)


def _torn(position: int, size: int, source: str) -> TornRecordError:
    return TornRecordError(
        f"[recordio] expected a whole record at byte {position} of {source}, got the end of the "
        f"file at byte {size}; the records before it are whole",
        position,
    )


def scan(view: memoryview, source: str, start: int = 0) -> Scan:
    """Walks from record to record, reading only their heads.

    Args:
        view: the whole file.
        source: the file's name, for errors.
        start: first byte of a record.
    """
    positions: list[int] = []
    at, size, unpack, error = start, len(view), HEAD.unpack_from, None
    last = size - HEAD_BYTES
    while at < size:
        if at <= last:
            magic, word = unpack(view, at)
            after = at + HEAD_BYTES + word + 3 & ~3
            if magic == MAGIC and word <= LENGTH_MASK and after <= size:
                positions.append(at)
                at = after
                continue
        try:
            after = skip_record(view, at, source)
        except FormatError as found:
            error = found
            break
        positions.append(at)
        at = after
    return Scan(np.array(positions, np.int64), at, error)
