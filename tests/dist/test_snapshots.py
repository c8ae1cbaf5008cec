"""Jobs that go back to a snapshot, or that another host stands by for: real processes."""

import os
import signal
import sys
import time

import gate
import numpy as np
import pytest
from jobs_support import (
    COUNTER,
    FIT,
    JOB_SECONDS,
    STORE_SECONDS,
    beside,
    ends,
    enough,
    progressed,
    until,
)

from mixflow.errors import ParamError
from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.job.spawner import LocalSpawner
from mixflow.kvstore.options import StoreOptions, policy_of
from mixflow.kvstore.server import snapshot
from mixflow.kvstore.server.plan import SnapshotOptions


def counting(folder, steps=30, name="dist_sync", hosts=1, servers=2, pause=0.02, **options):
    store = StoreOptions(policy_of(name), deadline=STORE_SECONDS, repeat=0.1, bound=1000)
    command = [sys.executable, COUNTER, str(steps), str(pause), str(folder), name]
    options = JobOptions(2, servers, store, deadline=JOB_SECONDS, **options)
    return Job(command, options, LocalSpawner(hosts))


def run(job, act=None, held=None):
    assert (beside(job, act, held) if act else job.run()) == 0


def what(job):
    return [event["what"] for event in job.events]


def lose_after(folder, steps, host="host1"):
    def act(job):
        progressed(folder, steps)
        job.spawner.lose_host(host)

    return act


@pytest.mark.parametrize("servers", [1, 3])
def test_a_job_resumes_with_another_number_of_servers(tmp_path, servers):
    place = tmp_path / "snapshots"
    saved = SnapshotOptions(str(place), versions=10)

    def whole(*numbers):
        """Lets a job end when it has these: it waits for its last one, but not for ever."""
        return lambda job: until(lambda: [n for n, _ in snapshot.complete(place)] == [*numbers])

    first = counting(tmp_path, steps=25, snapshots=saved)
    run(first, whole(10, 20), (tmp_path, 24))
    assert what(first).count("snapshot") == 2
    other = JobOptions(3, servers, StoreOptions(), snapshots=saved, resume=True)
    with pytest.raises(ParamError, match="expected -n 2, as in snapshot 20, got 3"):
        Job([], other, LocalSpawner()).run()
    again = counting(tmp_path, steps=44, servers=servers, snapshots=saved, resume=True)
    run(again, whole(30, 40), (tmp_path, 43))
    assert ends(tmp_path) == [{"small": [88.0], "big": [88.0]}] * 2
    steps = (tmp_path / "steps0").read_text().split("\n")[:-1]
    assert [int(line.split()[1]) for line in steps] == [*range(25), *range(20, 44)]


def test_snapshots_by_time_are_taken_and_announced(tmp_path):
    place = tmp_path / "snapshots"
    saved = SnapshotOptions(str(place), seconds=0.5, keep=1000)
    job = counting(tmp_path, steps=100_000, snapshots=saved)
    found = []

    def taken(job):
        return [e["number"] for e in list(job.events) if e["what"] == "snapshot"]

    def act(job):
        until(lambda: len(taken(job)) >= 2)
        found.append(snapshot.newest(place))
        for number, servers in ((0, 1), (1, 2)):
            _, records = found[0].shard(number, servers, True, 1000)
            for _, record in records:
                assert (record.value == 2 * found[0].number).all()
        enough(tmp_path)

    run(job, act)
    numbers = taken(job)
    assert numbers == sorted(set(numbers)) and found[0].number in numbers


@pytest.mark.parametrize("name", ["dist_sync", "dist_async"])
def test_without_replicas_a_lost_host_takes_the_job_back_to_its_snapshot(tmp_path, name, capfd):
    saved = SnapshotOptions(str(tmp_path / "snapshots"), versions=5)

    def act(job):
        until(lambda: snapshot.complete(tmp_path / "snapshots"))
        job.spawner.lose_host("host1")

    job = counting(tmp_path, steps=120, name=name, hosts=2, replicas=0, snapshots=saved)
    run(job, act, (tmp_path, 119))
    back = [e for e in job.events if e["what"] == "rolled back"]
    assert len(back) == 1 and back[0]["snapshot"] >= 5
    assert "the job goes back to snapshot" in capfd.readouterr().err
    # Async reads need not see the others' last pushes; the last worker to end has.
    found = ends(tmp_path)
    if name == "dist_sync":
        assert found == [{"small": [240.0], "big": [240.0]}] * 2
    assert max(end["small"][0] for end in found) == 240
    assert max(max(end["big"]) for end in found) == 240


def test_without_a_snapshot_it_goes_back_to_the_beginning(tmp_path):
    job = counting(tmp_path, hosts=2, replicas=0)
    run(job, lose_after(tmp_path, 10), (tmp_path, 29))
    assert [e["snapshot"] for e in job.events if e["what"] == "rolled back"] == [None]
    assert ends(tmp_path) == [{"small": [60.0], "big": [60.0]}] * 2


@pytest.mark.parametrize("name", ["dist_sync", "dist_async"])
def test_with_a_replica_a_lost_host_loses_nothing(tmp_path, name):
    job = counting(tmp_path, name=name, hosts=3)
    run(job, lose_after(tmp_path, 12), (tmp_path, 29))
    assert "rolled back" not in what(job) and "host lost" in what(job)
    assert [e["recovers_from"] for e in job.events if "recovers_from" in e] == ["server0"]
    found = ends(tmp_path)
    if name == "dist_sync":
        assert found == [{"small": [60.0], "big": [60.0]}] * 2
    assert max(end["small"][0] for end in found) == 60


def stand_by(job):
    """Whether each server's stand-by has told that it has everything."""
    roll = job.roll
    return all(
        roll.synced.get(name) == (backup, roll.servers[backup][2])
        for name, backup in (roll.backups or {}).items()
    )


def test_both_hosts_one_after_the_other(tmp_path):
    def act(job):
        progressed(tmp_path, 8)
        job.spawner.lose_host("host0")
        gate.close(tmp_path, 35)
        progressed(tmp_path, 25)
        os.kill(job.servers["server1"].pid, signal.SIGKILL)
        gate.close(tmp_path, 59)
        progressed(tmp_path, 40)
        until(lambda: stand_by(job))  # again, since the first host is lost
        job.spawner.lose_host("host1")

    job = counting(tmp_path, steps=60, hosts=3)
    run(job, act, (tmp_path, 20))
    assert what(job).count("host lost") == 2 and "rolled back" not in what(job)
    assert ends(tmp_path) == [{"small": [120.0], "big": [120.0]}] * 2


def fitted(folder, act=None, hosts=1, pause=0.02, held=None, **options):
    out = folder / "weights.npz"
    command = [sys.executable, FIT, str(out), "16", str(pause)]
    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1)
    options = JobOptions(2, 2, store, deadline=JOB_SECONDS, **options)
    job = Job(command, options, LocalSpawner(hosts))
    run(job, act, held)
    return job, dict(np.load(out))


def test_fit_goes_on_from_a_snapshot_as_if_nothing_had_happened(tmp_path):
    for name in ("whole", "lost"):
        (tmp_path / name).mkdir()
    _, whole = fitted(tmp_path / "whole")

    def act(job):
        place = tmp_path / "snapshots"
        until(lambda: snapshot.complete(place))
        time.sleep(0.2)
        job.spawner.lose_host("host1")

    saved = SnapshotOptions(str(tmp_path / "snapshots"), versions=7)
    folder = tmp_path / "lost"
    job, lost = fitted(folder, act, 2, held=(folder, 45), replicas=0, snapshots=saved)
    assert "rolled back" in what(job)
    assert snapshot.newest(tmp_path / "snapshots").worker(1)["random"]
    for key, value in whole.items():
        np.testing.assert_allclose(lost[key], value, atol=1e-6)
