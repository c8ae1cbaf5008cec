"""A shard whose state another host holds too: a lost host loses nothing that was confirmed.

The hazard: a confirmation that outlives the state it speaks of. So what confirms (`Applied`,
`Done`, `Placed`, and a `Report`, on which a restarted worker builds) is held back until the shard
that stands by has acknowledged every record committed before it. A record is the whole state of a
slice, or, where rows of it were changed, those rows and the number of the record that they change:
one of a key is under way at a time, so it may be repeated or lost, and is never put on another. A
shard that starts in the place of a lost one fetches the records; from then on the one that stands
by refuses those of the old process, which may still be alive behind a broken network and can then
confirm nothing any more.

Pure logic, like `shard.py`, and with the same interface as `Shard`. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..protocol.merging import Arena
from ..protocol.messages import (
    Applied,
    Array,
    Done,
    Fetch,
    Fetched,
    Kept,
    Message,
    Placed,
    Replicate,
    Replicated,
    Report,
)
from ..protocol.policy import Progress
from ..protocol.touched import Touched, patch
from .lanes import Desk
from .replicator import ROSTER, VALUE, Replicator
from .shard import Outgoing, Shard
from .slots import Ledger

CONFIRMATIONS = (Applied, Done, Kept, Placed, Report)
#: Records that a recovering shard asks for at a time.
FETCH_AT_ONCE = 16
#: A stand-by that has yet to be named.
NOT_KNOWN = ("", "")


class ReplicaStore(Protocol):
    """Keeps the records of other shards; outlives its process where the ledger does."""

    def put(
        self, origin: str, key: str, head: Mapping[str, Any], values: Mapping[str, Array]
    ) -> None:
        """Keeps a record (`head`: plain values), in place of an older one of the key. It may be
        called with arrays that change later."""

    def put_rows(
        self,
        origin: str,
        key: str,
        head: Mapping[str, Any],
        touched: Touched,
        values: Mapping[str, Array],
    ) -> bool:
        """`put` of which arrays may be given as the rows that were touched. False: it takes a
        `put`."""

    def head(self, origin: str, key: str) -> dict[str, Any] | None:
        """A record's plain values, or None."""

    def get(self, origin: str, key: str) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """A record, or None."""

    def keys(self, origin: str) -> list[str]:
        """Keys of a shard's records."""


class MemoryReplicas:
    """Replicas in this process's memory: for the simulator and for tests."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, tuple[dict[str, Any], dict[str, Array]]]] = {}

    def put(
        self, origin: str, key: str, head: Mapping[str, Any], values: Mapping[str, Array]
    ) -> None:
        """Keeps copies."""
        copied = {name: value.copy() for name, value in values.items()}
        self._records.setdefault(origin, {})[key] = (dict(head), copied)

    def put_rows(
        self,
        origin: str,
        key: str,
        head: Mapping[str, Any],
        touched: Touched,
        values: Mapping[str, Array],
    ) -> bool:
        """Changes the rows of what is kept."""
        _, kept = self._records[origin][key]
        if not patch(kept, touched, values, kept[VALUE].size):
            return False
        self._records[origin][key] = (dict(head), kept)
        return True

    def head(self, origin: str, key: str) -> dict[str, Any] | None:
        """A record's plain values, or None."""
        found = self.get(origin, key)
        return found[0] if found else None

    def get(self, origin: str, key: str) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """A record, or None."""
        return self._records.get(origin, {}).get(key)

    def keys(self, origin: str) -> list[str]:
        """Keys of a shard's records."""
        return sorted(self._records.get(origin, {}))


#: Name under which a store keeps the incarnation from which on records are taken.
FENCE = "\0fence"


class StandBy:
    """Holds the records of other shards."""

    def __init__(self, name: str, store: ReplicaStore) -> None:
        self.name = name
        self.store = store

    def replicate(self, message: Replicate) -> Outgoing:
        """Keeps a record unless a later one is here; says so."""
        if message.incarnation < self._fence(message.sender):
            return []
        number = (message.incarnation, message.number)
        found = self.store.head(message.sender, message.key)
        known = tuple(found["number"]) if found else (-1, 0)
        kept = message.number
        if known < number:
            head = {"number": list(number), "record": message.record}
            if not message.base:
                self.store.put(message.sender, message.key, head, message.values)
            elif known != (message.incarnation, message.base) or not self._change(message, head):
                kept = 0
        answer = Replicated(self.name, kept, message.key, message.incarnation)
        return [(message.sender, answer)]

    def _change(self, message: Replicate, head: dict[str, Any]) -> bool:
        """Puts a difference on the record that it belongs to, if it fits."""
        rows = message.rows.get(VALUE)
        if rows is None or not len(rows):
            return False
        touched = Touched(int(rows[0]), rows[1:])
        origin, key = message.sender, message.key
        if self.store.put_rows(origin, key, head, touched, message.values):
            return True
        _, kept = self.store.get(origin, key) or ({}, {})
        if VALUE not in kept or not patch(kept, touched, message.values, kept[VALUE].size):
            return False
        self.store.put(origin, key, head, kept)
        return True

    def fetch(self, message: Fetch) -> Outgoing:
        """Gives a record, or the list of them, to the shard's new process."""
        if message.incarnation > self._fence(message.sender):
            self.store.put(message.sender, FENCE, {"fence": message.incarnation}, {})
        if message.key is None:
            keys = tuple(k for k in self.store.keys(message.sender) if k != FENCE)
            return [(message.sender, Fetched(self.name, message.number, None, keys))]
        head, values = self.store.get(message.sender, message.key) or ({"record": {}}, {})
        record = Fetched(self.name, message.number, message.key, (), head["record"], values)
        return [(message.sender, record)]

    def _fence(self, origin: str) -> int:
        found = self.store.head(origin, FENCE)
        return int(found["fence"]) if found else 0


class Mirror:
    """A ledger whose commits go to a replicator too."""

    durable = True

    def __init__(self, ledger: Ledger, replicator: Replicator) -> None:
        self._ledger = ledger
        self._replicator = replicator
        #: By key, the arrays that are as long as the slice.
        self._in_rows: dict[str, frozenset[str]] = {}

    def commit(self, key: str, value: Array, states: dict[str, Array], progress: Progress) -> None:
        """See `Ledger`."""
        self._ledger.commit(key, value, states, progress)
        arrays = {VALUE: value, **states}
        self._in_rows[key] = frozenset(n for n, array in arrays.items() if array.size == value.size)
        self._replicator.commit(key, progress.to_json(), arrays)

    def commit_rows(
        self,
        key: str,
        touched: Touched,
        value: Array,
        states: dict[str, Array],
        progress: Progress,
    ) -> bool:
        """See `Ledger`."""
        in_rows = self._in_rows.get(key)
        if in_rows is None:  # not since this process began
            return False
        if not self._ledger.commit_rows(key, touched, value, states, progress):
            return False
        arrays = {VALUE: value, **states}
        self._replicator.commit(key, progress.to_json(), arrays, touched, in_rows)
        return True

    def place(self, key: str, value: Array, states: Mapping[str, Array], workers: int = 0) -> Any:
        """See `Ledger`; what a stand-by has to have can't go another way."""
        return None if self._replicator.holds else self._ledger.place(key, value, states, workers)

    def commit_roster(self, roster: dict[str, Any]) -> None:
        """See `Ledger`."""
        self._ledger.commit_roster(roster)
        self._replicator.commit(ROSTER, roster, {})

    def slices(self) -> Iterable[tuple[str, Array, dict[str, Array], Progress]]:
        """See `Ledger`."""
        return self._ledger.slices()

    def roster(self) -> dict[str, Any] | None:
        """See `Ledger`."""
        return self._ledger.roster()


@dataclass
class Recovery:
    """What a shard in the place of a lost one still has to fetch, and from whom."""

    backup: str
    left: set[str] | None = None
    asked_at: float = -1e9
    asked: set[str] = field(default_factory=set)


class ReplicatedShard:
    """A `Shard` with a stand-by, and the stand-by of others. See the module.

    Args:
        name, incarnation: of this process; incarnations grow over all processes of a shard.
        make: makes the shard on a ledger.
        ledger: where this shard's state is kept on this host.
        store: where the records of others are kept on this host.
        recover: the shard that stood by for a lost one whose place this takes.
        repeat: seconds until a message is repeated.
        waits: whether a stand-by will be named: nothing is confirmed before.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        make: Callable[[Ledger], Shard],
        ledger: Ledger,
        store: ReplicaStore,
        *,
        recover: str | None = None,
        repeat: float = 1.0,
        waits: bool = False,
    ) -> None:
        self.name, self.incarnation = name, incarnation
        self.replicator = Replicator(name, incarnation, self, repeat, waits)
        self.standing_by = StandBy(name, store)
        self._make, self._ledger, self._repeat = make, ledger, repeat
        self._recovery = Recovery(recover) if recover else None
        self._shard: Shard | None = None
        self._number = 0
        self._now = 0.0
        self._deferring = False
        self._arena: Arena | None = None
        self._desk: Desk | None = None
        #: Whom to replicate to (`NOT_KNOWN`: to be heard), from any thread; taken at a tick.
        self.wanted_backup: tuple[str, str] | None = NOT_KNOWN if waits else None
        if self._recovery is None:
            self._begin()

    def _begin(self) -> None:
        self._shard = self._make(Mirror(self._ledger, self.replicator))
        self._shard.deferring = self._deferring
        self._shard.prompt = lambda: not self.replicator.holds
        if self._arena is not None:
            self._shard.move_values(self._arena)
        if self._desk is not None:
            self._shard.use_desk(self._desk)
        self._recovery = None

    @property
    def deferring(self) -> bool:
        """See `Shard`."""
        return self._deferring

    @deferring.setter
    def deferring(self, value: bool) -> None:
        self._deferring = value
        if self._shard is not None:
            self._shard.deferring = value

    def move_values(self, arena: Arena) -> None:
        """See `Shard`."""
        self._arena = arena
        if self._shard is not None:
            self._shard.move_values(arena)

    def lost(self, name: str, now: float) -> None:
        """See `Shard`."""
        if self._shard is not None:
            self._shard.lost(name, now)

    def finish(self) -> Outgoing:
        """See `Shard`; what it confirms is held back like the rest."""
        return [] if self._shard is None else self._gated(self._shard.finish(), self._now)

    def use_desk(self, desk: Desk) -> None:
        """See `Shard`."""
        self._desk = desk
        if self._shard is not None:
            self._shard.use_desk(desk)

    def serve_boards(self, ready: Sequence[tuple[int, int]], now: float) -> Outgoing:
        """See `Shard`."""
        return [] if self._shard is None else self._gated(self._shard.serve_boards(ready, now), now)

    @property
    def shard(self) -> Shard | None:
        """The shard; None while its state is fetched."""
        return self._shard

    @property
    def ready(self) -> bool:
        """Whether it serves."""
        return self._shard is not None

    def keys(self) -> Iterable[str]:
        """Keys of its records."""
        assert self._shard is not None
        return [ROSTER, *self._shard.slots]

    def record(self, key: str) -> tuple[dict[str, Any], dict[str, Array]]:
        """A record as it is now, as copies."""
        assert self._shard is not None
        if key == ROSTER:
            return self._shard.roster(), {}
        slot = self._shard.slots[key]
        states = {name: state.copy() for name, state in self._shard.states(key).items()}
        return slot.progress.to_json(), {VALUE: slot.value.copy(), **states}

    def handle(self, message: Message, now: float) -> Outgoing:
        """Serves one message and returns what to send (see `Shard.handle`)."""
        self._now = now
        if isinstance(message, Replicate):
            return self.standing_by.replicate(message)
        if isinstance(message, Fetch):
            return self.standing_by.fetch(message)
        if isinstance(message, Fetched):
            return self._fetched(message, now)
        if self._shard is None:
            return []  # whoever asks will ask again
        if isinstance(message, Replicated):
            return self.replicator.acknowledged(message) + self.replicator.send(now)
        return self._gated(self._shard.handle(message, now), now)

    def _gated(self, outgoing: Outgoing, now: float) -> Outgoing:
        found: Outgoing = []
        for to, message in outgoing:
            if isinstance(message, CONFIRMATIONS):
                found += self.replicator.hold(to, message)
            else:
                found.append((to, message))
        return found + self.replicator.send(now)

    def tick(self, now: float) -> Outgoing:
        """See `Shard.tick`; repeats records too."""
        self._now = now
        if self._shard is None:
            return self._ask(now)
        wanted = self.wanted_backup
        released = [] if wanted == NOT_KNOWN else self.replicator.stand_by(wanted)
        return released + self._gated(self._shard.tick(now), now)

    def next_deadline(self) -> float | None:
        """Time at which `tick` has something to do, or None."""
        if self._shard is None:
            return self._recovery.asked_at + self._repeat if self._recovery else None
        times = [self._shard.next_deadline(), self.replicator.next_time()]
        return min((t for t in times if t is not None), default=None)

    def next_release(self) -> float | None:
        """See `Shard`."""
        return self._shard.next_release() if self._shard is not None else None

    # -- taking the place of a lost shard

    def _ask(self, now: float) -> Outgoing:
        recovery = self._recovery
        assert recovery is not None
        if now < recovery.asked_at + self._repeat:
            return []
        recovery.asked_at = now
        recovery.asked.clear()
        return self._ask_for_some()

    def _ask_for_some(self) -> Outgoing:
        recovery = self._recovery
        assert recovery is not None
        if recovery.left is None:
            return [(recovery.backup, self._fetch(None))]
        new = sorted(recovery.left - recovery.asked)[: FETCH_AT_ONCE - len(recovery.asked)]
        recovery.asked |= set(new)
        return [(recovery.backup, self._fetch(key)) for key in new]

    def _fetch(self, key: str | None) -> Fetch:
        self._number += 1
        return Fetch(self.name, self._number, self.incarnation, key)

    def _fetched(self, message: Fetched, now: float) -> Outgoing:
        recovery = self._recovery
        if recovery is None:
            return []
        if message.key is None:
            if recovery.left is None:
                recovery.left = set(message.keys)
        elif recovery.left is not None and message.key in recovery.left:
            self._keep(message)
            recovery.left.discard(message.key)
            recovery.asked.discard(message.key)
        if recovery.left is not None and not recovery.left:
            self._begin()
            return []
        return self._ask_for_some()

    def _keep(self, message: Fetched) -> None:
        if message.key == ROSTER:
            self._ledger.commit_roster(message.record)
            return
        assert message.key is not None
        values = {name: value.copy() for name, value in message.values.items()}
        value = values.pop(VALUE)
        self._ledger.commit(message.key, value, values, Progress.from_json(message.record))
