"""A host's merger on a node of the simulator: the real `Merger` and `Client` between its workers
and the servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..host.merger import Merger, Order
from ..protocol.client import Client, Ticket
from ..protocol.messages import Message, Outgoing

if TYPE_CHECKING:
    from .simulator import Cluster


class SimulatedHost:
    """A merger; a crash forgets all that it had."""

    def __init__(self, cluster: Cluster, name: str, seconds: float) -> None:
        from .simulator import Node

        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.node = Node(self._handle)
        self.world.nodes[name] = self.node
        self._seconds = seconds
        self._life = 0
        self._begin()

    def _begin(self) -> None:
        cluster = self.cluster
        self.merger = Merger(
            self.name, cluster.policy, incarnation=self._life, seconds=self._seconds
        )
        self.client = Client(
            f"{self.name}.{self._life}",
            -1,
            self.merger.where,
            cluster.policy,
            repeat=cluster.repeat,
            deadline=cluster.deadline,
        )
        self.world.nodes[self.client.name] = self.node
        self._orders: list[tuple[Order, Ticket]] = []
        self._due: float | None = None

    def _handle(self, message: Message) -> None:
        if message.sender in self.cluster.servers:
            self.client.handle(message, self.world.now)
        else:
            self._answer(self.merger.handle(message, self.world.now))
        self._flush()

    def _answer(self, outgoing: Outgoing) -> None:
        for to, message in outgoing:
            self.world.send(self.name, to, message)

    def _flush(self) -> None:
        """Carries orders out, and tells of those that have ended, until nothing is left to do."""
        now = self.world.now
        while True:
            self._orders += [(o, o.start(self.client, now)) for o in self.merger.take_orders()]
            ended = [entry for entry in self._orders if entry[1].settled]
            if not ended:
                break
            self._orders = [entry for entry in self._orders if not entry[1].settled]
            for order, ticket in ended:
                self._answer(self.merger.ended(order, ticket, now))
        for to, message in self.client.take_outgoing():
            self.world.send(self.client.name, to, message)
        self._arm()

    def _arm(self) -> None:
        times = [self.client.next_time(), self.merger.next_deadline()]
        due = min((time for time in times if time is not None), default=None)
        if due is not None and (self._due is None or due < self._due):
            self._due, life = due, self._life
            self.world.at(due + 1e-6, lambda: self._tick(life))

    def _tick(self, life: int) -> None:
        if life != self._life or not self.node.alive:
            return
        now, self._due = self.world.now, None
        times = [self.client.next_time(), self.merger.next_deadline()]
        if any(time is not None and time <= now for time in times):
            self.client.tick(now)
            self._answer(self.merger.tick(now))
            self._flush()
        else:
            self._arm()

    def lost(self, worker: str) -> None:
        """A worker of this host has died: its connection breaks."""
        if self.node.alive:
            self.merger.lost(worker, self.world.now)
            self._flush()

    def crash(self, restart: float | None) -> None:
        """Stops the merger; another takes its place, under another name: what servers answer to
        this one reaches nobody."""
        from .simulator import Node

        self.node.alive = False
        self.world.nodes[self.client.name] = Node(self._handle, alive=False)
        self._life += 1
        if restart is not None:
            self.world.at(self.world.now + restart, self._restart)

    def _restart(self) -> None:
        self._begin()
        self.node.alive = True
