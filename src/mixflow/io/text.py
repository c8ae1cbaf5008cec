"""Rows of numbers in text files, read in blocks of a few megabytes.

A block is parsed by NumPy where its lines have the plain form, else line by line: that also finds
the line that an error names. Parsed blocks of a small file are kept for later passes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..errors import FormatError, ParamError
from ..files import open_regular
from .ahead import Ahead

Array = np.ndarray[Any, Any]
BLOCK_BYTES = 1 << 22
#: Files up to this size are parsed once; larger ones in each epoch.
KEEP_BYTES = 1 << 28
_COMMA, _COLON, _LINE, _MINUS, _POINT, _UNDERSCORE = 44, 58, 10, 45, 46, 95
_MOST_DIGITS = 15
_POWERS = np.array([float(10**k) for k in range(_MOST_DIGITS + 1)])
_BOM = b"\xef\xbb\xbf"


class SparseRows(NamedTuple):
    """Rows of a LibSVM file.

    Attributes:
        labels: (rows,) float32.
        counts: (rows,) int64, stored elements of each row.
        indices: (stored,) int64 columns.
        values: (stored,) float32.
    """

    labels: Array
    counts: Array
    indices: Array
    values: Array


Rows = Any  # (rows, columns) array or SparseRows


def row_count(rows: Rows) -> int:
    """Number of rows."""
    return len(rows.labels if isinstance(rows, SparseRows) else rows)


def cut(rows: Rows, start: int, stop: int) -> Rows:
    """Rows from `start` to before `stop`."""
    if not isinstance(rows, SparseRows):
        return rows[start:stop]
    low = int(rows.counts[:start].sum())
    high = low + int(rows.counts[start:stop].sum())
    whole = (rows.labels[start:stop], rows.counts[start:stop])
    return SparseRows(*whole, rows.indices[low:high], rows.values[low:high])


def join(parts: list[Rows]) -> Rows:
    """All rows of several parts."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], SparseRows):
        return SparseRows(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return np.concatenate(parts)


class Where(NamedTuple):
    """A place in a file, for errors: lines are counted from a byte on."""

    operator: str
    path: str
    byte: int
    line: int

    def fail(self, expected: str, line: int, got: object) -> NoReturn:
        """Raises FormatError for a line of the block."""
        after = f" after byte {self.byte}" if self.byte else ""
        raise FormatError(
            f"[{self.operator}] expected {expected} in line {self.line + line}{after} of "
            f"{self.path}, got {got!r:.80}"
        )


Parser = Callable[[bytes, Where], Rows]


class Table:
    """The rows of a text file, or of its bytes from `begin` to `end`.

    Args:
        operator: for errors.
        path: the file.
        parse: makes rows of a block.
        part, parts: the share of the bytes, its borders moved on to the next line.

    Raises:
        FormatError, FileError: no regular file, or it cannot be read.
        ParamError: no such part.
    """

    def __init__(
        self, operator: str, path: str, parse: Parser, part: int = 0, parts: int = 1
    ) -> None:
        if not 0 <= part < parts:
            raise ParamError(
                f"[{operator}] expected part_index from 0 to num_parts - 1, got {part} of {parts}"
            )
        self.operator, self.path, self.parse = operator, os.fspath(path), parse
        with open_regular(path, operator) as file:
            size = os.fstat(file.fileno()).st_size
        step = -(-size // parts)
        self.begin, self.end = (
            _line_start(self.path, min(size, n * step), size) for n in (part, part + 1)
        )
        self._kept: list[Rows] | None = None

    def blocks(self) -> Generator[Rows, None, None]:
        """One pass over the rows.

        Raises:
            FormatError: a line is none; the text names it.
        """
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Rows] = []
        keep = self.end - self.begin <= KEEP_BYTES
        line = 1
        for raw in _raw_blocks(self.path, self.begin, self.end):
            rows = self.parse(raw, Where(self.operator, self.path, self.begin, line))
            line += raw.count(b"\n")
            if row_count(rows):
                if keep:
                    kept.append(rows)
                yield rows
        if keep:
            self._kept = kept

    @property
    def kept(self) -> bool:
        """Whether a further pass parses nothing."""
        return self._kept is not None


def _line_start(path: str, at: int, size: int) -> int:
    """The first line that begins after a byte; the byte itself at both ends of the file."""
    if at in (0, size):
        return at
    with open(path, "rb") as file:
        file.seek(at)
        while chunk := file.read(1 << 16):
            found = re.search(rb"[\r\n]+", chunk)
            if found and found.end() < len(chunk):
                return at + found.end()
            if found:  # line ends may go on in the next chunk
                at += found.start()
                file.seek(at)
                rest = file.read(1 << 16)
                return at + len(rest) - len(rest.lstrip(b"\r\n"))
            at += len(chunk)
    return size


def _raw_blocks(path: str, begin: int, end: int) -> Iterator[bytes]:
    """Whole lines, ending with a newline and with newlines only, without a byte order mark."""
    left, carried = end - begin, b""
    with open(path, "rb") as file:
        file.seek(begin)
        while left > 0 and (chunk := file.read(min(left, BLOCK_BYTES))):
            left -= len(chunk)
            chunk = carried + chunk
            if begin == 0 and not carried:
                chunk = chunk.removeprefix(_BOM)
                begin = -1
            last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r", 0, len(chunk) - 1)) + 1
            carried = chunk[last:]
            if last:
                yield _newlines(chunk[:last])
    if carried:
        yield _newlines(carried + b"\n")


def _newlines(raw: bytes) -> bytes:
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw


def _numbers(data: Array, starts: Array, ends: Array, wide: Any) -> Array | None:
    """The numbers between bytes; None where something else stands there. Thread-safe."""
    found = _decimals(data, starts, ends - starts)
    if found is not None:
        if wide is np.float64:
            return found
        whole = found == np.floor(found)
        return found.astype(np.int64) if whole.all() and not (data == _POINT).any() else None
    if (data == _UNDERSCORE).any():  # Python's numbers may have some
        return None
    raw, make = data.tobytes(), int if wide is np.int64 else float
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    try:
        return np.array([make(raw[a:b]) for a, b in pairs], wide)
    except (ValueError, OverflowError):
        return None


def _decimals(data: Array, starts: Array, widths: Array) -> Array | None:
    """Numbers of at most 15 plain characters, all at once; None where one has another form.

    Fifteen digits and the powers of ten up to 15 are exact in float64, so one division rounds
    once, as a reader of decimal numbers must.
    """
    if len(starts) == 0 or widths.min() < 1 or widths.max() > _MOST_DIGITS:
        return None
    negative = data[starts] == _MINUS
    value = np.zeros(len(starts), np.int64)
    behind = np.zeros(len(starts), np.int64)
    pointed = np.zeros(len(starts), bool)
    for j in range(int(widths.max())):
        inside = widths > j
        character = data[np.minimum(starts + j, len(data) - 1)]
        digit = character - np.uint8(48)  # others wrap around to above 9
        is_digit = (digit < 10) & inside
        point = (character == _POINT) & inside
        other = inside & ~is_digit & ~point
        if (point & pointed).any() or (other if j else other & ~negative).any():
            return None
        value = np.where(is_digit, value * 10 + digit, value)
        behind += is_digit & pointed
        pointed |= point
    if (widths - negative - pointed < 1).any():
        return None
    found: Array = value / _POWERS[behind]
    np.negative(found, out=found, where=negative)
    return found


def dense_parser(columns: int, dtype: Any) -> Parser:
    """A parser of lines with `columns` numbers between commas, to (rows, columns) of `dtype`."""
    wide = np.int64 if np.issubdtype(dtype, np.integer) else np.float64

    def parse(raw: bytes, where: Where) -> Array:
        found = _plain_dense(raw, columns, wide)
        if found is None:
            found = np.array(list(_dense_lines(raw, columns, wide, where)), wide)
        if wide is np.int64 and dtype != np.int64:
            limit = np.iinfo(dtype)
            bad = (found < limit.min) | (found > limit.max)
            if bad.any():
                row = int(np.flatnonzero(bad)[0]) // columns
                where.fail(f"a number of type {np.dtype(dtype).name}", row, int(found[bad][0]))
        with np.errstate(over="ignore"):
            return found.reshape(-1, columns).astype(dtype)

    return parse


def _plain_dense(raw: bytes, columns: int, wide: Any) -> Array | None:
    data = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero((data == _COMMA) | (data == _LINE))
    if not columns or len(ends) % columns:
        return None
    kinds = data[ends].reshape(-1, columns)
    if (kinds[:, -1] != _LINE).any() or (kinds[:, :-1] != _COMMA).any():
        return None
    return _numbers(data, np.concatenate([[0], ends[:-1] + 1]), ends, wide)


def _dense_lines(raw: bytes, columns: int, wide: Any, where: Where) -> Iterator[list[Any]]:
    make: Callable[[str], Any] = int if wide is np.int64 else float
    for number, line in enumerate(raw.split(b"\n")):
        if not line.strip():
            continue
        fields = line.decode("utf-8", "replace").strip().removesuffix(",").split(",")
        if len(fields) != columns:
            where.fail(f"{columns} numbers (data_shape or label_shape)", number, len(fields))
        row = []
        for field in fields:
            value = _number(field, make)
            if value is None or (wide is np.int64 and not -(1 << 63) <= value < 1 << 63):
                where.fail("an integer" if make is int else "a number", number, field.strip())
            row.append(value)
        yield row


def _number(text: str, make: Callable[[str], Any]) -> Any:
    """The number, or None; Python's underscores and other digits are none."""
    if "_" in text or not text.isascii():
        return None
    try:
        return make(text)
    except ValueError:
        return None


def sparse_parser(columns: int) -> Parser:
    """A parser of lines `label index:value ...` with indices below `columns`, to SparseRows."""

    def parse(raw: bytes, where: Where) -> SparseRows:
        found = _plain_sparse(raw, columns)
        return _sparse_lines(raw, columns, where) if found is None else found

    return parse


def _plain_sparse(raw: bytes, columns: int) -> SparseRows | None:
    """Rows where only numbers, single colons between two of them and white space occur."""
    data = np.frombuffer(b"\n" + raw, np.uint8)
    apart = (data == _LINE) | (data == 32) | (data == 9) | (data == _COLON)
    starts = np.flatnonzero(~apart[1:] & apart[:-1]) + 1
    line = np.searchsorted(np.flatnonzero(data == _LINE), starts)
    first = np.flatnonzero(np.diff(line, prepend=-1))
    count = np.diff(first, append=len(starts))
    place = np.arange(len(starts)) - np.repeat(first, count)
    is_value = data[starts - 1] == _COLON
    if (is_value != ((place > 0) & (place % 2 == 0))).any() or (count % 2 == 0).any():
        return None
    if np.count_nonzero(data == _COLON) != np.count_nonzero(is_value):
        return None
    found = _numbers(data, starts, np.flatnonzero(apart[1:] & ~apart[:-1]) + 1, np.float64)
    if found is None:
        return None
    indices = found[(place % 2 == 1)]
    whole = (indices >= 0) & (indices < columns) & (indices == np.floor(indices))
    if not whole.all():
        return None
    with np.errstate(over="ignore"):
        labels, values = found[first].astype(np.float32), found[is_value].astype(np.float32)
    return SparseRows(labels, (count - 1) // 2, indices.astype(np.int64), values)


def _sparse_lines(raw: bytes, columns: int, where: Where) -> SparseRows:
    labels, counts, indices, values = [], [], [], []
    for number, line in enumerate(raw.decode("utf-8", "replace").split("\n")):
        words = re.sub(r"\s*:\s*", ":", line.partition("#")[0]).split()
        if not words:
            continue
        label = _number(words[0].partition(":")[0], float)  # MXNet ignores a weight after the label
        if label is None:
            where.fail("a label", number, words[0])
        pairs = [word for word in words[1:] if not word.startswith("qid:")]
        for word in pairs:
            left, _, right = word.partition(":")
            index, value = _number(left, int), _number(right, float)
            if index is None or value is None:
                where.fail("index:value", number, word)
            if not 0 <= index < columns:
                where.fail(f"an index from 0 to {columns - 1} (data_shape)", number, word)
            indices.append(index)
            values.append(value)
        labels.append(label)
        counts.append(len(pairs))
    with np.errstate(over="ignore"):
        return SparseRows(
            np.array(labels, np.float64).astype(np.float32),
            np.array(counts, np.int64),
            np.array(indices, np.int64),
            np.array(values, np.float64).astype(np.float32),
        )


class Cursor:
    """A place in the rows of a table, which goes on by batches.

    Args:
        table: the rows.
        ahead: blocks that a thread may parse ahead; 0 = no thread.
        skip: rows at the beginning that are left out.
    """

    def __init__(self, table: Table, ahead: int = 0, skip: int = 0) -> None:
        self.table, self.ahead, self.skip = table, ahead, skip
        self._pass: Iterator[Rows] | None = None
        self._block: Rows | None = None
        self._at = 0

    def rewind(self) -> None:
        """Back to the first row."""
        self.close()

    def close(self) -> None:
        """Ends a pass; a thread of it is gone when the call returns."""
        running, self._pass, self._block = self._pass, None, None
        if running is not None:
            running.close()  # type: ignore[attr-defined]

    def _begin(self) -> None:
        blocks = self.table.blocks()
        threaded = self.ahead > 0 and not self.table.kept
        self._pass = Ahead(blocks, self.ahead, self.table.operator) if threaded else blocks
        self._block, self._at = None, 0
        left = self.skip
        while left:
            rows = self._some(left)
            if rows is None:
                return
            left -= row_count(rows)

    def _some(self, most: int) -> Rows | None:
        """Between 1 and `most` rows; None at the end."""
        while self._block is None or self._at >= row_count(self._block):
            self._block = next(self._pass, None) if self._pass is not None else None
            self._at = 0
            if self._block is None:
                return None
        start = self._at
        self._at = min(start + most, row_count(self._block))
        return cut(self._block, start, self._at)

    def take(self, count: int) -> list[Rows]:
        """The next rows in pieces, fewer at the end of the table.

        Raises:
            FormatError: a line is none.
        """
        if self._pass is None:
            self._begin()
        parts: list[Rows] = []
        while count and (rows := self._some(count)) is not None:
            parts.append(rows)
            count -= row_count(rows)
        return parts

    def count(self) -> int:
        """Rows of a whole pass."""
        return sum(row_count(rows) for rows in self.table.blocks())

    def is_empty(self) -> bool:
        """Whether there is no row at all; looks at the first block."""
        if self._pass is None:
            self._begin()
        at = self._at
        if self._some(1) is None:
            return True
        self._at = at if self._at > at else 0
        return False
