"""Time on top of the simulator: processors that are shared, links, and many machines.

The hazard is a figure for a thousand machines from a model that is wrong for two. So the model is
made of parts that are measured (`costs.py`), every message is handled by the code of real jobs, and
`mixflow simulate` refuses to go further than the model has been checked.

Model. Each thread of a host keeps to one of its cores (`cores.py`). Each worker's link and each
server is one thread: it does one thing after the other, and sends before it receives. A message
costs its sender and its receiver processor time (`Costs`), passes the uplink of one host and the
downlink of the other (`Network`), or stays on its host; `Costs.hop` passes until it is noticed.

Many servers that hold equal shares are played by a few: each message of a worker to one of them
stands for `weight` messages of the same size on the worker's side, and for itself on the server's.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from ...errors import ParamError
from ..protocol.client import Ticket
from ..protocol.messages import Applied, Array, Gradient, Message, Push, Received, Values
from ..protocol.policy import Part, Policy
from ..protocol.sharding import Directory
from ..server.shard import Add
from .cores import Processor
from .costs import Costs, Work, Workload
from .simulator import Cluster, Job, Network, SimulatedWorker, World

#: Servers that play all others.
PLAYERS = 4
_Action = Callable[[], None]


class Thread:
    """Does one thing after the other on a processor; what is `urgent` comes first.

    `wake` seconds pass before the first thing when there was nothing to do; `used` counts all.
    """

    def __init__(self, processor: Processor, wake: float = 0.0, name: str = "") -> None:
        self.used = 0.0
        self._name = name
        self._processor = processor
        self._wake = wake
        self._urgent: deque[tuple[Work, _Action]] = deque()
        self._queue: deque[tuple[Work, _Action]] = deque()
        self._busy = False

    def run(self, work: Work, then: _Action, urgent: bool = False) -> None:
        """Puts something in the queue."""
        if work.seconds > 0 and not self._busy:
            work = Work(work.handling + self._wake, work.moving)
        self.used += work.seconds
        (self._urgent if urgent else self._queue).append((work, then))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = True
        while self._urgent or self._queue:
            work, then = (self._urgent or self._queue).popleft()
            if work.seconds > 0:
                self._processor.run(work, partial(self._done, then), self._name)
                return
            then()
        self._busy = False

    def _done(self, then: _Action) -> None:
        then()
        self._next()


@dataclass(slots=True)
class Host:
    """A machine: its processor, and when its two directions of the network are free again."""

    processor: Processor
    out_free: float = 0.0
    in_free: float = 0.0
    sent: float = 0.0


class Piece(NamedTuple):
    """A slice: its name, server, bytes."""

    name: str
    server: int
    nbytes: float


class TimedWorld(World):
    """A `World` whose nodes live on hosts and take time."""

    def __init__(
        self,
        network: Network,
        costs: Costs,
        host_of: Callable[[str], int],
        *,
        seed: int = 0,
        weight: float = 1.0,
        on_devices: bool = False,
        rounds: bool = True,
        beside: int = 0,
    ) -> None:
        super().__init__(network, seed)
        self.costs = costs
        self.weight = weight
        self.sizes: dict[str, float] = {}
        self.hosts: dict[int, Host] = {}
        self._host_of = host_of
        self._on_devices = on_devices
        self._update = costs.server_close if rounds else costs.server_apply
        self._beside = beside
        self._threads: dict[str, Thread] = {}

    def host(self, name: str) -> Host:
        """The host of a node."""
        number = self._host_of(name)
        if number not in self.hosts:
            self.hosts[number] = Host(Processor(self, self.costs, self._beside))
        return self.hosts[number]

    def thread(self, name: str) -> Thread:
        """The thread of a node."""
        if name not in self._threads:
            is_server = name.startswith("server")
            wake = self.costs.server_wake if is_server else self.costs.worker_wake
            self._threads[name] = Thread(self.host(name).processor, wake, name)
        return self._threads[name]

    def compute(self, name: str, seconds: float, then: _Action) -> None:
        """On a core of the node's host, or on a device of its own."""
        if self._on_devices:
            self.at(self.now + seconds, then)
        else:
            self.host(name).processor.run(seconds, then, name)

    def nbytes(self, message: Message) -> float:
        """Bytes of the arrays of a message."""
        if isinstance(message, Push):
            return sum(self.sizes[key] for key in message.gradients)
        return sum(self.sizes[key] for key in message.values) if isinstance(message, Values) else 0

    def close(self, server: str, key: str) -> None:
        """A server spends what an update of a slice costs."""
        cost = self._update.of(self.sizes[key])
        self.thread(server).run(cost, _nothing, urgent=True)

    def _travel(self, sender: str, to: str, message: Message, late: float) -> None:
        cost, nbytes, many = Work(), self.nbytes(message), self.weight
        if isinstance(message, Push):
            cost = self.costs.worker_send.of(nbytes * many, many)
        elif isinstance(message, Values):
            cost = self.costs.server_send.of(nbytes)
        elif isinstance(message, (Received, Applied)):
            cost = Work(self.costs.server_note)
        then = partial(self._leave, sender, to, message, late)
        self.thread(sender).run(cost, then, urgent=True)

    def _leave(self, sender: str, to: str, message: Message, late: float) -> None:
        """The message leaves its host, or is there already."""
        arrive = partial(self._reach, sender, to, message)
        source, target = self.host(sender), self.host(to)
        if source is target:
            self.at(self.now + self.costs.hop + late, arrive)
            return
        nbytes = self.nbytes(message)
        out = nbytes * (self.weight if isinstance(message, Push) else 1.0)
        into = nbytes * (self.weight if isinstance(message, Values) else 1.0)
        source.sent += out
        rate = self.network.bandwidth or float("inf")
        begin = max(self.now, source.out_free)
        source.out_free = begin + out / rate
        # Of the messages that this one stands for, it is any.
        place = begin + (out - nbytes) / rate * (self.random.random() if out > nbytes else 0.0)
        first_byte = place + self.network.latency + late
        target.in_free = max(first_byte, target.in_free) + into / rate
        self.at(target.in_free + self.costs.hop, arrive)

    def _reach(self, sender: str, to: str, message: Message) -> None:
        cost, nbytes, many = Work(), self.nbytes(message), self.weight
        if isinstance(message, Push):
            cost = self.costs.server_receive.of(nbytes)
        elif isinstance(message, Values):
            cost = self.costs.worker_receive.of(nbytes * many, many)
        elif isinstance(message, (Received, Applied)):
            cost = Work(self.costs.worker_note * many)
        self.thread(to).run(cost, partial(self._arrive, to, message))


def _nothing() -> None:
    """What follows on work that nobody waits for."""


class ChargedAdd(Add):
    """Adds, and lets the server pay for it."""

    def __init__(self, charge: Callable[[str], None]) -> None:
        self._charge = charge

    def apply(self, key: str, value: Array, merged: Array, count: int) -> bool:
        """Adds the merged increments to the value."""
        rows_only = super().apply(key, value, merged, count)
        self._charge(key)
        return rows_only


class Joined:
    """Several tickets as one."""

    def __init__(self, tickets: list[Ticket]) -> None:
        self._tickets = tickets

    @property
    def done(self) -> bool:
        """Whether all are, or one has failed."""
        return bool(self.error) or all(ticket.done for ticket in self._tickets)

    @property
    def error(self) -> str:
        """The first error."""
        return next((ticket.error for ticket in self._tickets if ticket.error), "")

    @property
    def values(self) -> Mapping[str, Array]:
        """Of all."""
        return {key: v for ticket in self._tickets for key, v in ticket.values.items()}


#: Per share of the computing: what is pushed then, as one call of the store each.
Plan = list[tuple[float, list[list[Piece]]]]


class TimedWorker(SimulatedWorker):
    """A worker that pushes gradients when they are ready, each with the parts of its host."""

    plan: Plan
    parts: int

    def _work(self, seconds: float) -> None:
        self._begin_group(seconds, 0, 0.0, [])

    def _begin_group(self, seconds: float, number: int, done: float, sent: list[Ticket]) -> None:
        if number == len(self.plan):
            self._await(cast(Ticket, Joined(sent)), self._compute)
            return
        share = self.plan[number][0]

        def push() -> None:
            for pieces in self.plan[number][1]:
                sent.append(self._push_pieces(pieces))
            self._flush()
            self._begin_group(seconds, number + 1, share, sent)

        self.world.compute(self.name, seconds * (share - done), push)

    def _push_pieces(self, pieces: list[Piece]) -> Ticket:
        gradients = {}
        for piece in pieces:
            last = self.client.last.get(piece.name, -1)
            step = self.client.policy.next_step(last, self.client.versions.get(piece.name, 0))
            self.client.last[piece.name] = step
            first = self.worker * self.parts
            parts = tuple(Part(w, step) for w in range(first, first + self.parts))
            gradients[piece.name] = Gradient(parts, _ONE)
        return self.client.push_parts(gradients, self.world.now, pull=True)


_ONE = np.ones(1, np.float32)


@dataclass(frozen=True)
class Scenario:
    """What is simulated.

    Args:
        workload: a worker's step.
        policy: of the store.
        machines: hosts with workers.
        workers: per host.
        merged: the workers of a host push as one (level 1); each step then ends with the slowest.
        devices: of a worker; it merges their gradients itself, which takes `merge_rate` bytes/s per
            device and direction (0: no time).
        servers: how many; the first `machines` of them lie on the workers' hosts.
        network: between hosts.
        steps: of each worker.
        on_devices: computing takes no core of the host.
        exact: every key and server as it is; else equal shares, played by `PLAYERS` servers.
        beside: tasks that compute all the time on each host.

    Raises:
        ParamError: a count below 1.
    """

    workload: Workload
    policy: Policy
    machines: int = 1
    workers: int = 1
    merged: bool = False
    devices: int = 1
    merge_rate: float = 0.0
    servers: int = 1
    network: Network = field(default_factory=Network)
    steps: int = 10
    on_devices: bool = False
    exact: bool = False
    beside: int = 0

    def __post_init__(self) -> None:
        counts = (self.machines, self.workers, self.devices, self.servers, self.steps)
        if min(counts) < 1 or self.steps < 2:
            raise ParamError(
                "[simulate] expected at least 1 machine, worker, device and server and 2 steps, "
                f"got {counts}"
            )
        if self.merged and not self.policy.rounds:
            raise ParamError(
                f"[simulate] expected workers of a host to push as one under 'dist_sync', got "
                f"'{self.policy.name}', which never waits for a neighbour"
            )

    @property
    def players(self) -> int:
        """Servers that are simulated."""
        return self.servers if self.exact else min(self.servers, PLAYERS)

    def plan(self) -> Plan:
        """What a worker pushes, and when."""
        return self._every_key() if self.exact else self._equal_shares()

    def _every_key(self) -> Plan:
        directory = Directory(self.servers)
        names = {str(k): (size // 4, "<f4", 4) for k, size in enumerate(self.workload.sizes)}
        entries = directory.place(names)
        slices = {
            int(key): [Piece(s.name, s.server, 4.0 * (s.end - s.begin)) for s in entry.slices]
            for key, entry in entries.items()
        }
        return [(share, [slices[k] for k in keys]) for share, keys in self.workload.groups()]

    def _equal_shares(self) -> Plan:
        found: Plan = []
        for number, (share, keys) in enumerate(self.workload.groups()):
            nbytes = sum(self.workload.sizes[k] for k in keys) / self.servers
            pieces = [Piece(f"{number}/{s}", s, nbytes) for s in range(self.players)]
            found.append((share, [pieces]))
        return found


@dataclass(frozen=True)
class Outcome:
    """Seconds per step of a worker (mean), steps per second of all workers and devices together,
    the share of what they would do without any communication, bytes that each host sends per step,
    how many pushes came too late, and processor seconds per step of all servers and of all workers
    for the store."""

    step_seconds: float
    throughput: float
    efficiency: float
    sent_per_host: float
    dropped: float
    server_seconds: float
    worker_seconds: float


def simulate(scenario: Scenario, costs: Costs, seed: int = 0) -> Outcome:
    """Runs a scenario; the first step, which fills the pipe, is left out of the times.

    The same seed gives the same outcome.
    """
    made = build(scenario, costs, seed)
    made.run()
    ends = [made.trace.ends[w.worker] for w in made.workers]
    world = cast(TimedWorld, made.world)
    progress = [s.progress for one in made.servers.values() for s in one.shard.slots.values()]
    applied = sum(p.applied for p in progress) / len(progress)
    if scenario.policy.rounds:
        rounds = max(p.version for p in progress)
        lasted = max(e[-1] for e in ends) - min(e[0] for e in ends)
        rate = applied / rounds * (rounds - 1) / lasted
    else:
        rate = sum((len(e) - 1) / (e[-1] - e[0]) for e in ends)
    throughput = rate * scenario.devices
    alone = scenario.machines * scenario.workers * scenario.devices
    return Outcome(
        step_seconds=float(np.mean([(e[-1] - e[0]) / (len(e) - 1) for e in ends])),
        throughput=throughput,
        efficiency=throughput * mean_seconds(scenario.workload) / alone,
        sent_per_host=float(np.mean([h.sent for h in world.hosts.values()])) / scenario.steps,
        dropped=sum(p.stale for p in progress) / len(progress),
        server_seconds=sum(world.thread(n).used for n in made.servers) / scenario.steps,
        worker_seconds=sum(world.thread(w.name).used for w in made.workers) / scenario.steps,
    )


def mean_seconds(workload: Workload) -> float:
    """Mean seconds of a step's computing, slow steps included."""
    spread = workload.spread
    return (
        workload.seconds
        * float(np.exp(spread.sigma**2 / 2))
        * (1 + spread.share * (spread.factor - 1))
    )


def build(scenario: Scenario, costs: Costs, seed: int) -> Cluster:
    """The cluster of a scenario, ready to run."""
    plan = scenario.plan()
    parts = scenario.workers if scenario.merged else 1
    per_host = 1 if scenario.merged else scenario.workers
    world = TimedWorld(
        scenario.network,
        costs,
        partial(_host_of, per_host),
        seed=seed,
        weight=scenario.servers / scenario.players,
        on_devices=scenario.on_devices,
        rounds=scenario.policy.rounds,
        beside=scenario.beside,
    )
    pieces = [piece for _, units in plan for unit in units for piece in unit]
    world.sizes.update({piece.name: piece.nbytes for piece in pieces})
    made = _TimedCluster(scenario, plan, parts, per_host, world)
    for name in (*(w.name for w in made.workers), *made.servers):
        world.host(name).processor.home(name)
    made.homes({piece.name: f"server{piece.server}" for piece in pieces})
    return made


def _host_of(per_host: int, name: str) -> int:
    """Host of a node: servers come after each other, workers `per_host` to a host."""
    if name.startswith("server"):
        return int(name.removeprefix("server"))
    return int(name.removeprefix("worker")) // per_host


class _TimedCluster(Cluster):
    """A `Cluster` in a `TimedWorld`."""

    def __init__(
        self, scenario: Scenario, plan: Plan, parts: int, per_host: int, world: TimedWorld
    ) -> None:
        names = [p.name for _, units in plan for unit in units for p in unit]
        job = Job(
            {name: np.zeros(1, np.float32) for name in names},
            scenario.steps,
            lambda worker, step, values: {},
            partial(_seconds, scenario, parts),
        )
        # A message that is lost is sent again after what a job's store waits; none is otherwise.
        lossy = scenario.network.lose > 0
        servers = iter([f"server{s}" for s in range(scenario.players)])
        kind = type("Worker", (TimedWorker,), {"plan": plan, "parts": parts})
        super().__init__(
            job,
            scenario.policy,
            workers=scenario.machines * per_host * parts,
            processes=scenario.machines * per_host,
            servers=scenario.players,
            applier=lambda: ChargedAdd(partial(world.close, next(servers))),
            repeat=0.5 if lossy else 1e6,
            deadline=1e9,
            durable=False,
            world=world,
            worker_type=kind,
        )

    def homes(self, homes: Mapping[str, str]) -> None:
        """Says where each slice lives."""
        self._home = dict(homes)


def _seconds(
    scenario: Scenario, parts: int, worker: int, step: int, chance: random.Random
) -> float:
    """Time until all devices of a process (or of the processes that push as one) have computed,
    and their gradients are merged and their values copied back."""
    workload = scenario.workload
    draws = [workload.spread.draw(chance) for _ in range(parts * scenario.devices)]
    merge = 0.0
    if scenario.merge_rate:
        merge = 2 * workload.nbytes * parts * scenario.devices / scenario.merge_rate
    return workload.seconds * max(draws) + merge


def describe(scenario: Scenario) -> dict[str, Any]:
    """The parameters of a scenario as plain values."""
    workload, network = scenario.workload, scenario.network
    return {
        "workload": workload.name,
        "compute_seconds": workload.seconds,
        "bytes": workload.nbytes,
        "keys": len(workload.sizes),
        "spread": str(workload.spread),
        "overlapped": bool(workload.ready),
        "policy": scenario.policy.name,
        **vars(scenario.policy),
        "machines": scenario.machines,
        "workers_per_machine": scenario.workers,
        "merged": scenario.merged,
        "devices": scenario.devices,
        "merge_rate": scenario.merge_rate,
        "servers": scenario.servers,
        "latency": network.latency,
        "bandwidth": network.bandwidth,
        "lose": network.lose,
    }
