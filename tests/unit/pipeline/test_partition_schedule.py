"""The schedule of partitions, and how they are dealt: pure logic under random schedules."""

from __future__ import annotations

import heapq
import os
import random
from typing import Any

import pytest

from mixflow.errors import ParamError
from mixflow.pipeline.partitions.dealing import Stage, deal, replay, share, stage_of
from mixflow.pipeline.partitions.scheduler import Compute, Rules, Scheduler, Spawn, Stop

COUNT = 2500 if os.environ.get("MIXFLOW_FULL_COUNTS") else 250


class World:
    """Executors that die, hang and are slow, by a seed; time is simulated."""

    def __init__(
        self, seed: int, places: int, rules: Rules | None = None, **chances: float
    ) -> None:
        self.draw = random.Random(seed)
        self.scheduler = Scheduler(places, rules)
        self.chances = {"die": 0.0, "hang": 0.0, "slow": 0.0, **chances}
        self.now, self.order = 0.0, 0
        self.heap: list[tuple[float, int, Any]] = []
        self.delivered: list[int] = []
        self.alive: dict[int, int] = {}
        self.started: list[Compute] = []
        self.actions: list[Any] = []

    def at(self, delay: float, what: Any) -> None:
        self.order += 1
        heapq.heappush(self.heap, (self.now + delay, self.order, what))

    def act(self) -> None:
        for action in self.scheduler.step(self.now):
            self.actions.append((self.now, action))
            match action:
                case Spawn(place, life):
                    self.alive[place] = life
                    self.at(self.draw.uniform(0.1, 1), ("ready", place, life))
                case Stop(place, life):
                    self.at(0.01, ("lost", place, life))
                case Compute(place, life, number):
                    assert self.alive[place] == life, "work for one that is gone"
                    self.started.append(action)
                    self.begin(place, life, number)
        assert not self.scheduler.step(self.now), "a step leaves nothing to do"

    def begin(self, place: int, life: int, number: int) -> None:
        took = self.draw.uniform(0.05, 0.2)
        kind = self.draw.random()
        for name in ("die", "hang", "slow"):
            kind -= self.chances[name]
            if kind < 0:
                if name == "die":
                    self.at(took * self.draw.random(), ("lost", place, life))
                if name != "slow":
                    return
                took *= 20
                break
        self.at(took, ("done", place, life, number))

    def run(self, until: float = 1e5) -> None:
        while self.now < until:
            self.act()
            wake = self.scheduler.wake(self.now)
            assert wake is None or wake > 0
            alarm = float("inf") if wake is None else self.now + wake
            if not self.heap and alarm == float("inf"):
                return
            if not self.heap or alarm < self.heap[0][0]:
                self.now = alarm
                continue
            self.now, _, what = heapq.heappop(self.heap)
            self.happen(*what)

    def happen(self, kind: str, place: int, life: int, number: int = -1) -> None:
        if self.alive.get(place) != life:
            return  # a process that has ended says nothing
        if kind == "ready":
            self.scheduler.ready(place, life, self.now)
        elif kind == "lost":
            del self.alive[place]
            self.scheduler.lost(place, life, "killed", self.now)
        elif self.scheduler.done(place, life, number, self.now):
            self.delivered.append(number)


@pytest.mark.parametrize("places", [1, 2, 3, 5])
def test_every_partition_comes_once_whatever_happens(places: int) -> None:
    for seed in range(COUNT):
        rules = Rules(tries=1000, strikes=1000, deadline=30.0)
        world = World(seed, places, rules, die=0.15, hang=0.05, slow=0.1)
        for number in range(30):
            world.scheduler.submit(number)
        world.run()
        assert sorted(world.delivered) == list(range(30)), seed
        counts = world.scheduler.counts
        assert counts.computed == 30 and not world.scheduler.errors and not world.scheduler.broken
        # One runs at a time, or two: what was started and neither lost nor dropped was delivered.
        assert len(world.started) >= 30 + counts.lost
        assert places > 1 or counts.copies == 0


def test_equal_schedules_are_equal() -> None:
    def actions() -> Any:
        world = World(5, 3, Rules(tries=1000, strikes=1000), die=0.2, slow=0.2)
        for number in range(30):
            world.scheduler.submit(number)
        world.run()
        return world.actions

    assert actions() == actions()


def running(places: int, rules: Rules | None = None) -> Scheduler:
    """A scheduler whose executors have started at time 0."""
    scheduler = Scheduler(places, rules)
    assert scheduler.step(0.0) == [Spawn(i, 0) for i in range(places)]
    for i in range(places):
        scheduler.ready(i, 0, 0.0)
    return scheduler


def warmed(places: int, seconds: float, rules: Rules | None = None) -> Scheduler:
    """One that has seen a partition of so many seconds; the time is `seconds`."""
    scheduler = running(places, rules)
    scheduler.submit(-1)
    assert scheduler.step(0.0) == [Compute(0, 0, -1)]
    assert scheduler.done(0, 0, -1, seconds)
    return scheduler


@pytest.mark.parametrize(("median", "after"), [(0.01, 0.1), (0.2, 0.3), (2.0, 3.0)])
def test_a_slow_partition_is_started_again_after_its_time(median: float, after: float) -> None:
    scheduler = warmed(2, median)
    scheduler.submit(0)
    assert scheduler.step(median) == [Compute(0, 0, 0)]
    wake = scheduler.wake(median)
    assert wake == pytest.approx(after)
    assert scheduler.step(median + after - 1e-6) == []
    assert scheduler.step(median + after + 1e-6) == [Compute(1, 0, 0)]
    assert scheduler.step(median + 10 * after) == [], "two are enough"
    assert scheduler.done(1, 0, 0, median + 10 * after)
    assert not scheduler.done(0, 0, 0, median + 11 * after)
    counts = scheduler.counts
    assert (counts.copies, counts.copies_first, counts.dropped) == (1, 1, 1)


def test_nothing_is_started_twice_before_anything_was_computed() -> None:
    scheduler = running(2)
    scheduler.submit(0)
    scheduler.step(0.0)
    assert scheduler.step(50.0) == []


def test_the_first_partition_wanted_comes_first_also_as_a_copy() -> None:
    scheduler = warmed(2, 0.2)
    scheduler.submit(0)
    scheduler.submit(1)
    assert scheduler.step(0.2) == [Compute(0, 0, 0), Compute(1, 0, 1)]
    scheduler.submit(2)
    scheduler.done(1, 0, 1, 0.9)
    assert scheduler.step(0.9) == [Compute(1, 0, 0)]


def test_a_lost_partition_goes_to_another() -> None:
    scheduler = running(2)
    scheduler.submit(0)
    assert scheduler.step(1.0) == [Compute(0, 0, 0)]
    scheduler.lost(0, 0, "killed", 2.0)
    assert scheduler.step(2.0) == [Spawn(0, 1), Compute(1, 0, 0)]
    scheduler.lost(0, 0, "killed", 2.5)  # old news
    scheduler.ready(0, 0, 2.5)
    assert not scheduler.done(0, 0, 0, 2.5)
    assert scheduler.done(1, 0, 0, 3.0)
    assert (scheduler.counts.lost, scheduler.counts.replaced) == (1, 1)


def test_the_copy_goes_on_when_the_first_is_lost() -> None:
    scheduler = warmed(3, 0.2)
    scheduler.submit(0)
    scheduler.step(1.0)
    assert scheduler.step(1.5) == [Compute(1, 0, 0)]
    scheduler.lost(0, 0, "killed", 1.6)
    assert scheduler.step(1.6) == [Spawn(0, 1)]
    assert scheduler.step(1.9) == [Compute(2, 0, 0)], "slow by now, and alone again"
    assert scheduler.done(1, 0, 0, 2.0)


def test_an_error_of_the_data_is_told_at_once() -> None:
    scheduler = running(2)
    scheduler.submit(0)
    scheduler.step(0.0)
    scheduler.failed(0, 0, 0, "bad picture", True, 1.0)
    assert scheduler.errors == {0: "bad picture"} and scheduler.step(1.0) == []
    scheduler.forget(0)
    assert not scheduler.errors


def test_an_error_of_the_place_is_tried_elsewhere_and_not_for_ever() -> None:
    scheduler = running(2, Rules(tries=3))
    scheduler.submit(0)
    tried = []
    for now in (1.0, 2.0, 3.0):
        ((place, _, _),) = scheduler.step(now)
        tried.append(place)
        scheduler.failed(place, 0, 0, f"no file at {place}", False, now + 0.5)
    assert tried[:2] == [0, 1]
    assert scheduler.errors == {0: f"3 computations failed; the last: no file at {tried[2]}"}
    assert scheduler.step(4.0) == []


def test_a_place_that_failed_waits_for_the_others() -> None:
    scheduler = running(2)
    scheduler.submit(0)
    scheduler.submit(1)
    scheduler.step(0.0)
    scheduler.failed(0, 0, 0, "no file", False, 1.0)
    assert scheduler.step(1.0) == []
    scheduler.done(1, 0, 1, 2.0)
    assert scheduler.step(2.0) == [Compute(1, 0, 0)]


def test_a_partition_that_kills_is_an_error() -> None:
    scheduler = running(2, Rules(tries=3, strikes=100))
    scheduler.submit(7)
    now = 0.0
    while not scheduler.errors:
        now += 1
        for action in scheduler.step(now):
            if isinstance(action, Spawn):
                scheduler.ready(action.place, action.life, now)
            if isinstance(action, Compute):
                scheduler.lost(action.place, action.life, "it was ended by SIGSEGV", now)
        assert now < 20
    assert "3 computations failed" in scheduler.errors[7] and "SIGSEGV" in scheduler.errors[7]


def test_executors_that_cannot_start_are_an_error() -> None:
    scheduler = Scheduler(2)
    scheduler.submit(0)
    now, spawned = 0.0, 0
    while not scheduler.broken:
        now += 1
        for action in scheduler.step(now):
            spawned += isinstance(action, Spawn)
            scheduler.lost(action.place, action.life, "it ended with code 1", now)
        assert now < 20
    assert spawned == 6 and "executor 1: it ended with code 1" in scheduler.broken
    assert scheduler.step(now) == []


def test_one_that_was_slow_too_often_is_left_out_for_a_while() -> None:
    scheduler = warmed(2, 0.2, Rules(strikes=1, parole=60.0, grace=1000.0))
    scheduler.submit(0)
    assert scheduler.step(1.0) == [Compute(0, 0, 0)]
    assert scheduler.step(1.4) == [Compute(1, 0, 0)]
    scheduler.done(1, 0, 0, 1.5)
    scheduler.done(0, 0, 0, 1.6)
    assert scheduler.counts.excluded == 1
    for number in (10, 11):
        scheduler.submit(number)
    assert scheduler.step(5.0) == [Compute(1, 0, 10)]
    assert scheduler.step(50.0) == []
    assert scheduler.step(61.5) == [Compute(0, 0, 10)], "its time is over: a copy of what is slow"


def test_what_was_computed_counts_against_strikes() -> None:
    scheduler = warmed(2, 0.2, Rules(strikes=2, grace=1000.0))
    for number, now in ((0, 1.0), (1, 2.0), (2, 3.0)):
        scheduler.submit(number)
        assert scheduler.step(now) == [Compute(0, 0, number)]
        assert scheduler.step(now + 0.4) == [Compute(1, 0, number)]
        scheduler.done(1, 0, number, now + 0.5)
        scheduler.done(0, 0, number, now + 0.6)
        scheduler.submit(number + 100)
        scheduler.submit(number + 200)
        started = scheduler.step(now + 0.7)
        assert started == [Compute(1, 0, number + 100), Compute(0, 0, number + 200)]
        for _, _, more in started:
            place = 1 if more < 200 else 0
            assert scheduler.done(place, 0, more, now + 0.8)
    assert scheduler.counts.excluded == 0


def test_one_that_hangs_is_replaced() -> None:
    scheduler = warmed(2, 0.2, Rules(grace=5.0))
    scheduler.submit(0)
    scheduler.step(1.0)
    assert scheduler.step(1.4) == [Compute(1, 0, 0)]
    assert scheduler.done(1, 0, 0, 1.5)
    assert scheduler.wake(1.5) == pytest.approx(5.0)
    assert scheduler.step(6.4) == []
    assert scheduler.step(6.5) == [Stop(0, 0)]
    scheduler.lost(0, 0, "it was ended by SIGKILL", 6.6)
    assert scheduler.step(6.6) == [Spawn(0, 1)]
    assert scheduler.counts.lost == 0, "nothing was lost with it"


def test_a_result_that_comes_while_its_executor_is_ended_counts() -> None:
    scheduler = running(1, Rules(deadline=10.0))
    scheduler.submit(0)
    scheduler.step(0.0)
    assert scheduler.step(10.0) == [Stop(0, 0)]
    assert scheduler.done(0, 0, 0, 10.1)
    scheduler.lost(0, 0, "it was ended by SIGKILL", 10.2)
    assert scheduler.step(10.2) == [Spawn(0, 1)]


def test_the_last_place_is_kept_while_it_computes() -> None:
    scheduler = running(1, Rules(strikes=2, tries=100))
    for life in range(10):
        now = float(life + 1)
        scheduler.submit(life)
        scheduler.step(now)
        scheduler.done(0, life, life, now)
        scheduler.lost(0, life, "killed", now)
        assert scheduler.step(now) == [Spawn(0, life + 1)]
        scheduler.ready(0, life + 1, now)
    assert not scheduler.broken


def test_those_left_out_for_slowness_are_called_back_when_nobody_else_lives() -> None:
    scheduler = warmed(2, 0.2, Rules(strikes=1, grace=1000.0))
    scheduler.submit(0)
    scheduler.step(1.0)
    scheduler.step(2.0)
    scheduler.done(1, 0, 0, 2.1)
    scheduler.done(0, 0, 0, 2.2)
    scheduler.submit(1)
    assert scheduler.counts.excluded == 1
    assert scheduler.step(2.3) == [Compute(1, 0, 1)]
    scheduler.lost(1, 0, "killed", 2.4)
    assert scheduler.step(2.4) == [Compute(0, 0, 1)]
    assert not scheduler.broken


def test_what_is_not_wanted_any_more_is_dropped() -> None:
    scheduler = running(1)
    scheduler.submit(0)
    scheduler.step(0.0)
    scheduler.forget(0)
    scheduler.submit(1)
    assert scheduler.step(0.5) == []
    assert not scheduler.done(0, 0, 0, 1.0)
    assert scheduler.step(1.0) == [Compute(0, 0, 1)]
    assert "executor 0 busy with partition 1 for 2.0 s" in scheduler.report(3.0)


def test_numbers_that_are_none() -> None:
    with pytest.raises(ParamError, match="executors to be a whole number from 1 to 1024, got 0"):
        Scheduler(0)
    with pytest.raises(ParamError, match="expected factor to be a finite number above 0, got -1"):
        Rules(factor=-1)
    with pytest.raises(ParamError, match=r"tries to be a whole number of at least 1, got 0\.5"):
        Rules(tries=0.5)  # type: ignore[arg-type]


# -- dealing


def test_dealing_is_even_whole_and_moves_on() -> None:
    for count in (0, 1, 5, 17):
        for members in ([0], [0, 1], [4, 2, 9]):
            begins = set()
            for epoch in range(len(members)):
                dealt = deal(range(count), epoch, members)
                assert sorted(dealt) == sorted(members)
                assert sorted(n for part in dealt.values() for n in part) == list(range(count))
                sizes = [len(part) for part in dealt.values()]
                assert max(sizes) - min(sizes) <= 1
                begins |= {rank for rank, part in dealt.items() if 0 in part}
            assert count == 0 or begins == set(members)


def test_random_comings_and_goings_leave_nothing_out() -> None:
    draw = random.Random(0)
    for _ in range(300):
        count, epoch = draw.randrange(1, 40), draw.randrange(5)
        members = draw.sample(range(8), draw.randrange(1, 5))
        stages: list[Stage] = []
        given: list[int] = []
        for _ in range(draw.randrange(4)):
            left = replay(count, epoch, stages)[0]
            dealt = deal(left, epoch, members)
            done = {rank: draw.randrange(len(part) + 1) for rank, part in dealt.items()}
            for rank in members:
                mine = share(count, epoch, stages, members, rank)
                assert mine == dealt[rank]
                given += mine[: done[rank]]
            most = {rank: len(part) for rank, part in dealt.items()}
            stages.append(stage_of(members, done, most))
            members = draw.sample(range(8), draw.randrange(1, 5))
        for rank in members:
            given += share(count, epoch, stages, members, rank)
        assert sorted(given) == list(range(count))
        assert share(count, epoch, stages, members, 99) == []


def test_members_that_are_none() -> None:
    with pytest.raises(ParamError, match="expected different ranks of at least 0, got"):
        deal([0], 0, [1, 1])
    with pytest.raises(ParamError, match="expected different ranks of at least 0, got"):
        deal([0], 0, ["a"])  # type: ignore[list-item]
    with pytest.raises(
        ParamError, match="expected done to be a whole number of at least 0, got -1"
    ):
        stage_of([0], -1, {0: 2})
    with pytest.raises(ParamError, match=r"done by each of \[0, 1\], got none of \[1\]"):
        stage_of([0, 1], {0: 2}, {0: 2, 1: 2})
    with pytest.raises(ParamError, match="a number of partitions for each of the members"):
        replay(3, 0, [Stage((0, 1), (1,))])
    assert stage_of([1, 0], 5, {0: 2, 1: 7}) == Stage((0, 1), (2, 5))
