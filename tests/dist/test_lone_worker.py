"""Jobs of one worker, which holds the state itself: killed, resumed, joined."""

import os
import signal
import sys

import numpy as np
import pytest
from jobs_support import FIT, JOB_SECONDS, STORE_SECONDS, beside, progressed, until

from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.server import snapshot
from mixflow.kvstore.server.plan import SnapshotOptions

#: A step of the fourth of five epochs, as `fit.py` counts.
LATE = 49
#: Steps before it that are done: those of three epochs, and of the fourth all but one.
HELD = 3 * 20 + 19


def fitted(folder, act=None, lease=0.2, pause=0.02, **options):
    """The weights of a job of 100 steps, and how many it made; `act(job)` runs beside it."""
    folder.mkdir(exist_ok=True)
    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1, lease=lease)
    command = [sys.executable, FIT, str(folder / "out.npz"), "16", str(pause)]
    job = Job(command, JobOptions(1, 2, store, deadline=JOB_SECONDS, **options))
    assert (beside(job, act, (folder, LATE)) if act else job.run()) == 0
    with np.load(folder / "out.npz") as found:
        made = len((folder / "steps0").read_text().splitlines())
        return {name: found[name] for name in found.files}, made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    found, made = fitted(tmp_path_factory.mktemp("undisturbed"), lease=0.0)
    assert made == 100
    return found


def deposited(job):
    """Steps whose outcome all servers have, by what they have told the job."""
    heard = job.roll.plan._steps
    return min(heard.get(name, (0.0, 0))[1] for name in job.servers)


@pytest.mark.parametrize("victim", ["worker", "server0", "server1"])
def test_a_killed_process_is_started_again_and_the_values_are_the_same(
    tmp_path, undisturbed, victim
):
    def kill(job):
        progressed(tmp_path, 60)
        until(lambda: deposited(job) >= 40)
        process = job.workers[0] if victim == "worker" else job.servers[victim]
        os.kill(process.pid, signal.SIGKILL)

    found, made = fitted(tmp_path, kill)
    for name, value in undisturbed.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
    # What was not deposited is done again, not all of it: before step `LATE` the worker is held. A
    # step that was deposited before the worker has written its line has none.
    assert made == 100 if victim != "worker" else 99 <= made <= 100 + HELD - 40


def test_a_lone_worker_resumes_from_a_snapshot(tmp_path, undisturbed):
    place = tmp_path / "snapshots"
    saved = SnapshotOptions(str(place), versions=15)

    def end(job):
        until(lambda: len(snapshot.complete(place)) >= 2)
        os.kill(job.workers[0].pid, signal.SIGKILL)

    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1, lease=0.2)
    command = [sys.executable, FIT, str(tmp_path / "out.npz"), "16", "0.02"]
    job = Job(command, JobOptions(1, 2, store, worker_restarts=0, snapshots=saved))
    assert beside(job, end, (tmp_path, LATE)) == -signal.SIGKILL
    numbers = [n for n, _ in snapshot.complete(place)]
    assert len(numbers) >= 2 and all(n % 15 == 0 for n in numbers)
    (tmp_path / "steps0").unlink()
    found, made = fitted(tmp_path, snapshots=saved, resume=True)
    assert made == 100 - numbers[-1]
    for name, value in undisturbed.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)
