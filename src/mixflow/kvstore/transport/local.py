"""Messages between processes of one host: datagrams over Unix sockets, arrays in shared memory.

The hazard: a peer may die, or be another user's. Names are abstract (they end with the process),
both sides check that the other runs under the same user, and a send never blocks: what can't go
this way goes over ZeroMQ like to another host, and what got lost is repeated like any other.

A datagram carries one or more messages. Small arrays stand in it; big ones are named by where they
lie (`segments.Reference`), and a segment's descriptor travels with the first message that needs it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...errors import FormatError
from ..protocol import wire
from ..protocol.merging import copied
from ..protocol.messages import Array, Message, Opened
from .segments import BIG_BYTES, Blocks, Mappings, Reference, available

MAGIC = 0x4D58464C01
#: Bytes of a datagram; a longer one goes another way.
MAX_BYTES = 96 << 10
MAX_DESCRIPTORS = 32
_INT32 = struct.Struct("<i")
_CREDENTIALS = struct.Struct("3i")


def name_of(address: str, host: str = "") -> str:
    """The abstract name of the server that other hosts reach at a ZeroMQ address."""
    return f"\0mixflow-kvstore:{host}:{address}"


def host_id(host: str = "") -> str:
    """What tells this host from others: its name, if it was given one, and the kernel's mark."""
    mark = Path("/proc/sys/kernel/random/boot_id")
    return f"{host}:{mark.read_text().strip() if mark.exists() else socket.gethostname()}"


def _same_user(peer: socket.socket) -> bool:
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.getuid())


def listen(address: str, host: str = "") -> socket.socket | None:
    """A socket that accepts peers of this host; None where the system has no such thing."""
    if not available():
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(name_of(address, host))
    made.listen(128)
    made.setblocking(False)
    return made


def is_there(name: str) -> bool:
    """Whether somebody listens under a name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(name)
        except OSError:
            return False
        return _same_user(probe)


def accept(listener: socket.socket, blocks: Blocks) -> Channel | None:
    """The next peer, or None when none waits or it is not ours."""
    try:
        peer, _ = listener.accept()
    except OSError:
        return None
    if not _same_user(peer):
        peer.close()
        return None
    return Channel(peer, blocks, leases=True)


def connect(address: str, blocks: Blocks, host: str = "") -> Channel | None:
    """A channel to the server of an address, or None when it is not on this host."""
    if not available():
        return None
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(OSError):
        made.connect(name_of(address, host))
        if _same_user(made):
            return Channel(made, blocks, leases=False)
    made.close()
    return None


class Channel:
    """One side of a connection. Not thread-safe; nothing blocks.

    Args:
        peer: connected socket.
        blocks: this side's shared memory.
        leases: whether the peer must hold what it reads (the protocol does not say when it has
            been read); else the sender keeps it until the protocol says that it was read.
    """

    def __init__(self, peer: socket.socket, blocks: Blocks, *, leases: bool) -> None:
        self._peer = peer
        self._blocks = blocks
        self._leases = leases
        self._known: set[int] = set()
        self._mappings = Mappings()
        self._buffer = memoryview(bytearray(MAX_BYTES + 1))
        self.sent_bytes = self.received_bytes = 0
        #: False once the peer is gone: the user closes it then.
        self.open = True
        self.number = peer.fileno()
        peer.setblocking(False)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)

    def send(self, messages: Sequence[Message]) -> bool:
        """Sends messages as one datagram. False when it can't: too long, no room, or closed."""
        references: list[Reference] = []
        sent = False
        try:
            data, fresh = self._pack(messages, references)
            sent = self.open and len(data) <= MAX_BYTES and len(fresh) <= MAX_DESCRIPTORS
            if sent:
                self._put(data, fresh)
                self.sent_bytes += len(data) + sum(r.nbytes for r in references)
        except BlockingIOError:
            sent = False
        except OSError:
            sent = self.open = False
        if not sent and self._leases:
            for reference in references:
                self._blocks.give_back(reference)
        return sent

    def _pack(
        self, messages: Sequence[Message], references: list[Reference]
    ) -> tuple[bytes, list[int]]:
        """The datagram, and the segments that the peer does not have yet."""
        numbers = [len(messages)]
        inline: list[Any] = []
        for message in messages:
            head, arrays = wire.split(message)
            numbers += (len(head), len(arrays))
            inline.append(head)
            for array in arrays:
                found = None
                if array.nbytes >= BIG_BYTES:
                    found = self._reference(array, not isinstance(message, Opened))
                if found is None:
                    numbers += (0, 0, array.nbytes, 0)
                    inline.append(wire.bytes_of(array))
                else:
                    references.append(found)
                    numbers += (found.segment, found.offset, found.nbytes, found.lease)
        fresh = sorted({r.segment for r in references} - self._known)
        sizes = [n for s in fresh for n in (s, self._blocks.segment(s).nbytes)]
        numbers = [MAGIC, 4 + len(sizes) + len(numbers), len(fresh), *sizes, *numbers]
        numbers[1] = len(numbers)
        return b"".join([struct.pack(f"<{len(numbers)}q", *numbers), *inline]), fresh

    def _reference(self, array: Array, may_copy: bool) -> Reference | None:
        """Where the peer finds an array. With leases it always does: what lies on a board, or is
        read by too many, gets a copy, which the lease keeps. Of shared words a copy is none."""
        reader = self if self._leases else None
        found = self._blocks.reference(array, reader)
        if found is None and reader is not None and may_copy:
            found = self._blocks.reference(copied(self._blocks, array), reader)
        return found

    def _put(self, data: bytes, fresh: list[int]) -> None:
        if not fresh:
            self._peer.send(data)
            return
        descriptors = [self._blocks.segment(number).descriptor for number in fresh]
        socket.send_fds(self._peer, [data], descriptors)
        self._known.update(fresh)

    def receive(self) -> list[Message] | None:
        """The messages of the next datagram; [] for one that is damaged, None when there is none
        (or the peer is gone: see `open`)."""
        space = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        try:
            size, extra, _, _ = self._peer.recvmsg_into([self._buffer], space)
        except BlockingIOError:
            return None
        except OSError:
            size, extra = 0, []
        if size == 0:
            self.open = False
            return None
        self.received_bytes += size
        descriptors = [
            _INT32.unpack_from(data, at)[0]
            for level, kind, data in extra
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
            for at in range(0, len(data) - 3, 4)
        ]
        try:
            return self._unpack(bytes(self._buffer[:size]), descriptors)
        except (FormatError, ValueError, OSError, IndexError, StopIteration, struct.error):
            return []  # what can't be read can't be answered: whoever sent it will repeat it
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _unpack(self, data: bytes, descriptors: list[int]) -> list[Message]:
        """Messages of a datagram; takes out of `descriptors` those that it has used."""
        magic, count = struct.unpack_from("<2q", data)
        if magic != MAGIC:
            raise ValueError("expected a datagram of ours")
        numbers = iter(struct.unpack_from(f"<{count - 2}q", data, 16))
        at = 8 * count
        for _ in range(next(numbers)):
            self._mappings.add(next(numbers), next(numbers), descriptors.pop(0))
        found = []
        for _ in range(next(numbers)):
            length, arrays = next(numbers), next(numbers)
            frames: list[Any] = [_cut(data, at, length)]
            at += length
            for _ in range(arrays):
                reference = Reference(next(numbers), next(numbers), next(numbers), next(numbers))
                if reference.segment:
                    frames.append(self._mappings.array(reference))
                    self.received_bytes += reference.nbytes
                else:
                    frames.append(_cut(data, at, reference.nbytes))
                    at += reference.nbytes
            found.append(wire.decode(frames))
        return found

    def close(self) -> None:
        """Ends the connection; leases of the peer end with it. Safe to call twice."""
        self.open = False
        self._peer.close()
        self._blocks.forget(self)


def moved(channels: Iterable[Channel], sent: int, received: int) -> tuple[int, int]:
    """Bytes that have gone through channels, and those of the network (`sent`, `received`)."""
    for channel in list(channels):
        sent += channel.sent_bytes
        received += channel.received_bytes
    return sent, received


def _cut(data: bytes, at: int, length: int) -> memoryview:
    if length < 0 or at + length > len(data):
        raise ValueError("expected a whole datagram")
    return memoryview(data)[at : at + length]
