"""Sends a shard's committed records to the shard that stands by for it.

The hazard: a record on its way while the next commits are made. One record of a key is under way at
a time; what is committed meanwhile gathers in a draft, whose rows are put together, so that a slow
link gets fewer and not more bytes. A difference is only sent to a stand-by that has said that it
holds the record before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..protocol.messages import SLOW_LINK, Array, Message, Outgoing, Replicate, Replicated
from ..protocol.touched import Touched, patch, union

ROSTER = ""
VALUE = ""


@dataclass(slots=True)
class Draft:
    """What a key's next record will hold: a whole state, or what has changed since the one before
    (`touched`). `oldest` and `number` are those of its first and last commit."""

    oldest: int
    number: int
    record: dict[str, Any]
    values: dict[str, Array]
    touched: Touched | None = None

    def follow(
        self,
        number: int,
        record: dict[str, Any],
        values: dict[str, Array],
        touched: Touched | None,
        in_rows: Collection[str],
    ) -> bool:
        """Takes in a later commit, if what both give is enough for that."""
        if touched is None:
            self.values, self.touched = values, None
        elif self.touched is None:
            if not patch(self.values, touched, values, self.values[VALUE].size):
                return False
        else:
            found = _both(self.touched, self.values, touched, values, in_rows)
            if found is None:
                return False
            self.values, self.touched = found
        self.number, self.record = number, record
        return True


def _both(
    old: Touched,
    old_values: dict[str, Array],
    new: Touched,
    new_values: dict[str, Array],
    in_rows: Collection[str],
) -> tuple[dict[str, Array], Touched] | None:
    """Two differences as one: the rows of both, the later ones where they overlap."""
    both = union(old, new)
    if both is None or old_values.keys() != new_values.keys():
        return None
    found = {}
    for name, given in new_values.items():
        if name not in in_rows:
            found[name] = given
            continue
        made = found[name] = np.empty(both.size, given.dtype)
        for part, values in ((old, old_values[name]), (new, given)):
            places = np.searchsorted(both.numbers, part.numbers)
            made.reshape(-1, both.width)[places] = values.reshape(-1, part.width)
    return found, both


@dataclass(slots=True)
class Item:
    """Records of a key that are not acknowledged: the one under way, and the next."""

    flying: Replicate | None = None
    #: Number of the first commit in the one under way.
    flying_oldest: int = 0
    draft: Draft | None = None
    repeat_at: float = 0.0
    tries: int = 0

    @property
    def oldest(self) -> int:
        """Number of the first commit that is not acknowledged."""
        if self.flying is not None:
            return self.flying_oldest
        assert self.draft is not None
        return self.draft.oldest


class Records(Protocol):
    """All records of a shard as they are now, as copies."""

    def keys(self) -> Iterable[str]:
        """Their keys, the roster's among them."""

    def record(self, key: str) -> tuple[dict[str, Any], dict[str, Array]]:
        """Plain values and arrays of one."""


class Replicator:
    """Sends a shard's records to the one that stands by.

    Args:
        name, incarnation: of the shard's process.
        records: the shard's, for another stand-by.
        repeat: seconds until a record is sent again.
        waits: whether a stand-by will be named: nothing is confirmed before.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        records: Records,
        repeat: float = 1.0,
        waits: bool = False,
    ) -> None:
        self._waits = waits
        self.name, self.incarnation, self.repeat = name, incarnation, repeat
        #: Name and storage of the stand-by; None where there is no other host.
        self.backup: tuple[str, str] | None = None
        self._records = records
        self._number = 0
        self._items: dict[str, Item] = {}
        #: Number of the last record of each key that the stand-by has.
        self._acknowledged: dict[str, int] = {}
        self._unsynced: set[str] = set()
        self._held: list[tuple[int, str, Message]] = []
        #: Bytes of the arrays of all records that were sent, repeats included.
        self.sent_bytes = 0

    @property
    def holds(self) -> bool:
        """Whether confirmations wait for a stand-by."""
        return self._waits or self.backup is not None

    @property
    def synced(self) -> bool:
        """Whether the stand-by has had every record once."""
        return self.backup is not None and not self._unsynced

    def stand_by(self, backup: tuple[str, str] | None) -> Outgoing:
        """Another shard stands by from now on, or another storage of it; it gets everything.
        Without one, what was held back is let go."""
        if backup == self.backup and not self._waits:
            return []
        self.backup, self._waits = backup, False
        self._items.clear()
        self._unsynced.clear()
        self._acknowledged.clear()
        if backup is not None:
            for key in list(self._records.keys()):
                self._send_whole(key, 1)
                self._unsynced.add(key)
        return self._release()

    def _send_whole(self, key: str, oldest: int) -> None:
        self._number += 1
        self._items[key] = Item(draft=Draft(oldest, self._number, *self._records.record(key)))

    def commit(
        self,
        key: str,
        record: dict[str, Any],
        values: Mapping[str, Array],
        touched: Touched | None = None,
        in_rows: Collection[str] = (),
    ) -> None:
        """A record of a slice was committed here; arrays are copied. With `touched`, those named
        in `in_rows` are given as the rows that have changed since the last commit."""
        if self.backup is None:
            return
        self._number += 1
        number = self._number
        copied = {name: value.copy() for name, value in values.items()}
        item = self._items.setdefault(key, Item())
        if item.draft is None:
            item.draft = Draft(number, number, record, copied, touched)
        elif not item.draft.follow(number, record, copied, touched, in_rows):
            item.draft = Draft(item.draft.oldest, number, *self._records.record(key))

    def hold(self, to: str, message: Message) -> Outgoing:
        """A confirmation of what was committed so far: now, or when it is acknowledged."""
        self._held.append((self._number, to, message))
        return self._release()

    def acknowledged(self, message: Replicated) -> Outgoing:
        """The stand-by has a record."""
        item = self._items.get(message.key)
        known = self.backup is not None and message.sender == self.backup[0]
        if item is None or not known or message.incarnation != self.incarnation:
            return []
        if item.flying is None:
            return []
        if message.number == 0 and item.flying.base:
            self._send_whole(message.key, item.oldest)  # it has lost what the difference is to
            return []
        if message.number != item.flying.number:
            return []  # a copy of an earlier word
        self._unsynced.discard(message.key)
        self._acknowledged[message.key] = message.number
        item.flying, item.tries = None, 0
        if item.draft is None:
            del self._items[message.key]
        return self._release()

    def _release(self) -> Outgoing:
        if self._waits:
            return []
        sure = min((item.oldest for item in self._items.values()), default=self._number + 1)
        ready = [(to, message) for number, to, message in self._held if number < sure]
        self._held = [held for held in self._held if held[0] >= sure]
        return ready

    def send(self, now: float) -> Outgoing:
        """Records that are new or overdue; one of a key at a time."""
        if self.backup is None:
            return []
        found: Outgoing = []
        for key, item in self._items.items():
            if item.flying is None:
                self._launch(key, item)
            elif now < item.repeat_at:
                continue
            message = item.flying
            assert message is not None
            size = sum(value.nbytes for value in message.values.values())
            self.sent_bytes += size
            item.repeat_at = now + self.repeat * min(2**item.tries, 8) + size / SLOW_LINK
            item.tries += 1
            found.append((self.backup[0], message))
        return found

    def _launch(self, key: str, item: Item) -> None:
        """Makes a record of the draft."""
        draft, item.draft = item.draft, None
        assert draft is not None
        rows, base, touched = {}, 0, draft.touched
        if touched is not None:
            rows[VALUE] = np.concatenate([[touched.width], touched.numbers]).astype(np.int64)
            base = self._acknowledged[key]
        item.flying_oldest = draft.oldest
        item.flying = Replicate(
            self.name, draft.number, key, self.incarnation, draft.record, draft.values, rows, base
        )

    def next_time(self) -> float | None:
        """When `send` next has something to repeat."""
        return min((item.repeat_at for item in self._items.values()), default=None)
