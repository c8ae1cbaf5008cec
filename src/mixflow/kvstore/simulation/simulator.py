"""A discrete-event simulation of a store: the real policies, servers and clients on a modelled
network, with stragglers, losses, copies, reordering and crashes, repeatable by its seed.

It is the test bed of the protocol (thousands of random schedules, each with its invariants) and
the means to show what more machines would do than there are here. Only time and bytes are
modelled; every message is handled by the code that real processes run.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ...errors import MixflowError, ParamError
from ..protocol.client import Client, Ticket
from ..protocol.compression import decode
from ..protocol.messages import Array, Ask, Init, Leave, Message, Push, Values
from ..protocol.policy import Policy
from ..server.shard import Applier, Memory, Shard
from .simulated_host import SimulatedHost

HEADER_BYTES = 64


@dataclass(frozen=True)
class Network:
    """A network: `latency` s, `bandwidth` bytes/s of each node and direction (0: unlimited), and
    the share of messages that are lost, repeated, or delayed by up to `delay_s` (which reorders
    them).

    Raises:
        ParamError: a share outside of [0, 1).
    """

    latency: float = 50e-6
    bandwidth: float = 0.0
    lose: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("lose", "repeat", "delay"):
            if not 0 <= getattr(self, name) < 1:
                raise ParamError(f"[Network] expected {name} in [0, 1), got {getattr(self, name)}")


@dataclass(frozen=True)
class Crash:
    """Node `name` dies at time `at` (s) and is back after `restart` s (None: never)."""

    name: str
    at: float
    restart: float | None = None


@dataclass(slots=True)
class Node:
    """Times at which a node's two directions are free again; whether it is alive."""

    handle: Callable[[Message], None]
    out_free: float = 0.0
    in_free: float = 0.0
    alive: bool = True
    sent: int = 0
    received: int = 0


def _copied(message: Message) -> Message:
    """What the receiver gets: a shard's values change with its next push, all else stays."""
    if not isinstance(message, Values):
        return message
    values = {key: value.copy() for key, value in message.values.items()}
    return replace(message, values=values)


class World:
    """Events in time order, and the network between nodes. Deterministic by `seed`."""

    def __init__(
        self, network: Network, seed: int = 0, bytes_of: Mapping[str, int] | None = None
    ) -> None:
        self.network = network
        self.random = random.Random(seed)
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.lost = 0
        self._bytes_of = bytes_of or {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Runs `action` at a time; equal times keep their order."""
        heapq.heappush(self._events, (max(time, self.now), next(self._order), action))

    def run(self, until: Callable[[], bool], limit: float) -> None:
        """Runs events until a condition holds.

        Raises:
            MixflowError: nothing is left to do, or the time limit has passed, before it held.
        """
        while not until():
            if not self._events:
                raise MixflowError(f"[simulator] expected progress, got none after {self.now:g} s")
            self.now, _, action = heapq.heappop(self._events)
            if self.now > limit:
                raise MixflowError(f"[simulator] expected an end within {limit:g} s, got none")
            action()

    def compute(self, name: str, seconds: float, then: Callable[[], None]) -> None:
        """Runs `then` when a node has computed for some time."""
        self.at(self.now + seconds, then)

    def size(self, message: Message) -> int:
        """Bytes of a message on the wire."""
        total = HEADER_BYTES
        if isinstance(message, (Init, Values)):
            total += sum(self._array_bytes(k, v) for k, v in message.values.items())
        elif isinstance(message, Push):
            total += sum(self._array_bytes(k, g.values) for k, g in message.gradients.items())
        return total

    def _array_bytes(self, key: str, values: Array) -> int:
        return self._bytes_of.get(key, values.nbytes)

    def send(self, sender: str, to: str, message: Message) -> None:
        """Puts a copy of a message on its way, with the network's faults."""
        message = _copied(message)
        network, draw = self.network, self.random.random
        if network.lose and draw() < network.lose:
            self.lost += 1
            return
        copies = 2 if network.repeat and draw() < network.repeat else 1
        for _ in range(copies):
            late = draw() * network.delay_s if network.delay and draw() < network.delay else 0.0
            self._travel(sender, to, message, late)

    def _travel(self, sender: str, to: str, message: Message, late: float) -> None:
        size = self.size(message)
        source, target = self.nodes[sender], self.nodes[to]
        took = size / self.network.bandwidth if self.network.bandwidth else 0.0
        source.out_free = max(self.now, source.out_free) + took
        source.sent += size
        # The receiving side takes the bytes as they come, one sender after the other.
        first_byte = source.out_free - took + self.network.latency + late
        target.in_free = max(first_byte, target.in_free) + took
        target.received += size
        self.at(target.in_free, lambda: self._arrive(to, message))

    def _arrive(self, to: str, message: Message) -> None:
        node = self.nodes[to]
        if node.alive:
            node.handle(message)


@dataclass(frozen=True)
class Job:
    """What every worker does: `steps` times compute, push all slices, read them back.

    `gradient` gives (worker, step, values read) -> gradients by slice; `seconds` the computing
    time of (worker, step, random). `start` holds the first values. `tables` gives the staleness of
    keys that are tables (under `Bounded`).
    """

    start: Mapping[str, Array]
    steps: int
    gradient: Callable[[int, int, Mapping[str, Array]], Mapping[str, Array]]
    seconds: Callable[[int, int, random.Random], float]
    on_read: Callable[[int, int, Mapping[str, Array]], None] | None = None
    tables: Mapping[str, int] = field(default_factory=dict)


class SimulatedServer:
    """A shard on a node; a crash forgets all but what its ledger has."""

    def __init__(self, world: World, name: str, make: Callable[[int], Shard]) -> None:
        self.world = world
        self.name = name
        self._make = make
        self._due: float | None = None
        self.shard = make(0)
        world.nodes[name] = Node(self._handle)

    def _handle(self, message: Message) -> None:
        for to, answer in self.shard.handle(message, self.world.now):
            self.world.send(self.name, to, answer)
        self._arm()

    def _arm(self) -> None:
        """Wakes the shard at its next deadline; but for `next_release`, one that is set already
        comes no later."""
        shard = self.shard
        due = shard.next_deadline() if self._due is None else shard.next_release()
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self.world.at(due + 1e-3, self._tick)

    def _tick(self) -> None:
        self._due = None
        for to, answer in self.shard.tick(self.world.now):
            self.world.send(self.name, to, answer)
        self._arm()

    def crash(self, restart: float | None) -> None:
        """Stops the shard; it comes back as a new incarnation from its ledger."""
        self.world.nodes[self.name].alive = False
        if restart is not None:
            self.world.at(self.world.now + restart, self._restart)

    def _restart(self) -> None:
        self.shard = self._make(self.shard.incarnation + 1)
        self.world.nodes[self.name].alive = True


@dataclass(slots=True)
class Trace:
    """What happened: times at which each worker ended each step."""

    ends: dict[int, list[float]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


class SimulatedWorker:
    """A worker's loop, driven by events."""

    def __init__(self, cluster: Cluster, worker: int, first: int = 0) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.worker = worker
        self.name = f"worker{worker}"
        self.step = first
        self.life = 0
        self.over = False
        self.values: dict[str, Array] = {}
        self.world.nodes[self.name] = Node(self._handle)
        self._begin()

    def _begin(self) -> None:
        self.client = Client(
            f"{self.name}",
            self.worker,
            self.cluster.where,
            self.cluster.policy,
            repeat=self.cluster.repeat,
            deadline=self.cluster.deadline,
            first_number=self.life << 32,
        )
        self.client.via = self.cluster.host_of(self.worker)
        self.waiting: tuple[Ticket, Callable[[Ticket], None]] | None = None
        self.leaving = False
        self._timer = -1.0

    def start(self) -> None:
        """Declares tables, initialises, joins, reads, and goes on with the first step."""
        self._declare(list(self.cluster.job.tables.items()))

    def _declare(self, tables: list[tuple[str, int]]) -> None:
        """One after the other: a setting that comes after a later one is ignored."""
        now = self.world.now
        if not tables:
            self._await(self.client.init(self.cluster.job.start, now), self._join)
            return
        (key, staleness), *rest = tables
        value = {"staleness": staleness}
        told = self.client.configure(self.cluster.server_names, f"table {key}", value, now)
        self._await(told, lambda ticket: self._declare(rest))

    def _join(self, ticket: Ticket) -> None:
        joined = self.client.join(self._peers(), self.step, 2 * self.life, self.world.now)
        self._await(joined, self._first_read)

    def _first_read(self, ticket: Ticket) -> None:
        # No push yet in this life: the read asks for the version at which the worker starts.
        self.client.last = dict.fromkeys(self.cluster.job.start, self.step - 1)
        self._await(self.client.pull(self.cluster.job.start, self.world.now), self._compute)

    def _compute(self, ticket: Ticket) -> None:
        self.values = ticket.values
        if self.cluster.job.on_read:
            self.cluster.job.on_read(self.worker, self._clock(), self.values)
        if self.life or self._clock() > 0:
            self.cluster.trace.ends.setdefault(self.worker, []).append(self.world.now)
        self.step = self._clock()
        if self.step >= self.cluster.job.steps:
            return self._leave()
        took = self.cluster.job.seconds(self.worker, self.step, self.world.random)
        return self._work(took)

    def _work(self, seconds: float) -> None:
        """Computes a step, then pushes it."""
        life = self.life
        self.world.compute(self.name, seconds, lambda: self._push(life))

    def _clock(self) -> int:
        """Steps done: of a policy that drops late pushes, the version that was read."""
        return 1 + max(
            max(last, self.cluster.policy.next_step(last, self.client.versions.get(key, 0)) - 1)
            for key, last in self.client.last.items()
        )

    def _push(self, life: int) -> None:
        if self.over or life != self.life or not self.world.nodes[self.name].alive:
            return
        gradients = self.cluster.job.gradient(self.worker, self.step, self.values)
        self._await(self.client.push(gradients, self.world.now, pull=True), self._compute)

    def _leave(self) -> None:
        """Leaves once everything is confirmed."""
        if self.client.pending:
            self.leaving = True
            return
        left = self.client.leave(self._peers(), 2 * self.life + 1, self.world.now)
        self._await(left, self._finish)

    def _finish(self, ticket: Ticket) -> None:
        self.over = True

    def _peers(self) -> list[str]:
        """All that must know whether this worker takes part."""
        via = self.client.via
        return [*self.cluster.server_names, *([via] if via else [])]

    def _await(self, ticket: Ticket, then: Callable[[Ticket], None]) -> None:
        self.waiting = (ticket, then)
        self._flush()

    def _handle(self, message: Message) -> None:
        self.client.handle(message, self.world.now)
        self._flush()

    def _flush(self) -> None:
        for to, message in self.client.take_outgoing():
            self.world.send(self.name, to, message)
        self._arm()
        if self.leaving and not self.client.pending:
            self.leaving = False
            self._leave()
        if self.waiting and self.waiting[0].done:
            ticket, then = self.waiting
            self.waiting = None
            if ticket.error:
                self.cluster.trace.errors[self.worker] = ticket.error
                self.over = True
            else:
                then(ticket)

    def _arm(self) -> None:
        """Wakes the client when it has something to repeat; one timer at a time."""
        life, time = self.life, self.client.next_time()
        if time is not None and not self.world.now < self._timer <= time:
            self._timer = time
            self.world.at(time, lambda: self._tick(life))

    def _tick(self, life: int) -> None:
        if life != self.life or self.over or not self.world.nodes[self.name].alive:
            return
        due = self.client.next_time()
        if due is not None and due <= self.world.now:
            self.client.tick(self.world.now)
            self._flush()
        else:
            self._arm()

    def crash(self, restart: float | None) -> None:
        """Loses everything in memory; a restarted worker asks the servers how far it was."""
        self.world.nodes[self.name].alive = False
        self.life += 1
        host = self.cluster.host_of(self.worker)
        if host is not None:
            self.cluster.hosts[host].lost(self.name)
        if restart is not None:
            self.world.at(self.world.now + restart, self._restart)
        else:
            self.over = True
            self.world.at(self.world.now + self.cluster.detect, self._report_lost)

    def _report_lost(self) -> None:
        for server in self.cluster.servers.values():
            lost = Leave(self.name, -self.life, self.worker, 2 * self.life)
            server._handle(lost)

    def _restart(self) -> None:
        self.world.nodes[self.name].alive = True
        self._begin()
        asked = self.client.tell(self.cluster.server_names, Ask, self.world.now)
        self._await(asked, self._resume)

    def _resume(self, ticket: Ticket) -> None:
        self.step = self.client.resume(ticket.reports, rounds=self.cluster.policy.rounds)
        self.start()


class Cluster:
    """Workers and servers of one job in a `World`."""

    def __init__(
        self,
        job: Job,
        policy: Policy,
        *,
        workers: int,
        processes: int | None = None,
        servers: int = 1,
        network: Network | None = None,
        applier: Callable[[], Applier],
        bytes_of: Mapping[str, int] | None = None,
        seed: int = 0,
        repeat: float = 0.5,
        deadline: float = 600.0,
        detect: float = 1.0,
        durable: bool = True,
        hosts: int = 0,
        merge_seconds: float = 2.0,
        world: World | None = None,
        worker_type: Callable[[Cluster, int], SimulatedWorker] = SimulatedWorker,
    ) -> None:
        self.job = job
        self.policy = policy
        self.repeat = repeat
        self.deadline = deadline
        self.detect = detect
        self.trace = Trace()
        self.world = world or World(network or Network(), seed, bytes_of)
        self.server_names = [f"server{i}" for i in range(servers)]
        order = {key: i for i, key in enumerate(sorted(job.start))}
        self._home = {key: self.server_names[i % servers] for key, i in order.items()}

        ledgers = {name: Memory(keep=durable) for name in self.server_names}

        def make(name: str, incarnation: int) -> Shard:
            return Shard(
                name,
                policy,
                applier(),
                workers=workers,
                ledger=ledgers[name],
                deadline=deadline,
                incarnation=incarnation,
                decode=decode,
            )

        self.servers = {
            name: SimulatedServer(self.world, name, partial(make, name))
            for name in self.server_names
        }
        #: Hosts whose workers' pushes are merged; 0: workers talk to the servers themselves.
        self.hosts = {
            f"host{i}": SimulatedHost(self, f"host{i}", merge_seconds) for i in range(hosts)
        }
        # Fewer processes than workers: those of a host push as one.
        self.workers = [worker_type(self, w) for w in range(processes or workers)]

    def host_of(self, worker: int) -> str | None:
        """Host of a worker, where hosts merge."""
        return f"host{worker % len(self.hosts)}" if self.hosts else None

    def where(self, key: str) -> str:
        """Server of a slice."""
        return self._home[key]

    def run(self, crashes: tuple[Crash, ...] = (), limit: float = 1e6) -> Trace:
        """Runs the job to its end.

        Raises:
            MixflowError: it did not end within `limit` simulated seconds.
        """
        named: dict[str, Any] = {w.name: w for w in self.workers} | self.servers | self.hosts
        for crash in crashes:
            if crash.name not in named:
                raise ParamError(f"[simulator] expected one of {sorted(named)}, got {crash.name}")
            self.world.at(crash.at, partial(named[crash.name].crash, crash.restart))
        for worker in self.workers:
            worker.start()
        self.world.run(lambda: all(w.over for w in self.workers), limit)
        return self.trace

    def value(self, key: str) -> Array:
        """A copy of a slice's value on its server."""
        return np.array(self.servers[self.where(key)].shard.slots[key].value)
