"""Appending records: each is with the system when the call returns, and a crash leaves a file that
can be continued.

A record goes to the file in one system call, then its line goes to the index. So after a crash of
the process at most one record is torn or lacks its line; both are found and dropped when the file
is opened for appending.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..errors import FileError, FormatError, ParamError
from ..files import write_atomically
from .framing import Buffer, TornRecordError, frame, scan, skip_record
from .index import index_line, parse_index
from .reader import RecordFile


class TornRecordWarning(UserWarning):
    """What a crash left behind was cut off; the text names file, position and bytes."""


class RecordWriter:
    """Writes records to the end of a file, and their lines to an index.

    For one thread of one process at a time. A file that exists is replaced by a new one rather than
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
        OSError: a file cannot be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        index: str | os.PathLike[str] | None = None,
        append: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        self.index = None if index is None else os.fspath(index)
        self.position = repair(self.path, self.index) if append else 0
        self._file = _open(self.path, append)
        self._lines = None if self.index is None else _open(self.index, append)

    def write(self, payload: Buffer, key: Any = None) -> int:
        """Appends one record.

        Args:
            payload: below 2^29 bytes.
            key: its key in the index.

        Returns:
            Its position in bytes.

        Raises:
            ParamError: too long, no bytes, or a key that does not fit on a line.
            FileError: the disk is full or the like; the file ends after the record before.
        """
        if isinstance(payload, str):
            raise ParamError("[recordio] expected bytes to write, got a str; encode it")
        line = b"" if self._lines is None else index_line(key, self.position)
        pieces = frame(_flat(payload))
        start = self.position
        self._put(self._file, self.path, pieces, start)
        if self._lines is not None:
            try:
                self._put(self._lines, str(self.index), [line], None)
            except FileError:
                os.ftruncate(self._file.fileno(), start)
                raise
        self.position = start + sum(len(piece) for piece in pieces)
        return start

    def _put(self, file: BinaryIO, path: str, pieces: Sequence[Buffer], start: int | None) -> None:
        """Writes all pieces or nothing."""
        handle, total = file.fileno(), sum(len(piece) for piece in pieces)
        before = os.fstat(handle).st_size if start is None else start
        try:
            done = os.writev(handle, pieces)
            if done < total:
                _write_rest(handle, b"".join(pieces)[done:])
        except OSError as error:
            if Path(path).is_file():
                os.ftruncate(handle, before)
            reason = error.strerror or str(error)
            found = FileError(
                f"[recordio] expected to write {total} bytes to {path}, got: {reason}"
            )
            found.errno, found.strerror, found.filename = error.errno, error.strerror, path
            raise found from error

    def flush(self) -> None:
        """Waits until the disk has everything."""
        for file in (self._file, self._lines):
            if file is not None:
                os.fsync(file.fileno())

    def close(self) -> None:
        """Closes the files; a second time does nothing."""
        self._file.close()
        if self._lines is not None:
            self._lines.close()


def _flat(payload: Buffer) -> Buffer:
    """Bytes, or a flat view of other memory."""
    if isinstance(payload, bytes):
        return payload
    try:
        return memoryview(payload).cast("B")
    except TypeError as error:
        raise ParamError(
            f"[recordio] expected bytes to write, got {type(payload).__name__}: {error}"
        ) from None


def _write_rest(handle: int, rest: bytes) -> None:
    view = memoryview(rest)
    while len(view):
        view = view[os.write(handle, view) :]


def _open(path: str, append: bool) -> BinaryIO:
    """An unbuffered file at its end; a plain file that is not continued is replaced."""
    target = os.path.realpath(path)
    if not append and os.path.isfile(target):
        # In a folder that may not change, the file is emptied instead.
        with contextlib.suppress(PermissionError):
            os.unlink(target)
    return open(target, "ab" if append else "wb", buffering=0)


class _Kept(NamedTuple):
    """What of an interrupted writer's files stays: the byte after it; and what is lost, if any."""

    end: int
    lost: str


def repair(path: str, index: str | None = None) -> int:
    """Cuts off what a crash left torn at the end of a record file and its index.

    A record without a line in the index counts as torn: its writer was not told that it is there.

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
            stacklevel=5,
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
    if len(found.positions) > 1:
        raise FormatError(
            f"[recordio] expected all records of {path} in the index {index}, got "
            f"{len(found.positions)} without a line after byte {end}; {hint}"
        )
    if changed or count < len(lines):
        content = (lines[i] + b"\n" for i in sorted(order[:count]))
        write_atomically(index, b"".join(content))
    lost = f"{len(view) - end} bytes that are torn or not in the index" if len(view) > end else ""
    return _Kept(end, lost)


def _index_lines(view: memoryview, path: str, index: str) -> tuple[list[bytes], list[int], bool]:
    """Lines, positions, and whether the file must be written anew: its last line may be torn."""
    raw = Path(index).read_bytes()
    whole, rest = raw[: raw.rfind(b"\n") + 1], raw[raw.rfind(b"\n") + 1 :]
    lines = [line for line in whole.split(b"\n") if line.strip()]
    positions = parse_index(whole, str, index)[1].tolist()
    if rest.strip():
        try:
            at = int(parse_index(rest, str, index)[1][0])
        except FormatError:
            at = -1
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
