"""Where keys live: big arrays are cut into slices over all servers, small ones are kept whole.

The first server decides and remembers (`Directory`), so that workers may name their keys in any
order and still agree. Each slice goes to the server that holds the fewest bytes so far.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import ParamError

#: Elements from which an array is cut, as in MXNet (MXNET_KVSTORE_BIGARRAY_BOUND).
BIG_ARRAY = 1_000_000


class Slice(NamedTuple):
    """Elements ``begin`` to ``end`` of a flat array, under a name of its own on a server."""

    name: str
    server: int
    begin: int
    end: int


@dataclass(frozen=True)
class Entry:
    """A key: number of elements, dtype as NumPy's string, slices in order."""

    size: int
    dtype: str
    slices: tuple[Slice, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"size": self.size, "dtype": self.dtype, "slices": [list(s) for s in self.slices]}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Entry:
        """What `to_json` wrote."""
        slices = tuple(Slice(str(n), int(s), int(b), int(e)) for n, s, b, e in value["slices"])
        return Entry(int(value["size"]), str(value["dtype"]), slices)


class Directory:
    """Which slices every key has.

    Args:
        servers: number of servers.
        bound: elements from which an array is cut.
        alignment: slices begin at multiples of this many elements (compression codes).
    """

    def __init__(self, servers: int, bound: int = BIG_ARRAY, alignment: int = 32) -> None:
        if servers < 1 or bound < 1:
            raise ParamError(
                f"[kvstore] expected servers and a bound of at least 1, got {servers}, {bound}"
            )
        self.servers = servers
        self.bound = bound
        self.alignment = alignment
        self.entries: dict[str, Entry] = {}
        self._bytes = [0] * servers

    def place(self, keys: Mapping[str, tuple[Any, ...]]) -> dict[str, Entry]:
        """Entries of keys given as (elements, dtype, bytes per element); new ones are placed.

        With a fourth number, the elements per row, slices begin at whole rows.

        Raises:
            ParamError: a key is known with another size or dtype.
        """
        for key, (size, dtype, itemsize, *row) in keys.items():
            known = self.entries.get(key)
            if known is None:
                self.entries[key] = Entry(size, dtype, tuple(self._cut(key, size, itemsize, *row)))
            elif (known.size, known.dtype) != (size, dtype):
                raise ParamError(
                    f"[kvstore] expected {known.size} elements of {known.dtype} for key '{key}', "
                    f"got {size} of {dtype}: workers disagree"
                )
        return {key: self.entries[key] for key in keys}

    def to_json(self) -> dict[str, Any]:
        """Every entry as plain values."""
        return {key: entry.to_json() for key, entry in self.entries.items()}

    def restore(self, entries: Mapping[str, Any]) -> None:
        """Takes back what `to_json` wrote."""
        for key, value in entries.items():
            entry = self.entries[key] = Entry.from_json(value)
            for piece in entry.slices:
                itemsize = np.dtype(entry.dtype).itemsize
                self._bytes[piece.server] += (piece.end - piece.begin) * itemsize

    def move(self, entries: Mapping[str, Entry]) -> None:
        """Places keys that are cut already: their slices keep their bounds."""
        for key, entry in entries.items():
            itemsize = np.dtype(entry.dtype).itemsize
            moved = []
            for piece in entry.slices:
                server = min(range(self.servers), key=lambda s: (self._bytes[s], s))
                self._bytes[server] += (piece.end - piece.begin) * itemsize
                moved.append(piece._replace(server=server))
            self.entries[key] = Entry(entry.size, entry.dtype, tuple(moved))

    def _cut(self, key: str, size: int, itemsize: int, row: int = 0) -> Iterable[Slice]:
        count = self.servers if size >= self.bound else 1
        for part, (begin, end) in enumerate(spans(size, count, row or self.alignment)):
            server = min(range(self.servers), key=lambda s: (self._bytes[s], s))
            self._bytes[server] += (end - begin) * itemsize
            yield Slice(f"{key}/{part}", server, begin, end)


def spans(size: int, count: int, alignment: int) -> Sequence[tuple[int, int]]:
    """`count` spans of nearly equal length over `size` elements that begin at multiples of
    `alignment`; empty ones are left out."""
    bounds = [round(size * i / count / alignment) * alignment for i in range(count)] + [size]
    bounds = [min(bound, size) for bound in bounds]
    found = [(a, b) for a, b in itertools.pairwise(bounds) if b > a]
    return found or [(0, size)]
