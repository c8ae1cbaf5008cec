"""Making the index of a record file anew."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arguments import checked, choice, flag
from ..arguments import path as name_of_file
from ..errors import FormatError
from .framing import FIRST, KIND_SHIFT, MAGIC, MAGIC_BYTES, WHOLE, scan
from .header import unpack
from .index import write_index
from .reader import RecordFile
from .writer import check_apart

Array = np.ndarray[Any, Any]
_BLOCK = 1 << 22


class Rebuilt(NamedTuple):
    """What `rebuild_index` found.

    Attributes:
        records: lines of the new index.
        end: byte after the last record.
        problems: one text per damaged place, each with its position.
    """

    records: int
    end: int
    problems: tuple[str, ...]


@checked(
    "rec2idx",
    path=name_of_file,
    index=name_of_file,
    keys=choice("number", "id"),
    skip_damaged=flag,
)
def rebuild_index(
    path: str | os.PathLike[str],
    index: str | os.PathLike[str],
    keys: str = "number",
    skip_damaged: bool = False,
) -> Rebuilt:
    """Reads the heads of all records and writes their index, whole or not at all.

    Args:
        path: record file.
        index: file to write.
        keys: 'number' counts from 0, as MXNet's tool does; 'id' takes the id of image headers.
        skip_damaged: go on behind a damaged place at the next head of a record, instead of ending
            with an error.

    Raises:
        FormatError: a damaged place before the end of the file (unless `skip_damaged`), or with
            'id' a record without an image header, or an id that stands twice. A torn record at the
            end is no error: it stands in `problems`. A file in which no record begins is one.
        ParamError: another `keys`, or an index that is the record file itself.
        FileError: the index cannot be written.
    """
    check_apart(os.fspath(path), os.fspath(index))
    with RecordFile(path, np.empty(0, np.int64)) as file:
        positions, end, problems = _all_positions(file, skip_damaged)
        if not len(positions) and file.nbytes and bytes(file.view[:4]) != MAGIC_BYTES:
            raise FormatError(
                f"[rec2idx] expected a record file, got {file.path} of {file.nbytes} bytes without "
                "any record; no index was written"
            )
        names: Sequence[int] = range(len(positions))
        if keys == "id":
            names = _ids(file, positions)
    write_index(index, names, positions)
    return Rebuilt(len(positions), end, tuple(problems))


def _all_positions(file: RecordFile, skip_damaged: bool) -> tuple[Array, int, list[str]]:
    found = scan(file.view, file.path)
    parts, problems = [found.positions], []
    while found.error is not None:
        problems.append(str(found.error))
        after = next_head(file.view, found.end + 4)
        if after is None:
            break
        if not skip_damaged:
            raise found.error
        found = scan(file.view, file.path, after)
        parts.append(found.positions)
    return np.concatenate(parts), found.end, problems


def next_head(view: memoryview, start: int) -> int | None:
    """The first byte from `start` on at which the head of a record stands; None without one."""
    at = (start + 3) & ~3
    words = np.frombuffer(view, "<u4", len(view) // 4)
    for low in range(at // 4, len(words) - 1, _BLOCK):
        block = words[low : low + _BLOCK + 1]
        heads = np.flatnonzero(block[:-1] == MAGIC)
        kinds = block[heads + 1] >> KIND_SHIFT
        good = heads[(kinds == WHOLE) | (kinds == FIRST)]
        if len(good):
            return (low + int(good[0])) * 4
    return None


def _ids(file: RecordFile, positions: Array) -> list[int]:
    ids: list[int] = []
    for at in positions.tolist():
        try:
            ids.append(unpack(file.read_at(at)[0])[0].id)
        except FormatError as error:
            raise FormatError(
                f"[rec2idx] expected an image header in the record at byte {at} of {file.path}, "
                f"got: {error}; use keys='number'"
            ) from None
    if len(set(ids)) < len(ids):
        raise FormatError(
            f"[rec2idx] expected a different id in each record of {file.path}, got "
            f"{len(ids) - len(set(ids))} that stand twice; use keys='number'"
        )
    return ids
