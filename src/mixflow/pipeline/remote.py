"""Sources behind addresses: any file system that fsspec knows (s3://, gs://, http://, memory://).

Hazard: a remote read is slow and may hang, and a shared file object is not thread-safe. So every
read is one range request of its own, and the index, not a scan, says where it lies.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import extras
from ..errors import FileError, FormatError
from ..recordio.framing import read_record
from .sources import Sample, from_record

Array = np.ndarray[Any, Any]


def is_address(path: str) -> bool:
    """Whether a path names a file system, such as 's3://bucket/file'."""
    return "://" in str(path)


class RemoteFile:
    """A file at an address, read by ranges. Thread-safe.

    Args:
        address: e.g. 's3://bucket/train.rec'; a plain path is a local file.

    Attributes:
        name: address.
        nbytes: size.

    Raises:
        MissingExtraError: no fsspec, or no package for this kind of address.
        FileError: no such file.
    """

    def __init__(self, address: str) -> None:
        fsspec = extras.load("fsspec", "remote data")
        self.name = address
        try:
            self._system, self._path = fsspec.core.url_to_fs(address)
            self.nbytes = int(self._system.size(self._path))
        except ImportError as error:
            raise extras.MissingExtraError(f"[remote data] expected {error}") from None
        except (OSError, ValueError, TypeError) as error:
            raise FileError(f"[remote data] expected a file at {address}, got: {error}") from None

    def read(self, start: int, end: int) -> bytes:
        """The bytes of a range.

        Raises:
            FileError: it cannot be read, or is shorter than asked for.
        """
        try:
            found: bytes = self._system.cat_file(self._path, start, end)
        except OSError as error:
            raise FileError(
                f"[remote data] expected to read {self.name} from {start} to {end}, got: {error}"
            ) from None
        if len(found) != end - start:
            raise FileError(
                f"[remote data] expected {end - start} bytes of {self.name} at {start}, got "
                f"{len(found)}"
            )
        return found


def _positions(file: RemoteFile, index: str) -> Array:
    """First byte of each record, by an .idx file of lines 'key position'."""
    listed = RemoteFile(index)
    try:
        lines = listed.read(0, listed.nbytes).decode().splitlines()
        found = np.array([int(line.split("\t")[1]) for line in lines if line], np.int64)
    except (ValueError, IndexError, UnicodeDecodeError):
        raise FormatError(f"[recordio] expected lines 'key, position' in {index}") from None
    if found.size and (found.min() < 0 or found.max() > file.nbytes - 8):
        raise FormatError(
            f"[recordio] expected positions inside of the {file.nbytes} bytes of {file.name}, got "
            f"{found.min()} to {found.max()} in {index}"
        )
    return found


class RemoteRecordSource:
    """Image records of a record file at an address; one range request per record.

    Args:
        path: address of the record file.
        index: address of its index; None: the path with the ending .idx.
        labels: id of the image -> labels, in place of those in the records.

    Raises:
        FileError, FormatError: a missing or damaged file.
    """

    def __init__(
        self, path: str, index: str | None = None, labels: Mapping[int, Array] | None = None
    ) -> None:
        self.name = path
        self._file = RemoteFile(path)
        self._at = _positions(self._file, index or path.rsplit(".", 1)[0] + ".idx")
        # A record ends where the next one of the file begins.
        ordered = np.sort(self._at)
        ends = np.append(ordered[1:], self._file.nbytes)
        self._ends = ends[np.searchsorted(ordered, self._at)]
        self._labels = labels

    def __len__(self) -> int:
        """Number of records."""
        return len(self._at)

    def __getitem__(self, number: int) -> Sample:
        """The record of a number."""
        data = self._file.read(int(self._at[number]), int(self._ends[number]))
        try:
            record, _ = read_record(memoryview(data), 0, self.name)
        except struct.error:
            raise FormatError(f"[recordio] expected a record in {self.name}, got less") from None
        return from_record(record, self._labels, self.name)

    def sizes(self) -> Array:
        """(records,) int64: bytes of each, framing included."""
        sizes: Array = self._ends - self._at
        return sizes

    def close(self) -> None:
        """Nothing stays open."""
