"""Level 1 between processes of one host: pushes are merged before they leave it, values come once.

The hazard: a merged push can't be taken apart by whoever gets it, and the merger may die with it.
So each worker keeps its gradients until `Applied`, which comes from the servers through the merger;
the merger keeps every part until then too; and when a server refuses a merged push because it has
some of its parts (pushed by a merger that died since), all go again one by one, where they count
once as ever. The merger itself keeps nothing that it would miss after a restart.

Under `Sync` a step of a slice leaves when all live workers of the host have pushed it, or when the
first has waited for `seconds`: a slow worker holds up nobody for longer. Under the other policies
what is there leaves as soon as the slice's last push has been confirmed: nobody waits for a
neighbour. Values of a step are asked for once per host under `Sync`, and per worker otherwise.

Pure logic, like `server/shard.py`: it answers workers like a server does, and what the servers are
to do stands in `take_orders`; whoever carries an order out calls `ended` with its ticket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import MixflowError
from ...ndarray.rows import wide
from ..protocol.client import Client, Ticket
from ..protocol.merging import Arena, PlainArena, Sum, copied
from ..protocol.messages import (
    Applied,
    Array,
    Done,
    Failed,
    Gradient,
    Join,
    Leave,
    Message,
    Outgoing,
    Pull,
    Push,
    Query,
    Received,
    Values,
    arrival,
)
from ..protocol.policy import Part, Policy, Sync
from ..server.lanes import Desk

#: A worker's request: who, and its number.
Asker = tuple[str, int]

#: How long the first push of a step waits for those of the host's other workers.
MERGE_SECONDS = 2.0


@dataclass(slots=True)
class Piece:
    """One worker's push of a slice: its gradient, who waits for its confirmation and its values."""

    gradient: Gradient
    pushers: set[Asker] = field(default_factory=set)
    readers: set[Asker] = field(default_factory=set)
    asked: set[Asker] = field(default_factory=set)
    priority: int = 0

    @property
    def part(self) -> Part:
        """Its worker and step."""
        return self.gradient.parts[0]


@dataclass(slots=True)
class Order:
    """What the servers are to do: take the pieces of slices as one push each, or give values.

    A read (`pieces` empty) is for a worker at its clocks; `asker` gets the answer.
    """

    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    pull: bool = False
    priority: int = 0
    worker: int = 0
    clocks: dict[str, int] = field(default_factory=dict)
    asker: Asker | None = None
    homes: dict[str, str] = field(default_factory=dict)
    rows: dict[str, Array] = field(default_factory=dict)

    def start(self, client: Client, now: float) -> Ticket:
        """Makes the request; the order has ended when its ticket is `settled`."""
        if not self.pieces:
            return client.pull_at(
                self.worker, self.clocks, now, priority=self.priority, rows=self.rows
            )
        gradients = {key: _merged(pieces) for key, pieces in self.pieces.items()}
        return client.push_parts(gradients, now, pull=self.pull, priority=self.priority)


def _merged(pieces: list[Piece]) -> Gradient:
    if len(pieces) == 1:
        return pieces[0].gradient
    dtype = pieces[0].gradient.values.dtype
    total = Sum(wide(dtype))
    for piece in pieces:
        total.add(piece.gradient.values)
    merged = np.asarray(total.result(), dtype)
    return Gradient(tuple(piece.part for piece in pieces), merged)


@dataclass(slots=True)
class Lane:
    """A slice: what waits to leave (by part), what has left, and the values that came last."""

    waiting: dict[Part, Piece] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    flying: dict[Part, Piece] = field(default_factory=dict)
    closed: int = -1
    version: int = -1
    values: Array | None = None
    readers: list[tuple[Asker, int]] = field(default_factory=list)
    #: Versions that are on their way.
    asked: set[int] = field(default_factory=set)


class Merger:
    """Merges what the workers of one host push.

    Args:
        name: what workers call it.
        policy: consistency of the job.
        incarnation: larger for each process that takes its place.
        seconds: how long the first push of a step waits for the others of the host.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        *,
        incarnation: int = 0,
        seconds: float = MERGE_SECONDS,
        arena: Arena | None = None,
    ) -> None:
        self.name = name
        self.policy = policy
        self.incarnation = incarnation
        self.seconds = seconds
        self.arena = arena or PlainArena()
        self.deferring = False
        self.members: dict[int, str] = {}
        #: Server of each slice, as the workers say.
        self.homes: dict[str, str] = {}
        self._epochs: dict[int, int] = {}
        self._lanes: dict[str, Lane] = {}
        #: Reads at the servers that have not ended: for whom, and of which slice.
        self._asked: set[tuple[Asker, str]] = set()
        self._orders: list[Order] = []
        self._out: Outgoing = []

    # -- the same face as a shard's

    def move_values(self, arena: Arena) -> None:
        """Keeps values that come in another arena from now on."""
        self.arena = arena

    def handle(self, message: Message, now: float) -> Outgoing:
        """Serves a worker's message and returns what to send to workers."""
        self._out = []
        handlers = {
            Push: self._push,
            Query: self._query,
            Pull: self._pull,
            Join: self._join,
            Leave: self._leave,
        }
        handler = handlers.get(type(message))
        if handler is None:
            text = f"[kvstore merger] expected a push or a pull, got {type(message).__name__}"
            self._send(message.sender, Failed(self.name, message.number, text))
        else:
            handler(message, now)  # type: ignore[operator]
        return self._out

    def tick(self, now: float) -> Outgoing:
        """Lets go of what has waited for its neighbours for too long."""
        self._out = []
        for key, lane in self._lanes.items():
            if any(now - since >= self.seconds for since in lane.since.values()):
                self._leave_host([key], now)
        return self._out

    def finish(self) -> Outgoing:
        """Nothing waits until the rest was sent."""
        return []

    def next_deadline(self) -> float | None:
        """Time at which `tick` has something to do, or None."""
        since = [time for lane in self._lanes.values() for time in lane.since.values()]
        return min(since) + self.seconds if since else None

    def use_desk(self, desk: Desk) -> None:
        """A merger opens no boards."""

    def serve_boards(self, ready: Sequence[tuple[int, int]], now: float) -> Outgoing:
        """A merger has no boards."""
        return []

    def lost(self, name: str, now: float) -> None:
        """A worker's connection has ended: nobody waits for it until it joins again."""
        for worker in [w for w, who in self.members.items() if who == name]:
            del self.members[worker]
        self._leave_host(self._lanes, now)

    def take_orders(self) -> list[Order]:
        """What the servers are to do, once."""
        found, self._orders = self._orders, []
        return found

    # -- workers

    def _send(self, to: str, message: Message) -> None:
        self._out.append((to, message))

    def _join(self, message: Join, now: float) -> None:
        if message.epoch >= self._epochs.get(message.worker, -1):
            self._epochs[message.worker] = message.epoch
            self.members[message.worker] = message.sender
        self._send(message.sender, Done(self.name, message.number))

    def _leave(self, message: Leave, now: float) -> None:
        if message.epoch >= self._epochs.get(message.worker, -1):
            self._epochs[message.worker] = message.epoch
            self.members.pop(message.worker, None)
        self._send(message.sender, Done(self.name, message.number))
        self._leave_host(self._lanes, now)

    def _push(self, message: Push, now: float) -> None:
        asker = (message.sender, message.number)
        self.homes.update(message.homes)
        for key, gradient in message.gradients.items():
            lane = self._lanes.setdefault(key, Lane())
            part = gradient.parts[0]
            piece = lane.waiting.get(part) or lane.flying.get(part)
            if piece is None:
                piece = lane.waiting[part] = Piece(gradient, priority=message.priority)
                if isinstance(self.policy, Sync):
                    lane.since.setdefault(part.step, now)
            piece.pushers.add(asker)
            if message.pull:
                piece.readers.add(asker)
        self._send(message.sender, Received(self.name, message.number, self.incarnation))
        self._leave_host(message.gradients, now)

    def _query(self, message: Query, now: float) -> None:
        """What became of a push: it or its values are on their way, or it must be sent again."""
        asker = (message.sender, message.number)
        unknown = []
        for key, parts in message.parts.items():
            lane = self._lanes.setdefault(key, Lane())
            under_way = parts[0] in lane.waiting or parts[0] in lane.flying
            if not under_way and not self._is_asked(key, asker):
                unknown.append(key)
        self._send(message.sender, arrival(message, self.name, unknown, self.incarnation))

    def _leave_host(self, keys: Iterable[str], now: float) -> None:
        """Orders the pushes that need not wait any longer."""
        for key in keys:
            lane = self._lanes[key]
            ready = self._ready(lane, now)
            for pieces in self._grouped(ready):
                for piece in pieces:
                    del lane.waiting[piece.part]
                    lane.flying[piece.part] = piece
                self._order(key, pieces)
            steps = {part.step for part in lane.waiting}
            lane.since = {s: t for s, t in lane.since.items() if s in steps}

    def _ready(self, lane: Lane, now: float) -> list[Piece]:
        if not isinstance(self.policy, Sync):
            # A round may be confirmed only when a neighbour's push is there as well.
            free = self.policy.rounds or not lane.flying
            return list(lane.waiting.values()) if free else []
        found = []
        for step in sorted({part.step for part in lane.waiting}):
            pieces = [p for part, p in lane.waiting.items() if part.step == step]
            there = {p.worker for p in (*lane.waiting, *lane.flying) if p.step == step}
            late = now - lane.since[step] >= self.seconds
            if late or step <= lane.closed or self.members.keys() <= there:
                found += pieces
        return found

    def _grouped(self, pieces: list[Piece]) -> list[list[Piece]]:
        """Pieces that leave together: of one step where rounds have one; coded ones alone."""
        groups: dict[object, list[Piece]] = {}
        for piece in sorted(pieces, key=lambda p: p.part):
            step = piece.part.step if self.policy.rounds else -1
            groups.setdefault(piece.part if piece.gradient.code else step, []).append(piece)
        return list(groups.values())

    def _order(self, key: str, pieces: list[Piece]) -> None:
        pull = any(piece.readers for piece in pieces)
        together = pull and isinstance(self.policy, Sync)
        priority = max(piece.priority for piece in pieces)
        if together:
            self._lanes[key].asked.add(pieces[0].part.step + 1)
        self._orders.append(Order({key: pieces}, together, priority))
        if not together:
            self._ask_all(key, pieces)

    def _ask_all(self, key: str, pieces: Iterable[Piece]) -> None:
        """Asks for the values of those who pushed and have not been asked for."""
        for piece in pieces:
            for asker in piece.readers - piece.asked:
                if not self._is_asked(key, asker):
                    clocks = {key: piece.part.step + 1}
                    self._ask(piece.part.worker, clocks, asker, piece.priority)
            piece.asked |= piece.readers

    def _ask(
        self,
        worker: int,
        clocks: dict[str, int],
        asker: Asker,
        priority: int,
        rows: dict[str, Array] | None = None,
    ) -> None:
        order = Order(worker=worker, clocks=clocks, asker=asker, priority=priority, rows=rows or {})
        self._orders.append(order)
        self._asked.update((asker, key) for key in clocks)

    def _is_asked(self, key: str, asker: Asker) -> bool:
        """Whether a worker's read is under way: a copy of its request changes nothing."""
        readers = self._lanes[key].readers
        return (asker, key) in self._asked or any(reader[0] == asker for reader in readers)

    def _pull(self, message: Pull, now: float) -> None:
        asker = (message.sender, message.number)
        self.homes.update(message.homes)
        alone = {}
        for key, clock in message.clocks.items():
            lane = self._lanes.setdefault(key, Lane())
            if self._is_asked(key, asker):
                continue
            if not isinstance(self.policy, Sync) or clock == 0 or key in message.rows:
                alone[key] = clock
            elif lane.version >= clock:  # also a repeat of a read whose answer was lost
                self._give(key, [asker])
            else:
                lane.readers.append((asker, clock))
                # A later version that is on its way may need this worker's next push, which comes
                # after this read.
                if clock not in lane.asked:
                    lane.asked.add(clock)
                    self._orders.append(Order(worker=message.worker, clocks={key: clock}))
        if alone:
            self._ask(message.worker, alone, asker, message.priority, message.rows)

    def _give(self, key: str, askers: Iterable[Asker]) -> None:
        lane = self._lanes[key]
        assert lane.values is not None
        for sender, number in askers:
            values, versions = {key: lane.values}, {key: lane.version}
            self._send(sender, Values(self.name, number, values, versions, self.incarnation))

    # -- servers

    def ended(self, order: Order, ticket: Ticket, now: float) -> Outgoing:
        """An order has ended: tells the workers, and returns what to send to them."""
        self._out = []
        if order.asker:
            self._asked -= {(order.asker, key) for key in order.clocks}
        if ticket.error:
            self._failed(order, ticket)
        elif order.pieces:
            self._pushed(order, ticket)
        else:
            self._read(order, ticket)
        self._leave_host(set(order.pieces) | set(order.clocks), now)
        return self._out

    def _failed(self, order: Order, ticket: Ticket) -> None:
        askers = {order.asker} if order.asker else set()
        for key, pieces in order.pieces.items():
            for piece in pieces:
                self._lanes[key].flying.pop(piece.part, None)
                askers |= piece.pushers
        for key in {**order.pieces, **order.clocks} if not order.asker else ():
            askers |= {asker for asker, _ in self._lanes[key].readers}
            self._lanes[key].readers.clear()
            self._lanes[key].asked.clear()
        for sender, number in askers:
            failed = Failed(self.name, number, ticket.error, ticket.missing)
            self._send(sender, failed)

    def _pushed(self, order: Order, ticket: Ticket) -> None:
        for key, pieces in order.pieces.items():
            lane = self._lanes[key]
            if key in ticket.refused:
                # One by one: what was taken before counts once, and is confirmed like the rest.
                self._orders += [Order({key: [p]}, order.pull, order.priority) for p in pieces]
                continue
            if key in ticket.values:
                self._keep(key, ticket)
            for piece in pieces:
                lane.flying.pop(piece.part, None)
                lane.closed = max(lane.closed, piece.part.step)
                for sender, number in piece.pushers:
                    self._send(sender, Applied(self.name, number, (key,), self.incarnation))
                if order.pull:
                    self._give(key, piece.readers)
            if not order.pull:
                self._ask_all(key, pieces)
            self._serve(key)

    def _keep(self, key: str, ticket: Ticket) -> None:
        """Keeps values that have come, if they are the latest."""
        lane = self._lanes[key]
        if ticket.versions[key] >= lane.version:
            lane.version = ticket.versions[key]
            lane.values = copied(self.arena, ticket.values[key])

    def _read(self, order: Order, ticket: Ticket) -> None:
        if order.asker:
            sender, number = order.asker
            versions = {key: ticket.versions[key] for key in ticket.values}
            values = {key: copied(self.arena, found) for key, found in ticket.values.items()}
            self._send(sender, Values(self.name, number, values, versions, self.incarnation))
            return
        for key in order.clocks:
            self._keep(key, ticket)
            self._serve(key)

    def _serve(self, key: str) -> None:
        """Answers the reads that the values at hand are good for."""
        lane = self._lanes[key]
        ready = [asker for asker, clock in lane.readers if clock <= lane.version]
        lane.asked = {clock for clock in lane.asked if clock > lane.version}
        lane.readers = [reader for reader in lane.readers if reader[1] > lane.version]
        if ready:
            self._give(key, ready)

    def where(self, key: str) -> str:
        """Server of a slice.

        Raises:
            MixflowError: no worker has told it.
        """
        if key not in self.homes:
            raise MixflowError(f"[kvstore merger] expected the server of '{key}', got none")
        return self.homes[key]
