"""What travels between hosts at once: messages to one peer as the parts of one ZeroMQ message.

Every part costs some 20 us of processor time at each end, as much as 100 kB of bytes; a group of a
deep net's layers has dozens of arrays of a few kB. So heads and small arrays lie one after the
other in the first part, and arrays from `BIG_BYTES` on, which are not worth another copy, in parts
of their own.

The first part: int64 numbers (mark, how many follow; per message the bytes of its head, how many
arrays it has, and each one's bytes, or -1 where it is the next part), then heads and small arrays
in that order, each padded to 8 bytes. Lengths are checked against what has come.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import FormatError
from ..protocol import wire
from ..protocol.messages import Message

MARK = 0x4D58504301
BIG_BYTES = 64 << 10
_PADDING = [bytes(count) for count in range(8)]


def pack(messages: Sequence[Message]) -> list[Any]:
    """Parts of some messages; big arrays are not copied.

    Raises:
        FormatError: an array of a dtype that has no name on the wire.
    """
    numbers: list[int] = []
    inside: list[Any] = []
    parts: list[Any] = []
    for message in messages:
        head, arrays = wire.split(message)
        numbers += (len(head), len(arrays))
        inside += (head, _PADDING[-len(head) % 8])
        for array in arrays:
            if array.nbytes >= BIG_BYTES:
                numbers.append(-1)
                parts.append(wire.bytes_of(array))
            else:
                numbers.append(array.nbytes)
                inside += (wire.bytes_of(array), _PADDING[-array.nbytes % 8])
    start = struct.pack(f"<{len(numbers) + 2}q", MARK, len(numbers), *numbers)
    return [b"".join([start, *inside]), *parts]


def unpack(parts: Sequence[Any]) -> list[Message]:
    """The messages of a parcel; their arrays are read-only views of its parts.

    Raises:
        FormatError: not a parcel, or one that is damaged.
    """
    try:
        return list(_messages(memoryview(parts[0]).cast("B"), iter(parts[1:])))
    except (struct.error, StopIteration, RuntimeError, IndexError, ValueError, TypeError) as error:
        raise FormatError(f"[kvstore parcel] expected a whole one, got {error!r}") from None


def _messages(first: memoryview, parts: Iterator[Any]) -> Iterator[Message]:
    mark, count = struct.unpack_from("<2q", first)
    if mark != MARK or not 0 <= count <= len(first) // 8:
        raise FormatError("[kvstore parcel] expected a parcel of ours, got something else")
    numbers, at = list(struct.unpack_from(f"<{count}q", first, 16)), 16 + 8 * count
    while numbers:
        length, arrays = numbers[0], numbers[1]
        sizes, numbers = numbers[2 : 2 + arrays], numbers[2 + arrays :]
        if arrays < 0 or len(sizes) != arrays:
            raise FormatError(f"[kvstore parcel] expected {arrays} arrays, got {len(sizes)}")
        frames: list[Any] = []
        for size in (length, *sizes):
            if size == -1 and frames:
                frames.append(next(parts))
                continue
            frames.append(_cut(first, at, size))
            at += -(-size // 8) * 8
        yield wire.decode(frames)


def _cut(data: memoryview, at: int, size: int) -> memoryview:
    if size < 0 or at + size > len(data):
        raise FormatError(f"[kvstore parcel] expected {size} bytes at {at}, got {len(data)} in all")
    return data[at : at + size]
