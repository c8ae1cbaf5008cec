"""Snapshots of a job: what its servers and workers keep, as files to start again from.

The hazard: a state that never was. Slices change one by one, so a copy of all of them at a moment
of the clock mixes versions. Where pushes form rounds, a snapshot has a **number**: it holds every
slice as it was when its version became that number, and each worker's state as it was after that
many of its steps, whenever each of them came to it. Where they do not (`Async`, `Bounded`), each
slice is copied as it stands when its shard hears of the snapshot: whole by itself, with the parts
that it holds, so that a resumed job still counts each part once.

A snapshot is a folder of plain files: arrays as `.npy` (never pickled), JSON for the rest, a
worker's tensors as `.params`. Every file is written under a temporary name and renamed; the
snapshot exists when its `snapshot.json` does, which is written last, when all else is on disk. A
folder of snapshots is one job's at a time.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ... import ndarray as nd
from ...errors import FileError, FormatError, MixflowError, ParamError
from ...files import file_error, flush_folder, lock, open_file, unlock, write_atomically
from ..protocol.messages import Array
from ..protocol.policy import Progress
from ..protocol.program import without_code
from ..protocol.sharding import BIG_ARRAY, Directory, Entry, Slice
from .slots import Slot
from .states import cut, join

INDEX = "snapshot.json"
VERSION = 1
#: Captures of a shard that may wait for others at a time; older ones are given up.
OPEN_CAPTURES = 2


class Record(NamedTuple):
    """A slice in a snapshot: value, optimizer states by name, progress as JSON values."""

    value: Array
    states: dict[str, Array]
    progress: dict[str, Any]


@dataclass
class Captured:
    """What a shard gives to a snapshot."""

    number: int
    slices: dict[str, Record] = field(default_factory=dict)
    roster: dict[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """What is copied: a `server.Shard`."""

    @property
    def slots(self) -> Mapping[str, Slot]:
        """Its slices."""

    def states(self, key: str) -> dict[str, Array]:
        """Optimizer states of a slice."""

    def roster(self) -> dict[str, Any]:
        """Membership, settings and directory."""


class Capture:
    """Copies a shard's slices when they come to the number of a snapshot. Pure logic.

    Args:
        rounds: whether slices count rounds; else a mark is answered at once.
        every: versions between snapshots (0: only those that are marked).
    """

    def __init__(self, rounds: bool, every: int = 0) -> None:
        self.rounds = rounds
        self.every = every
        #: Marks that have come (from any thread), and what is ready to be written.
        self.wanted: deque[int] = deque()
        self.done: deque[Captured] = deque()
        #: Numbers that a slice had passed before they were marked.
        self.late: set[int] = set()
        self._marks: set[int] = set()
        self._taken: set[int] = set()
        self._open: dict[int, Captured] = {}
        self._highest = 0

    @property
    def quiet(self) -> bool:
        """Whether no version is waited for."""
        return not (self.every or self._marks or self._open or self.wanted)

    def mark(self, number: int, shard: Source) -> None:
        """A snapshot of this number is wanted; it is said again until all have saved it."""
        if number in self._marks or number in self._taken or number in self.late:
            return
        if not self.rounds:
            self._taken.add(number)
            captured = Captured(number, roster=shard.roster())
            for key in shard.slots:
                captured.slices[key] = _record(shard, key)
            self.done.append(captured)
        elif any(slot.progress.version >= number for slot in shard.slots.values()):
            self.late.add(number)
        else:
            self._marks.add(number)

    def see(self, key: str, shard: Source) -> None:
        """A slice has a new version."""
        progress = shard.slots[key].progress
        version = progress.version
        if not self.rounds:
            workers = max(1, len(progress.clocks))
            if self.every and version // workers // self.every > self._highest:
                self._highest = version // workers // self.every
                self.mark(self._highest * self.every, shard)
            return
        # Version 0 is where a slice begins, no step of anybody.
        periodic = self.every and version and version % self.every == 0
        if version in self._marks or periodic:
            found = self._open.setdefault(version, Captured(version, roster=shard.roster()))
            found.slices[key] = _record(shard, key)
        for number, captured in list(self._open.items()):
            self._close(number, captured, version, shard)
        for number in sorted(self._open)[:-OPEN_CAPTURES]:
            del self._open[number]  # slices that are not pushed once a step never meet

    def passed(self, version: int) -> None:
        """All slices have come to a version at once: marks that they have leapt over are late."""
        leapt = {n for n in self._marks if self.rounds and n < version and n not in self._open}
        self._marks -= leapt
        self.late |= leapt

    def _close(self, number: int, captured: Captured, version: int, shard: Source) -> None:
        """Ends a capture that has every slice. Slices that nobody ever pushes stay at version 0;
        that they do is known once another has left the number behind."""
        slots = shard.slots
        missing = [key for key in slots if key not in captured.slices]
        idle = all(not slots[k].progress.version and not slots[k].progress.rounds for k in missing)
        if missing and not (idle and version > number):
            return
        for key in missing:
            captured.slices[key] = _record(shard, key)
        del self._open[number]
        self._marks.discard(number)
        self._taken.add(number)
        self.done.append(captured)


def _record(shard: Source, key: str) -> Record:
    slot = shard.slots[key]
    copied = {name: np.array(state, copy=True) for name, state in shard.states(key).items()}
    return Record(slot.value.copy(), copied, slot.progress.to_json())


def folder_of(place: str | Path, number: int) -> Path:
    """Folder of a snapshot."""
    return Path(place) / f"snapshot-{number:010d}"


def write_shard(folder: Path, server: str, captured: Captured) -> None:
    """Writes a shard's part.

    Raises:
        FileError: the folder is not writable.
    """
    _make(folder / server)
    slices: list[dict[str, Any]] = []
    for key, record in sorted(captured.slices.items()):
        arrays = {"": record.value, **record.states}
        files = {
            name: _write_array(folder, f"{server}/{len(slices):06d}.{name or 'value'}.npy", array)
            for name, array in arrays.items()
        }
        slices.append({"name": key, "progress": record.progress, "arrays": files})
    # Files outlive the job: no code of its program may stand in them.
    roster = dict(captured.roster)
    if "settings" in roster:
        roster["settings"] = without_code(roster["settings"])
    text = {"version": VERSION, "slices": slices, "roster": roster}
    write_atomically(folder / f"{server}.json", json.dumps(text).encode())
    _flush(folder / server, folder)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"[snapshot] expected to make {folder}, got: {error.strerror}") from None


def _flush(*folders: Path) -> None:
    """What was written and renamed there outlives a loss of power."""
    for folder in folders:
        flush_folder(folder)


@contextlib.contextmanager
def held(place: str | Path) -> Iterator[None]:
    """Scope in which no other job writes snapshots to a folder.

    Raises:
        ParamError: another job does.
        FileError: it can't be made.
    """
    _make(Path(place))
    with open_file(Path(place) / "lock", "snapshot", "ab") as file:
        if not lock(file):
            raise ParamError(
                f"[snapshot] expected a folder for this job alone, got {place}, which another "
                "writes to"
            )
        try:
            yield
        finally:
            unlock(file)


@contextlib.contextmanager
def optional(number: int) -> Iterator[None]:
    """Scope of what a snapshot needs and a job does not: where a disk is full it is said, and the
    job goes on with the snapshot before."""
    try:
        yield
    except FileError as error:
        print(f"mixflow: snapshot {number} is not kept: {error}", file=sys.stderr, flush=True)


def _write_array(folder: Path, name: str, array: Array) -> dict[str, Any]:
    flat = np.ascontiguousarray(array).reshape(-1)
    head = {"descr": flat.dtype.str, "fortran_order": False, "shape": flat.shape}
    write_atomically(folder / name, [_npy_head(head), flat.view(np.uint8).tobytes()])
    crc = zlib.crc32(flat.view(np.uint8).data)
    return {"file": name, "dtype": flat.dtype.str, "size": flat.size, "crc": crc}


def _npy_head(head: Mapping[str, Any]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, dict(head))
    return stream.getvalue()


def write_worker(folder: Path, rank: int, state: Mapping[str, Any]) -> None:
    """Writes a worker's part: plain values (data position, random state), and under 'arrays' its
    own tensors by name.

    Raises:
        FileError: the folder is not writable.
    """
    _make(folder)
    plain = dict(state)
    arrays = plain.pop("arrays", {})
    if arrays:
        nd.save(str(folder / f"worker{rank}.params"), arrays)
    text = json.dumps({"version": VERSION, "state": plain, "arrays": sorted(arrays)})
    write_atomically(folder / f"worker{rank}.json", text.encode())
    _flush(folder)


def write_index(folder: Path, index: Mapping[str, Any]) -> None:
    """Makes a snapshot exist: all its parts are there.

    Args:
        index: number, servers (names), workers (ranks with a state), num_workers, policy.
    """
    text = json.dumps({"version": VERSION, **index}, indent=1)
    _flush(folder.parent)
    write_atomically(folder / INDEX, text.encode())
    _flush(folder)


def complete(place: str | Path) -> list[tuple[int, Path]]:
    """Snapshots in a folder, oldest first: number and folder."""
    found = []
    for index in Path(place).glob(f"snapshot-*/{INDEX}"):
        text = index.parent.name.removeprefix("snapshot-")
        if text.isdigit():
            found.append((int(text), index.parent))
    return sorted(found)


def forget_after(place: str | Path, number: int) -> None:
    """Removes what a timeline that is given up has left: snapshots past `number`, whole or not.

    Raises:
        FileError: the folder is not writable.
    """
    for folder in Path(place).glob("snapshot-*"):
        text = folder.name.removeprefix("snapshot-")
        if text.isdigit() and int(text) > number:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Removes a snapshot: its index first, since a part of one is none."""
    try:
        (folder / INDEX).unlink(missing_ok=True)
    except OSError as error:
        raise file_error(f"[snapshot] expected to remove {folder}", str(folder), error) from None
    shutil.rmtree(folder, ignore_errors=True)


def prune(place: str | Path, keep: int) -> None:
    """Removes all but the newest `keep` snapshots, and unfinished ones that are older.

    Raises:
        FileError: the folder is not writable.
    """
    kept = complete(place)[-keep:]
    if not kept:
        return
    for folder in Path(place).glob("snapshot-*"):
        text = folder.name.removeprefix("snapshot-")
        if text.isdigit() and int(text) < kept[0][0]:
            _remove(folder)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict) or found["version"] != VERSION:
            raise FormatError(f"[snapshot] expected version {VERSION} in {path}, got another")
        return found
    except FormatError:
        raise
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise FormatError(
            f"[snapshot] expected a part of a snapshot in {path}, got {error!r}"
        ) from None


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Scope in which texts of a snapshot are used that may be damaged, or of somebody else."""
    try:
        yield
    except MixflowError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(f"[snapshot] expected a snapshot in {folder}, got {error!r}") from None


class Snapshot:
    """A snapshot on disk.

    Raises:
        FormatError: not one, or damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.index = _read_json(self.folder / INDEX)
        with _reading(self.folder):
            self.number = int(self.index["number"])
            self.num_workers = int(self.index["num_workers"])
            self.policy = str(self.index["policy"])
            self.servers = [str(name) for name in self.index["servers"]]
            self.workers = [int(rank) for rank in self.index["workers"]]
        self._parts = {name: _read_json(self.folder / f"{name}.json") for name in self.servers}

    @property
    def settings(self) -> list[Any]:
        """What the workers had set: the optimizer and the like."""
        with _reading(self.folder):
            return list(self._roster()["settings"])

    def _roster(self) -> dict[str, Any]:
        for part in self._parts.values():
            if part["roster"].get("directory") is not None:
                found: dict[str, Any] = part["roster"]
                return found
        raise FormatError(f"[snapshot] expected a directory of keys in {self.folder}, got none")

    def entries(self) -> dict[str, Entry]:
        """Every key as it was cut."""
        with _reading(self.folder):
            return {k: Entry.from_json(v) for k, v in self._roster()["directory"].items()}

    def worker(self, rank: int) -> dict[str, Any] | None:
        """What a worker has saved, or None."""
        if rank not in self.workers:
            return None
        part = _read_json(self.folder / f"worker{rank}.json")
        with _reading(self.folder):
            arrays = nd.load(str(self.folder / f"worker{rank}.params")) if part["arrays"] else {}
            return {**part["state"], "arrays": arrays}

    def check(self) -> None:
        """Reads all of it.

        Raises:
            FormatError: a part is damaged, or is not there.
        """
        with _reading(self.folder):
            for piece in self._slices().values():
                for described in piece["arrays"].values():
                    self._checked(described)
            self.entries()
        for rank in self.workers:
            self.worker(rank)

    def _slices(self) -> dict[str, dict[str, Any]]:
        return {piece["name"]: piece for part in self._parts.values() for piece in part["slices"]}

    def _checked(self, described: Mapping[str, Any]) -> Array:
        """One array as it lies in its file, checked against what the index says of it."""
        name = Path(str(described["file"]))
        path = self.folder / name
        if name.is_absolute() or ".." in name.parts:
            raise FormatError(f"[snapshot] expected files below {self.folder}, got {path}")
        try:
            found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise FormatError(f"[snapshot] expected an array in {path}, got {error}") from None
        good = found.dtype.str == described["dtype"] and found.shape == (described["size"],)
        if not good or zlib.crc32(found.view(np.uint8).data) != described["crc"]:
            raise FormatError(f"[snapshot] expected the array of the index in {path}, got another")
        return found

    def record(self, described: Mapping[str, Any]) -> Record:
        """A slice as it was saved.

        Raises:
            FormatError: damaged.
        """
        with _reading(self.folder):
            files = described["arrays"].items()
            arrays = {str(name): np.array(self._checked(file)) for name, file in files}
            progress = dict(described["progress"])
            Progress.from_json(progress)  # is one
            return Record(arrays.pop(""), arrays, progress)

    def shard(
        self, number: int, servers: int, rounds: bool, bound: int = BIG_ARRAY
    ) -> tuple[Directory, Iterator[tuple[str, Record]]]:
        """The part of server `number` of `servers` (any number), and where all keys live then.

        Under rounds keys are cut anew. Else slices stay as they were cut, as each has its own
        progress, and only move.

        Raises:
            FormatError: damaged.
        """
        directory, known = Directory(servers, bound), self.entries()
        with _reading(self.folder):
            sizes = {k: (e.size, e.dtype, np.dtype(e.dtype).itemsize) for k, e in known.items()}
            if rounds:
                directory.place(sizes)
            else:
                directory.move(known)
        return directory, self._cut_anew(directory, number)

    def _cut_anew(self, directory: Directory, number: int) -> Iterator[tuple[str, Record]]:
        with _reading(self.folder):
            old, described = self.entries(), self._slices()
            for key, entry in directory.entries.items():
                mine = [piece for piece in entry.slices if piece.server == number]
                if mine:
                    yield from self._cut_key(old[key], entry, mine, described)

    def _cut_key(
        self, old: Entry, entry: Entry, mine: Sequence[Slice], described: Mapping[str, Any]
    ) -> Iterator[tuple[str, Record]]:
        """Slices of a key as it is cut now, of those as it was."""
        records = {p.name: self.record(described[p.name]) for p in old.slices}
        if [p[2:] for p in old.slices] == [p[2:] for p in entry.slices]:
            yield from ((piece.name, records[piece.name]) for piece in mine)
            return
        value = np.concatenate([records[p.name].value for p in old.slices])
        states = cut(entry, join(old, {name: r.states for name, r in records.items()}))
        progress = next(iter(records.values())).progress
        for piece in mine:
            part = value[piece.begin : piece.end].copy()
            yield piece.name, Record(part, states.get(piece.name, {}), progress)


def progress_at(record: Record, number: int, rounds: bool) -> Progress:
    """The progress with which a slice of snapshot `number` starts again."""
    found = Progress.from_json(record.progress)
    if rounds:
        # Idle slices have version 0; workers start with step `number` everywhere.
        found.version, found.clocks, found.ahead = number, {}, {}
    return found


def newest(place: str | Path) -> Snapshot | None:
    """The newest snapshot that is whole; damaged ones are passed over.

    Raises:
        FormatError: there are some, but all are damaged.
    """
    errors = []
    for _, folder in reversed(complete(place)):
        try:
            found = Snapshot(folder)
            found.check()
            return found
        except FormatError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return None
