"""Jobs whose processes Ray starts: one small cluster on this machine for all tests."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("zmq")
from ray.cluster_utils import Cluster  # noqa: E402
from test_jobs import COUNTER, progressed  # noqa: E402

import mixflow as mx  # noqa: E402
from mixflow.errors import MixflowError  # noqa: E402
from mixflow.kvstore.cluster import Job, JobOptions  # noqa: E402
from mixflow.kvstore.options import StoreOptions  # noqa: E402
from mixflow.kvstore.ray_cluster import RaySpawner  # noqa: E402
from mixflow.pipeline.partitions import Partition, compute  # noqa: E402

HEALTH = {
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 2,
    "health_check_initial_delay_ms": 0,
}


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    before = set(psutil.Process().children(recursive=True))
    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100 << 20}
    made = Cluster(initialize_head=True, head_node_args={**head, "_system_config": HEALTH})
    made.add_node(num_cpus=2, object_store_memory=100 << 20)
    ray.init(address=made.address, log_to_driver=False)
    made.wait_for_nodes(30)
    yield made
    ray.shutdown()
    made.shutdown()
    deadline = time.monotonic() + 15
    while set(psutil.Process().children(recursive=True)) - before and time.monotonic() < deadline:
        time.sleep(0.1)


def job(folder, steps=20, pause=0.03):
    command = [sys.executable, COUNTER, str(steps), str(pause), str(folder)]
    store = StoreOptions(deadline=30.0, repeat=0.1, bound=1000)
    return Job(command, JobOptions(2, 2, store, deadline=120.0), RaySpawner())


def memory():
    """Folders of Ray nodes' state in memory; those of local jobs begin with a host."""
    found = Path("/dev/shm").glob("mixflow-*/[0-9]*")
    return {path.parent for path in found}


def ends(folder):
    return [json.loads((folder / f"end{rank}").read_text()) for rank in range(2)]


def test_processes_are_spread_over_nodes_and_deaths_are_seen(cluster, tmp_path):
    made = job(tmp_path)

    def kill():
        progressed(tmp_path, 5)
        assert len({p.host for p in made.servers.values()}) == 2
        os.kill(made.servers["server1"].pid, signal.SIGKILL)
        os.kill(made.workers[1].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert made.run() == 0
    killer.join()
    assert ends(tmp_path) == [{"small": [40.0], "big": [40.0]}] * 2
    assert {e["who"] for e in made.events if e.get("code")} == {"server1", "worker1"}


def test_a_lost_node_loses_nothing_with_a_stand_by(cluster, tmp_path):
    doomed = cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    cluster.wait_for_nodes(30)
    before = memory()
    made = job(tmp_path, steps=60)
    # The doomed node comes first, so that a server and a worker are on it.
    hosts = made.spawner.hosts
    made.spawner.hosts = lambda: sorted(hosts(), key=lambda node: node != doomed.node_id)

    def kill():
        progressed(tmp_path, 10)
        assert made.servers["server0"].host == made.workers[0].host == doomed.node_id
        cluster.remove_node(doomed, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    assert made.run() == 0
    killer.join()
    what = [e["what"] for e in made.events]
    assert "host lost" in what and "rolled back" not in what
    assert ends(tmp_path) == [{"small": [120.0], "big": [120.0]}] * 2
    deadline = time.monotonic() + 10
    while memory() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not memory() - before, "the state of the killed node is still in memory"


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
        with pytest.raises(MixflowError, match="4 computations failed; the last: .*data.npy"):
            iterator.pool.take(number)
