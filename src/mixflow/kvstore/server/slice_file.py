"""A record (plain values and arrays) in a shared mapping, changed all or not at all.

The hazard is a process that dies while it writes. The file has two areas: `write` fills the area
that is not in use and then its sequence number, one aligned store of 8 bytes; the area with the
higher number counts. `patch` changes rows of the area in use: first they are written beside it with
the sequence number that they make (the redo record, which is whole when its number is), then they
are copied to their places, and the area's number follows. Whoever opens a file whose redo record is
one ahead of its area copies it again: that changes nothing if it had been copied.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...errors import FormatError
from ...files import file_error
from ..protocol.messages import Array
from ..protocol.touched import Touched

MAGIC = b"MIXFLED3"
HEADER = 4096
_HEAD = struct.Struct("<8sQ")  # magic, bytes of an area
#: Sequence, bytes of the JSON text, where the arrays begin, and what was closed since the text was
#: written: rounds, parts, and workers of which there are steps (worker, steps) behind the text.
_AREA = struct.Struct("<6Q")
_STEPS = struct.Struct("<2q")
_REDO = struct.Struct("<QQ")  # sequence, bytes of the JSON text
_ALIGN = 64
#: Room for texts that grow, in bytes.
_SLACK = 512
#: Patches larger than this share of an area are written as a whole.
_PATCH_SHARE = 4


#: Rounds, parts, and steps by worker.
Since = tuple[int, int, dict[int, int]]


class SliceFile:
    """One record in a mapping."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._capacity = 0
        self._sequence = 0
        self._current = 1
        #: Dtype and size of each array of the area in use.
        self._shapes: list[tuple[str, int]] = []
        #: The text of the area in use, if it was written by this process.
        self._text = b""
        self._placed = False
        #: Rounds and parts that were closed since the record's text was written, and steps of
        #: workers where these are counted.
        self.since: Since = (0, 0, {})

    # -- a whole record

    def write(self, record: dict[str, Any], arrays: list[Array]) -> None:
        """Commits a record: plain values and arrays."""
        shapes = [(a.dtype.str, a.size) for a in arrays]
        text = _text(record, shapes)
        need = _begin(text) + sum(_aligned(a.nbytes) for a in arrays)
        self._follow()
        if need > self._capacity:
            self._grow(need, text, arrays)
        else:
            assert self._map is not None
            target = 1 - self._current
            _fill(memoryview(self._map), self._start(target), text, arrays)
            self._sequence += 1
            struct.pack_into("<Q", self._map, self._start(target), self._sequence)
            self._current = target
        self._shapes, self._text = shapes, text

    def _start(self, area: int) -> int:
        """Where an area begins; 'area' 2 is the redo record."""
        return HEADER + area * self._capacity

    def _grow(self, need: int, text: bytes, arrays: list[Array]) -> None:
        """A larger file in the place of the old one, with this commit in it."""
        capacity = _aligned(need + need // 4 + 1024)
        fresh = self.path.with_suffix(".new")
        with open(fresh, "wb+") as file:
            _reserve(file, HEADER + 2 * capacity)
            made = mmap.mmap(file.fileno(), 0)
        self._sequence += 1
        _HEAD.pack_into(made, 0, MAGIC, capacity)
        _fill(memoryview(made), HEADER, text, arrays)
        struct.pack_into("<Q", made, HEADER, self._sequence)
        os.replace(fresh, self.path)
        self._map, self._capacity, self._current = made, capacity, 0

    # -- values that are committed natively

    def place(
        self, arrays: Sequence[Array], workers: int = 0
    ) -> tuple[int, int, int, int, int, bytes] | None:
        """Where more arrays of the record last written may be committed, natively and by rounds
        (and steps of so many workers) only: addresses of both areas, the one that counts, its
        sequence number, where the arrays begin, and the text; None where this process has written
        none, or one of other arrays, where there is no room, or where the text does not tell of
        all. The next `write` or `patch` goes on from what was committed there."""
        if self._map is None or not self._text:
            return None
        if self._shapes != [(array.dtype.str, array.size) for array in arrays]:
            return None
        self._follow()
        _, _, begin, *since = _AREA.unpack_from(self._map, self._start(self._current))
        if any(since) or _steps_at(len(self._text)) + workers * _STEPS.size > begin:
            return None
        self._placed = True
        address = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]
        first, second = (address + self._start(area) for area in (0, 1))
        return first, second, self._current, self._sequence, begin, self._text

    def _follow(self) -> None:
        """Takes notice of what was committed natively."""
        if self._placed:
            self._placed = False
            self._current, self._sequence = self._latest()

    def _latest(self) -> tuple[int, int]:
        """The area that counts, and its sequence number."""
        assert self._map is not None
        heads = [_AREA.unpack_from(self._map, self._start(area)) for area in (0, 1)]
        current = int(heads[1][0] > heads[0][0])
        return current, heads[current][0]

    # -- some rows of it

    def patch(self, record: dict[str, Any], touched: Touched, arrays: Sequence[Array]) -> bool:
        """Commits a record of which each array is given in full, or as the rows that were touched
        (see `Touched.fits`; the first array is the slice's).

        Returns:
            False, with nothing changed, where only `write` will do.
        """
        if self._map is None or len(arrays) != len(self._shapes):
            return False
        for array, (code, size) in zip(arrays, self._shapes, strict=True):
            if array.dtype.str != code:
                return False
            if not touched.fits(array.size, size, self._shapes[0][1]):
                return False
        text = _text(record, self._shapes)
        self._follow()
        area = _AREA.unpack_from(self._map, self._start(self._current))
        if _AREA.size + len(text) > area[2]:
            return False
        sizes = [array.size for array in arrays]
        head = json.dumps({"width": touched.width, "rows": len(touched.numbers), "sizes": sizes})
        need = _REDO.size + 8 + len(head) + len(text) + 8 * len(touched.numbers)
        need += sum(array.nbytes for array in arrays) + _ALIGN * (len(arrays) + 2)
        if need > self._capacity // _PATCH_SHARE and need > 1 << 16:
            return False
        self._make_room(need)
        self._write_redo(text, head.encode(), [touched.numbers, *arrays])
        self._redo()
        self._text = text
        return True

    def _make_room(self, need: int) -> None:
        """The redo record takes the end of the file."""
        assert self._map is not None
        if len(self._map) - self._start(2) >= need:
            return
        with open(self.path, "rb+") as file:
            _reserve(file, self._start(2) + _aligned(2 * need))
            self._map = mmap.mmap(file.fileno(), 0)

    def _write_redo(self, text: bytes, head: bytes, arrays: Sequence[Array]) -> None:
        assert self._map is not None
        view, start = memoryview(self._map), self._start(2)
        at = start + _REDO.size
        view[at : at + 8] = struct.pack("<Q", len(head))
        view[at + 8 : at + 8 + len(head)] = head
        at += 8 + len(head)
        view[at : at + len(text)] = text
        at = start + _aligned(at + len(text) - start)
        for array in arrays:
            np.frombuffer(view, array.dtype, array.size, at)[...] = array
            at += _aligned(array.nbytes)
        struct.pack_into("<Q", self._map, start + 8, len(text))
        # From here on the patch is made, whatever happens.
        struct.pack_into("<Q", self._map, start, self._sequence + 1)

    def _redo_sequence(self) -> int:
        """The number that the redo record makes; 0: there is none."""
        assert self._map is not None
        if len(self._map) < self._start(2) + _REDO.size:
            return 0
        return int(_REDO.unpack_from(self._map, self._start(2))[0])

    def _redo(self) -> None:
        """Copies the redo record to the area in use."""
        assert self._map is not None
        start, area = self._start(2), self._start(self._current)
        sequence, length = _REDO.unpack_from(self._map, start)
        at = start + _REDO.size
        (head_length,) = struct.unpack_from("<Q", self._map, at)
        head = json.loads(self._map[at + 8 : at + 8 + head_length])
        at += 8 + head_length
        text = self._map[at : at + length]
        at = start + _aligned(at + length - start)
        touched = Touched(head["width"], np.frombuffer(self._map, np.int64, head["rows"], at))
        at += _aligned(8 * head["rows"])
        target = area + _AREA.unpack_from(self._map, area)[2]
        for (code, size), given in zip(json.loads(text)["arrays"], head["sizes"], strict=True):
            dtype = np.dtype(code)
            place = np.frombuffer(self._map, dtype, size, target)
            touched.put(place, np.frombuffer(self._map, dtype, given, at))
            at += _aligned(given * dtype.itemsize)
            target += _aligned(size * dtype.itemsize)
        self._map[area + _AREA.size : area + _AREA.size + length] = text
        struct.pack_into("<Q", self._map, area + 8, length)
        struct.pack_into("<3Q", self._map, area + 24, 0, 0, 0)
        struct.pack_into("<Q", self._map, area, sequence)
        self._sequence = sequence

    # -- what was committed

    def read(self) -> tuple[dict[str, Any], list[Array]]:
        """The last committed record, arrays as copies.

        Raises:
            FormatError: not such a file, or a damaged one.
        """
        try:
            with open(self.path, "rb+") as file:
                self._map = mmap.mmap(file.fileno(), 0)
            magic, self._capacity = _HEAD.unpack_from(self._map, 0)
            if magic != MAGIC or len(self._map) < HEADER + 2 * self._capacity:
                raise FormatError(f"[ledger] expected a slice in {self.path}, got other bytes")
            self._current, self._sequence = self._latest()
            if self._redo_sequence() == self._sequence + 1:
                self._redo()
            return self._parse()
        except (OSError, ValueError, KeyError, TypeError, IndexError, struct.error) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"[ledger] expected a slice in {self.path}, got {error}") from None

    def _parse(self) -> tuple[dict[str, Any], list[Array]]:
        assert self._map is not None
        start = self._start(self._current)
        end = start + self._capacity
        _, length, begin, rounds, parts, workers = _AREA.unpack_from(self._map, start)
        at = start + _AREA.size
        content = json.loads(bytes(self._map[at : min(at + length, end)]))
        at = _steps_at(length)
        if at + workers * _STEPS.size > min(begin, self._capacity):
            raise FormatError(f"[ledger] expected steps of {workers} workers in {self.path}")
        pairs = self._map[start + at : start + at + workers * _STEPS.size]
        self.since = (rounds, parts, dict(_STEPS.iter_unpack(pairs)))
        at = start + begin
        arrays = []
        for code, size in content["arrays"]:
            dtype = np.dtype(code)
            if size < 0 or at + size * dtype.itemsize > end:
                raise FormatError(f"[ledger] expected {size} values in {self.path}, got fewer")
            arrays.append(np.frombuffer(self._map, dtype, size, at).copy())
            at += _aligned(size * dtype.itemsize)
        self._shapes = [(str(code), int(size)) for code, size in content["arrays"]]
        return content["record"], arrays


def _reserve(file: IO[bytes], size: int) -> None:
    """Makes a file so long, with room for all of it: a store to a mapping that finds none kills the
    process.

    Raises:
        FileError: there is no room; a file that was empty is removed.
    """
    empty = not os.fstat(file.fileno()).st_size
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
    except OSError as error:
        if empty:
            os.unlink(file.name)
        where = os.path.dirname(file.name)
        text = f"[ledger] expected room for {size} bytes in {where} (in Docker: --shm-size)"
        raise file_error(text, file.name, error) from None


def _text(record: dict[str, Any], shapes: Sequence[tuple[str, int]]) -> bytes:
    return json.dumps({"record": record, "arrays": shapes}).encode()


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _steps_at(length: int) -> int:
    """Where the steps of workers are in an area with so long a text."""
    return -(-(_AREA.size + length) // 8) * 8


def _begin(text: bytes) -> int:
    """Where the arrays of an area begin."""
    return _aligned(_AREA.size + len(text) + _SLACK)


def _fill(view: memoryview, start: int, text: bytes, arrays: list[Array]) -> None:
    """Writes an area but for its sequence number."""
    struct.pack_into("<5Q", view, start + 8, len(text), _begin(text), 0, 0, 0)
    view[start + _AREA.size : start + _AREA.size + len(text)] = text
    at = start + _begin(text)
    for array in arrays:
        target = np.frombuffer(view, array.dtype, array.size, at)
        target[...] = array.reshape(-1)
        at += _aligned(array.nbytes)
