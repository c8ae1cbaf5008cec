"""A shard's committed state in shared mappings: a restarted process goes on where it was.

The hazard is a process that dies while it writes. Each slice has a file with two areas: a commit
writes the area that is not in use and then its sequence number, one aligned store of 8 bytes; the
area with the higher number counts. The files lie in memory (`/dev/shm`) and outlive the process,
not the machine: against that there are replicas and snapshots.

One process at a time: the folder holds a lock file, and a second owner is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileError, FormatError
from ..files import write_atomically
from .messages import Array
from .policy import Progress

MAGIC = b"MIXFLED2"
HEADER = 4096
_HEAD = struct.Struct("<8sQ")  # magic, bytes of an area
#: Sequence, bytes of the JSON text, and what was closed since the text was written: rounds, parts.
_AREA = struct.Struct("<4Q")
_ALIGN = 64


class SliceFile:
    """One slice's two areas in a mapping."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._capacity = 0
        self._sequence = 0
        self._current = 1
        self._text = b""
        self._placed = False
        #: Rounds and parts that were closed since the record's text was written.
        self.since = (0, 0)

    def write(self, record: dict[str, Any], arrays: list[Array]) -> None:
        """Commits a record: plain values and arrays."""
        shapes = [(a.dtype.str, a.size) for a in arrays]
        text = json.dumps({"record": record, "arrays": shapes}).encode()
        need = _aligned(_AREA.size + len(text)) + sum(_aligned(a.nbytes) for a in arrays)
        self._text = text
        if self._placed:
            self._follow()
        if need > self._capacity:
            self._grow(need, text, arrays)
            return
        assert self._map is not None
        target = 1 - self._current
        _fill(memoryview(self._map), self._start(target), text, arrays)
        self._sequence += 1
        struct.pack_into("<Q", self._map, self._start(target), self._sequence)
        self._current = target

    def place(self) -> tuple[int, int, int, int, int, bytes]:
        """Where more values of the record last written may be committed, natively and by rounds
        only: addresses of both areas, the one that counts, its sequence number, where the value
        begins, and the text. The next `write` goes on from what was committed there."""
        assert self._map is not None
        self._placed = True
        address = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]
        first, second = (address + self._start(area) for area in (0, 1))
        value_at = _aligned(_AREA.size + len(self._text))
        return first, second, self._current, self._sequence, value_at, self._text

    def _follow(self) -> None:
        """Takes notice of what was committed natively."""
        self._placed = False
        self._current, self._sequence = self._latest()

    def _latest(self) -> tuple[int, int]:
        """The area that counts, and its sequence number."""
        assert self._map is not None
        heads = [_AREA.unpack_from(self._map, self._start(area)) for area in (0, 1)]
        current = int(heads[1][0] > heads[0][0])
        return current, heads[current][0]

    def _start(self, area: int) -> int:
        return HEADER + area * self._capacity

    def _grow(self, need: int, text: bytes, arrays: list[Array]) -> None:
        """A larger file in the place of the old one, with this commit in it."""
        capacity = _aligned(need + need // 4 + 1024)
        fresh = self.path.with_suffix(".new")
        with open(fresh, "wb+") as file:
            file.truncate(HEADER + 2 * capacity)
            made = mmap.mmap(file.fileno(), 0)
        self._sequence += 1
        _HEAD.pack_into(made, 0, MAGIC, capacity)
        _fill(memoryview(made), HEADER, text, arrays)
        struct.pack_into("<Q", made, HEADER, self._sequence)
        os.replace(fresh, self.path)
        self._map, self._capacity, self._current = made, capacity, 0

    def read(self) -> tuple[dict[str, Any], list[Array]]:
        """The last committed record, arrays as copies.

        Raises:
            FormatError: not such a file, or a damaged one.
        """
        try:
            with open(self.path, "rb+") as file:
                self._map = mmap.mmap(file.fileno(), 0)
            magic, self._capacity = _HEAD.unpack_from(self._map, 0)
            if magic != MAGIC or len(self._map) != HEADER + 2 * self._capacity:
                raise FormatError(f"[ledger] expected a slice in {self.path}, got other bytes")
            self._current, self._sequence = self._latest()
            head = _AREA.unpack_from(self._map, self._start(self._current))
            self.since = (head[2], head[3])
            return self._parse(head[1])
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"[ledger] expected a slice in {self.path}, got {error}") from None

    def _parse(self, length: int) -> tuple[dict[str, Any], list[Array]]:
        assert self._map is not None
        start = self._start(self._current)
        end = start + self._capacity
        at = start + _AREA.size
        content = json.loads(bytes(self._map[at : min(at + length, end)]))
        at = start + _aligned(_AREA.size + length)
        arrays = []
        for code, size in content["arrays"]:
            dtype = np.dtype(code)
            if size < 0 or at + size * dtype.itemsize > end:
                raise FormatError(f"[ledger] expected {size} values in {self.path}, got fewer")
            arrays.append(np.frombuffer(self._map, dtype, size, at).copy())
            at += _aligned(size * dtype.itemsize)
        return content["record"], arrays


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _fill(view: memoryview, start: int, text: bytes, arrays: list[Array]) -> None:
    """Writes an area but for its sequence number."""
    struct.pack_into("<3Q", view, start + 8, len(text), 0, 0)
    view[start + _AREA.size : start + _AREA.size + len(text)] = text
    at = start + _aligned(_AREA.size + len(text))
    for array in arrays:
        target = np.frombuffer(view, array.dtype, array.size, at)
        target[...] = array.reshape(-1)
        at += _aligned(array.nbytes)


class SharedLedger:
    """A ledger in a folder, normally under `/dev/shm`.

    Args:
        folder: made if missing; what an earlier process left there is taken over.

    Raises:
        FileError: another live process owns the folder.
    """

    durable = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise FileError(
                f"[ledger] expected {self.folder} to be free, got another process that owns it"
            ) from None
        self._files: dict[str, SliceFile] = {}

    def commit(self, key: str, value: Array, states: dict[str, Array], progress: Progress) -> None:
        """Makes a slice's state the durable one."""
        if key not in self._files:
            self._files[key] = SliceFile(self._path(key))
        names = sorted(states)
        record = {"key": key, "states": names, "progress": progress.to_json()}
        self._files[key].write(record, [value, *(states[name] for name in names)])

    def place(self, key: str) -> Any:
        """See `slots.Ledger`: what `SliceFile.place` gives of the slice, if it was committed."""
        return self._files[key].place() if key in self._files else None

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.slice"

    def commit_roster(self, roster: dict[str, Any]) -> None:
        """Makes membership, settings and directory the durable ones."""
        write_atomically(self.folder / "roster.json", json.dumps(roster).encode())

    def slices(self) -> Iterable[tuple[str, Array, dict[str, Array], Progress]]:
        """What was committed.

        Raises:
            FormatError: a damaged file.
        """
        for path in sorted(self.folder.glob("*.slice")):
            file = SliceFile(path)
            record, (value, *states) = file.read()
            self._files[record["key"]] = file
            kept = dict(zip(record["states"], states, strict=True))
            progress = Progress.from_json(record["progress"])
            progress.version += file.since[0]
            progress.applied += file.since[1]
            yield record["key"], value, kept, progress

    def roster(self) -> dict[str, Any] | None:
        """What was committed, or None.

        Raises:
            FormatError: a damaged file.
        """
        path = self.folder / "roster.json"
        if not path.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
        except ValueError as error:
            raise FormatError(f"[ledger] expected JSON in {path}, got {error}") from None
        return found

    def close(self) -> None:
        """Gives the folder up."""
        os.close(self._lock)


class SharedReplicas:
    """Records of other shards (see `replica.ReplicaStore`) in a folder, beside a ledger.

    Args:
        folder: made if missing; what an earlier process left there is taken over.

    Raises:
        FormatError: a damaged file.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[tuple[str, str], SliceFile] = {}
        self._heads: dict[tuple[str, str], dict[str, Any]] = {}
        for path in sorted(self.folder.glob("*.slice")):
            file = SliceFile(path)
            record, _ = file.read()
            at = (str(record["origin"]), str(record["key"]))
            self._files[at], self._heads[at] = file, record["head"]

    def put(
        self, origin: str, key: str, head: Mapping[str, Any], values: Mapping[str, Array]
    ) -> None:
        """Keeps a record, in place of an older one of the key."""
        at = (origin, key)
        if at not in self._files:
            name = hashlib.blake2b(f"{origin}\0{key}".encode(), digest_size=16).hexdigest()
            self._files[at] = SliceFile(self.folder / f"{name}.slice")
        names = sorted(values)
        record = {"origin": origin, "key": key, "head": dict(head), "names": names}
        self._files[at].write(record, [values[name] for name in names])
        self._heads[at] = dict(head)

    def head(self, origin: str, key: str) -> dict[str, Any] | None:
        """A record's plain values, or None."""
        return self._heads.get((origin, key))

    def get(self, origin: str, key: str) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """A record, or None.

        Raises:
            FormatError: a damaged file.
        """
        if (origin, key) not in self._files:
            return None
        record, arrays = self._files[origin, key].read()
        return record["head"], dict(zip(record["names"], arrays, strict=True))

    def keys(self, origin: str) -> list[str]:
        """Keys of a shard's records."""
        return sorted(key for owner, key in self._heads if owner == origin)
