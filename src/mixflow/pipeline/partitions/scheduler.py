"""Who computes which partition, and when once more: pure logic, without process, clock or data.

Every method takes the time as an argument (seconds from any start, never falling), so that the
tests run thousands of schedules. The owner (`pool.py`) tells what happens and carries out the
actions that `step` returns.

A *place* is room for one executor; a *life* is the number of an executor at its place, so that
news of one that was replaced is known as old. A partition that has been computed is done, whoever
did it: a second result is dropped, which is right because every computation of it gives the same
bits.

Sources: recomputation by lineage from Zaharia et al., NSDI 2012; second copies of slow tasks from
Dean and Ghemawat, "MapReduce", OSDI 2004, with the threshold of Spark's documentation.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ...arguments import MOST_THREADS, check, check_fields, whole
from ...arguments import number as finite

_DURATIONS = 101
_EXECUTORS = whole(1, MOST_THREADS)


@dataclass(frozen=True)
class Rules:
    """Numbers of the schedule; times in seconds.

    Attributes:
        factor, least: a partition that takes longer than max(factor x median, least) is started a
            second time.
        tries: how often a partition may be lost or fail for reasons of its place before that is
            an error that names it.
        strikes: deaths and lost races (less what was computed since) that exclude a place.
        parole: how long a place stays excluded.
        grace: how long an executor may go on with what another has done before it is replaced.
        deadline: for one partition, and for the start of an executor.

    Raises:
        ParamError: a number that is not above 0; `tries` and `strikes` are whole.
    """

    factor: float = 1.5
    least: float = 0.1
    tries: int = 4
    strikes: int = 3
    parole: float = 60.0
    grace: float = 5.0
    deadline: float = 120.0

    def __post_init__(self) -> None:
        times = dict.fromkeys(("factor", "least", "parole", "grace", "deadline"), finite(above=0))
        check_fields("partitions", self, tries=whole(1), strikes=whole(1), **times)


class Spawn(NamedTuple):
    """Start an executor."""

    place: int
    life: int


class Stop(NamedTuple):
    """End an executor at once, and tell of it with `lost`."""

    place: int
    life: int


class Compute(NamedTuple):
    """Have an idle executor compute a partition."""

    place: int
    life: int
    number: int


Action = Spawn | Stop | Compute


@dataclass(slots=True)
class _Place:
    life: int = -1
    #: 'down', 'starting', 'idle', 'busy' or 'stopping'.
    state: str = "down"
    since: float = 0.0
    number: int = -1
    beaten: float | None = None
    strikes: int = 0
    #: Deaths since it last computed something.
    barren: int = 0
    excluded_until: float | None = None
    reason: str = ""


@dataclass(slots=True)
class _Task:
    running: set[int] = field(default_factory=set)
    original: int = -1
    failures: list[str] = field(default_factory=list)
    failed_at: set[int] = field(default_factory=set)


@dataclass
class Counts:
    """What happened so far.

    Attributes:
        computed: partitions.
        copies, copies_first: second copies, and those that were first.
        dropped: results of partitions that were there, or not wanted any more.
        lost: computations that ended with their executor.
        retried: computations that failed and were tried elsewhere.
        replaced: executors that were started in place of others.
        excluded: times that a place was excluded.
    """

    computed: int = 0
    copies: int = 0
    copies_first: int = 0
    dropped: int = 0
    lost: int = 0
    retried: int = 0
    replaced: int = 0
    excluded: int = 0


class Scheduler:
    """The state machine. Lower numbers of partitions come first.

    Args:
        places: executors, at least 1.
        rules: see `Rules`.

    Attributes:
        counts: see `Counts`.
        errors: partitions that are given up -> what was wrong.
        broken: why nothing can be computed any more; '' while something can.

    Raises:
        ParamError: no number of places.
    """

    def __init__(self, places: int, rules: Rules | None = None) -> None:
        places = check("partitions", "executors", places, _EXECUTORS)
        self.rules = rules or Rules()
        self.counts = Counts()
        self.errors: dict[int, str] = {}
        self.broken = ""
        self._places = [_Place() for _ in range(places)]
        self._tasks: dict[int, _Task] = {}
        self._durations: deque[float] = deque(maxlen=_DURATIONS)

    # -- what is wanted

    def submit(self, number: int) -> None:
        """A partition is wanted."""
        self._tasks[number] = _Task()

    def forget(self, number: int) -> None:
        """A partition is not wanted (any more)."""
        self._tasks.pop(number, None)
        self.errors.pop(number, None)

    # -- what happened

    def ready(self, place: int, life: int, now: float) -> None:
        """An executor has started."""
        found = self._places[place]
        if life == found.life and found.state == "starting":
            found.state, found.since = "idle", now

    def done(self, place: int, life: int, number: int, now: float) -> bool:
        """An executor has computed a partition. Whether the result is the first that is wanted."""
        took = self._freed(place, life, number, now)
        if took is None:
            return False
        self._durations.append(took)
        task = self._tasks.pop(number, None)
        if task is None:
            self.counts.dropped += 1
            return False
        self.counts.computed += 1
        self.counts.copies_first += bool(task.running) and place != task.original
        mine = self._places[place]
        mine.barren, mine.strikes = 0, max(0, mine.strikes - 1)
        for other in task.running:
            self._places[other].beaten = now
            self._strike(other, now, "was slower than a second copy")
        return True

    def failed(
        self, place: int, life: int, number: int, error: str, final: bool, now: float
    ) -> None:
        """A computation ended with an error; `final`: of the data, the same everywhere."""
        if self._freed(place, life, number, now) is None or number not in self._tasks:
            return
        if final:
            self._give_up(number, error)
        else:
            self.counts.retried += 1
            self._failure(number, place, error)

    def lost(self, place: int, life: int, reason: str, now: float) -> None:
        """An executor has ended."""
        found = self._places[place]
        if life != found.life or found.state == "down":
            return
        number = found.number
        found.state, found.number, found.beaten = "down", -1, None
        found.barren += 1
        self._strike(place, now, reason)
        if number in self._tasks:
            self.counts.lost += 1
            self._failure(number, place, f"executor {place} was lost: {reason}")
        if all(p.excluded_until is not None for p in self._places):
            self._last_resort()

    # -- what to do

    def step(self, now: float) -> list[Action]:
        """What is to be done now."""
        actions: list[Action] = []
        for i, place in enumerate(self._places):
            actions += self._look_after(i, place, now)
        for number in sorted(self._tasks):
            chosen = self._place_for(self._tasks[number], now)
            if chosen is not None:
                self._begin(chosen, number, now)
                actions.append(Compute(chosen, self._places[chosen].life, number))
        return actions

    def wake(self, now: float) -> float | None:
        """Seconds until `step` may have something to do though nothing happened; None: never."""
        # What was due before has been seen by `step`; now only news can change anything.
        times = [time for time in self._alarms() if time > now]
        return min(times) - now if times else None

    @property
    def patience(self) -> float | None:
        """Seconds after which a second copy is started; None before anything was computed."""
        if not self._durations:
            return None
        return max(self.rules.factor * statistics.median(self._durations), self.rules.least)

    def report(self, now: float) -> str:
        """What each executor does, for errors."""
        return "; ".join(
            f"executor {i} {place.state}"
            + (f" with partition {place.number}" if place.state == "busy" else "")
            + f" for {now - place.since:.1f} s"
            for i, place in enumerate(self._places)
        )

    # -- inside

    def _freed(self, place: int, life: int, number: int, now: float) -> float | None:
        """An executor has ended its computation: the seconds that it took. None: old news."""
        found = self._places[place]
        if (life, number) != (found.life, found.number):
            return None
        took = now - found.since
        if found.state == "busy":  # else it is being ended, though it was about to answer
            found.state, found.since = "idle", now
        found.number, found.beaten = -1, None
        if number in self._tasks:
            self._tasks[number].running.discard(place)
        return took

    def _look_after(self, i: int, place: _Place, now: float) -> Iterator[Action]:
        if place.excluded_until is not None and now >= place.excluded_until:
            place.excluded_until, place.strikes = None, self.rules.strikes - 1
        if place.state == "down" and place.excluded_until is None and not self.broken:
            place.life += 1
            self.counts.replaced += place.life > 0
            place.state, place.since = "starting", now
            yield Spawn(i, place.life)
        if place.state in ("starting", "busy") and now >= self._end_of(place):
            place.state = "stopping"
            yield Stop(i, place.life)

    def _end_of(self, place: _Place) -> float:
        """When an executor that starts or computes is ended."""
        end = place.since + self.rules.deadline
        return end if place.beaten is None else min(end, place.beaten + self.rules.grace)

    def _copy_time(self, task: _Task) -> float | None:
        """When a second copy of what runs is due; None: never."""
        if self.patience is None or len(task.running) != 1:
            return None
        return self._places[next(iter(task.running))].since + self.patience

    def _place_for(self, task: _Task, now: float) -> int | None:
        """The idle place that should compute a partition now, if it should be and there is one."""
        if task.running:
            due = self._copy_time(task)
            if due is None or now < due:
                return None
        idle = [
            (i in task.failed_at, place.strikes, i)
            for i, place in enumerate(self._places)
            if place.state == "idle" and place.excluded_until is None
        ]
        if not idle:
            return None
        failed_here, _, chosen = min(idle)
        if failed_here and any(
            place.excluded_until is None and i not in task.failed_at and i not in task.running
            for i, place in enumerate(self._places)
        ):
            return None  # another that has not failed will be free
        return chosen

    def _begin(self, place: int, number: int, now: float) -> None:
        task, found = self._tasks[number], self._places[place]
        if task.running:
            self.counts.copies += 1
        else:
            task.original = place
        task.running.add(place)
        found.state, found.since, found.number = "busy", now, number

    def _failure(self, number: int, place: int, text: str) -> None:
        task = self._tasks[number]
        task.running.discard(place)
        task.original = next(iter(task.running), -1)
        task.failed_at.add(place)
        task.failures.append(text)
        if len(task.failures) >= self.rules.tries:
            times = len(task.failures)
            self._give_up(number, f"{times} computations failed; the last: {text}")

    def _give_up(self, number: int, error: str) -> None:
        del self._tasks[number]
        self.errors[number] = error

    def _strike(self, place: int, now: float, reason: str) -> None:
        """One more reason to do without a place; one that is slow is kept if it is the last."""
        found = self._places[place]
        found.strikes, found.reason = found.strikes + 1, reason
        if found.strikes < self.rules.strikes or found.excluded_until is not None:
            return
        others = sum(p.excluded_until is None for p in self._places) > 1
        if others or found.barren >= self.rules.strikes:
            found.excluded_until = now + self.rules.parole
            self.counts.excluded += 1

    def _last_resort(self) -> None:
        """No place is left: those that are excluded but alive must do; else nothing can."""
        alive = [p for p in self._places if p.state != "down"]
        for place in alive:
            place.excluded_until = None
        if not alive:
            self.broken = "; ".join(f"executor {i}: {p.reason}" for i, p in enumerate(self._places))

    def _alarms(self) -> Iterator[float]:
        for place in self._places:
            if place.excluded_until is not None:
                yield place.excluded_until
            if place.state in ("starting", "busy"):
                yield self._end_of(place)
        for task in self._tasks.values():
            due = self._copy_time(task)
            if due is not None:
                yield due
