"""A worker's boards: shared words in the place of messages to servers of its host.

The hazard: a board ends at any moment, with a step half on its way. So an exchange that fails, and
every step that lies on a board that is over and is not confirmed, is sent by messages with the
parts that it had; `Client` learns where each slice is before it sends anything else of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ... import _rt
from ..protocol.client import Client, Ticket
from ..protocol.messages import Array, Gradient, Opened
from ..protocol.policy import Part
from ..protocol.sharding import Entry
from .boards import BELLS, address_of
from .segments import Leased

#: An exchange that takes longer goes on by messages: servers know what to do about who is missing.
PATIENCE_SECONDS = 1.0


class Detour(Protocol):
    """What an exchange was to do, for when it has to go by messages."""

    priority: int

    @property
    def slices(self) -> Sequence[str]:
        """Slices that are read; none where nothing is."""

    def gradients(self) -> dict[str, Array]:
        """Copies of what is pushed, by slice."""

    def ended(self, ticket: Ticket, failed: Any) -> None:
        """The messages have ended: stores the values and ends the exchange."""


class Keyed(Protocol):
    """What a lane needs to know of a key."""

    entry: Entry


@dataclass
class Board:
    """A board as its worker has it."""

    native: Any
    server: str
    names: tuple[str, ...]
    sizes: list[int]
    gradients: list[Array]


class Lane:
    """The boards of a worker. Not thread-safe: the link's lock covers it, but for `exchange`.

    Args:
        client: the worker's logic.
        notify: a descriptor that gets a byte when an exchange has failed.
        core: what has the native part; tests give another.
    """

    def __init__(self, client: Client, notify: int, core: Any = None) -> None:
        core = core or _rt.core
        self._core, self._client = core, client
        patience = min(PATIENCE_SECONDS, client.deadline / 8)
        self._native = core.WorkerLane(notify, int(1000 * patience))
        self._desks: dict[str, Any] = {}
        self._boards: list[Board] = []
        self._where: dict[str, tuple[Board, int]] = {}
        self._routes: dict[tuple[Keyed, ...], Any] = {}

    @property
    def steps(self) -> int:
        """Steps of slices that went by boards."""
        return int(self._native.steps)

    @property
    def nbytes(self) -> int:
        """Bytes that were put on boards."""
        return int(self._native.bytes)

    # -- boards

    def opened(self, server: str, channel: int, message: Opened) -> None:
        """A server has a board for this worker; it is used if the worker stands where it says."""
        client, names = self._client, message.slices
        memory, desk = message.values["board"], message.values["desk"]
        shared = _leased(memory) and _leased(desk)
        agreed = all(
            client.next_step(name) == version
            for name, version in zip(names, message.versions, strict=True)
        )
        if not (shared and agreed and client.worker in message.workers) or client.worker >= BELLS:
            return
        columns, column = len(message.workers), message.workers.index(client.worker)
        total, _, places = self._core.lane_layout(message.sizes, columns)
        if total > memory.nbytes or any(name in self._where for name in names):
            return
        if server not in self._desks:
            self._desks[server] = self._native.add_desk(
                address_of(desk), client.worker, channel, desk
            )
        native = self._native.open(
            self._desks[server],
            message.sizes,
            columns,
            address_of(memory),
            column,
            message.own,
            memory,
        )
        areas = zip(places, message.sizes, message.dtypes, strict=True)
        mine = [
            np.frombuffer(memory.data, dtype, size // np.dtype(dtype).itemsize, at[column])
            for at, size, dtype in areas
        ]
        board = Board(native, server, names, message.sizes, mine)
        self._boards.append(board)
        self._where.update({name: (board, index) for index, name in enumerate(names)})
        self._routes.clear()

    def lost(self, server: str) -> None:
        """The connection to a server has ended: so have its boards."""
        for board in [b for b in self._boards if b.server == server]:
            self._native.retire(board.native)
        desk = self._desks.pop(server, None)
        if desk is not None:
            self._native.drop_desk(desk)

    def retire(self, slices: Iterable[str]) -> None:
        """Ends the use of boards of some slices: they go by messages now."""
        for name in slices:
            if name in self._where:
                self._native.retire(self._where[name][0].native)

    @property
    def in_trouble(self) -> bool:
        """Whether some board is over, or an exchange has failed: `leave` has something to do."""
        over = any(self._native.over(board.native) for board in self._boards)
        return over or bool(self._native.has_failed)

    def unconfirmed(self) -> bool:
        """Whether some step on a board is not durable yet."""
        words = (w for board in self._boards for w in self._native.words(board.native))
        return any(staged > durable for staged, durable, _ in words)

    def follow(self) -> None:
        """Tells the worker's logic where the slices of boards are."""
        for board in self._boards:
            for name, words in zip(board.names, self._native.words(board.native), strict=True):
                self._client.went_on(name, words[0] - 1, words[2])

    def leave(self, now: float) -> list[tuple[Any, Ticket]]:
        """Sends by messages what boards that are over have not confirmed, and starts failed
        exchanges again; gives these with the tickets that they wait for."""
        client = self._client
        # First: the boards of what fails from here on are left by the next call.
        failed = self._native.take_failed()
        for board in [b for b in self._boards if self._native.over(b.native)]:
            self._boards.remove(board)
            self._routes.clear()
            left: dict[str, Gradient] = {}
            words = self._native.retire(board.native)
            for index, (staged, durable, version) in enumerate(words):
                name = board.names[index]
                del self._where[name]
                client.went_on(name, staged - 1, version)
                if staged > durable:
                    values = board.gradients[index].copy()
                    left[name] = Gradient((Part(client.worker, staged - 1),), values)
            if left:
                client.push_parts(left, now)
        return [(each, self._again(each, now)) for each in failed]

    def _again(self, failed: Any, now: float) -> Ticket:
        detour: Detour = failed.payload
        if not failed.staged:
            gradients = detour.gradients()
            return self._client.push(
                gradients, now, pull=bool(detour.slices), priority=detour.priority
            )
        return self._client.pull(detour.slices, now, priority=detour.priority)

    # -- exchanges

    def route(self, keys: tuple[Keyed, ...]) -> Any:
        """How an exchange of some keys goes by boards; None where it can't."""
        if keys not in self._routes:
            self._routes[keys] = self._route(keys)
        return self._routes[keys]

    def _route(self, keys: tuple[Keyed, ...]) -> Any:
        stops = []
        for number, key in enumerate(keys):
            itemsize = np.dtype(key.entry.dtype).itemsize
            for piece in key.entry.slices:
                found = self._where.get(piece.name)
                if found is None:
                    return None
                board, index = found
                if board.sizes[index] != (piece.end - piece.begin) * itemsize:
                    return None
                stops.append((board.native, index, number, piece.begin * itemsize))
        unique = {stop[:2] for stop in stops}
        return self._core.LaneRoute(stops) if stops and len(unique) == len(stops) else None

    def exchange(self, *arguments: Any) -> None:
        """Pushes an engine task that goes by a route; see the core's `WorkerLane.exchange`."""
        self._native.exchange(*arguments)

    def exchange_now(
        self,
        route: Any,
        gradients: list[Any],
        targets: list[list[Any]],
        tags: list[Any],
        detour: Detour,
        completion: Any,
    ) -> None:
        """`exchange` inside of a task that has the arrays and `tags`, and ends with it."""
        self._native.exchange_now(route, gradients, targets, tags, any(targets), detour, completion)

    def close(self) -> None:
        """Ends its threads; exchanges under way fail. Safe to call twice."""
        self._native.close()


def _leased(array: Array) -> bool:
    """Whether an array that has come is the sender's own memory, held by a lease."""
    origin = getattr(array.base, "obj", array.base)
    return isinstance(origin, Leased) and origin.lease is not None
