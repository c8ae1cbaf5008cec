"""A worker that stands still for longer than the deadline (SIGSTOP), and then goes on."""

import json
import os
import signal
import sys

import gate
import pytest
from jobs_support import COUNTER, JOB_SECONDS, beside, progressed, until

from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions

pytest.importorskip("zmq")
#: Longer than the other processes may be kept waiting, which would be taken for missing as well.
DEADLINE, STEPS = 8.0, 60


def stopped_job(folder, restarts, give_up, wake, then=None):
    """A job whose worker 1 is stopped after some steps; `wake(job)` says when it may go on,
    and `then(job)` when the job may end."""
    store = StoreOptions(deadline=DEADLINE, repeat=0.1, bound=1000, give_up=give_up)
    command = [sys.executable, COUNTER, str(STEPS), "0.05", str(folder)]
    job = Job(command, JobOptions(2, 2, store, worker_restarts=restarts, deadline=JOB_SECONDS))

    def act(job):
        progressed(folder, 8, 1)
        pid = job.workers[1].pid
        os.kill(pid, signal.SIGSTOP)
        gate.close(folder, STEPS - 1)
        if wake is not None:
            wake(job)
            os.kill(pid, signal.SIGCONT)
        if then is not None:
            then(job)

    return job, beside(job, act, (folder, 12))


def ended(job):
    return [(e["who"], e["code"]) for e in job.events if e["what"] == "worker ended"]


def steps_by_rank(job):
    return {worker["rank"]: worker["step"] for worker in job.status()["workers"]}


def steps_of(folder, rank):
    return [int(line.split()[1]) for line in (folder / f"steps{rank}").read_text().splitlines()]


def cells(folder, rank):
    return {x for found in json.loads((folder / f"end{rank}").read_text()).values() for x in found}


def test_without_restarts_the_others_end_by_an_error_that_names_it(tmp_path, capfd):
    job, code = stopped_job(tmp_path, 0, False, None)
    assert code == 1 and ended(job) == [("worker0", 1)]
    assert "got nothing from worker 1" in capfd.readouterr().err
    # The worker that still stood still is gone with its job: `nothing_is_left_behind`.


def test_one_that_wakes_up_goes_on_where_it_was_waited_for(tmp_path, capfd):
    def wake(job):
        until(lambda: ("worker0", 1) in ended(job))

    job, code = stopped_job(tmp_path, 5, False, wake)
    assert code == 0 and "got nothing from worker 1" in capfd.readouterr().err
    assert cells(tmp_path, 0) == cells(tmp_path, 1) == {2.0 * STEPS}
    # A push may have been counted of which its worker has not lived to hear.
    assert len(set(range(STEPS)) - set(steps_of(tmp_path, 0))) < len(ended(job))


def test_one_that_was_given_up_is_told_and_joins_again(tmp_path, capfd):
    def wake(job):
        progressed(tmp_path, 20, 0)  # without worker 1

    def then(job):
        until(lambda: ended(job) and steps_by_rank(job).get(1) is not None)

    job, code = stopped_job(tmp_path, 5, True, wake, then)
    assert code == 0 and ended(job)[0] == ("worker1", 1)
    assert f"worker 1, which was given up after {DEADLINE:g} s" in capfd.readouterr().err
    done = steps_of(tmp_path, 1)
    assert steps_of(tmp_path, 0) == list(range(STEPS)) and done[-1] == STEPS - 1
    missed = STEPS - len(set(done))
    assert missed >= 5, "the rounds in which it stood still are closed without it"
    # Of the step in which it was stopped, any part may have arrived.
    counted = 2.0 * STEPS - missed
    assert cells(tmp_path, 0) == cells(tmp_path, 1) <= {counted, counted + 1}
