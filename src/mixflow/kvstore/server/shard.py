"""A server shard: the slices that it owns, merged, updated and read under a policy.

The hazard: a network repeats, loses, delays and reorders, workers die in the middle of a step and
come back, and a restarted server must not apply a push twice nor lose one that it confirmed. So a
shard counts parts (worker, step), not messages; it answers a repeated request with the same words;
and it confirms with `Applied` only what `Ledger.commit` has made durable.

A shard is made of roles over the same books: `rounds` (pushes), `reads`, `membership` (who takes
part, barriers), `catalog` (slices, settings, states), `lending` (a lone worker's lease) and `lanes`
(boards in the place of messages on one host). Pure logic: no socket, no thread, no clock of its
own. `handle` and `tick` return what to send; the caller passes the time. Not thread-safe; one
caller at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...errors import MixflowError
from ..protocol.merging import Add, Arena, Assign
from ..protocol.messages import (
    Array,
    Ask,
    Configure,
    Deposit,
    Enter,
    Failed,
    FetchStates,
    Init,
    Join,
    Leave,
    Lend,
    Message,
    Outgoing,
    Place,
    Pull,
    Push,
    PutStates,
    Query,
)
from ..protocol.policy import Member, Policy
from ..protocol.sharding import Directory
from .books import Books
from .catalog import Catalog
from .lanes import Desk, Lanes
from .lending import Lending
from .membership import Membership
from .reads import Reads, Wait
from .rounds import Decode, Rounds, plain
from .rules import Rules
from .slots import Applier, Ledger, Memory, Reader, Slot
from .snapshot import Capture

__all__ = ["Add", "Applier", "Assign", "Ledger", "Memory", "Outgoing", "Shard"]


class Shard:
    """One server. `name` addresses it; `incarnation` changes with each start of its process."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        applier: Applier,
        *,
        workers: int = 0,
        directory: Directory | None = None,
        ledger: Ledger | None = None,
        deadline: float = 60.0,
        give_up: bool = False,
        incarnation: int = 0,
        decode: Decode = plain,
        arena: Arena | None = None,
        capture: Capture | None = None,
    ) -> None:
        self.name = name
        self.policy = policy
        self.applier = applier
        self.deadline = deadline
        self.give_up = give_up
        self.incarnation = incarnation
        #: Copies slices for snapshots.
        self.capture = capture or Capture(policy.rounds)
        self._books = Books(name, incarnation, self, ledger, arena, self.capture)
        self._membership = Membership(self._books, workers)
        self._reads = Reads(self._books)
        self._catalog = Catalog(self._books, self._reads, Rules(policy, applier, Add()), directory)
        self.rounds = Rounds(self._books, self._reads, decode)
        self._lending = Lending(self._books)
        self.lanes = Lanes(self._books, lambda: self.prompt(), self.rounds.apply_own)
        self.rounds.lanes = self.lanes
        self._handlers = self._handlers_by_message()
        roster = self._books.ledger.roster()
        if roster is not None:  # goes on from what an earlier process of this shard has committed
            self._membership.restore(roster)
            self._catalog.restore(roster)
            self._lending.restore(roster)
        self._catalog.restore_slices()
        self._membership.forget_open_rounds()

    def _handlers_by_message(self) -> dict[type[Message], Callable[[Any, float], None]]:
        rounds, catalog = self.rounds, self._catalog
        return {
            Push: self._push,
            Query: rounds.query,
            Pull: self._pull,
            Join: self._join,
            Leave: self._leave,
            Enter: self._membership.enter,
            Place: lambda message, now: catalog.place(message),
            Init: self._init,
            Configure: self._configure,
            Ask: self._ask,
            FetchStates: lambda message, now: catalog.fetch_states(message),
            PutStates: self._put_states,
            Lend: self._lend,
            Deposit: lambda message, now: self._lending.deposit(message),
        }

    # -- what it is made of

    @property
    def slots(self) -> dict[str, Slot]:
        """Its slices."""
        return self._books.slots

    @property
    def members(self) -> dict[int, Member]:
        """The workers that take part."""
        return self._books.members

    @property
    def ledger(self) -> Ledger:
        """Where its state is kept."""
        return self._books.ledger

    @property
    def arena(self) -> Arena:
        """Where its values lie."""
        return self._books.arena

    @property
    def directory(self) -> Directory | None:
        """Where the job's keys live; at the first server only."""
        return self._catalog.directory

    @property
    def deferring(self) -> bool:
        """Whether `finish` is called after what `handle` and `tick` gave has been sent."""
        return self._books.deferring

    @deferring.setter
    def deferring(self, value: bool) -> None:
        self._books.deferring = value

    @property
    def prompt(self) -> Callable[[], bool]:
        """Whether what confirms leaves at once: then it also says that a push has arrived."""
        return self.rounds.prompt

    @prompt.setter
    def prompt(self, value: Callable[[], bool]) -> None:
        self.rounds.prompt = value

    def states(self, key: str) -> dict[str, Array]:
        """Optimizer states of a slice, by name."""
        return self._catalog.states(key)

    def roster(self) -> dict[str, Any]:
        """Membership, settings and directory as plain values."""
        parts = (self._membership, self._catalog, self._lending)
        return {name: value for part in parts for name, value in part.to_json().items()}

    def move_values(self, arena: Arena) -> None:
        """Keeps the values in another arena from now on."""
        self._books.move_values(arena)

    def lost(self, name: str, now: float) -> None:
        """A connection says nothing of its worker: it may come back by another."""
        self.lanes.lost(name, now)

    def use_desk(self, desk: Desk) -> None:
        """Boards may be opened from now on (see `lanes`)."""
        self.lanes.desk = desk

    def serve_boards(self, ready: Sequence[tuple[int, int]], now: float) -> Outgoing:
        """Takes the rounds that the desk has closed, and closes those that are complete (board,
        slice). Called before messages are handled."""
        self._books.out = []
        names = self.lanes.take(ready, now)
        self.rounds.settle([*self.lanes.absorb(), *names], now)
        self.lanes.publish(names)
        return self._books.out

    # -- messages and time

    def handle(self, message: Message, now: float) -> Outgoing:
        """Serves one message and returns what to send. A bad request is answered by `Failed`;
        it changes nothing. Arrays in the answers are the shard's own: copy or encode them before
        the next call."""
        books, lending = self._books, self._lending
        books.out = []
        if lending.holds_back(message, now):
            return books.out
        self._serve(message, now)
        for waited in lending.freed():
            self._serve(waited, now)
        return books.out

    def _serve(self, message: Message, now: float) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:  # an answer: nothing was asked
            return
        try:
            handler(message, now)
        except MixflowError as error:
            self._books.send(message.sender, Failed(self.name, message.number, str(error)))

    def _push(self, message: Push, now: float) -> None:
        self._membership.check_pushers(message, self.deadline)
        self.rounds.push(message, now)

    def _pull(self, message: Pull, now: float) -> None:
        self.rounds.check_updates(message.clocks)
        self.rounds.settle(self._reads.pull(message, now), now)

    def _ask(self, message: Ask, now: float) -> None:
        self._catalog.ask(message, self._membership.report(message.brief))

    def _init(self, message: Init, now: float) -> None:
        self._catalog.init(message)
        self.rounds.settle(message.values, now)

    def _join(self, message: Join, now: float) -> None:
        self.lanes.close(now)
        self._membership.join(message)
        self.rounds.settle(self.slots, now)

    def _configure(self, message: Configure, now: float) -> None:
        self.lanes.forget()
        self._catalog.configure(message)

    def _put_states(self, message: PutStates, now: float) -> None:
        self.lanes.close(now)
        self._catalog.put_states(message)

    def _lend(self, message: Lend, now: float) -> None:
        self.lanes.close(now)
        self._lending.lend(message)

    def _leave(self, message: Leave, now: float) -> None:
        self.lanes.close(now)
        self._membership.leave(message)
        self.rounds.settle(self.slots, now)

    def finish(self) -> Outgoing:
        """Commits the big slices whose rounds were closed, and gives the confirmations."""
        done = self._books.uncommitted
        found = self._books.finish()
        self.lanes.publish(done)
        return found

    def tick(self, now: float) -> Outgoing:
        """Ends waits that have passed the deadline: with an error that names the missing workers,
        or by going on without them (`give_up`)."""
        books = self._books
        books.out = []
        while self.capture.wanted:
            number = self.capture.wanted.popleft()
            self.capture.mark(number, self)
        self.lanes.review(now)
        self._reads.release(now)
        lost: set[int] = set()
        for what, waiting, missing_of in self._waits():
            for reader in [r for r in waiting if now - r.since > self.deadline]:
                missing = missing_of(reader)
                if self.give_up and missing - {reader.worker}:
                    lost |= missing - {reader.worker}
                else:
                    waiting.remove(reader)
                    books.send(reader.sender, self._timed_out(what, reader, missing))
        if lost:
            self.lanes.close(now)
            self._membership.give_up(lost)
            self.rounds.settle(self.slots, now)
            for waited in self._lending.freed():
                self._serve(waited, now)
        return books.out

    def next_deadline(self) -> float | None:
        """Time at which `tick` has something to do, or None."""
        since = [reader.since for _, waiting, _ in self._waits() for reader in waiting]
        times = [min(since) + self.deadline if since else None, self.next_release()]
        return min((time for time in times if time is not None), default=None)

    def next_release(self) -> float | None:
        """The part of `next_deadline` that may come nearer."""
        return self._reads.next_release()

    def _waits(self) -> Iterable[Wait]:
        yield from self._reads.waits()
        yield from self._membership.waits()
        yield from self._lending.waits()

    def _timed_out(self, what: str, reader: Reader, missing: frozenset[int]) -> Failed:
        names = ", ".join(map(str, sorted(missing)))
        return Failed(
            self.name,
            reader.number,
            f"[kvstore server {self.name}] expected {what} (worker {reader.worker} is at clock "
            f"{reader.clock}) within {self.deadline:g} s, got nothing from worker {names}",
            tuple(sorted(missing)),
        )
