"""The cores of a simulated host: each has a queue of its own, as under Linux.

The hazard is a model of cores that any thread may use at any time: two threads that wake each other
stay on one core though the other one has less to do, so that a crowded host is slower than its sum
of work says. Here a thread that begins stays on the core where it was unless another is less
loaded, or idle and found to be so: on a full host nobody searches. One that goes on at once keeps
its core. Threads of one core take turns, whoever had least goes first; a core that becomes idle, or
is so at a tick of the clock, takes over what has not run for a while; and from time to time one is
moved from a longer to a shorter queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import exp, floor, inf
from typing import Protocol

from .costs import Costs

_Action = Callable[[], None]
#: Seconds in which a thread's load is forgotten (Linux: half of it in 32 ms).
MEMORY = 0.046
#: How many of n cores a thread that wakes looks at for an idle one: n (1 - (SEARCH u)^2), rounded
#: down, where u is the share of the cores' recent time that was used (Linux: SIS_UTIL, 117 %).
SEARCH = 1.17
#: A thread goes to its waker's core where the load is less than this times that of its own (Linux:
#: half of what two domains may differ by, 117 %).
DRAWN = 1.085
#: At so many ticks an idle core leaves what ran a moment ago where it is (Linux: cache_nice_tries).
REFUSALS = 2


class Clock(Protocol):
    """What `Processor` needs of a world."""

    now: float

    def at(self, time: float, action: _Action) -> None:
        """Runs `action` at a time."""


@dataclass(slots=True, eq=False)
class Turn:
    """A thread: its core, what it has left to do there, and what it has had (`had`, comparable on
    one core only). `load` is the share of recent time in which it was on a queue, as of `seen`;
    `ran` when it last ran."""

    core: Core | None = None
    left: float = 0.0
    then: _Action | None = None
    computes: bool = True
    had: float = 0.0
    load: float = 0.0
    seen: float = 0.0
    ran: float = -inf

    def age(self, now: float) -> float:
        """The load at a time."""
        kept = exp((self.seen - now) / MEMORY)
        self.load = self.load * kept + (1 - kept if self.then else 0.0)
        self.seen = now
        return self.load


@dataclass(slots=True, eq=False)
class Core:
    """Threads that want to run here, the running one first; `least` is what those that come are
    taken to have had; `until` when the running one's turn ends. `home`: all that were last here."""

    queue: list[Turn] = field(default_factory=list)
    home: set[Turn] = field(default_factory=set)
    least: float = 0.0
    until: float = inf


class Processor:
    """Cores of a host. `beside` others run all the time."""

    def __init__(self, world: Clock, costs: Costs, beside: int = 0) -> None:
        self._world = world
        self._costs = costs
        self._cores = [Core() for _ in range(costs.cores)]
        self._threads: dict[str, Turn] = {}
        self._since = 0.0
        self._version = 0
        self._moved_at = 0.0
        self._computing = 0
        self._used = 0.0  # share of the cores' recent time
        self._refused = 0
        self._ending: list[Turn] = []
        for number in range(beside):
            self.run(inf, _nothing, f"beside {number}")

    def run(
        self, work: float, then: _Action, who: str, computes: bool = True, waker: str = ""
    ) -> None:
        """Does so many seconds of work of a free core on the thread of a name; then `then`. One
        thing at a time: a name that is busy is taken for another thread. What is no computing is
        slower while others compute. `waker`: the thread that has woken it, if another."""
        self._advance()
        turn = self._threads.setdefault(who, Turn())
        if turn.then is not None:
            turn = Turn()
        turn.left, turn.then, turn.computes = work, then, computes
        self._computing += computes
        if not any(turn is other for other in self._ending):
            woken = self._threads.get(waker)
            self._place(turn, self._choose(turn, woken.core if woken else None))
        if not self._ending:
            self._plan()

    def _choose(self, turn: Turn, waker: Core | None) -> Core:
        """Where a thread begins: its old core or that of its waker, if idle; another that is, if
        one is found; or the less loaded of the two."""
        core = turn.core
        if core is None:
            return self._search(None) or min(self._cores, key=lambda one: self._load(one, turn))
        if core.queue and waker and waker is not core and self._draws(waker, core, turn):
            core = waker
        return core if not core.queue else self._search(core) or core

    def _draws(self, waker: Core, old: Core, turn: Turn) -> bool:
        """Whether a thread goes to its waker's core."""
        own = turn.age(self._world.now)
        return not waker.queue or self._load(waker, turn) + own < DRAWN * self._load(old, turn)

    def _load(self, core: Core, but: Turn) -> float:
        """Of all threads that were last on a core."""
        now = self._world.now
        return sum(turn.age(now) for turn in core.home if turn is not but)

    def _search(self, old: Core | None) -> Core | None:
        """An idle core, if one is found: the fuller a host, the fewer are looked at."""
        count = len(self._cores)
        first = 0 if old is None else self._cores.index(old) + 1
        share = min(1.0, (SEARCH * self._used) ** 2)
        looked = count if old is None else int(count * (1 - share))
        for number in range(first, first + looked):
            core = self._cores[number % count]
            if not core.queue:
                return core
        return None

    def _place(self, turn: Turn, core: Core) -> None:
        now, old = self._world.now, turn.core
        turn.age(now)
        if old is not None:
            turn.had += core.least - old.least
            old.home.discard(turn)
        turn.core = core
        turn.had = max(turn.had, core.least)
        core.home.add(turn)
        if core.queue and turn.had > core.queue[0].had:
            core.queue.append(turn)
            core.until = min(core.until, now + min(self._costs.turn, self._debt(turn, core)))
        else:
            core.queue.insert(0, turn)
            core.until = now + self._costs.turn

    @staticmethod
    def _debt(turn: Turn, core: Core) -> float:
        """What a thread has had more than the one that runs."""
        return turn.had - core.queue[0].had

    def _rate(self, core: Core, busy: int) -> float:
        """Speed of a core's running thread, of so many cores that are busy."""
        rate = self._costs.rate(busy)
        if len(core.queue) > 1:
            rate *= self._costs.crowded
        return rate if core.queue[0].computes or not self._computing else rate * self._costs.company

    def _advance(self) -> None:
        """Takes off what has been done since the last change."""
        now = self._world.now
        passed, self._since = now - self._since, now
        if passed <= 0:
            return
        busy = [core for core in self._cores if core.queue]
        kept = exp(-passed / MEMORY)
        self._used = self._used * kept + (1 - kept) * len(busy) / len(self._cores)
        for core in busy:
            running = core.queue[0]
            running.ran = now
            running.left -= passed * self._rate(core, len(busy))
            running.had += passed
            core.least = max(core.least, min(turn.had for turn in core.queue))

    def _plan(self) -> None:
        """Sees to it that the next change is noticed."""
        self._version += 1
        now, next_time = self._world.now, inf
        busy = [core for core in self._cores if core.queue]
        for core in busy:
            rate = self._rate(core, len(busy))
            next_time = min(next_time, now + max(0.0, core.queue[0].left) / rate)
            if len(core.queue) > 1:
                next_time = min(next_time, core.until, self._moved_at + self._costs.balance)
                if len(busy) < len(self._cores):
                    next_time = min(next_time, self._tick())
        if next_time < inf:
            self._world.at(max(now, next_time), partial(self._change, self._version))

    def _tick(self) -> float:
        """When the clock ticks next."""
        tick = self._costs.turn
        return (floor(self._world.now / tick + 1e-9) + 1) * tick

    def _change(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        done = [core for core in self._cores if core.queue and core.queue[0].left <= 1e-12]
        self._ending = [core.queue[0] for core in done]
        for turn in self._ending:
            then, turn.then = turn.then, None
            self._computing -= turn.computes
            assert then is not None
            then()  # it may have more to do
        asleep = [(c, t) for c, t in zip(done, self._ending, strict=True) if t.then is None]
        self._ending = []
        for core, turn in asleep:
            self._end(core, turn)
        for core in self._cores:
            if len(core.queue) > 1 and self._world.now >= core.until - 1e-12:
                self._next(core)
        self._balance(any(not core.queue for core, _ in asleep))
        self._plan()

    def _end(self, core: Core, turn: Turn) -> None:
        """A thread sleeps; it ran, or one that it woke has taken its place."""
        ran = core.queue[0] is turn
        core.queue.remove(turn)
        turn.age(self._world.now)
        if ran and core.queue:
            self._next(core)

    def _next(self, core: Core) -> None:
        """Whoever had least runs next; of equals, whoever waits."""
        core.queue.append(core.queue.pop(0))
        core.queue.sort(key=lambda turn: round(turn.had, 9))
        core.until = self._world.now + self._costs.turn

    def _balance(self, idle_now: bool) -> None:
        """Moves a thread that waits to an idle core, or now and then to a shorter queue."""
        now = self._world.now
        if not any(len(core.queue) > 1 for core in self._cores):
            self._moved_at = now
            return
        longest = max(self._cores, key=lambda core: len(core.queue))
        shortest = min(self._cores, key=lambda core: len(core.queue))
        turn = None if shortest.queue else self._taken_over(longest, idle_now)
        due = now >= self._moved_at + self._costs.balance - 1e-12
        if due and turn is None and len(shortest.queue) < len(longest.queue):
            turn = longest.queue[-1]
        if due or turn is not None:
            self._moved_at, self._refused = now, 0
        if turn is not None:
            longest.queue.remove(turn)
            self._place(turn, shortest)

    def _taken_over(self, core: Core, idle_now: bool) -> Turn | None:
        """What an idle core takes from a queue: at once or at a tick, what has not run for a while;
        after some ticks without, whatever waits."""
        now = self._world.now
        at_tick = self._tick() - now > self._costs.turn * (1 - 1e-9)
        if not idle_now and not at_tick:
            return None
        late = now - self._costs.migrate + 1e-12
        for turn in reversed(core.queue[1:]):
            if turn.ran <= late or (at_tick and self._refused >= REFUSALS):
                return turn
        self._refused += at_tick
        return None


def _nothing() -> None:
    """What follows on work that never ends."""
