"""A shard whose state another host holds too: a lost host loses nothing that was confirmed.

The hazard: a confirmation that outlives the state it speaks of. So what confirms (`Applied`,
`Done`, `Placed`, and a `Report`, on which a restarted worker builds) is held back until the shard
that stands by has acknowledged every record committed before it. A record is the whole state of a
slice, so that it may be repeated, lost, or overtaken by a later one: the later number wins. A
shard that starts in the place of a lost one fetches the records; from then on the one that stands
by refuses those of the old process, which may still be alive behind a broken network and can then
confirm nothing any more.

Pure logic, like `server.py`, and with the same interface as `Shard`. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .lanes import Desk
from .merging import Arena
from .messages import (
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
from .policy import Progress
from .server import Outgoing, Shard
from .slots import Ledger

CONFIRMATIONS = (Applied, Done, Kept, Placed, Report)
ROSTER = ""
VALUE = ""
#: Bytes per second of a link that is slow but works.
SLOW_LINK = 10e6
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
        known = self.store.head(message.sender, message.key)
        if known is None or tuple(known["number"]) < number:
            head = {"number": list(number), "record": message.record}
            self.store.put(message.sender, message.key, head, message.values)
        answer = Replicated(self.name, message.number, message.key, message.incarnation)
        return [(message.sender, answer)]

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


@dataclass(slots=True)
class Item:
    """The newest record of a key that is not acknowledged; `oldest` is the number of the first
    that is not."""

    number: int
    oldest: int
    record: dict[str, Any]
    values: dict[str, Array]
    flying: int = 0
    repeat_at: float = 0.0
    tries: int = 0


class Replicator:
    """Sends a shard's records to the one that stands by.

    Args:
        name, incarnation: of the shard's process.
        everything: all records as they are now, for another stand-by.
        repeat: seconds until a record is sent again.
        waits: whether a stand-by will be named: nothing is confirmed before.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        everything: Callable[[], Iterable[tuple[str, dict[str, Any], dict[str, Array]]]],
        repeat: float = 1.0,
        waits: bool = False,
    ) -> None:
        self._waits = waits
        self.name, self.incarnation, self.repeat = name, incarnation, repeat
        #: Name and storage of the stand-by; None where there is no other host.
        self.backup: tuple[str, str] | None = None
        self._everything = everything
        self._number = 0
        self._items: dict[str, Item] = {}
        self._unsynced: set[str] = set()
        self._held: list[tuple[int, str, Message]] = []

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
        if backup is not None:
            for key, record, values in self._everything():
                self._number += 1
                self._items[key] = Item(self._number, 1, record, values)
                self._unsynced.add(key)
        return self._release()

    def commit(self, key: str, record: dict[str, Any], values: Mapping[str, Array]) -> None:
        """A record of a slice was committed here; arrays are copied."""
        if self.backup is None:
            return
        self._number += 1
        copied = {name: value.copy() for name, value in values.items()}
        item = self._items.get(key)
        if item is None:
            self._items[key] = Item(self._number, self._number, record, copied)
        else:
            item.number, item.record, item.values = self._number, record, copied

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
        if message.number < item.oldest:
            return []  # a copy of an earlier word
        self._unsynced.discard(message.key)
        item.oldest, item.flying, item.tries = message.number + 1, 0, 0
        if message.number >= item.number:
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
            if item.flying and now < item.repeat_at:
                continue
            size = sum(value.nbytes for value in item.values.values())
            item.flying = item.number
            item.repeat_at = now + self.repeat * min(2**item.tries, 8) + size / SLOW_LINK
            item.tries += 1
            message = Replicate(
                self.name, item.number, key, self.incarnation, item.record, item.values
            )
            found.append((self.backup[0], message))
        return found

    def next_time(self) -> float | None:
        """When `send` next has something to repeat."""
        return min((item.repeat_at for item in self._items.values()), default=None)


class Mirror:
    """A ledger whose commits go to a replicator too."""

    durable = True

    def __init__(self, ledger: Ledger, replicator: Replicator) -> None:
        self._ledger = ledger
        self._replicator = replicator

    def commit(self, key: str, value: Array, states: dict[str, Array], progress: Progress) -> None:
        """See `Ledger`."""
        self._ledger.commit(key, value, states, progress)
        self._replicator.commit(key, progress.to_json(), {VALUE: value, **states})

    def place(self, key: str) -> Any:
        """See `Ledger`; what a stand-by has to have can't go another way."""
        return None if self._replicator.holds else self._ledger.place(key)

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
        self.replicator = Replicator(name, incarnation, self._everything, repeat, waits)
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

    def _everything(self) -> Iterable[tuple[str, dict[str, Any], dict[str, Array]]]:
        assert self._shard is not None
        yield ROSTER, self._shard.roster(), {}
        for key, slot in self._shard.slots.items():
            states = {n: s.copy() for n, s in self._shard.states(key).items()}
            yield key, slot.progress.to_json(), {VALUE: slot.value.copy(), **states}

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
