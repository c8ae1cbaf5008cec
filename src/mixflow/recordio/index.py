"""Index files: one line `key<TAB>position` per record."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..arguments import checked, function
from ..arguments import path as name_of_file
from ..errors import FormatError, ParamError
from ..files import open_file, write_atomically

Array = np.ndarray[Any, Any]
_TAB, _LINE, _ZERO, _NINE = 9, 10, 48, 57
_MOST_DIGITS = 18
#: Python also takes "1_2", and digits of other scripts.
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*\Z")


@checked("recordio", path=name_of_file, key_type=function)
def read_index(
    path: str | os.PathLike[str], key_type: Callable[[str], Any] = int
) -> tuple[list[Any], Array]:
    """Keys and positions of an index file, in file order.

    Args:
        path: index file.
        key_type: makes a key of its text.

    Returns:
        Keys, and (records,) int64 positions in bytes.

    Raises:
        FormatError: a line is no key and position; the text names it.
        FileError: cannot be read.
    """
    with open_file(path, "recordio") as file:
        return parse_index(file.read(), key_type, os.fspath(path))


def parse_index(raw: bytes, key_type: Callable[[str], Any], source: str) -> tuple[list[Any], Array]:
    """The same from the file's content; `source` names it in errors."""
    if key_type is int:
        numbers = _plain_numbers(raw)
        if numbers is not None:
            return numbers[::2].tolist(), numbers[1::2].copy()
    return _parse_lines(raw, key_type, source)


def _plain_numbers(raw: bytes) -> Array | None:
    """All numbers of a file of `digits TAB digits NEWLINE`; None where a line looks otherwise."""
    if raw and not raw.endswith(b"\n"):
        raw += b"\n"
    data = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero((data == _TAB) | (data == _LINE))
    kinds = data[ends]
    digits = np.count_nonzero((data >= _ZERO) & (data <= _NINE))
    if len(ends) % 2 or digits + len(ends) != len(data):
        return None
    if (kinds[::2] != _TAB).any() or (kinds[1::2] != _LINE).any():
        return None
    widths = np.diff(ends, prepend=-1) - 1
    if len(widths) and (widths.min() < 1 or widths.max() > _MOST_DIGITS):
        return None
    return np.fromstring(raw.decode("ascii"), np.int64, sep=" ")


def _parse_lines(raw: bytes, key_type: Callable[[str], Any], path: str) -> tuple[list[Any], Array]:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"[recordio] expected a text index at {path}, got {error}") from None
    keys, positions = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        fields = line.strip("\r").split("\t")
        try:
            if not _WHOLE.match(fields[1]) or (key_type is int and not _WHOLE.match(fields[0])):
                raise ValueError
            key, position = key_type(fields[0].strip()), int(fields[1])
        except (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError):
            key, position = None, -1
        if not 0 <= position < 1 << 63:
            raise FormatError(
                f"[recordio] expected a key, a tab and a position in line {number} of {path}, got "
                f"{line[:60]!r}"
            )
        keys.append(key)
        positions.append(position)
    return keys, np.array(positions, np.int64)


def index_line(key: Any, position: int) -> bytes:
    """The line of one record.

    Raises:
        ParamError: the key's text would not be read back.
    """
    text = str(key)
    if not text or text != text.strip() or "\t" in text or "\n" in text:
        raise ParamError(
            f"[recordio] expected a key that fits on a line of the index, got {text!r:.60}"
        )
    return f"{text}\t{position}\n".encode()


def write_index(
    path: str | os.PathLike[str], keys: Iterable[Any], positions: Sequence[int] | Array
) -> None:
    """Writes an index file, whole or not at all.

    Raises:
        FileError: cannot be written.
    """
    pairs = zip(keys, np.asarray(positions).tolist(), strict=True)
    write_atomically(os.fspath(path), b"".join(index_line(k, p) for k, p in pairs))
