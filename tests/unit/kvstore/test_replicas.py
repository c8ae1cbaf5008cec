"""Shards that another host stands by for, under random schedules with lost hosts."""

import os
import random
from functools import partial

import numpy as np
import pytest

from mixflow.kvstore.protocol.compression import decode
from mixflow.kvstore.protocol.messages import (
    Applied,
    Fetch,
    Gradient,
    Init,
    Push,
    Replicate,
    Replicated,
)
from mixflow.kvstore.protocol.policy import Async, Bounded, Part, Progress, Sync
from mixflow.kvstore.protocol.row_gradients import pack
from mixflow.kvstore.server.ledger import SharedReplicas
from mixflow.kvstore.server.replica import MemoryReplicas, ReplicatedShard, StandBy
from mixflow.kvstore.server.shard import Add, Memory, Shard
from mixflow.kvstore.simulation.simulator import Cluster, Job, Network, SimulatedServer
from mixflow.ndarray.rows import Rows

COUNT = 1000 if os.environ.get("MIXFLOW_FULL_COUNTS") else 60


class Host:
    """A server with its ledger and the records that it holds for the other."""

    def __init__(self):
        self.ledger, self.replicas, self.storage = Memory(keep=True), MemoryReplicas(), object()


class Replicated2(Cluster):
    """Two servers on two hosts, each the stand-by of the other."""

    def __init__(self, job, policy, **options):
        super().__init__(job, policy, servers=2, applier=Add, **options)
        self.places = {name: Host() for name in self.server_names}
        self.starts = dict.fromkeys(self.server_names, 0)
        self.servers = {}
        for name in self.server_names:
            made = self.servers[name] = SimulatedServer(self.world, name, partial(self.make, name))
            made._tick()
        self.watch()

    def other(self, name):
        return next(n for n in self.server_names if n != name)

    def make(self, name, incarnation, recover=None):
        self.starts[name] += 1
        host = self.places[name]

        def shard(ledger):
            return Shard(
                name,
                self.policy,
                Add(),
                workers=len(self.workers),
                ledger=ledger,
                deadline=600.0,
                incarnation=self.starts[name] - 1,
                decode=decode,
            )

        made = ReplicatedShard(
            name,
            self.starts[name] - 1,
            shard,
            host.ledger,
            host.replicas,
            recover=recover,
            repeat=0.5,
        )
        made.wanted_backup = (self.other(name), str(id(self.places[self.other(name)].storage)))
        return made

    def watch(self):
        """The coordinator: tells each who stands by, and ticks."""
        for name, server in self.servers.items():
            if self.world.nodes[name].alive:
                storage = str(id(self.places[self.other(name)].storage))
                server.shard.wanted_backup = (self.other(name), storage)
                server._tick()
        self.world.at(self.world.now + 0.2, self.watch)

    def lose(self, name, after):
        """The host is gone with all that it holds; another takes its place, if the other server
        had everything (else the job would go back to a snapshot)."""
        other = self.servers[self.other(name)]
        if not self.world.nodes[name].alive or not self.world.nodes[other.name].alive:
            return
        if not self.servers[name].shard.replicator.synced or not other.shard.ready:
            return
        self.lost += 1
        self.world.nodes[name].alive = False
        self.places[name] = Host()

        def restart():
            self.servers[name].shard = self.make(name, 0, recover=other.name)
            self.world.nodes[name].alive = True

        self.world.at(self.world.now + after, restart)

    lost = 0


def job_of(workers, steps, keys, rows=False):
    def gradient(worker, step, values):
        if rows and (worker + step) % 5:
            mine = Rows(np.array([worker]), np.ones((1, 1), np.int64))
            return {key: pack(mine) for key in keys}
        mine = np.zeros(workers, np.int64)
        mine[worker] = 1
        return dict.fromkeys(keys, mine)

    return Job(
        {key: np.zeros(workers, np.int64) for key in keys},
        steps,
        gradient,
        lambda worker, step, chance: chance.random(),
    )


@pytest.mark.parametrize("seed", range(COUNT))
@pytest.mark.parametrize("policy", [Sync(), Async(), Bounded(2)], ids=lambda p: p.name)
@pytest.mark.parametrize("rows", [False, True], ids=["dense", "rows"])
def test_a_lost_host_loses_nothing_that_was_confirmed(seed, policy, rows):
    draw = random.Random(seed)
    workers, steps = draw.randrange(1, 4), draw.randrange(2, 9)
    keys = [f"key{i}" for i in range(draw.randrange(2, 5))]
    network = Network(
        latency=0.01,
        lose=draw.choice([0, 0.1, 0.2]),
        repeat=draw.choice([0, 0.2]),
        delay=draw.choice([0, 0.5]),
        delay_s=1.0,
    )
    cluster = Replicated2(
        job_of(workers, steps, keys, rows), policy, workers=workers, network=network, seed=seed
    )
    for _ in range(draw.randrange(1, 4)):
        name, at, after = draw.choice(cluster.server_names), draw.random() * 12, draw.random() * 3
        cluster.world.at(at, partial(cluster.lose, name, after))
    if draw.random() < 0.5:
        crash = partial(cluster.workers[draw.randrange(workers)].crash, draw.random() * 3)
        cluster.world.at(draw.random() * 10, crash)
    trace = cluster.run()
    assert trace.errors == {}
    cluster.world.run(lambda: all(s.shard.ready for s in cluster.servers.values()), 1e6)
    for key in keys:
        slot = cluster.servers[cluster.where(key)].shard.shard.slots[key]
        assert slot.value.tolist() == [steps] * workers
        assert slot.progress.applied == steps * workers


def test_hosts_are_lost_in_the_schedules():
    lost = 0
    for seed in range(5):
        cluster = Replicated2(job_of(2, 6, ["a", "b"]), Sync(), workers=2, seed=seed)
        cluster.world.at(1.0, partial(cluster.lose, "server0", 0.5))
        cluster.run()
        lost += cluster.lost
        assert cluster.starts["server0"] == 1 + cluster.lost
    assert lost == 5


def replicated(backup=("server1", "a")):
    made = ReplicatedShard(
        "server0",
        0,
        lambda ledger: Shard("server0", Async(), Add(), workers=1, ledger=ledger),
        Memory(keep=True),
        MemoryReplicas(),
    )
    made.wanted_backup = backup
    return made


def push(step):
    return Push("worker0", 10 + step, {"k": Gradient((Part(0, step),), np.ones(2))})


def kinds(outgoing):
    return [type(message) for _, message in outgoing]


def test_nothing_is_confirmed_before_the_other_host_has_it():
    shard = replicated()
    shard.handle(Init("worker0", 1, {"k": np.zeros(2)}), 0.0)
    records = [m for _, m in shard.tick(0.0) if isinstance(m, Replicate)]
    assert {m.key for m in records} == {"", "k"}
    out = shard.handle(push(0), 0.1)
    assert Applied not in kinds(out)
    # The word for an older record of the slice confirms nothing yet; the newest is sent then.
    first = next(m for m in records if m.key == "k")
    roster = next(m for m in records if m.key == "")
    shard.handle(Replicated("server1", roster.number, "", 0), 0.2)
    out = shard.handle(Replicated("server1", first.number, "k", 0), 0.2)
    assert kinds(out) == [Replicate]
    out = shard.handle(Replicated("server1", out[0][1].number, "k", 0), 0.3)
    assert kinds(out) == [Applied] and shard.replicator.synced


def test_without_another_host_confirmations_are_let_go():
    shard = replicated()
    shard.handle(Init("worker0", 1, {"k": np.zeros(2)}), 0.0)
    shard.tick(0.0)
    assert Applied not in kinds(shard.handle(push(0), 0.1))
    shard.wanted_backup = None
    assert kinds(shard.tick(0.2)) == [Applied]
    assert not shard.replicator.synced
    assert Applied in kinds(shard.handle(push(1), 0.3))


def test_an_old_process_behind_a_broken_network_can_confirm_nothing():
    stands_by = StandBy("server1", MemoryReplicas())
    record = Replicate("server0", 5, "k", 3, {"version": 1}, {"": np.ones(2)})
    assert kinds(stands_by.replicate(record)) == [Replicated]
    index = stands_by.fetch(Fetch("server0", 1, 4))[0][1]
    assert index.keys == ("k",)
    assert stands_by.fetch(Fetch("server0", 2, 4, "k"))[0][1].record == {"version": 1}
    assert stands_by.replicate(Replicate("server0", 6, "k", 3, {"version": 2}, {})) == []
    newer = Replicate("server0", 1, "k", 4, {"version": 7}, {"": np.zeros(2)})
    assert kinds(stands_by.replicate(newer)) == [Replicated]
    assert stands_by.store.head("server0", "k")["record"] == {"version": 7}


def test_an_older_record_does_not_replace_a_later_one():
    stands_by = StandBy("server1", MemoryReplicas())
    for number in (5, 3):
        record = Replicate("server0", number, "k", 0, {"version": number}, {"": np.ones(1)})
        assert kinds(stands_by.replicate(record)) == [Replicated]
    assert stands_by.store.head("server0", "k")["record"] == {"version": 5}


def test_records_of_others_outlive_their_process(tmp_path):
    store = SharedReplicas(tmp_path)
    store.put("server0", "k", {"number": [0, 1]}, {"": np.arange(3.0), "0": np.ones(3)})
    store.put("server0", "k", {"number": [0, 2]}, {"": np.arange(4.0), "0": np.ones(4)})
    store.put("server2", "", {"number": [0, 1], "record": Progress().to_json()}, {})
    again = SharedReplicas(tmp_path)
    head, values = again.get("server0", "k")
    assert head == {"number": [0, 2]} and values[""].tolist() == [0, 1, 2, 3]
    assert again.keys("server0") == ["k"] and again.keys("server2") == [""]
    assert again.get("server0", "other") is None and again.head("server9", "k") is None
