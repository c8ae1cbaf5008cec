"""Jobs whose program defines its own optimizer and schedule: real processes, killed in between."""

import os
import signal
import sys
from pathlib import Path

import gate
import pytest
from jobs_support import beside, ends, progressed, until

from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.job.spawner import LocalSpawner
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.server import snapshot
from mixflow.kvstore.server.plan import SnapshotOptions

pytest.importorskip("zmq")
pytest.importorskip("cloudpickle")
OWN = str(Path(__file__).with_name("own.py"))
STEPS = 24


def job_of(folder, *more, hosts=1, restarts=3, **options):
    store = StoreOptions(deadline=30.0, repeat=0.1, bound=1000)
    command = [sys.executable, OWN, str(STEPS), str(folder), *more]
    options = JobOptions(2, 2, store, deadline=100.0, worker_restarts=restarts, **options)
    return Job(command, options, LocalSpawner(hosts))


def counted(folder):
    """Every update was made once, each by an optimizer that knew of all before."""
    every = [3.0 * STEPS * (STEPS + 1) / 2]
    assert ends(folder) == [{"0": every, "1": every}] * 2


def what(job):
    return [event["what"] for event in job.events]


def test_servers_and_the_worker_that_sets_it_are_started_again(tmp_path):
    def act(job):
        progressed(tmp_path, 6)
        for name in ("server0", "server1"):
            os.kill(job.servers[name].pid, signal.SIGKILL)
        gate.close(tmp_path, 18)
        progressed(tmp_path, 12)
        os.kill(job.workers[0].pid, signal.SIGKILL)

    job = job_of(tmp_path)
    assert beside(job, act, (tmp_path, 10)) == 0
    killed = {event["who"] for event in job.events if event.get("code") == -signal.SIGKILL}
    assert killed == {"server0", "server1", "worker0"}
    counted(tmp_path)


def test_a_server_on_another_host_has_the_code_of_the_one_that_stood_by(tmp_path):
    def act(job):
        progressed(tmp_path, 8)
        job.spawner.lose_host("host1")

    job = job_of(tmp_path, hosts=3)
    assert beside(job, act, (tmp_path, STEPS - 1)) == 0
    assert "host lost" in what(job) and "rolled back" not in what(job)
    counted(tmp_path)


def test_a_job_that_goes_back_to_a_snapshot_has_the_code_of_its_program(tmp_path):
    place = tmp_path / "snapshots"

    def act(job):
        until(lambda: snapshot.complete(place))
        job.spawner.lose_host("host1")

    saved = SnapshotOptions(str(place), versions=5)
    job = job_of(tmp_path, hosts=2, replicas=0, snapshots=saved)
    assert beside(job, act, (tmp_path, STEPS - 1)) == 0
    assert [e["snapshot"] >= 5 for e in job.events if e["what"] == "rolled back"] == [True]
    counted(tmp_path)
    texts = [path.read_bytes() for path in place.rglob("*.json")]
    assert texts and not any(b"seal" in text for text in texts)


def test_an_update_that_fails_ends_the_job_with_its_words(tmp_path, capfd):
    job = job_of(tmp_path, "5", restarts=1)
    assert job.run() != 0
    said = capfd.readouterr().err
    assert "expected optimizer 'Mine' to update key '" in said
    assert "got ValueError: no update 5 of " in said
    assert " (update, line " in said  # of the program
    assert not [e for e in job.events if e["who"].startswith("server") and e.get("code")]
