"""Who takes part in a shard's rounds, and the barriers where all of them meet.

The hazard: a copy of an old message that brings back a worker that has ended, and a worker that is
started again and waits at a barrier that the others have passed. So changes of membership carry an
epoch per worker, barriers are counted, and both are committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import MixflowError
from ..protocol.client import EPOCHS
from ..protocol.messages import Done, Enter, Join, Leave, Push
from ..protocol.policy import Member
from .barriers import Barriers
from .books import Books
from .reads import Wait
from .slots import Reader


class Membership:
    """The members of a shard's job.

    Args:
        books: what the shard's roles share; `books.members` is changed here alone.
        workers: number of those that are expected from the start.
    """

    def __init__(self, books: Books, workers: int) -> None:
        self._books = books
        # All of a job's first workers are expected from the start: a round must not close
        # before the slow starters have joined.
        books.members.update((worker, Member()) for worker in range(workers))
        #: Workers that were not waited for any more, until they join again.
        self._given_up: set[int] = set()
        #: Of those that were members: worker, first step, and by slice the end of what counts.
        self._tenures: list[tuple[int, int, dict[str, int]]] = []
        #: Step at which a member's time began; a restarted one was never away.
        self._since = dict.fromkeys(range(workers), 0)
        self._changes = 0
        self._epochs: dict[int, int] = {}
        self._barriers = Barriers()

    def restore(self, roster: Mapping[str, Any]) -> None:
        """Takes back what `to_json` gave."""
        self._books.members.clear()
        self._books.members.update((int(w), Member(int(first))) for w, first in roster["members"])
        self._epochs = {int(w): int(epoch) for w, epoch in roster["epochs"]}
        self._barriers.restore(roster["barriers"])
        self._given_up = {int(w) for w in roster.get("given_up", ())}
        self._changes = int(roster.get("changes", 0))
        since = roster.get("since", [(w, 0) for w, _ in roster["members"]])
        self._since = {int(w): int(step) for w, step in since}
        self._tenures = [(int(w), int(f), dict(ends)) for w, f, ends in roster.get("tenures", ())]

    def forget_open_rounds(self) -> None:
        """After a restart: what stood in open rounds comes again, but for those that have left."""
        for _, _, ends in self._tenures:
            for key in ends:
                slot = self._books.slots.get(key)
                if slot is not None:
                    ends[key] = min(ends[key], slot.progress.version)

    def to_json(self) -> dict[str, Any]:
        """Its part of the roster."""
        return {
            "members": [(w, m.first) for w, m in sorted(self._books.members.items())],
            "epochs": sorted(self._epochs.items()),
            "barriers": self._barriers.to_json(),
            "given_up": sorted(self._given_up),
            "changes": self._changes,
            "tenures": list(self._tenures),
            "since": sorted(self._since.items()),
        }

    def join(self, message: Join) -> None:
        """A worker takes part; rounds that waited for it may have become complete, if it joins
        again later on."""
        books = self._books
        if self._is_news(message.worker, message.epoch):
            self._changes += 1
            is_second = message.epoch % EPOCHS > 0  # a newcomer that begins later than it had said
            founds = message.worker in books.members and message.epoch == 0
            if message.worker not in books.members or is_second:
                self._since[message.worker] = message.first
            books.members[message.worker] = Member(message.first)
            self._given_up.discard(message.worker)
            self._barriers.join(message.worker, message.first, founds)
            for slot in books.slots.values():
                slot.progress.join(message.worker, message.first)
            books.commit_roster()
        books.send(message.sender, Done(books.name, message.number))

    def leave(self, message: Leave) -> None:
        """A worker takes no part any more."""
        if self._is_news(message.worker, message.epoch):
            self.drop([message.worker])
        self._books.send(message.sender, Done(self._books.name, message.number))

    def drop(self, workers: Iterable[int]) -> None:
        """Expects nothing more of workers."""
        for worker in workers:
            self._end_tenure(worker)
        self._books.commit_roster()
        self._open_barrier()

    def _end_tenure(self, worker: int) -> None:
        self._changes += 1
        if self._books.members.pop(worker, None) is None:
            return
        ends = {}
        for key, slot in self._books.slots.items():
            step = slot.progress.version
            while worker in slot.progress.rounds.get(step, ()):
                step += 1
            ends[key] = step
        self._tenures.append((worker, self._since.pop(worker, 0), ends))

    def report(self, brief: bool) -> dict[str, Any]:
        """Its part of a `Report`."""
        if brief:
            return {"changes": self._changes}
        members = [(w, self._since.get(w, 0)) for w in sorted(self._books.members)]
        return {"changes": self._changes, "members": members, "tenures": list(self._tenures)}

    def give_up(self, workers: Iterable[int]) -> None:
        """`drop` of workers that did not say that they leave: they may come back."""
        self._given_up.update(workers)
        self.drop(workers)

    def check_pushers(self, message: Push, deadline: float) -> None:
        """A worker that was given up and is back must join first: the rounds of its steps are
        closed, and it would take what it pushes for counted.

        Raises:
            MixflowError: a push of such workers alone.
        """
        if not self._given_up:
            return
        found = {part.worker for gradient in message.gradients.values() for part in gradient.parts}
        if found <= self._given_up:
            raise MixflowError(
                f"[kvstore server {self._books.name}] expected a push of a worker that takes part, "
                f"got one of worker {', '.join(map(str, sorted(found)))}, which was given up after "
                f"{deadline:g} s; start it again to go on with the others"
            )

    def _is_news(self, worker: int, epoch: int) -> bool:
        """Whether a change of membership is later than the last one: a copy of an old message
        must not bring back a worker that has ended."""
        if epoch <= self._epochs.get(worker, -1):
            return False
        self._epochs[worker] = epoch
        return True

    def enter(self, message: Enter, now: float) -> None:
        """A worker waits at a barrier."""
        reader = Reader(message.sender, message.number, message.worker, message.count, now)
        if self._barriers.enter(reader, message.step, message.turn):
            self._books.commit_roster()
        self._open_barrier()

    def _open_barrier(self) -> None:
        """Lets go of those whose barrier all live workers have reached."""
        for reader in self._barriers.open(self._books.members):
            self._books.send(reader.sender, Done(self._books.name, reader.number))

    def _absent(self, reader: Reader) -> frozenset[int]:
        return self._barriers.absent(reader, self._books.members)

    def waits(self) -> Iterable[Wait]:
        """Those at a barrier."""
        yield "all workers at a barrier", self._barriers.waiting, self._absent
