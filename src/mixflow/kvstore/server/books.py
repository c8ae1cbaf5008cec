"""What the roles of a shard share: its slices and members, what is to be sent, and the one way in
which its state becomes durable.

The hazard: a role that changes a slice and forgets to commit it, or commits a state that never
was. So roles reach the ledger through `commit` and `commit_roster` alone, after the change.
"""

from __future__ import annotations

from ...errors import MixflowError
from ..protocol.merging import Arena, PlainArena, copied
from ..protocol.messages import Applied, Array, Message, Outgoing
from ..protocol.policy import Member
from ..protocol.touched import NOTHING, Touched, union
from .slots import Ledger, Memory, Slot
from .snapshot import Capture, Source

#: Bytes from which a slice's commit may wait until its values are on their way.
DEFER_BYTES = 256 << 10


class Books:
    """A shard's state as its roles see it. Not thread-safe.

    Args:
        name, incarnation: of the shard's process.
        shard: what is captured and whose roster is committed.
        ledger: keeps what is committed.
        arena: where values lie.
        capture: copies slices for snapshots.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        shard: Source,
        ledger: Ledger | None,
        arena: Arena | None,
        capture: Capture,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.ledger = ledger or Memory()
        self.arena = arena or PlainArena()
        self.capture = capture
        self.members: dict[int, Member] = {}
        self.slots: dict[str, Slot] = {}
        #: What the message that is being served has led to.
        self.out: Outgoing = []
        #: Whether `finish` is called after what `handle` and `tick` gave has been sent.
        self.deferring = False
        self._shard = shard
        #: What of each slice is still to be committed.
        self._uncommitted: dict[str, Touched | None] = {}
        self._unconfirmed: Outgoing = []

    def send(self, to: str, message: Message) -> None:
        """Answers."""
        self.out.append((to, message))

    def slot(self, key: str) -> Slot:
        """A slice.

        Raises:
            MixflowError: it was never initialised.
        """
        if key not in self.slots:
            raise MixflowError(
                f"[kvstore server {self.name}] expected key '{key}' to be initialised, got none"
            )
        return self.slots[key]

    @property
    def uncommitted(self) -> list[str]:
        """Slices whose last change is not durable yet."""
        return list(self._uncommitted)

    def is_durable(self, key: str) -> bool:
        """Whether a slice is kept as it stands."""
        return key not in self._uncommitted

    def confirm(self, sender: str, number: int, keys: list[str]) -> None:
        """Says that slices of a push are applied: at once where they are durable."""
        later = [key for key in keys if key in self._uncommitted]
        now = tuple(key for key in keys if key not in later)
        if now:
            self.send(sender, Applied(self.name, number, now, self.incarnation))
        if later:
            applied = Applied(self.name, number, tuple(later), self.incarnation)
            self._unconfirmed.append((sender, applied))

    def commit(self, key: str, slot: Slot, touched: Touched | None = None) -> None:
        """Makes a slice's state the durable one; `touched`: what of it has changed."""
        self._keep(key, slot, touched)
        self.capture.see(key, self._shard)

    def commit_soon(self, key: str, slot: Slot, touched: Touched | None = None) -> None:
        """`commit` that may wait until the slice's values, which many wait for, have been sent."""
        if self.deferring and slot.value.nbytes >= DEFER_BYTES:
            self._defer(key, touched)
            # At once: the next round may be closed before the commit.
            self.capture.see(key, self._shard)
        else:
            self.commit(key, slot, touched)

    def _defer(self, key: str, touched: Touched | None) -> None:
        before = self._uncommitted.get(key, NOTHING)
        self._uncommitted[key] = union(before, touched)

    def commit_progress(self, key: str, slot: Slot) -> None:
        """`commit` of a slice of which only the progress has changed: the version is the same."""
        if key not in self._uncommitted:
            self._keep(key, slot, NOTHING)

    def commit_roster(self) -> None:
        """Makes membership, settings and directory the durable ones."""
        self.ledger.commit_roster(self._shard.roster())

    def _keep(self, key: str, slot: Slot, touched: Touched | None) -> None:
        if not self.ledger.durable:
            return
        if touched is not None:
            states = slot.applier.states(key, touched)
            rows = touched.of(slot.value)
            if self.ledger.commit_rows(key, touched, rows, states, slot.progress):
                return
        self.ledger.commit(key, slot.value, slot.applier.states(key), slot.progress)

    def finish(self) -> Outgoing:
        """Commits what could wait, and gives the confirmations of it. Values could be sent before:
        after a crash the same pushes give the same values."""
        for key, touched in self._uncommitted.items():
            self._keep(key, self.slots[key], touched)
        self._uncommitted.clear()
        found, self._unconfirmed = self._unconfirmed, []
        return found

    def move_values(self, arena: Arena) -> None:
        """Keeps the values in another arena from now on."""
        self.arena = arena
        for slot in self.slots.values():
            slot.value = copied(arena, slot.value)

    def writable(self, slot: Slot, keep: bool = True) -> Array:
        """The slice's value to be written: another copy while a peer of this host reads it (its
        content counts with `keep` only)."""
        if self.arena.busy(slot.value):
            old = slot.value
            slot.value = copied(self.arena, old) if keep else self.arena.empty(old.size, old.dtype)
        return slot.value
