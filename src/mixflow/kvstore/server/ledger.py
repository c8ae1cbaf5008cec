"""A shard's committed state in shared mappings: a restarted process goes on where it was.

Each slice has a file (`slice_file.py`) that is changed all or not at all. The files lie in memory
(`/dev/shm`) and outlive the process, not the machine: there are replicas and snapshots for that.

One process at a time: the folder holds a lock file, and a second owner is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import FileError, FormatError
from ...files import write_atomically
from ..protocol.messages import Array
from ..protocol.policy import Progress
from ..protocol.touched import Touched
from .slice_file import SliceFile


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
        record, arrays = _record(key, value, states, progress)
        self._files[key].write(record, arrays)

    def commit_rows(
        self,
        key: str,
        touched: Touched,
        value: Array,
        states: dict[str, Array],
        progress: Progress,
    ) -> bool:
        """Writes the rows that were touched; see `slots.Ledger`."""
        record, arrays = _record(key, value, states, progress)
        return key in self._files and self._files[key].patch(record, touched, arrays)

    def place(self, key: str, value: Array, states: Mapping[str, Array], workers: int = 0) -> Any:
        """See `slots.Ledger`: what `SliceFile.place` gives of the slice, if it was committed."""
        arrays = [value, *(states[name] for name in sorted(states))]
        return self._files[key].place(arrays, workers) if key in self._files else None

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
            rounds, parts, steps = file.since
            progress.went_on(rounds, parts, steps)
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


def _record(
    key: str, value: Array, states: dict[str, Array], progress: Progress
) -> tuple[dict[str, Any], list[Array]]:
    names = sorted(states)
    record = {"key": key, "states": names, "progress": progress.to_json()}
    return record, [value, *(states[name] for name in names)]


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

    def put_rows(
        self,
        origin: str,
        key: str,
        head: Mapping[str, Any],
        touched: Touched,
        values: Mapping[str, Array],
    ) -> bool:
        """Changes the rows of a record that were touched; see `replica.ReplicaStore`."""
        at, names = (origin, key), sorted(values)
        if at not in self._files:
            return False
        record = {"origin": origin, "key": key, "head": dict(head), "names": names}
        done = self._files[at].patch(record, touched, [values[name] for name in names])
        if done:
            self._heads[at] = dict(head)
        return done

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
