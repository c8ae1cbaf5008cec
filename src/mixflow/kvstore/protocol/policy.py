"""Consistency policies of a store of several workers, as pure state machines.

A policy says three things about a key: whether a push takes part at once, waits in a round or
comes too late; when a round is complete; and whether a worker may read yet. It owns no array, no
clock and no socket: `Progress` is the whole state of a key, and `Members` the workers that count.
The server (`server/shard.py`) holds the arrays and asks; the simulator runs the same code.

Steps are counted per worker and key from 0. A worker's *clock* is the number of steps that it has
pushed. Every push is a set of parts (worker, step), so that a part that arrives twice is known.

Sources: synchronous and asynchronous stores as MXNet's dist_sync and dist_async; bounded staleness
from Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
NIPS 2013; backup workers from Chen et al., "Revisiting Distributed Synchronous SGD", 2016.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from ...errors import ParamError, UnknownNameError, describe_unknown
from .steps import Steps


class Part(NamedTuple):
    """One worker's push of one step of a key."""

    worker: int
    step: int


@dataclass(slots=True)
class Member:
    """A live worker: every step from `first` on is expected of it."""

    first: int = 0

    def expects(self, step: int) -> bool:
        """Whether the worker takes part in this step."""
        return self.first <= step


Members = Mapping[int, Member]


class Verdict(Enum):
    """What becomes of a part."""

    NEW = "new"
    SEEN = "seen"
    STALE = "stale"


@dataclass(slots=True)
class Progress:
    """How far a key has come: everything that a policy needs to know of it.

    `version` counts closed rounds (`Sync`, `Backup`) or applied pushes (`Async`, `Bounded`).
    `clocks` says up to which step each worker's pushes have all been taken, `ahead` the later
    steps that overtook one still on its way, `rounds` who stands in each open round. `decided`
    holds, where parts are dropped, each worker's steps that were counted or dropped, `late` the
    workers of which one was dropped since the open round began.
    """

    version: int = 0
    clocks: dict[int, int] = field(default_factory=dict)
    ahead: dict[int, set[int]] = field(default_factory=dict)
    rounds: dict[int, set[int]] = field(default_factory=dict)
    applied: int = 0
    stale: int = 0
    decided: dict[int, Steps] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    #: Whom `awaits` has found last. No part of the state.
    awaited: int | None = field(default=None, compare=False)

    def awaits(self, members: Members, waits_for: Callable[[int], bool]) -> bool:
        """Whether some member is waited for. Asked after every push, and nearly always it is the
        one that was found last time: so a thousand workers cost a walk now and then."""
        known = self.awaited
        if known is not None and known in members and waits_for(known):
            return True
        self.awaited = next((w for w in members if waits_for(w)), None)
        return self.awaited is not None

    def decide(self, part: Part) -> None:
        """A part's lot is cast: it was counted or dropped."""
        self.decided.setdefault(part.worker, Steps()).add(part.step)

    def drop(self, part: Part) -> None:
        """Counts a part that came too late."""
        self.stale += 1
        self.late.add(part.worker)
        self.decide(part)

    def clock(self, worker: int, members: Members) -> int:
        """Steps of a worker that have all been taken."""
        first = members[worker].first if worker in members else 0
        return self.clocks.get(worker, first)

    def take(self, part: Part, members: Members) -> None:
        """Moves a worker's clock over a taken step."""
        waiting = self.ahead.setdefault(part.worker, set())
        waiting.add(part.step)
        clock = self.clock(part.worker, members)
        while clock in waiting:
            waiting.remove(clock)
            clock += 1
        self.clocks[part.worker] = clock
        if not waiting:
            del self.ahead[part.worker]

    def join(self, worker: int, first: int) -> None:
        """A worker starts, or starts again, at step `first`."""
        self.clocks[worker] = max(self.clocks.get(worker, first), first)
        self.late.discard(worker)  # its next push is for the open round
        steps = {step for step in self.ahead.pop(worker, set()) if step >= first}
        if steps:
            self.ahead[worker] = steps

    def went_on(self, rounds: int, parts: int, steps: Mapping[int, int]) -> None:
        """So much was closed or applied by who counts only that: steps by worker where clocks are
        kept."""
        self.version += rounds
        self.applied += parts
        for worker, more in steps.items():
            self.clocks[worker] = self.clocks.get(worker, 0) + more

    def to_json(self) -> dict[str, Any]:
        """The state as plain values, for snapshots."""
        return {
            "version": self.version,
            "clocks": sorted(self.clocks.items()),
            "ahead": sorted((w, sorted(steps)) for w, steps in self.ahead.items()),
            "applied": self.applied,
            "stale": self.stale,
            "decided": sorted((w, steps.to_json()) for w, steps in self.decided.items()),
            "late": sorted(self.late),
        }

    @staticmethod
    def from_json(state: Mapping[str, Any]) -> Progress:
        """The state that `to_json` wrote; open rounds are not kept: their pushes come again."""
        return Progress(
            version=int(state["version"]),
            clocks={int(w): int(c) for w, c in state["clocks"]},
            ahead={int(w): {int(s) for s in steps} for w, steps in state["ahead"]},
            applied=int(state["applied"]),
            stale=int(state["stale"]),
            decided={int(w): Steps(steps) for w, steps in state.get("decided", ())},
            late={int(w) for w in state.get("late", ())},
        )


@dataclass(frozen=True)
class Policy:
    """Base of all policies; instances hold options only.

    Every method is a pure function of its arguments, except `admit` and `close`, which change the
    `Progress` that they are given. Not thread-safe: one server thread owns a key.
    """

    name: ClassVar[str] = ""
    #: Whether pushes wait in rounds; else each is applied when it comes.
    rounds: ClassVar[bool] = False
    #: Whether a part may come too late: such workers are helped back into step (`lateness.py`).
    drops: ClassVar[bool] = False

    def verdict(self, progress: Progress, part: Part, members: Members) -> Verdict:
        """Whether a part is new, was taken before, or comes too late to count."""
        raise NotImplementedError

    def admit(self, progress: Progress, parts: Iterable[Part], members: Members) -> None:
        """Takes new parts into their round, or as applied."""
        raise NotImplementedError

    def complete(self, progress: Progress, members: Members) -> bool:
        """Whether the round `progress.version` may be closed."""
        return False

    def close(self, progress: Progress) -> None:
        """Closes the round `progress.version`."""
        workers = progress.rounds.pop(progress.version, set())
        progress.late.clear()
        progress.applied += len(workers)
        progress.version += 1

    def advance(self, progress: Progress, worker: int, step: int, members: Members) -> bool:
        """A worker that was alone has made all of its steps before `step`; False: no news."""
        made = step - (progress.version if self.rounds else progress.clock(worker, members))
        if made <= 0:
            return False
        progress.version += made
        progress.late.clear()
        progress.applied += made
        if not self.rounds:
            progress.clocks[worker] = step
        return True

    def next_step(self, last: int, version: int) -> int:
        """Step of a worker's next push: `last` is its latest one (-1: none), `version` what it
        read."""
        return last + 1

    def opens(self, progress: Progress, members: Members, clock: int) -> bool:
        """Whether reads at `clock` wait for no other worker.

        Asked after every push, once for all that wait at a clock, so it should not walk over a
        thousand members.
        """
        return True

    def has_own(self, progress: Progress, members: Members, worker: int, clock: int) -> bool:
        """Whether a reader waits for no push of its own. Asked where `opens` holds."""
        return True

    def missing(
        self, progress: Progress, members: Members, worker: int, clock: int
    ) -> frozenset[int]:
        """Workers whose pushes a read at `clock` still waits for."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sync(Policy):
    """Every live worker's push of a step, once each, makes one update."""

    name = "dist_sync"
    rounds = True

    def verdict(self, progress: Progress, part: Part, members: Members) -> Verdict:
        """New where its round is open and lacks the worker."""
        if part.step < progress.version:
            # Its round is closed: either it stood in it, or the worker had been given up.
            return Verdict.SEEN
        taken = part.worker in progress.rounds.get(part.step, ())
        return Verdict.SEEN if taken else Verdict.NEW

    def admit(self, progress: Progress, parts: Iterable[Part], members: Members) -> None:
        """Puts the parts into their rounds."""
        for part in parts:
            progress.rounds.setdefault(part.step, set()).add(part.worker)

    def complete(self, progress: Progress, members: Members) -> bool:
        """True when all that are expected have pushed."""
        step = progress.version
        got = progress.rounds.get(step, set())
        if progress.awaits(members, lambda w: w not in got and members[w].expects(step)):
            return False
        if got:
            return True
        # Nobody takes part in this step any more: go on where a later one is under way.
        return any(later > step for later in progress.rounds)

    def opens(self, progress: Progress, members: Members, clock: int) -> bool:
        """Whether the round before `clock` is closed."""
        return progress.version >= clock

    def missing(
        self, progress: Progress, members: Members, worker: int, clock: int
    ) -> frozenset[int]:
        """Who has not pushed in the open round."""
        if progress.version >= clock:
            return frozenset()
        got = progress.rounds.get(progress.version, set())
        waited = {w for w, m in members.items() if m.expects(progress.version)} - got
        return frozenset(waited or {worker})


@dataclass(frozen=True)
class Async(Policy):
    """Each push is applied when it comes; a worker sees at least its own pushes."""

    name = "dist_async"

    def verdict(self, progress: Progress, part: Part, members: Members) -> Verdict:
        """New where the worker's clock has not passed it."""
        taken = part.step < progress.clock(part.worker, members)
        overtook = part.step in progress.ahead.get(part.worker, ())
        return Verdict.SEEN if taken or overtook else Verdict.NEW

    def admit(self, progress: Progress, parts: Iterable[Part], members: Members) -> None:
        """Counts the parts as applied."""
        for part in parts:
            progress.take(part, members)
            progress.applied += 1
        progress.version += 1

    def has_own(self, progress: Progress, members: Members, worker: int, clock: int) -> bool:
        """Whether the reader's own pushes have all come."""
        return progress.clock(worker, members) >= clock

    def missing(
        self, progress: Progress, members: Members, worker: int, clock: int
    ) -> frozenset[int]:
        """The reader itself, while a push of its own is under way."""
        own = progress.clock(worker, members) >= clock
        return frozenset() if own else frozenset({worker})


@dataclass(frozen=True)
class Bounded(Async):
    """Stale synchronous parallel: a read at clock c sees every update of clock c - s - 1 and
    earlier from everyone, and all of its own. ``staleness=0`` is bulk synchronous.

    Raises:
        ParamError: a negative staleness.
    """

    name = "dist_ssp"
    staleness: int = 3

    def __post_init__(self) -> None:
        if self.staleness < 0:
            raise ParamError(f"[dist_ssp] expected a staleness >= 0, got {self.staleness}")

    def opens(self, progress: Progress, members: Members, clock: int) -> bool:
        """Whether nobody is too far behind; who was when last asked is asked first."""
        bound = clock - self.staleness

        def behind(worker: int) -> bool:
            at = progress.clock(worker, members)
            return at < bound and members[worker].expects(at)

        return not progress.awaits(members, behind)

    def missing(
        self, progress: Progress, members: Members, worker: int, clock: int
    ) -> frozenset[int]:
        """Who is more than `staleness` clocks behind the reader."""
        bound = clock - self.staleness
        behind = {
            w
            for w, member in members.items()
            if member.expects(progress.clock(w, members)) and progress.clock(w, members) < bound
        }
        return frozenset(behind) | super().missing(progress, members, worker, clock)


@dataclass(frozen=True)
class Backup(Policy):
    """The first `take` pushes of a step make the update; what comes later is dropped.

    `take` is the number of workers whose pushes an update needs; workers beyond it are backups.
    A round never waits for more workers than are alive, nor for one that was late for it: where
    it is one of the last, it may itself wait for another key, and there for who waits here. A
    worker's push carries the version that it read, so that one that fell behind goes on at the
    present step. Each part is counted or dropped once: one that comes again was `SEEN`, whatever
    became of it.

    Raises:
        ParamError: `take` below 1.
    """

    name = "dist_backup"
    rounds = True
    drops = True
    take: int = 1

    def __post_init__(self) -> None:
        if self.take < 1:
            raise ParamError(f"[dist_backup] expected take >= 1, got {self.take}")

    def verdict(self, progress: Progress, part: Part, members: Members) -> Verdict:
        """Stale where its round is closed and it was not decided on before."""
        if part.step < progress.version:
            known = part.step in progress.decided.get(part.worker, ())
            return Verdict.SEEN if known else Verdict.STALE
        taken = part.worker in progress.rounds.get(part.step, ())
        return Verdict.SEEN if taken else Verdict.NEW

    def admit(self, progress: Progress, parts: Iterable[Part], members: Members) -> None:
        """Puts the parts into their rounds."""
        for part in parts:
            progress.rounds.setdefault(part.step, set()).add(part.worker)

    def complete(self, progress: Progress, members: Members) -> bool:
        """True when `take` workers, or all that are alive, have pushed, or were late."""
        step = progress.version
        got = progress.rounds.get(step, set())
        if not got or len(got) >= self.take:
            return bool(got)
        # Ends as soon as there are more than have pushed.
        alive = (w for w, m in members.items() if m.expects(step))
        if next(itertools.islice(alive, len(got), None), None) is None:
            return True
        there = got | progress.late
        return not progress.awaits(members, lambda w: w not in there and members[w].expects(step))

    def close(self, progress: Progress) -> None:
        """Closes the round `progress.version`."""
        step = progress.version
        for worker in progress.rounds.get(step, ()):
            progress.decide(Part(worker, step))
        super().close(progress)

    def next_step(self, last: int, version: int) -> int:
        """The version that was read, if that is ahead."""
        return max(last + 1, version)

    def opens(self, progress: Progress, members: Members, clock: int) -> bool:
        """Whether the round before `clock` is closed."""
        return progress.version >= clock

    def missing(
        self, progress: Progress, members: Members, worker: int, clock: int
    ) -> frozenset[int]:
        """Who has not pushed in the open round."""
        if progress.version >= clock:
            return frozenset()
        got = progress.rounds.get(progress.version, set())
        waited = {w for w, m in members.items() if m.expects(progress.version)} - got
        return frozenset(waited - progress.late or waited or {worker})


#: Policies by the names that `kvstore.create` takes.
POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (Sync, Async, Bounded, Backup)
}


def named(name: str, **options: Any) -> Policy:
    """The policy of a name, with its options.

    Raises:
        UnknownNameError: unknown name; the text lists the known ones.
        ParamError: an option that the policy does not have, or a bad value.
    """
    if name not in POLICIES:
        raise UnknownNameError(describe_unknown("kvstore policy", name, list(POLICIES)))
    try:
        return POLICIES[name](**options)
    except TypeError:
        known = _options_of(POLICIES[name])
        others = sorted(set(options) - set(known))
        owners = [p for p in POLICIES if set(others) <= set(_options_of(POLICIES[p]))]
        hint = f"; of {' and '.join(owners)}" if owners else ""
        raise ParamError(
            f"[{name}] expected {f'options of {known}' if known else 'no options'}, got "
            f"{others or sorted(options)}{hint}"
        ) from None


def _options_of(policy: type[Policy]) -> list[str]:
    return [each.name for each in fields(policy)]
