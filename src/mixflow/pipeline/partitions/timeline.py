"""Who has which partition where the members of a job change between two steps: a pure function.

The hazard: examples that nobody sees, or two see, because workers were told of a loss at different
moments. So a change has a step before which it takes effect, the same for all; a worker takes one
partition a step; and what each has taken by then follows from the steps alone. Workers at an
epoch's end may be one epoch apart: what a lost one leaves of an epoch goes to those who are still
in it, and if there are none, to the beginning of the next.

Partitions are numbered over all epochs: number n is partition n mod count of epoch n div count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .dealing import checked_members, deal


@dataclass(frozen=True)
class Timeline:
    """A time with the same members.

    Attributes:
        count: partitions of an epoch.
        begun: rank -> the step at which the worker's part in it begins.
        at: rank -> the epoch that it was in then.
        left: epoch -> partitions that are left of it, of those that somebody had begun.
    """

    count: int
    begun: Mapping[int, int]
    at: Mapping[int, int]
    left: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @staticmethod
    def start(count: int, members: Sequence[int]) -> Timeline:
        """That of a job's start."""
        ranks = checked_members(members)
        return Timeline(count, dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0))

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks, rising."""
        return tuple(sorted(self.at))

    def hand(self, rank: int, epoch: int) -> list[int]:
        """What a worker has of an epoch; nothing of one that it had left behind."""
        if epoch < self.at.get(rank, epoch + 1):
            return []
        present = [member for member in self.members if self.at[member] <= epoch]
        return deal(self._pool(epoch), epoch, present)[rank]

    def _pool(self, epoch: int) -> list[int]:
        known = self.left.get(epoch)
        return list(range(epoch * self.count, (epoch + 1) * self.count) if known is None else known)

    def position(self, rank: int, step: int) -> tuple[int, int]:
        """The epoch that a worker is in before a step, and how many of its hand it has taken. At an
        epoch's end it is still in that."""
        epoch, taken = self.at[rank], max(0, step - self.begun[rank])
        while taken > len(self.hand(rank, epoch)):
            taken -= len(self.hand(rank, epoch))
            epoch += 1
        return epoch, taken

    def changed(self, step: int, left: Mapping[int, int], joined: Mapping[int, int]) -> Timeline:
        """The time that begins before a step.

        Args:
            step: of those that were members and still are.
            left: rank -> its steps that counted, of those that are members no more.
            joined: rank -> first step, of new ones.
        """
        taken: set[int] = set()
        at: dict[int, int] = {}
        highest = 0
        for rank in self.members:
            epoch, count = self.position(rank, left.get(rank, step))
            for earlier in range(self.at[rank], epoch):
                taken.update(self.hand(rank, earlier))
            taken.update(self.hand(rank, epoch)[:count])
            highest = max(highest, epoch)
            if rank not in left:
                at[rank] = epoch
        lowest = min(at.values(), default=highest)
        at.update(dict.fromkeys(joined, lowest))
        rest = {
            epoch: [number for number in self._pool(epoch) if number not in taken]
            for epoch in range(min(self.at.values()), highest + 1)
        }
        for epoch in range(min(rest), lowest):  # nobody is in it any more
            carried = rest.pop(epoch)
            rest[epoch + 1] = [*carried, *rest.get(epoch + 1, self._pool(epoch + 1))]
        begun = {rank: joined.get(rank, step) for rank in at}
        return Timeline(self.count, begun, at, rest)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "begun": sorted(self.begun.items()),
            "at": sorted(self.at.items()),
            "left": sorted((epoch, list(rest)) for epoch, rest in self.left.items()),
        }

    @staticmethod
    def from_json(count: int, state: Mapping[str, Any]) -> Timeline:
        """What `to_json` gave."""
        return Timeline(
            count,
            {int(rank): int(step) for rank, step in state["begun"]},
            {int(rank): int(epoch) for rank, epoch in state["at"]},
            {int(epoch): [int(n) for n in rest] for epoch, rest in state["left"]},
        )
