"""Appending records, so that a crash leaves a file that can be continued.

Records are collected and handed to the system in pieces of a few hundred kilobytes: first their
lines go to the index, then the records to their file. So after a crash the record file ends with a
torn record at worst and each record in it has its line; lines of records that did not get there are
found and dropped when the file is opened for appending.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from ..errors import FileError, FormatError, ParamError
from ..files import file_error, lock, open_file, read_regular, same_file, unlock, write_atomically
from .framing import Buffer, TornRecordError, frame, scan, skip_record
from .index import index_line, parse_index
from .reader import RecordFile

#: Collected before a system call, which costs as much as copying many kilobytes.
_COLLECT_BYTES = 1 << 18


class TornRecordWarning(UserWarning):
    """What a crash left behind was cut off; the text names file, position and bytes."""


class DuplicateKeyWarning(UserWarning):
    """A key stands twice in an index or list, so that only its last record is found by it."""


class RecordWriter:
    """Writes records to the end of a file, and their lines to an index.

    Threads may share one: each record is whole. Of several writers of one file, in this process or
    another, only the first may append. A file that exists is replaced by a new one rather than
    emptied, so that readers that have it mapped go on with the old content.

    Args:
        path: record file.
        index: index file; None: none is written.
        append: continue both files.

    Attributes:
        position: byte at which the next record begins.

    Raises:
        FormatError: `append` to a file that is damaged before its end, or to an index that does
            not belong to it.
        ParamError: both names are one file.
        FileError: a file cannot be opened, or another writer has it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        index: str | os.PathLike[str] | None = None,
        append: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        self.index = None if index is None else os.fspath(index)
        if self.index is not None:
            check_apart(self.path, self.index)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._lines: BinaryIO | None = None
        self._file = _open(self.path, append)
        try:
            # Under the lock: another writer's records must not look like a torn end.
            self.position = repair(self.path, self.index) if append else 0
            self._lines = None if self.index is None else _open(self.index, append)
        except BaseException:
            self._file.close()
            raise
        self._pieces: list[Buffer] = []
        self._new_lines: list[bytes] = []
        self._waiting = 0

    def write(self, payload: Buffer, key: Any = None) -> int:
        """Appends one record; `flush` hands it to the system.

        Args:
            payload: below 2^29 bytes.
            key: its key in the index.

        Returns:
            Its position in bytes.

        Raises:
            ParamError: too long, no bytes, or a key that does not fit on a line.
            FileError: as `flush`.
        """
        payload = _flat(payload)
        pieces = frame(payload if isinstance(payload, bytes) else bytes(payload))
        length = sum(map(len, pieces))
        with self._lock:
            start = self.position
            if self._lines is not None:
                self._new_lines.append(index_line(key, start))
            self._pieces += pieces
            self._waiting += length
            self.position = start + length
            if self._waiting >= _COLLECT_BYTES:
                self.flush()
        return start

    def flush(self, to_disk: bool = False) -> None:
        """Hands what was collected to the system.

        Args:
            to_disk: also wait until the disk has it.

        Raises:
            FileError: the disk is full or the like. The files are as they were after the last
                flush; what was collected is kept for the next try.
        """
        if self._pid != os.getpid():  # a fork's copy belongs to the parent
            return
        with self._lock:
            if self._file.closed:
                raise FileError(f"[recordio] expected {self.path} open for writing, got it closed")
            self._flush(to_disk)

    def _flush(self, to_disk: bool) -> None:
        if self._pieces:
            lines_end = None
            if self._lines is not None:
                lines_end = _put(self._lines, self.index or "", self._new_lines)
            try:
                _put(self._file, self.path, self._pieces)
            except FileError:
                if self._lines is not None and lines_end is not None:
                    os.ftruncate(self._lines.fileno(), lines_end)
                raise
            self._pieces, self._new_lines, self._waiting = [], [], 0
        for file in (self._lines, self._file):
            if to_disk and file is not None:
                os.fsync(file.fileno())

    def close(self) -> None:
        """Flushes and closes the files; a second time does nothing.

        Raises:
            FileError: as `flush`; the files are closed all the same.
        """
        owner = self._pid == os.getpid()
        with self._lock if owner else contextlib.nullcontext():  # a fork may have left it taken
            try:
                if not self._file.closed:
                    self.flush()
            finally:
                for file in (self._file, self._lines):
                    if file is not None and not file.closed:
                        if owner:
                            unlock(file)
                        file.close()


def _put(file: BinaryIO, path: str, pieces: Sequence[Buffer]) -> int | None:
    """Writes all pieces or nothing; returns the size before, where the file is a plain one."""
    handle, content = file.fileno(), memoryview(b"".join(pieces))
    plain = os.path.isfile(path)
    before = os.fstat(handle).st_size if plain else None
    try:
        while len(content):
            content = content[os.write(handle, content) :]
    except OSError as error:
        if before is not None:
            os.ftruncate(handle, before)
        text = f"[recordio] expected to write {len(content)} bytes to {path}"
        raise file_error(text, path, error) from error
    return before


def _flat(payload: Buffer) -> Buffer:
    """Bytes, or a flat view of other memory."""
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        raise ParamError("[recordio] expected bytes to write, got a str; encode it")
    try:
        return memoryview(payload).cast("B")
    except TypeError as error:
        raise ParamError(
            f"[recordio] expected bytes to write, got {type(payload).__name__}: {error}"
        ) from None


def check_apart(path: str, index: str) -> None:
    """Raises ParamError where the records and their index would be one file, also by links."""
    if same_file(path, index):
        raise ParamError(
            f"[recordio] expected an index that is another file than the records, got {index} for "
            f"{path}; the records would be lost"
        )


def _open(path: str, append: bool) -> BinaryIO:
    """An unbuffered file at its end, for this writer alone; what is not continued is replaced."""
    target = os.path.realpath(path)
    if not append and os.path.isfile(target):
        # In a folder that may not change, the file is emptied instead.
        with contextlib.suppress(PermissionError):
            os.unlink(target)
    plain = os.path.isfile(target) or not os.path.exists(target)
    file = cast(BinaryIO, open_file(target, "recordio", "ab" if plain else "wb", buffering=0))
    if plain and not lock(file):
        file.close()
        raise FileError(
            f"[recordio] expected {path} without another writer, got one that has it open; close "
            "it before, or let threads share one writer"
        )
    if plain and not append:
        os.ftruncate(file.fileno(), 0)
    return file


class _Kept(NamedTuple):
    """What of an interrupted writer's files stays: the byte after it; and what is lost, if any."""

    end: int
    lost: str


def repair(path: str, index: str | None = None) -> int:
    """Cuts off what a crash left torn at the end of a record file and its index.

    Args:
        path: record file; a missing one counts as empty.
        index: index file, or None.

    Returns:
        Byte after the last record.

    Raises:
        FormatError: damage before the end, or an index that does not belong to the file.
    """
    if not Path(path).exists():
        return 0
    with RecordFile(path, np.empty(0, np.int64)) as file:
        size = file.nbytes
        kept = _kept(file.view, path) if index is None else _kept_by(file.view, path, index)
    if kept.lost:
        os.truncate(path, kept.end)
        warnings.warn(
            f"[recordio] expected whole records up to byte {size} of {path}, got {kept.lost} at "
            f"byte {kept.end}; cut off",
            TornRecordWarning,
            stacklevel=7,
        )
    return kept.end


def _kept(view: memoryview, path: str, start: int = 0) -> _Kept:
    found = scan(view, path, start)
    if found.error is not None and not isinstance(found.error, TornRecordError):
        raise found.error
    lost = f"{len(view) - found.end} bytes of a torn record" if found.error else ""
    return _Kept(found.end, lost)


def _kept_by(view: memoryview, path: str, index: str) -> _Kept:
    """The same for a file with an index, which is rewritten where lines must go."""
    hint = f"make it with `mixflow rec2idx {path} {index}`"
    if not Path(index).exists():
        if len(view):
            raise FormatError(f"[recordio] expected the index {index} of {path}, got none; {hint}")
        return _Kept(0, "")
    lines, positions, changed = _index_lines(view, path, index)
    order = sorted(range(len(positions)), key=positions.__getitem__)
    end, count = 0, len(order)
    while count and (after := _after(view, positions[order[count - 1]], path)) is None:
        count -= 1
    if count:
        end = int(after or 0)
    found = scan(view, path, end)
    if found.error is not None and not isinstance(found.error, TornRecordError):
        raise found.error
    if len(found.positions):
        raise FormatError(
            f"[recordio] expected a line in {index} for each record of {path}, got "
            f"{len(found.positions)} records without one from byte {end} on; {hint}"
        )
    if changed or count < len(lines):
        content = (lines[i] + b"\n" for i in sorted(order[:count]))
        write_atomically(index, b"".join(content))
    lost = f"{len(view) - end} bytes of a torn record" if len(view) > end else ""
    return _Kept(end, lost)


def _index_lines(view: memoryview, path: str, index: str) -> tuple[list[bytes], list[int], bool]:
    """Lines, positions, and whether the file must be written anew: its last line may be torn."""
    raw = read_regular(index, "recordio")
    whole, rest = raw[: raw.rfind(b"\n") + 1], raw[raw.rfind(b"\n") + 1 :]
    lines = [line for line in whole.split(b"\n") if line.strip()]
    positions = parse_index(whole, str, index)[1].tolist()
    if rest.strip():
        try:
            found = parse_index(rest, str, index)[1].tolist()
        except FormatError:
            found = []
        at = found[0] if found else -1  # white space alone has no number
        # A number that lost digits is smaller than the position before, or no record begins there.
        if at > max(positions, default=-1) and _after(view, at, path) is not None:
            lines.append(rest)
            positions.append(at)
    return lines, positions, bool(rest)


def _after(view: memoryview, at: int, path: str) -> int | None:
    """The byte after the record at a byte; None where a crash lost it.

    Raises:
        FormatError: something else stands there.
    """
    try:
        return skip_record(view, at, path) if at < len(view) else None
    except TornRecordError:
        return None
