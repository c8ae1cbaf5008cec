"""Workers that join and leave a running job: every step of each of them counts, once."""

import itertools
import os
import random
import signal
import time

import gate
import numpy as np
import pytest
from jobs_support import (
    COUNT,
    done_steps,
    ends,
    enough,
    last_values,
    progressed,
    steps_more,
    until,
)
from test_snapshots import counting, fitted, run, what

from mixflow.errors import ParamError
from mixflow.kvstore.server import snapshot
from mixflow.kvstore.server.plan import SnapshotOptions
from mixflow.kvstore.transport.rendezvous import Roll

pytest.importorskip("zmq")


def lives_of(folder):
    """Steps that each worker has done, by rank and then by process."""
    found = sorted(folder.glob("steps*"), key=lambda path: int(path.name.removeprefix("steps")))
    rows = [[line.split() for line in path.read_text().splitlines()] for path in found]
    return [
        [[int(step) for _, step in life] for _, life in itertools.groupby(some, lambda row: row[0])]
        for some in rows
    ]


def steps_of(folder):
    """Steps that each worker has done, by rank."""
    return [list(itertools.chain.from_iterable(lives)) for lives in lives_of(folder)]


def grow_and_shrink(folder, most):
    """Two workers become more, then one: in the middle of a job, from another thread."""

    def act(job):
        progressed(folder, 5)
        job.scale(most)
        progressed(folder, 3, most - 1)
        job.scale(1)

    return act


@pytest.mark.parametrize("name", ["dist_sync", "dist_async"])
@pytest.mark.parametrize("number", range(COUNT))
def test_joiners_and_leavers_count_exactly(tmp_path, name, number):
    def act(job):
        grow_and_shrink(tmp_path, 4)(job)
        until(lambda: all((tmp_path / f"end{rank}").exists() for rank in (1, 2, 3)))
        steps_more(tmp_path, 1, 0)  # what it reads last has all that the others have pushed
        enough(tmp_path)

    # Rounds pass while the newcomers join, and there are some left when they have.
    job = counting(tmp_path, steps=1_000_000, name=name, pause=0.005 * (1 + number % 3))
    run(job, act)
    steps = steps_of(tmp_path)
    assert len(steps) == 4
    for done in steps:  # without a gap, the newcomers from the middle on
        assert done == list(range(done[0], done[0] + len(done)))
    assert steps[0][0] == 0 and steps[2][0] > 0 and steps[3][0] > 0
    if name == "dist_sync":  # else a worker may be ahead of the one that stays
        assert all(done[-1] <= steps[0][-1] for done in steps[1:])
    total = float(sum(map(len, steps)))
    assert ends(tmp_path)[0] == {"small": [total], "big": [total]}
    asked = [e["who"] for e in job.events if e["what"] == "asked to leave"]
    assert asked == ["worker1", "worker2", "worker3"]
    assert not any(e.get("code") for e in job.events)


@pytest.mark.parametrize("number", range(COUNT))
def test_a_newcomer_may_be_killed_at_any_moment(tmp_path, number):
    draw = random.Random(number)

    def act(job):
        progressed(tmp_path, 5)
        job.scale(3)
        until(lambda: 2 in job.workers, pause=0.01)
        if draw.random() < 0.5:  # before or while it joins; else while it works
            time.sleep(2 * draw.random())
        else:
            some = 1 + draw.randrange(20)
            until(lambda: done_steps(tmp_path, 2) >= some or done_steps(tmp_path) == 399)
        os.kill(job.workers[2].pid, signal.SIGKILL)

    job = counting(tmp_path, steps=400, pause=0.01)
    run(job, act, (tmp_path, 399))
    assert [e["code"] for e in job.events if e["who"] == "worker2" and "code" in e] == [-9, 0]
    done = steps_of(tmp_path)
    assert done[0] == done[1] == list(range(400))
    first, last = (done[2][0], done[2][-1]) if len(done) == 3 else (400, 399)
    assert last == 399
    total = 800 + 400 - first
    # A first step may have been confirmed before its line was written.
    assert ends(tmp_path)[0] in [{"small": [n], "big": [n]} for n in (total, total + 1)]


class Told:
    """Who of a job's workers has heard that it shall leave: it has sent another word since."""

    def __init__(self, monkeypatch):
        self._words, answer = {}, Roll._beat

        def beat(roll, request):
            said = answer(roll, request)
            if said["leave"]:
                self._words.setdefault(int(request["rank"]), set()).add(request["number"])
            return said

        monkeypatch.setattr(Roll, "_beat", beat)

    def __call__(self):
        return {rank for rank, numbers in list(self._words.items()) if len(numbers) > 1}


def test_fit_with_a_joiner_and_leavers(tmp_path, monkeypatch):
    told = Told(monkeypatch)

    def act(job):
        progressed(tmp_path, 5)
        job.scale(3)
        until(lambda: job.roll.steps.get(2) is not None)  # it takes part
        gate.close(tmp_path, 40)
        progressed(tmp_path, 3, 2)
        job.scale(1)
        until(lambda: set(job.workers) - told() == {0})  # or they have left already

    job, weights = fitted(tmp_path, act, pause=0.01, held=(tmp_path, 10))
    steps = steps_of(tmp_path)
    assert steps[0] == list(range(50))
    assert steps[1] == list(range(len(steps[1]))) and len(steps[1]) < 50
    first, last = steps[2][0], steps[2][-1]
    assert steps[2] == list(range(first, last + 1)) and first > 0 and last < 49
    assert what(job).count("asked to leave") == 2
    assert all(np.isfinite(value).all() for value in weights.values())


def test_a_job_that_goes_back_comes_to_the_number_that_was_asked_for(tmp_path):
    place = tmp_path / "snapshots"
    saved = SnapshotOptions(str(place), versions=5)
    job = counting(tmp_path, steps=100000, hosts=2, replicas=0, snapshots=saved)

    def at_work(returns):
        found = job.status()
        states = [worker["state"] for worker in found["workers"]]
        return found["returns"] == returns and states == ["at work"] * 3

    def act(job):
        progressed(tmp_path, 5)
        job.scale(3)
        until(lambda: at_work(0) and snapshot.complete(place))
        progressed(tmp_path, 1, 2)
        job.spawner.lose_host("host1")
        until(lambda: at_work(1))
        enough(tmp_path)

    run(job, act)
    (back,) = [e["snapshot"] for e in job.events if e["what"] == "rolled back"]
    started = [e["who"] for e in job.events if e["what"] == "worker started"]
    assert started == ["worker0", "worker1", "worker2", "worker0", "worker1", "worker3"]
    lives = lives_of(tmp_path)
    assert [len(found) for found in lives] == [2, 2, 1, 1]
    # Of the first timeline what the snapshot holds, of the second one all.
    before = 2 * back + max(0, back - lives[2][0][0])
    again = [lives[rank][-1] for rank in (0, 1, 3)]
    assert [done[0] for done in again[:2]] == [back, back] and again[2][0] >= back
    total = float(before + sum(map(len, again)))
    assert last_values(tmp_path) == {"small": [total], "big": [total]}


def test_a_job_keeps_a_worker(tmp_path):
    with pytest.raises(ParamError, match="at least one worker, got 0"):
        counting(tmp_path).scale(0)
