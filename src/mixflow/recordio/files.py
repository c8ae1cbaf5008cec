"""MXNet's two classes of record files: by order, and by key."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

from ..arguments import check, checked, choice, function, path, whole
from ..errors import MixflowError, ParamError, UnknownNameError
from .framing import Buffer
from .index import read_index
from .reader import RecordFile
from .writer import DuplicateKeyWarning, RecordWriter

_FLAG = choice("r", "w", "a")


class MXRecordIO:
    """Records of a file in order.

    Args:
        uri: the file.
        flag: 'r' reads; 'w' writes a new file; 'a' appends, after dropping a record that a crash
            left torn (a warning `TornRecordWarning` says where).

    Attributes:
        uri, flag: as given.
        is_open, writable: state.
        pid: process that opened the file; None when closed.

    Raises:
        ParamError: another flag.
        FormatError: 'a' on a file that is damaged before its end.
        FileError: the file cannot be opened, or another writer has it.

    Threads may share a writer, and a reader for its `read_idx`; the place of `read` is one for all.
    """

    @checked(uri=path, flag=_FLAG)
    def __init__(self, uri: str | os.PathLike[str], flag: str) -> None:
        self.uri = os.fspath(uri)
        self.flag = flag
        self.pid: int | None = None
        self.is_open = False
        self.writable = False
        self._reader: RecordFile | None = None
        self._writer: RecordWriter | None = None
        self._at = 0
        self.open()

    def open(self) -> None:
        """Opens the file again, at its first record."""
        self.close()
        self.writable = self.flag != "r"
        self._open_file()
        self._at = 0
        self.pid = os.getpid()
        self.is_open = True

    def _open_file(self) -> None:
        if self.writable:
            self._writer = RecordWriter(self.uri, append=self.flag == "a")
        else:
            self._reader = RecordFile(self.uri)

    def close(self) -> None:
        """Closes the file; a second time does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        self.pid = None
        for file in (self._reader, self._writer):
            if file is not None:
                file.close()
        self._reader = self._writer = None

    def reset(self) -> None:
        """Back to the first record; a file that is written begins anew, as in MXNet."""
        self.open()

    def _checked_writer(self) -> RecordWriter:
        if self._writer is None:
            raise MixflowError(
                f"[recordio] expected {self.uri} open for writing, got "
                f"{'flag ' + repr(self.flag) if self.is_open else 'a closed file'}"
            )
        if self.pid != os.getpid():
            raise MixflowError(
                f"[recordio] expected the process {self.pid} that opened {self.uri} to write, got "
                f"{os.getpid()}; open a file of its own in each process"
            )
        return self._writer

    def _checked_reader(self) -> RecordFile:
        if self._reader is None:
            raise MixflowError(
                f"[recordio] expected {self.uri} open for reading, got "
                f"{'flag ' + repr(self.flag) if self.is_open else 'a closed file'}"
            )
        return self._reader

    def write(self, buf: Buffer) -> None:
        """Appends one record; `flush` or `close` hands the last ones to the system.

        Args:
            buf: fewer than 2^29 bytes.

        Raises:
            ParamError: too long, or no bytes.
            FileError: as `flush`.
            MixflowError: not open for writing, or opened by another process.
        """
        self._checked_writer().write(buf)

    def flush(self) -> None:
        """Hands all written records to the system, so that other programs see them.

        Raises:
            FileError: the disk is full or the like; both files are as after the last flush.
            MixflowError: not open for writing, or opened by another process.
        """
        self._checked_writer().flush()

    def read(self) -> bytes | None:
        """The next record; None at the end.

        Raises:
            TornRecordError: the file ends inside of the record.
            FormatError: the file is damaged here.
            MixflowError: not open for reading.
        """
        record = self.read_view()
        return record if record is None or isinstance(record, bytes) else bytes(record)

    def read_view(self) -> Buffer | None:
        """As `read`, without a copy: a read-only view of the mapped file."""
        reader = self._checked_reader()
        if self._at >= reader.nbytes and not reader.refresh():
            return None
        record, self._at = reader.read_at(self._at)
        return record

    def tell(self) -> int:
        """Byte at which the next record will be read, or written.

        Raises:
            MixflowError: the file is closed.
        """
        return self._at if self._reader is not None else self._checked_writer().position

    def seek(self, position: int) -> None:
        """Goes to a byte given by `tell`.

        Raises:
            ParamError: outside of the file.
            MixflowError: not open for reading.
        """
        reader = self._checked_reader()
        position = _place(position)
        if not 0 <= position <= reader.nbytes:
            raise ParamError(
                f"[recordio] expected a position from 0 to {reader.nbytes}, got {position}"
            )
        self._at = position

    def __enter__(self) -> MXRecordIO:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "is_open", False):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._writer is not None:
            raise MixflowError(
                f"[recordio] expected a reader to be pickled, got {self.uri} open for writing"
            )
        return {**self.__dict__, "_reader": None, "_writer": None, "pid": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        was_open, self.is_open = state["is_open"], False
        if was_open:
            self.open()


class MXIndexedRecordIO(MXRecordIO):
    """Records of a file by key.

    Args:
        idx_path: the index: a line `key<TAB>position` per record.
        uri: the record file.
        flag: as of `MXRecordIO`. 'a' continues both files; a torn record is cut off with a
            warning, and lines of records that did not reach the file go.
        key_type: makes a key of a line's text.

    Attributes:
        idx: dict key -> position in bytes.
        keys: keys in the order of the index.

    Raises:
        FormatError: a damaged index, or with 'a' one that does not belong to the records.
        FileError: a file cannot be opened, or another writer has it.
        ParamError: another flag, or one file for both.
    """

    @checked(idx_path=path, uri=path, flag=_FLAG, key_type=function)
    def __init__(
        self,
        idx_path: str | os.PathLike[str],
        uri: str | os.PathLike[str],
        flag: str,
        key_type: Callable[[Any], Any] = int,
    ) -> None:
        self.idx_path = os.fspath(idx_path)
        self.idx: dict[Any, int] = {}
        self.keys: list[Any] = []
        self.key_type = key_type
        self._writing = threading.Lock()
        super().__init__(uri, flag)

    def _open_file(self) -> None:
        self.idx, self.keys = {}, []
        if self.writable:
            self._writer = RecordWriter(self.uri, self.idx_path, append=self.flag == "a")
        if self.flag != "w":
            self.keys, positions = read_index(self.idx_path, self.key_type)
            self.idx = dict(zip(self.keys, positions.tolist(), strict=True))
        if not self.writable:
            self._reader = RecordFile(self.uri, positions)

    def seek(self, idx: Any) -> None:
        """Goes to the record with this key; `read` gives it.

        Raises:
            UnknownNameError: no such key.
            MixflowError: not open for reading.
        """
        self._checked_reader()
        self._at = self._position(idx)

    def _position(self, idx: Any) -> int:
        try:
            position = self.idx.get(idx)
        except TypeError:  # a list or the like
            position = None
        if position is None:
            raise UnknownNameError(
                f"[recordio] expected one of the {len(self.keys)} keys of {self.idx_path}, got "
                f"{idx!r}"
            )
        return position

    def read_idx(self, idx: Any) -> bytes:
        """The record with this key.

        Raises:
            UnknownNameError: no such key.
            FormatError: the file is damaged there; `TornRecordError` where it ends too early.
            MixflowError: not open for reading.
        """
        record, self._at = self._checked_reader().read_at(self._position(idx))
        return record if isinstance(record, bytes) else bytes(record)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_writing"]
        return {**state, "idx": {}, "keys": []} if self.is_open else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._writing = threading.Lock()
        super().__setstate__(state)

    def write_idx(self, idx: Any, buf: Buffer) -> None:
        """Appends a record and its line in the index.

        A key that stands there already is written once more, as in MXNet: `keys` and the index
        have it twice, and it finds the new record; a warning `DuplicateKeyWarning` says so.

        Args:
            idx: its key; made one by `key_type`.
            buf: fewer than 2^29 bytes.

        Raises:
            as `write`.
        """
        writer = self._checked_writer()
        try:
            key = self.key_type(idx)
            hash(key)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise ParamError(
                f"[recordio] expected a key for {self.key_type!r}, got {idx!r:.80} ({error})"
            ) from None
        with self._writing:
            twice = key in self.idx
            self.idx[key] = writer.write(buf, key)
            self.keys.append(key)
        if twice:
            warnings.warn(
                f"[recordio] expected a new key for {self.idx_path}, got {key!r} again; the record "
                "before is found only by its place",
                DuplicateKeyWarning,
                stacklevel=2,
            )


_WHOLE = whole()


def _place(position: Any) -> int:
    return int(check("recordio", "position", position, _WHOLE))
