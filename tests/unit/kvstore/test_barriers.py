"""Barriers of workers that are killed at any moment and started again: nobody waits for nothing."""

import itertools
import json

import pytest

from mixflow.kvstore.server.barriers import Barriers
from mixflow.kvstore.server.slots import Reader

STEPS = 4
#: Where a loop has its barriers.
LOOPS = {
    "push, barrier": [["push", "barrier"]] * STEPS,
    "barrier, push": [["barrier", "push"]] * STEPS,
    "two barriers": [["barrier", "push", "barrier"]] * STEPS,
    "every second step": [["push"], ["push", "barrier"]] * (STEPS // 2),
}


class Program:
    """A worker of a synchronous job: a barrier first (that of the optimizer), then the loop."""

    def __init__(self, worker, loop, first=0):
        self.worker, self.pushed, self.count, self.turns = worker, first, 0, (0, 0)
        self.actions = ["barrier", *itertools.chain(*loop[first:])]
        self.began = False


class Job:
    """Two workers; one action after the other, each blocks until the other side is there."""

    def __init__(self, loop):
        self.loop, self.barriers, self.numbers = loop, Barriers(), itertools.count()
        self.rounds = [0, 0]  # steps that each worker's pushes were taken of
        self.workers = [Program(w, loop) for w in range(2)]
        self.log = []

    def move(self, worker):
        """One action of a worker, or its begin; whether it got anywhere."""
        at = self.workers[worker]
        if not at.actions:
            return False
        if not at.began:
            self.begin(at)
            return True
        if at.actions[0] == "push":
            over = min(self.rounds) >= at.pushed  # a read after the push
        else:
            self.barriers.open((0, 1))
            over = all(reader.worker != worker for reader in self.barriers.waiting)
        if over:
            self.log.append((worker, at.actions[0], at.pushed))
            at.actions.pop(0)
            at.began = False
        return over

    def begin(self, at):
        at.began = True
        if at.actions[0] == "push":
            at.pushed += 1
            self.rounds[at.worker] = max(self.rounds[at.worker], at.pushed)
            return
        at.count += 1
        at.turns = (at.pushed, at.turns[1] + 1 if at.turns[0] == at.pushed else 1)
        self.enter(at)

    def enter(self, at):
        reader = Reader(f"worker{at.worker}", next(self.numbers), at.worker, at.count, 0.0)
        self.barriers.enter(reader, *at.turns)

    def restart_server(self):
        """What was asked is asked again."""
        state = json.loads(json.dumps(self.barriers.to_json()))
        self.barriers = Barriers()
        self.barriers.restore(state)
        for at in self.workers:
            if at.began and at.actions[0] == "barrier":
                self.enter(at)

    def kill(self, worker):
        """It is started again with the step that the rounds lack."""
        first = min(self.rounds)
        for reader in [r for r in self.barriers.waiting if r.worker == worker]:
            self.barriers.waiting.remove(reader)
        self.barriers.join(worker, first)
        self.workers[worker] = Program(worker, self.loop, first)

    def run(self, moves=10_000):
        for number in range(moves):
            if not any([self.move(0), self.move(1)]):
                return number
        raise AssertionError("it does not end")

    @property
    def ended(self):
        return not any(worker.actions for worker in self.workers)


@pytest.mark.parametrize("name", LOOPS)
def test_nobody_waits_for_ever_whenever_a_worker_is_killed(name):
    moments = 0
    for before, victim, kept in itertools.product(range(60), (0, 1), (False, True)):
        job = Job(LOOPS[name])
        for number in range(before):
            job.move(number % 2 if number % 7 else 0)  # not quite in step
        if kept:  # the server is started again as well
            job.restart_server()
        moments += not job.ended
        job.kill(victim)
        job.run()
        assert job.ended, (before, victim, [w.actions for w in job.workers])
        assert job.rounds == [STEPS, STEPS]
    assert moments > 40


def test_barriers_hold_again_after_the_first_push_of_a_restarted_worker():
    job = Job(LOOPS["push, barrier"])
    while job.rounds != [2, 2]:
        job.move(0), job.move(1)
    job.kill(1)
    job.run()
    # Of the steps after its return, each worker's push comes after both were at the barrier before.
    order = [entry for entry in job.log if entry[2] >= 3]
    assert sorted(order[:2]) == [(0, "push", 3), (1, "push", 3)]
    assert sorted(order[2:4]) == [(0, "barrier", 3), (1, "barrier", 3)]
    assert job.ended


def test_by_numbers_among_workers_that_were_there_from_the_start():
    barriers = Barriers()
    assert barriers.enter(Reader("worker0", 1, 0, 1, 0.0), 5, 1)
    assert not barriers.enter(Reader("worker0", 1, 0, 1, 0.0), 5, 1), "a copy changes nothing"
    assert barriers.absent(next(iter(barriers.waiting)), (0, 1)) == {1}
    # The other one had less data: it is the same barrier.
    barriers.enter(Reader("worker1", 1, 1, 1, 0.0), 3, 1)
    assert [reader.worker for reader in barriers.open((0, 1))] == [0, 1] and not barriers.waiting


@pytest.mark.parametrize("firsts", [(7, 7), (7, 3), (0, 3), (3, 0)])
def test_a_job_that_goes_on_from_a_snapshot_waits_at_its_first_barriers(firsts):
    """That of the optimizer's code: without rounds a push that comes before it is an error."""
    barriers = Barriers()
    for worker, first in enumerate(firsts):
        barriers.join(worker, first, founds=True)
    for turn in (1, 2):
        barriers.enter(Reader("worker1", turn, 1, turn, 0.0), firsts[1], turn)
        assert barriers.open((0, 1)) == []
        barriers.restore(json.loads(json.dumps(barriers.to_json())))  # a server that is killed
        barriers.enter(Reader("worker1", turn, 1, turn, 0.0), firsts[1], turn)
        assert barriers.open((0, 1)) == []
        barriers.enter(Reader("worker0", turn, 0, turn, 0.0), firsts[0], turn)
        assert len(barriers.open((0, 1))) == 2


def test_nobody_waits_there_for_one_that_was_started_again():
    barriers = Barriers()
    barriers.join(0, 7, founds=True)
    barriers.join(1, 3, founds=True)
    barriers.join(1, 3)
    barriers.enter(Reader("worker0", 1, 0, 1, 0.0), 7, 1)
    assert len(barriers.open((0, 1))) == 1
