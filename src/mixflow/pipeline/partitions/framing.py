"""Messages between a pool and the executors of its host: JSON over a socket, and memory by handle.

Arrays lie in memory without a name (memfd), whose handle travels with the message: nothing is
copied, and nothing is left when processes are killed.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_HEAD = struct.Struct("<I")
_MOST = 1 << 24
_ALIGN = 64


def send(to: socket.socket, message: Mapping[str, Any], handle: int | None = None) -> None:
    """Sends a message, with an open file.

    Raises:
        OSError: the other side is gone.
    """
    content = json.dumps(message).encode()
    content = _HEAD.pack(len(content)) + content
    # In one piece: a process that is stopped between two would hold up whoever reads.
    sent = socket.send_fds(to, [content], [] if handle is None else [handle])
    to.sendall(content[sent:])


def receive(source: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """The next message and the file that came with it; None at the end.

    Raises:
        OSError: no whole message.
    """
    head, handles, _, _ = socket.recv_fds(source, _HEAD.size, 1)
    handle = handles[0] if handles else None
    try:
        if not head:
            return None
        head += _exactly(source, _HEAD.size - len(head))
        (length,) = _HEAD.unpack(head)
        if length > _MOST:
            raise OSError(f"a message of {length} bytes")
        message = json.loads(_exactly(source, length))
        if not isinstance(message, dict):
            raise OSError("a message of another form")
        kept, handle = handle, None
        return message, kept
    except ValueError as error:
        raise OSError(str(error)) from None
    finally:
        if handle is not None:
            os.close(handle)


def _exactly(source: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = source.recv(count)
        if not part:
            raise OSError("the other side ended within a message")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def new_memory() -> int:
    """A handle of memory without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mixflow-partition")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


#: (name, shape, dtype, first byte) of each array.
Places = Sequence[tuple[str, Sequence[int], str, int]]


def planned(layout: Mapping[str, tuple[tuple[int, ...], Any]]) -> tuple[list[Any], int]:
    """Where arrays lie one after the other, and how many bytes they take."""
    places: list[Any] = []
    at = 0
    for name, (shape, dtype) in layout.items():
        places.append((name, list(shape), np.dtype(dtype).str, at))
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        at = -(-(at + size) // _ALIGN) * _ALIGN
    return places, max(at, _ALIGN)


def mapped(handle: int, nbytes: int, write: bool) -> mmap.mmap:
    """A mapping of the first bytes of a file; with `write` the file is made that long.

    Raises:
        OSError: a file that is shorter.
    """
    size = os.fstat(handle).st_size
    if size < nbytes and not write:
        raise OSError(f"{size} bytes of memory, not {nbytes}")
    if size < nbytes:
        os.ftruncate(handle, nbytes)
    access = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
    populate = getattr(mmap, "MAP_POPULATE", 0)
    return mmap.mmap(handle, nbytes, mmap.MAP_SHARED | populate, access)


def arrays_in(memory: mmap.mmap, places: Places) -> dict[str, Array]:
    """Views of the arrays in a mapping.

    Raises:
        OSError: places that do not fit.
    """
    made: dict[str, Array] = {}
    try:
        for name, shape, dtype, at in places:
            if np.dtype(dtype).kind not in "biuf":
                raise ValueError(f"elements of {dtype}")
            made[name] = np.ndarray(tuple(shape), np.dtype(dtype), memory, at)
    except (TypeError, ValueError) as error:
        raise OSError(f"arrays that do not fit: {error}") from None
    return made


def closed(handles: Sequence[int]) -> None:
    """Closes handles, whatever became of them."""
    for handle in handles:
        with contextlib.suppress(OSError):
            os.close(handle)
