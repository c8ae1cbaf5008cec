"""Placement by cost: which device each of the user's nodes runs on, so that a step ends early.

Hazard: two devices are slower than one where what they send each other takes longer than what they
save. So every choice is played through on a timeline with the copies in it, everything on one
device is always among the choices, and a choice that saves next to nothing is not taken.

The first choice is greedy, as in TensorFlow's white paper (Abadi et al., 2016, section 3.2.1) with
the order of HEFT (Topcuoglu et al., 2002): nodes by their rank, each to the device where it would
end first. Then nodes on the critical path, and the chains that they belong to, are moved as long as
that helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .place import Device
from .placed import Link
from .schedule import Task, Use
from .timeline import Job, simulate

#: Share of the makespan that a second device must save. Kernels are timed alone; beside each other
#: they share the memory's bandwidth, so that a small gain may be none.
_GAIN = 0.1
_TRIALS, _EFFORT = 200, 400_000  # timelines, and jobs in them, that the search may look at


@dataclass
class Unit:
    """A node of the user's, or several that stay together: what is placed.

    Attributes:
        labels: of its nodes.
        allowed: devices it may run on.
        seconds: of all of its tasks.
        nbytes: of what it keeps: variables, their gradients, values kept for the backward phase.
    """

    labels: list[str]
    allowed: tuple[Device, ...]
    seconds: float = 0.0
    nbytes: int = 0


@dataclass
class Estimate:
    """A choice, played through.

    Attributes:
        makespan: seconds of a step.
        busy: seconds that each device computes.
        copies: (unit it comes from or -1 for an input, source, target, bytes) of each copy.
        critical: units on the critical path, each once, first to last.
    """

    makespan: float
    busy: dict[Device, float]
    copies: list[tuple[int, Device, Device, int]]
    critical: list[int]


@dataclass
class Model:
    """What the search knows of a graph.

    Attributes:
        units: what is placed.
        tasks: in an order in which they may run.
        unit_of: unit of each task, by position.
        seconds: of each task.
        homes: unit by number of the plan's argument: it lies where that unit runs.
        link: cost of copies.
    """

    units: list[Unit]
    tasks: Sequence[Task]
    unit_of: Sequence[int]
    seconds: Sequence[float]
    homes: Mapping[int, int]
    link: Link
    position: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.position = {task.index: k for k, task in enumerate(self.tasks)}

    def evaluate(self, choice: Sequence[Device]) -> Estimate:
        """The timeline of a choice: one device per unit."""
        return _Playing(self, choice).run()


def _argument(use: Use) -> int | None:
    """Number of the argument whose content of before the run is used."""
    slot = use.buffer.slot
    if slot is None or slot[0] != "arg" or use.buffer.writers[use.epoch] is not None:
        return None
    return int(slot[1])


class _Playing:
    def __init__(self, model: Model, choice: Sequence[Device]) -> None:
        self.model, self.choice = model, choice
        self.jobs: list[Job] = []
        self.owner: list[int] = []  # unit of each job
        self.made: list[int] = []  # job of each task
        self.sent: dict[tuple[int, int, Device], int] = {}
        self.copies: list[tuple[int, Device, Device, int]] = []
        self.busy: dict[Device, float] = dict.fromkeys(choice, 0.0)

    def run(self) -> Estimate:
        """Plays every task in its place."""
        for at in range(len(self.model.tasks)):
            self._task(at)
        line = simulate(self.jobs)
        critical = dict.fromkeys(self.owner[k] for k in line.critical(self.jobs))
        critical.pop(-1, None)
        return Estimate(line.makespan, self.busy, self.copies, list(critical))

    def _job(self, job: Job, unit: int) -> int:
        self.jobs.append(job)
        self.owner.append(unit)
        return len(self.jobs) - 1

    def _task(self, at: int) -> None:
        model, task = self.model, self.model.tasks[at]
        device = self.choice[model.unit_of[at]]
        after = {self._input(use, device) for use in task.reads}
        after |= {self.made[model.position[k]] for k in task.after}
        after.discard(-1)
        seconds = model.seconds[at]
        job = Job(device, seconds, sorted(after), phase=task.phase)
        self.made.append(self._job(job, model.unit_of[at]))
        self.busy[device] += seconds
        for use in task.writes:  # a gradient goes where its variable lies
            slot = use.buffer.slot
            home = model.homes.get(slot[1]) if slot is not None and slot[0] == "arg" else None
            if home is not None and self.choice[home] != device:
                self._copy(use, model.unit_of[at], device, self.choice[home], self.made[at])

    def _input(self, use: Use, device: Device) -> int:
        """The job that an operand waits for; -1 = none."""
        model, number = self.model, _argument(use)
        if number is not None:
            home = self.choice[model.homes[number]] if number in model.homes else device
            return -1 if home == device else self._copy(use, -1, home, device, -1)
        writer = use.buffer.writers[use.epoch]
        if writer is None:
            return -1
        at = model.position[writer.index]
        source = self.choice[model.unit_of[at]]
        if source == device:
            return self.made[at]
        return self._copy(use, model.unit_of[at], source, device, self.made[at])

    def _copy(self, use: Use, unit: int, source: Device, to: Device, after: int) -> int:
        key = (use.buffer.number, use.epoch, to)
        found = self.sent.get(key)
        if found is None:
            nbytes = use.buffer.nbytes
            needs = [after] if after >= 0 else []
            found = self._job(Job(("copy", to), self.model.link.seconds(nbytes), needs), unit)
            self.sent[key] = found
            self.copies.append((unit, source, to, nbytes))
        return found


@dataclass
class Found:
    """The result of the search.

    Attributes:
        choice: device of each unit.
        estimate: of the choice.
        single: seconds of the best choice that uses one device wherever it may.
    """

    choice: list[Device]
    estimate: Estimate
    single: float


def search(model: Model, devices: Sequence[Device], limit: int | None = None) -> Found:
    """The best choice found.

    Args:
        devices: that may be used.
        limit: most bytes on each device, as far as the estimate of the units tells.
    """
    work = _Search(model, devices, limit)
    singles = [work.on_one(d) for d in devices]
    fitting = [c for c in singles if work.fits(c)] or singles
    first = min(fitting, key=work.makespan)
    single = work.makespan(first)
    best = first
    if len(devices) > 1:
        best = work.improved(min((work.greedy(), first), key=work.rating))
        if work.fits(first) and work.makespan(best) > (1 - _GAIN) * single:
            best = first
    return Found(best, model.evaluate(best), single)


class _Search:
    def __init__(self, model: Model, devices: Sequence[Device], limit: int | None) -> None:
        self.model, self.devices, self.limit = model, list(devices), limit
        self.known: dict[tuple[Device, ...], float] = {}
        count = max(1, len(model.tasks))
        self.left = max(20, min(_TRIALS, _EFFORT // count))
        self.before, self.after = self._neighbours()

    def _neighbours(self) -> tuple[list[dict[int, int]], list[set[int]]]:
        """Units that a unit reads from, with the bytes, and those that read from it (forward)."""
        model = self.model
        before: list[dict[int, int]] = [{} for _ in model.units]
        after: list[set[int]] = [set() for _ in model.units]
        for at, task in enumerate(model.tasks):
            if task.phase:
                continue
            unit = model.unit_of[at]
            for use in task.reads:
                writer = use.buffer.writers[use.epoch]
                if writer is None:
                    continue
                source = model.unit_of[model.position[writer.index]]
                if source != unit:
                    before[unit][source] = before[unit].get(source, 0) + use.buffer.nbytes
                    after[source].add(unit)
        return before, after

    # -- what a choice is worth

    def makespan(self, choice: Sequence[Device]) -> float:
        """Seconds of a step."""
        key = tuple(choice)
        if key not in self.known:
            self.known[key] = self.model.evaluate(choice).makespan
        return self.known[key]

    def rating(self, choice: Sequence[Device]) -> tuple[int, float]:
        """Bytes above the limit, then seconds."""
        return self.excess(choice), self.makespan(choice)

    def excess(self, choice: Sequence[Device]) -> int:
        """Bytes by which devices pass the limit."""
        if self.limit is None:
            return 0
        total = dict.fromkeys(self.devices, 0)
        for unit, device in zip(self.model.units, choice, strict=True):
            total[device] = total.get(device, 0) + unit.nbytes
        return sum(max(0, n - self.limit) for n in total.values())

    def fits(self, choice: Sequence[Device]) -> bool:
        """Whether no device passes the limit."""
        return self.excess(choice) == 0

    # -- choices

    def on_one(self, device: Device) -> list[Device]:
        """Everything that may be there on one device."""
        return [device if device in u.allowed else u.allowed[0] for u in self.model.units]

    def _order(self) -> list[int]:
        """Units, each after those that it reads from, the one with the longest way to go first."""
        units = self.model.units
        first: dict[int, int] = {}
        for at, unit in enumerate(self.model.unit_of):
            first.setdefault(unit, at)
        natural = sorted(range(len(units)), key=lambda u: first.get(u, len(self.model.tasks)))
        rank = [u.seconds for u in units]
        for unit in reversed(natural):
            ahead = max((rank[v] for v in self.after[unit] if v != unit), default=0.0)
            rank[unit] = units[unit].seconds + ahead
        missing = {u: len(self.before[u]) for u in natural}
        ready = [u for u in natural if not missing[u]]
        order: list[int] = []
        seen: set[int] = set()
        while len(order) < len(units):
            if not ready:  # units that wait for each other (joined nodes): any of them
                ready.append(next(u for u in natural if u not in seen))
            unit = max(ready, key=lambda u: rank[u])
            ready.remove(unit)
            order.append(unit)
            seen.add(unit)
            for user in self.after[unit]:
                missing[user] -= 1
                if not missing[user] and user not in seen and user not in ready:
                    ready.append(user)
        return order

    def greedy(self) -> list[Device]:
        """Each unit to the device where it would end first."""
        units, link = self.model.units, self.model.link
        choice: dict[int, Device] = {}
        end: dict[int, float] = {}
        free = dict.fromkeys(self.devices, 0.0)
        room: dict[Device, int] = dict.fromkeys(self.devices, 0)

        def ends(unit: int, device: Device) -> float:
            arrival = 0.0
            for source, nbytes in self.before[unit].items():
                if source in end:
                    late = 0.0 if choice[source] == device else link.seconds(nbytes)
                    arrival = max(arrival, end[source] + late)
            return max(arrival, free.get(device, 0.0)) + units[unit].seconds

        for unit in self._order():
            size = units[unit].nbytes
            allowed = list(units[unit].allowed)
            if self.limit is not None:
                limit = self.limit
                fitting = [d for d in allowed if room.get(d, 0) + size <= limit]
                allowed = fitting or [min(allowed, key=lambda d: room.get(d, 0))]
            device = min(allowed, key=lambda d: ends(unit, d))
            choice[unit], end[unit] = device, ends(unit, device)
            free[device] = end[unit]
            room[device] = room.get(device, 0) + size
        return [choice[u] for u in range(len(units))]

    def improved(self, choice: list[Device]) -> list[Device]:
        """The choice after moves of single units and of chains that make it better."""
        chains = self._chains()
        while self.left > 0:
            better = self._move(choice, chains)
            if better is None:
                return choice
            choice = better
        return choice

    def _move(self, choice: list[Device], chains: Sequence[list[int]]) -> list[Device] | None:
        """The first move of something on the critical path that helps."""
        now = self.rating(choice)
        on_way = self.model.evaluate(choice).critical
        if now[0]:  # too many bytes: whatever is large may have to go
            sizes = self.model.units
            on_way = sorted(range(len(choice)), key=lambda u: -sizes[u].nbytes)
        on_way = sorted(on_way, key=lambda u: -self.model.units[u].seconds)
        for unit in on_way:
            for members in (chains[unit], [unit]):
                for device in self.devices:
                    trial = list(choice)
                    for member in members:
                        if device in self.model.units[member].allowed:
                            trial[member] = device
                    if trial == choice or tuple(trial) in self.known:
                        continue
                    self.left -= 1
                    if self.rating(trial) < (now[0], now[1] * (1 - 1e-3)):
                        return trial
                    if self.left <= 0:
                        return None
        return None

    def _chains(self) -> list[list[int]]:
        """By unit: the units before and after it that nobody else reads from or writes to."""
        chain = [[u] for u in range(len(self.model.units))]
        for unit in self._order():
            if len(self.before[unit]) == 1:
                source = next(iter(self.before[unit]))
                if len(self.after[source]) == 1 and chain[source] is not chain[unit]:
                    chain[source] += chain[unit]
                    for member in chain[unit]:
                        chain[member] = chain[source]
        return chain
