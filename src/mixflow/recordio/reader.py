"""Reading of record files through a mapping: any record at any time, from any thread, no copy."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..arguments import checked
from ..arguments import path as name_of_file
from ..errors import FormatError, MixflowError, ParamError, UnknownNameError
from ..files import open_regular
from .framing import HEAD_BYTES, LENGTH_MASK, MAGIC, Buffer, read_record, scan
from .index import read_index

Array = np.ndarray[Any, Any]


class RecordFile:
    """The records of one file, by number.

    Nothing changes after it is opened, so that threads may share one; forked processes may too. A
    record is a read-only view of the mapped file and stays valid after `close`. The file must not
    be shortened meanwhile: touching the lost part ends the process (SIGBUS). mixflow's writers
    replace files instead.

    Args:
        path: record file.
        index: its .idx file; an array of positions (bytes); or None: the heads of all records are
            read once, when the first record is asked for by number.

    Attributes:
        path: as given.
        nbytes: size of the file.

    Raises:
        FormatError: no regular file, or a damaged index.
        FileError: it cannot be opened.
        ParamError: positions that are none.
    """

    @checked(path=name_of_file)
    def __init__(
        self, path: str | os.PathLike[str], index: str | os.PathLike[str] | Array | None = None
    ) -> None:
        self.path = os.fspath(path)
        self._index = index
        self._positions: Array | None = None
        self._keys: Sequence[Any] | None = None
        self._rows: dict[Any, int] | None = None
        if isinstance(index, (str, os.PathLike)):
            keys, self._positions = read_index(index)
            self._keys = keys
        elif index is not None:
            self._positions = _whole_numbers(index)
        self._map()

    def _map(self) -> None:
        self._mapping: mmap.mmap | None = None
        with open_regular(self.path, "recordio") as file:
            if os.fstat(file.fileno()).st_size:
                try:
                    self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except OSError as error:
                    raise _unmappable(self.path, error) from error
        self.view = memoryview(self._mapping or b"")
        self.nbytes = len(self.view)

    @property
    def positions(self) -> Array:
        """(records,) int64: first byte of each record.

        Raises:
            FormatError: the file has no index and is damaged (`scan` gives the records before).
        """
        if self._positions is None:
            self._check_open()
            found = scan(self.view, self.path)
            if found.error is not None:
                raise found.error
            self._positions = found.positions
        return self._positions

    @property
    def keys(self) -> Sequence[Any]:
        """Keys in file order: those of the index, else the numbers of the records."""
        return range(len(self)) if self._keys is None else self._keys

    def row(self, key: Any) -> int:
        """Number of the record with this key.

        Raises:
            UnknownNameError: no such key.
        """
        if self._keys is None:
            if isinstance(key, (int, np.integer)) and 0 <= key < len(self):
                return int(key)
        else:
            if self._rows is None:
                self._rows = {k: i for i, k in enumerate(self._keys)}
            if key in self._rows:
                return self._rows[key]
        raise UnknownNameError(
            f"[recordio] expected a key of {self.path}, got {key!r}; it has {len(self)} records"
        )

    def __len__(self) -> int:
        """Number of records."""
        return len(self.positions)

    def __getitem__(self, number: int) -> memoryview:
        """The record of this number (negative: from the end).

        Raises:
            IndexError: no such record.
            FormatError: the file is damaged there; `TornRecordError` where it ends too early.
        """
        record = self.read_at(int(self.positions[number]))[0]
        return record if isinstance(record, memoryview) else memoryview(record)

    def __iter__(self) -> Iterator[memoryview]:
        """Records in the order of the index."""
        return (self[i] for i in range(len(self)))

    def read_at(self, position: int) -> tuple[Buffer, int]:
        """The record that begins at a byte, and the byte after it.

        Raises:
            FormatError: none begins there; `TornRecordError` where the file ends too early.
        """
        try:
            return read_record(self.view, position, self.path)
        except ValueError as error:
            if not isinstance(error, FormatError):
                self._check_open()
            raise

    def read_many(self, numbers: Sequence[int] | Array) -> list[memoryview]:
        """Records by number, in the order asked for; one check for all of them.

        Raises:
            IndexError: no such record.
            FormatError: as of indexing.
        """
        self._check_open()
        at = self.positions[np.asarray(numbers, np.int64)]
        starts, ends = self._bounds(at)
        if starts is None or ends is None:
            return [self[int(i)] for i in numbers]
        view = self.view
        return [view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]

    def lengths(self, numbers: Sequence[int] | Array | None = None) -> Array:
        """(n,) int64: bytes of records by number; all without `numbers`.

        Raises:
            IndexError, FormatError: as of indexing.
        """
        self._check_open()
        rows = np.arange(len(self)) if numbers is None else np.asarray(numbers, np.int64)
        starts, ends = self._bounds(self.positions[rows])
        if starts is None or ends is None:
            return np.array([len(self[int(i)]) for i in rows], np.int64)
        return ends - starts

    def _bounds(self, at: Array) -> tuple[Array, Array] | tuple[None, None]:
        """First byte and end of payloads; None where one of them needs a closer look."""
        if len(at) == 0:
            return at, at
        words = np.frombuffer(self.view, "<u4", self.nbytes // 4)
        inside = at.min() >= 0 and at.max() <= self.nbytes - HEAD_BYTES
        if not inside or (at & 3).any():
            return None, None
        low = at >> 2
        lengths = words[low + 1].astype(np.int64)
        starts = at + HEAD_BYTES
        ends = starts + lengths
        plain = (words[low] == MAGIC) & (lengths <= LENGTH_MASK) & ((ends + 3 & ~3) <= self.nbytes)
        return (starts, ends) if plain.all() else (None, None)

    def prefetch(self, numbers: Sequence[int] | Array) -> None:
        """Asks the system to read these records ahead; returns at once."""
        if self._mapping is None or not hasattr(mmap, "MADV_WILLNEED"):
            return
        at = self.positions[np.asarray(numbers, np.int64)]
        _, ends = self._bounds(at)
        if ends is None:
            return
        page = mmap.PAGESIZE
        for start, end in zip((at // page * page).tolist(), ends.tolist(), strict=True):
            self._mapping.madvise(mmap.MADV_WILLNEED, start, end - start)

    def refresh(self) -> bool:
        """Takes in what has been appended since; True where the file has grown."""
        self._check_open()
        if os.stat(self.path).st_size <= self.nbytes:
            return False
        old = self.nbytes
        self._map()
        if not isinstance(self._index, (str, os.PathLike)) and self._index is None:
            self._positions = None
        return self.nbytes > old

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.nbytes < 0

    def _check_open(self) -> None:
        if self.closed:
            raise MixflowError(f"[recordio] expected an open file, got {self.path} after close")

    def close(self) -> None:
        """Gives the mapping back, as soon as no view of a record is left."""
        if self.closed:
            return
        self.nbytes = -1
        self.view.release()
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            # A record that is still in use keeps the mapping; its view frees it.
            with contextlib.suppress(BufferError):
                mapping.close()

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        index = self._positions if self._keys is None else self._index
        return {"path": self.path, "index": index}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], state["index"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"RecordFile({self.path!r}, {self.nbytes} bytes)"


def _whole_numbers(values: Any) -> Array:
    """(n,) int64 of numbers or positions.

    Raises:
        ParamError: other than whole numbers.
    """
    try:
        found = np.asarray(values)
    except (TypeError, ValueError):
        found = np.empty((0, 0))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ParamError(
            f"[recordio] expected a sequence of whole numbers, got {type(values).__name__} of "
            f"{found.dtype} {found.shape}"
        )
    return np.ascontiguousarray(found, np.int64)


def _unmappable(path: str, error: OSError) -> FormatError:
    reason = os.strerror(error.errno or errno.EIO)
    return FormatError(f"[recordio] expected a file that can be mapped, got {path}: {reason}")
