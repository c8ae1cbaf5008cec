"""Jobs whose rounds go by boards: processes killed at random moments of a loop that never rests."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import gate
import pytest
from jobs_support import COUNT, JOB_SECONDS, STORE_SECONDS, beside, ends, progressed

from mixflow import _rt
from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.protocol.policy import Async, Bounded, Sync

pytest.importorskip("zmq")
pytestmark = pytest.mark.skipif(
    not hasattr(_rt.core, "ServerDesk"), reason="the plain core has no boards"
)
PROGRAM = str(Path(__file__).with_name("boards.py"))
STEPS = 400


def run(folder, kind, kill=None, workers=2, servers=1, more=()):
    """A job; `kill(job)` runs beside it. Gives its events and each worker's end."""
    policy = {"async": Async(), "ssp": Bounded(2)}.get(kind, Sync())
    store = StoreOptions(policy=policy, deadline=STORE_SECONDS, repeat=0.1, bound=50_000)
    command = [sys.executable, PROGRAM, str(STEPS), str(folder), kind, *more]
    job = Job(command, JobOptions(workers, servers, store, deadline=JOB_SECONDS))
    assert (beside(job, kill) if kill else job.run()) == 0
    return job.events, ends(folder, workers)


@pytest.mark.parametrize("kind", ["replaced", "added", "updated", "ahead", "async", "ssp"])
def test_a_steady_job_goes_by_boards(tmp_path, kind):
    # All of it is over within a second: one stop could send the rest by messages.
    _, found = run(tmp_path, kind, workers=3, servers=2, more=["20"])
    for end in found:
        assert end["right"]
        # All but the first step of each slice ('big' has three), or nearly so.
        assert end["by_boards"] > 2 * STEPS


@pytest.mark.parametrize("kind", ["replaced", "added", "updated", "ahead", "async", "ssp"])
@pytest.mark.parametrize("victim", ["worker1", "server0"])
@pytest.mark.parametrize("number", range(COUNT))
def test_whoever_is_killed_every_step_counts_once(tmp_path, kind, victim, number):
    draw = random.Random(f"{kind}{victim}{number}")

    def kill(job):
        for at in (50, 200):  # boards are open again by then
            gate.close(tmp_path, at + 100)
            progressed(tmp_path, at + draw.randrange(100), 0)
            time.sleep(draw.random() * 0.005)
            processes = job.servers if victim.startswith("server") else job.workers
            key = victim if victim.startswith("server") else int(victim[-1])
            os.kill(processes[key].pid, signal.SIGKILL)
        gate.open_(tmp_path)

    gate.close(tmp_path, 150)
    events, found = run(tmp_path, kind, kill)
    killed = [e for e in events if e["who"] == victim and e.get("code") == -signal.SIGKILL]
    assert len(killed) == 2
    assert all(end["right"] for end in found)
    assert found[0]["by_boards"] > 0
