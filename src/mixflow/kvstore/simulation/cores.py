"""The cores of a simulated host: each thread keeps to one, and those of one core take turns.

As under Linux whoever had least runs; a thread that wakes leaves one that has run for less than a
slice alone, and who is to run is asked where one wakes or sleeps, and at ticks of the clock.

The hazard is a model that guesses where a system puts its threads. Which of two cores a thread woke
on made two measured runs of one job differ by a quarter, and the model by as much for costs that
differed by a tenth. So the processes that are measured are kept to a core each, dealt in turn
(`benchmarks/scaling`), and so are threads here: by their names, in the order in which those come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf
from typing import Protocol

from .costs import Costs, Work

_Action = Callable[[], None]


class Clock(Protocol):
    """What `Processor` needs of a world."""

    now: float

    def at(self, time: float, action: _Action) -> None:
        """Runs `action` at a time."""


@dataclass(slots=True, eq=False)
class Turn:
    """A thread: what it has left to do, the share of it that handles messages (None: it computes),
    and what it has had of its core."""

    left: float = 0.0
    then: _Action | None = None
    handling: float | None = None
    had: float = 0.0


@dataclass(slots=True, eq=False)
class Core:
    """Threads that want to run here, the running one first, which was chosen at `since`; `least` is
    what those that come are taken to have had."""

    queue: list[Turn] = field(default_factory=list)
    least: float = 0.0
    since: float = 0.0


class Processor:
    """Cores of a host. `beside` others run all the time, one after the other on each core."""

    def __init__(self, world: Clock, costs: Costs, beside: int = 0) -> None:
        self._world = world
        self._costs = costs
        self._cores = [Core() for _ in range(costs.cores)]
        self._homes: dict[str, Core] = {}
        self._threads: dict[str, Turn] = {}
        self._since = 0.0
        self._version = 0
        self._computing = 0
        self._ending: list[Turn] = []
        for number in range(beside):
            self.run(inf, _nothing, f"beside {number}")

    def run(self, work: float | Work, then: _Action, who: str) -> None:
        """Does seconds of computing, or work on messages, of a free core on the thread of a name;
        then `then`. A name that is busy has another thread, on the same core."""
        self._advance()
        turn = self._threads.setdefault(who, Turn())
        if turn.then is not None:
            turn = Turn()
        turn.then = then
        if isinstance(work, Work):
            turn.left, turn.handling = work.seconds, work.handling / work.seconds
        else:
            turn.left, turn.handling = work, None
            self._computing += 1
        if turn not in self._ending:  # else it goes on, and keeps its place
            self._begin(turn, self.home(who))
        if not self._ending:
            self._plan()

    def home(self, who: str) -> Core:
        """The core of a name: they are dealt in turn, in the order in which names come."""
        if who not in self._homes:
            self._homes[who] = self._cores[len(self._homes) % len(self._cores)]
        return self._homes[who]

    def _begin(self, turn: Turn, core: Core) -> None:
        """A thread wakes: it runs now if it had less than the running one, whose slice is over."""
        turn.had = max(turn.had, core.least)
        core.queue.append(turn)
        if len(core.queue) == 1 or self._world.now >= self._slice_end(core):
            self._choose(core)

    def _slice_end(self, core: Core) -> float:
        """Until when nobody takes the place of the running thread."""
        return core.since + self._costs.slice - 1e-12

    def _tick(self, core: Core) -> float:
        """The tick at which one is chosen again: the first one after the running one's slice."""
        tick = self._costs.tick
        return ceil(max(self._world.now, self._slice_end(core)) / tick - 1e-9) * tick

    def _choose(self, core: Core) -> None:
        """Whoever had least runs now; of equals, whoever waits."""
        core.queue.append(core.queue.pop(0))
        core.queue.sort(key=lambda turn: round(turn.had, 9))
        core.since = self._world.now

    def _rate(self, core: Core, busy: int) -> float:
        """Speed of a core's running thread, of so many cores that are busy."""
        costs, handling, shared = self._costs, core.queue[0].handling, len(core.queue) > 1
        rate = costs.rate(busy)
        if handling is None:
            return rate * costs.crowded if shared else rate
        slowed = costs.shared if shared else costs.company if self._computing else 1.0
        return rate / (handling / slowed + 1 - handling)

    def _advance(self) -> None:
        """Takes off what has been done since the last change."""
        passed, self._since = self._world.now - self._since, self._world.now
        if passed <= 0:
            return
        busy = [core for core in self._cores if core.queue]
        for core in busy:
            running = core.queue[0]
            running.left -= passed * self._rate(core, len(busy))
            running.had += passed
            core.least = max(core.least, min(turn.had for turn in core.queue))

    def _plan(self) -> None:
        """Sees to it that the next change is noticed."""
        self._version += 1
        now, next_time = self._world.now, inf
        busy = [core for core in self._cores if core.queue]
        for core in busy:
            left = max(0.0, core.queue[0].left) / self._rate(core, len(busy))
            next_time = min(next_time, now + left)
            if len(core.queue) > 1:
                next_time = min(next_time, self._tick(core))
        if next_time < inf:
            self._world.at(max(now, next_time), partial(self._change, self._version))

    def _change(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        done = [core for core in self._cores if core.queue and core.queue[0].left <= 1e-12]
        self._ending = [core.queue[0] for core in done]
        for turn in self._ending:
            then, turn.then = turn.then, None
            self._computing -= turn.handling is None
            assert then is not None
            then()  # it may have more to do
        asleep = [(c, t) for c, t in zip(done, self._ending, strict=True) if t.then is None]
        self._ending = []
        for core, turn in asleep:
            ran = core.queue[0] is turn  # or one that it woke has taken its place
            core.queue.remove(turn)
            if ran and core.queue:
                self._choose(core)
        for core in self._cores:
            if len(core.queue) > 1 and self._world.now >= self._tick(core) - 1e-12:
                self._choose(core)
        self._plan()


def _nothing() -> None:
    """What follows on work that never ends."""
