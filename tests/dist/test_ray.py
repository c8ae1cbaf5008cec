"""Jobs whose processes Ray starts: one small cluster on this machine for all tests."""

import contextlib
import itertools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("zmq")
from commands_support import elsewhere, mixflow, scaled, start, status  # noqa: E402
from jobs_support import (  # noqa: E402
    COUNT,
    COUNTER,
    JOB_SECONDS,
    STORE_SECONDS,
    beside,
    counted,
    ends,
    enough,
    gone,
    last_values,
    progressed,
    until,
)
from ray.cluster_utils import Cluster  # noqa: E402

import mixflow as mx  # noqa: E402
from mixflow.errors import MixflowError, ParamError  # noqa: E402
from mixflow.kvstore.job import places, ray_cluster, registry  # noqa: E402
from mixflow.kvstore.job.cluster import Job, JobOptions  # noqa: E402
from mixflow.kvstore.job.places import Room  # noqa: E402
from mixflow.kvstore.job.ray_cluster import RaySpawner  # noqa: E402
from mixflow.kvstore.options import StoreOptions  # noqa: E402
from mixflow.kvstore.server import snapshot  # noqa: E402
from mixflow.kvstore.server.plan import SnapshotOptions  # noqa: E402
from mixflow.pipeline.partitions import Partition, compute  # noqa: E402

FULL = bool(os.environ.get("MIXFLOW_FULL_COUNTS"))
NODE = {"num_cpus": 2, "object_store_memory": 100 << 20}
#: A node that refuses connections is lost after a second; one that is only slow is not.
HEALTH = {
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 60_000,
    "health_check_failure_threshold": 3,
    "health_check_initial_delay_ms": 0,
}


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    before = set(psutil.Process().children(recursive=True))
    head = {**NODE, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={**head, "_system_config": HEALTH})
    made.add_node(**NODE)
    ray.init(address=made.address, log_to_driver=False)
    made.wait_for_nodes(STORE_SECONDS)
    yield made
    ray.shutdown()
    made.shutdown()
    until(lambda: set(psutil.Process().children(recursive=True)) <= before)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path, monkeypatch):
    """No process of a job, no state in memory, no CPU that is still taken."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(ray_cluster, "KEEPER_SECONDS", 60.0)
    monkeypatch.setattr(places, "NEWCOMER_SECONDS", STORE_SECONDS)
    before = memory()
    yield
    left = coordinators() if ray.is_initialized() else []
    for name in left:  # or all tests that follow would fail
        ray.kill(ray.get_actor(name, namespace="mixflow"))
    assert not left
    until(lambda: not of_jobs(tmp_path) and not memory() - before)
    if ray.is_initialized():
        until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])


def of_jobs(folder):
    """Live workers of this test: they are told its folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def job(folder, steps=20, pause=0.03, room=None, give_up=False, **options):
    command = [sys.executable, COUNTER, str(steps), str(pause), str(folder)]
    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1, bound=1000, give_up=give_up)
    options = JobOptions(2, 2, store, deadline=JOB_SECONDS, **options)
    return Job(command, options, RaySpawner(room=room or Room(deadline=STORE_SECONDS)))


def memory():
    """Folders of Ray nodes' state in memory; those of local jobs begin with a host."""
    found = Path("/dev/shm").glob("mixflow-*/[0-9]*")
    return {path.parent for path in found}


def what(made):
    return [e["what"] for e in made.events]


def test_processes_are_spread_over_nodes_and_deaths_are_seen(cluster, tmp_path):
    made = job(tmp_path)

    def kill(made):
        progressed(tmp_path, 5)
        assert len({p.host for p in made.servers.values()}) == 2
        os.kill(made.servers["server1"].pid, signal.SIGKILL)
        os.kill(made.workers[1].pid, signal.SIGKILL)

    assert beside(made, kill, (tmp_path, 19)) == 0
    assert ends(tmp_path) == [{"small": [40.0], "big": [40.0]}] * 2
    assert {e["who"] for e in made.events if e.get("code")} == {"server1", "worker1"}


class Doomed:
    """A node more, that a job's first server and its workers are on: only it has room for both."""

    room = Room(cpus_per_worker=2, deadline=STORE_SECONDS)

    def __init__(self, cluster):
        self._cluster = cluster
        self.node = cluster.add_node(**{**NODE, "num_cpus": 4})
        cluster.wait_for_nodes(STORE_SECONDS)

    def prepare(self, made):
        """Has the servers placed here and on another node, and remembers what was there."""
        reserve = made.spawner.reserve

        def reserve_here(workers, servers):
            hosts = reserve(workers, servers)
            others = [h for h in made.spawner.hosts() if h != self.node.node_id]
            alive = self.node.node_id in made.spawner.hosts()
            return [self.node.node_id, others[0]] if alive else hosts

        made.spawner.reserve = reserve_here

    def die(self):
        """The node's machine is gone."""
        self._cluster.remove_node(self.node, allow_graceful=False)


def test_a_lost_node_loses_nothing_with_a_stand_by(cluster, tmp_path):
    doomed = Doomed(cluster)
    made = job(tmp_path, steps=60, room=doomed.room)
    doomed.prepare(made)

    def kill(made):
        progressed(tmp_path, 10)
        here = [made.servers["server0"], *made.workers.values()]
        assert {process.host for process in here} == {doomed.node.node_id}
        doomed.die()

    assert beside(made, kill, (tmp_path, 59)) == 0
    assert "host lost" in what(made) and "rolled back" not in what(made)
    assert ends(tmp_path) == [{"small": [120.0], "big": [120.0]}] * 2


@pytest.mark.parametrize("number", range(COUNT))
def test_without_a_stand_by_a_lost_node_takes_the_job_back(cluster, tmp_path, capfd, number):
    doomed, place = Doomed(cluster), tmp_path / "snapshots"
    saved = SnapshotOptions(str(place), versions=5)
    made = job(tmp_path, steps=60, room=doomed.room, replicas=0, snapshots=saved)
    doomed.prepare(made)

    def kill(made):
        until(lambda: snapshot.complete(place))
        time.sleep(random.Random(number).random())
        doomed.die()

    assert beside(made, kill, (tmp_path, 59)) == 0
    back = [e for e in made.events if e["what"] == "rolled back"]
    assert len(back) == 1 and back[0]["snapshot"] >= 5
    text = f"the state of server0 is lost with {doomed.node.node_id}: the job goes back to snapshot"
    assert text in capfd.readouterr().err
    assert ends(tmp_path) == [{"small": [120.0], "big": [120.0]}] * 2


def test_a_worker_that_never_comes_back_is_named_or_left_behind(cluster, tmp_path):
    for give_up in (False, True) if FULL else (False,):
        folder = tmp_path / str(give_up)
        folder.mkdir()
        made = job(folder, steps=60, worker_restarts=0, give_up=give_up)

        def kill(made, folder=folder):
            progressed(folder, 5)
            os.kill(made.workers[1].pid, signal.SIGKILL)

        code = beside(made, kill, (folder, 59))
        last = [e["what"] for e in made.events if e["who"] == "worker1"][-1]
        if give_up:
            assert code == 0 and last == "worker taken out"
            assert 60 + 5 <= json.loads((folder / "end0").read_text())["small"][0] <= 120
        else:
            assert code == -signal.SIGKILL and last == "worker ended"


def hurry(monkeypatch, some):
    """Gives up after a second where `some(whom)` says so, and else not soon: a cluster on a busy
    machine takes its time to find room that is there."""

    class Group(places.Group):
        def __init__(self, what, count, cpus, strategy, deadline):
            super().__init__(what, count, cpus, strategy, 1 if some(what) else STORE_SECONDS)

    monkeypatch.setattr(places, "Group", Group)


def test_what_the_cluster_lacks_is_said_in_time(cluster, tmp_path, monkeypatch):
    hurry(monkeypatch, lambda what: "workers" in what)
    cases = [
        (Room(cpus_per_worker=3, deadline=1), "no node has 3; use a smaller --cpus-per-worker"),
        (Room(cpus_per_worker=2, cpus_per_server=1, deadline=1), "2 workers with 2 CPUs each"),
    ]
    for room, text in cases:
        with pytest.raises(MixflowError, match=r"expected room for .* within 1 s, got ") as error:
            job(tmp_path, room=room).run()
        assert text in str(error.value)
    until(lambda: ray.available_resources()["CPU"] == 4)
    with pytest.raises(ParamError, match=r"expected CPUs per process >= 0 .* got -1"):
        Room(cpus_per_worker=-1)
    with pytest.raises(ParamError, match=r"\['pack', 'spread'\], got 'heap'"):
        Room(workers="heap")


def test_workers_are_packed_and_servers_spread(cluster, tmp_path, monkeypatch):
    newcomers = itertools.count(1)
    hurry(monkeypatch, lambda what: what == "one more worker" and next(newcomers) == 3)
    made = job(tmp_path, steps=100000, pause=0.01)

    def look(made):
        progressed(tmp_path, 3)
        assert len({p.host for p in made.workers.values()}) == 1
        assert len({p.host for p in made.servers.values()}) == 2
        made.scale(1)
        until(lambda: len(made.workers) == 1)
        made.scale(2)  # the place that is free
        until(lambda: [w["state"] for w in made.status()["workers"]] == ["at work"] * 2)
        until(lambda: ray.available_resources()["CPU"] == 2)
        made.scale(5)
        until(lambda: made.status()["refused"])
        assert "room for one more worker with 1 CPUs each" in made.status()["refused"]
        until(lambda: [w["state"] for w in made.status()["workers"]] == ["at work"] * 4)
        enough(tmp_path)

    assert beside(made, look) == 0
    assert "worker not started" in what(made)
    total = float(counted(tmp_path))
    assert last_values(tmp_path) == {"small": [total], "big": [total]}


def detached(cluster, folder, pause=0.02, name="far"):
    """A job of the cluster; the terminal that has started it is gone."""
    program = folder / "say.py"
    program.write_text(
        f"import sys; print('hear me', flush=True); sys.path.append({os.path.dirname(COUNTER)!r})\n"
        f"exec(open({COUNTER!r}).read())\n"
    )
    words = ["-n", 2, "-s", 2, "--detach", "--address", cluster.address, "--name", name]
    words += ["--deadline", STORE_SECONDS]
    command = [sys.executable, program, 100000, pause, folder]
    return elsewhere("launch", *words, *command)


def coordinators():
    found = ray.util.list_named_actors(all_namespaces=True)
    return [a["name"] for a in found if a["name"].startswith("mixflow-job-")]


@pytest.mark.parametrize("number", range(COUNT))
def test_a_detached_job_outlives_its_terminals(cluster, tmp_path, number):
    assert "job far runs" in detached(cluster, tmp_path)
    watcher = start("attach", "far", "--address", cluster.address)
    progressed(tmp_path, 1 + random.Random(number).randrange(20))
    watcher.kill()
    watcher.wait(STORE_SECONDS)
    assert "3 workers (worker0, worker1, worker2)" in scaled("far", "-n", 3)
    assert "2 workers (worker0, worker1)" in scaled("far", "-n", 2)
    found = json.loads(elsewhere("status", "far", "--json", "--address", cluster.address))
    assert found["state"] == "running" and len({s["host"] for s in found["servers"]}) == 2
    enough(tmp_path)
    said = mixflow("attach", "far")
    assert said.count("hear me") == 3
    total = float(counted(tmp_path))
    assert last_values(tmp_path) == {"small": [total], "big": [total]}
    report = json.loads((registry.place() / "far" / "report.json").read_text())
    assert [e["who"] for e in report["events"] if e["what"] == "asked to leave"] == ["worker2"]
    assert status("far")["code"] == 0 and coordinators() == ["mixflow-job-far"]
    assert "the cluster forgets it" in mixflow("stop", "far")
    until(lambda: not coordinators())


@pytest.mark.skipif(not FULL, reason="full counts only")
def test_a_detached_job_is_stopped(cluster, tmp_path, monkeypatch):
    detached(cluster, tmp_path, name="halt")
    found = status("halt")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another host"))
    assert "halt: stopped" in elsewhere("stop", "halt", "--address", cluster.address)
    until(lambda: gone(p["pid"] for p in [*found["workers"], *found["servers"]]))
    until(lambda: not coordinators())
    said = elsewhere("status", "halt", "--address", cluster.address, code=1)
    assert "unknown job 'halt' on the cluster" in said


@pytest.mark.parametrize("number", range(COUNT))
def test_a_killed_launcher_ends_its_job_on_the_cluster(cluster, tmp_path, number):
    words = ["-n", 2, "-s", 2, "--address", cluster.address, "--name", "near"]
    launcher = start("launch", *words, sys.executable, COUNTER, 100000, 0.02, tmp_path)
    progressed(tmp_path, 1 + random.Random(number).randrange(20))
    found = status("near")
    launcher.kill()
    launcher.wait(STORE_SECONDS)
    until(lambda: gone(p["pid"] for p in [*found["workers"], *found["servers"]]))
    assert "near" not in mixflow("jobs")


def test_partitions_are_computed_by_actors_and_lost_ones_again(cluster, tmp_path):
    images = np.random.default_rng(0).normal(size=(40, 12)).astype("float32")
    np.save(tmp_path / "data.npy", images)
    np.save(tmp_path / "label.npy", np.arange(40))
    names = {k: str(tmp_path / f"{k}.npy") for k in ("data", "label")}
    source = {"kind": "npy", **names, "shuffle": True}
    with mx.io.PartitionedIter(source, 4, executors=2, where="ray", seed=3) as iterator:
        for epoch in range(3):
            if epoch == 1:
                ray.kill(iterator.pool.executors.actors[0])
            index = np.concatenate([batch.index for batch in iterator])
            part = compute(Partition(source, epoch * 40, epoch * 40 + 40, 3))
            assert np.array_equal(index, part["index"])
            iterator.reset()
        assert iterator.counts.replaced == 1
        Path(names["data"]).unlink()
        number = iterator.pool.submit(Partition({**source, "scale": 2}, 0, 4))
        with pytest.raises(MixflowError, match=r"4 computations failed; the last: .*data.npy"):
            iterator.pool.take(number)
