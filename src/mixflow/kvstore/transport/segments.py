"""Shared memory between processes of one host: who owns a block, who reads it, when it is free.

The hazard is memory that outlives its processes, or that changes while another process reads it.
Segments are anonymous (memfd) and travel as descriptors over Unix sockets: nothing has a name, so
the system frees them when the last process that has them is gone, however it ended. Each block has
one owner, who writes it, and is free again when

- nothing in the owner's process refers to its array any more (a worker's gradient: until its push
  is applied), and
- no reader holds a *lease* on it: a word in the block's head that the owner sets when it hands out
  the block and the reader clears when it has what it wanted. A reader that dies clears nothing: its
  connection breaks, and the owner clears the words for it.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..protocol.messages import Array

#: Bytes from which an array is worth a block of its own; smaller ones travel in the message.
BIG_BYTES = 16 << 10
SEGMENT_BYTES = 16 << 20
#: Words in the head of a block: how many readers may hold it at once.
WORDS = 64
HEAD_BYTES = 8 * WORDS
_PAGE = 4096


def available() -> bool:
    """Whether this system has anonymous segments and sockets that carry them."""
    return hasattr(os, "memfd_create")


@dataclass(slots=True)
class Reference:
    """Where an array lies: segment, offset and length in bytes, and the lease on it (0: none)."""

    segment: int
    offset: int
    nbytes: int
    lease: int = 0


class Segment:
    """An anonymous mapping; `number` names it between its owner and its readers.

    The owner keeps the descriptor to hand it out; a reader closes its copy when it has mapped it.
    """

    _numbers = itertools.count(1)

    def __init__(self, nbytes: int) -> None:
        self.number = next(self._numbers)
        self.nbytes = nbytes
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.descriptor = os.memfd_create("mixflow-kvstore", flags)
        try:
            os.ftruncate(self.descriptor, nbytes)
            # Nobody may cut it: a read past its end would kill the reader.
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self.map = mmap.mmap(self.descriptor, nbytes)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.used = 0
        weakref.finalize(self, os.close, self.descriptor)


@dataclass(slots=True)
class Block:
    """Part of a segment: a head of lease words, then the bytes of one array."""

    segment: Segment
    offset: int
    nbytes: int
    words: memoryview
    address: int = 0
    leases: dict[int, object] = field(default_factory=dict)


class Blocks:
    """The blocks that one process owns. Not thread-safe: its user's lock covers it, but for arrays
    that are dropped on any thread."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._free: dict[int, list[Block]] = {}
        self._used: dict[int, Block] = {}
        self._retired: deque[Block] = deque()

    def empty(self, size: int, dtype: Any) -> Array:
        """A flat array in a block; the block is free when the array and all its views are gone."""
        dtype = np.dtype(dtype)
        block = self._take(_rounded(size * dtype.itemsize))
        start = block.offset + HEAD_BYTES
        root = np.frombuffer(block.segment.map, np.uint8, block.nbytes, start)
        block.address = root.__array_interface__["data"][0]
        key = id(root)
        self._used[key] = block
        weakref.finalize(root, self._drop, key).atexit = False
        return root[: size * dtype.itemsize].view(dtype)

    def _take(self, nbytes: int) -> Block:
        self._reclaim()
        free = self._free.get(nbytes)
        if free:
            return free.pop()
        need = HEAD_BYTES + nbytes
        if not self._segments or self._segments[-1].used + need > self._segments[-1].nbytes:
            self._segments.append(Segment(max(SEGMENT_BYTES, need)))
        segment = self._segments[-1]
        at = segment.used
        segment.used += need
        words = memoryview(segment.map)[at : at + HEAD_BYTES].cast("Q")
        return Block(segment, at, nbytes, words)

    def _drop(self, key: int) -> None:
        """The last array of a block is gone (on whatever thread)."""
        self._retired.append(self._used.pop(key))

    def _reclaim(self) -> None:
        for _ in range(len(self._retired)):
            block = self._retired.popleft()
            if _held(block):
                self._retired.append(block)
            else:
                self._free.setdefault(block.nbytes, []).append(block)

    def _block(self, array: Array) -> Block | None:
        return self._used.get(id(array.base))

    def busy(self, array: Array) -> bool:
        """Whether a reader holds a lease on the array's block."""
        block = self._block(array)
        return block is not None and _held(block)

    def reference(self, array: Array, reader: object = None) -> Reference | None:
        """Where an array lies, with a lease for `reader` if one is named; None where it lies in no
        block, or has no word left."""
        block = self._block(array)
        if block is None:
            return None
        at = array.__array_interface__["data"][0] - block.address
        found = Reference(block.segment.number, block.offset + HEAD_BYTES + at, array.nbytes)
        if reader is None:
            return found
        _held(block)
        word = next((w for w in range(WORDS) if w not in block.leases), None)
        if word is None:
            return None
        block.leases[word] = reader
        block.words[word] = 1
        found.lease = block.offset + 8 * word + 1
        return found

    def give_back(self, reference: Reference) -> None:
        """Takes back a lease that was not handed out after all."""
        for block in [*self._used.values(), *self._retired]:
            word, rest = divmod(reference.lease - 1 - block.offset, 8)
            if block.segment.number == reference.segment and 0 <= word < WORDS and not rest:
                block.words[word] = 0

    def forget(self, reader: object) -> None:
        """Ends every lease of a reader that is gone."""
        for block in [*self._used.values(), *self._retired]:
            for word in [w for w, who in block.leases.items() if who is reader]:
                block.words[word] = 0
                del block.leases[word]

    def segment(self, number: int) -> Segment:
        """A segment by its number."""
        return next(s for s in self._segments if s.number == number)


def _held(block: Block) -> bool:
    """Whether some lease is out; ended ones are struck off."""
    if block.leases:
        for word in [w for w in block.leases if not block.words[w]]:
            del block.leases[word]
    return bool(block.leases)


def _rounded(nbytes: int) -> int:
    """Block sizes: whole pages, and at most 1/8 too large, so that blocks are used again."""
    step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-max(nbytes, 1) // step) * step


class SharedArena:
    """Where a shard keeps its values: big ones in blocks, so that peers of this host read them
    where they lie."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def empty(self, size: int, dtype: Any) -> Array:
        """A new flat array."""
        dtype = np.dtype(dtype)
        if size * dtype.itemsize < BIG_BYTES:
            return np.empty(size, dtype)
        return self._blocks.empty(size, dtype)

    def busy(self, array: Array) -> bool:
        """Whether a peer still reads it."""
        return self._blocks.busy(array)


class Leased(np.ndarray[Any, Any]):
    """A reader's array; it and its views keep the lease."""

    lease: Lease | None = None


class Lease:
    """A reader's claim on a block; cleared when the last array over it is gone."""

    def __init__(self, segment: mmap.mmap, offset: int) -> None:
        self._segment = segment
        self._offset = offset

    def __del__(self) -> None:
        self._segment[self._offset : self._offset + 8] = bytes(8)


class Mappings:
    """The segments of one peer, as a reader has them."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}

    def add(self, number: int, nbytes: int, descriptor: int) -> None:
        """Maps a segment whose descriptor has come; closes the descriptor.

        Raises:
            OSError, ValueError: it can't be mapped.
        """
        try:
            if number not in self._maps:
                if os.fstat(descriptor).st_size < nbytes:
                    raise ValueError(f"expected a segment of {nbytes} bytes, got a smaller one")
                self._maps[number] = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)

    def array(self, reference: Reference) -> Array:
        """A read-only view of a block's bytes.

        Raises:
            ValueError: a segment that has not come, or bytes outside of it.
        """
        mapped = self._maps.get(reference.segment)
        if mapped is None:
            raise ValueError(f"expected a known segment, got {reference.segment}")
        end, lease = reference.offset + reference.nbytes, reference.lease
        if min(reference.offset, reference.nbytes, lease) < 0 or max(end, lease + 7) > len(mapped):
            raise ValueError(f"expected bytes inside of a segment, got {reference}")
        made = np.frombuffer(mapped, np.uint8, reference.nbytes, reference.offset).view(Leased)
        if lease:
            made.lease = Lease(mapped, lease - 1)
        made.flags.writeable = False
        return made
