"""Members that come and go: what servers know of it, and what all workers make of it alike."""

import threading
import time

import numpy as np
import pytest
from store_support import SECONDS, job, together

import mixflow as mx
from mixflow.errors import MixflowError, ParamError
from mixflow.kvstore.dist import DistKVStore
from mixflow.kvstore.protocol.messages import Ask, Gradient, Init, Join, Leave, Push, Report
from mixflow.kvstore.protocol.policy import Async, Part, Sync
from mixflow.kvstore.protocol.tenures import Change, changes_of
from mixflow.kvstore.server.shard import Add, Memory, Shard


def push(worker, step, keys=("a", "b")):
    gradients = {key: Gradient((Part(worker, step),), np.ones(2)) for key in keys}
    return Push(f"worker{worker}", 10 + step, gradients)


def report(shard, brief=False):
    ((_, found),) = shard.handle(Ask("worker0", 99, brief), 0.0)
    return found


@pytest.fixture
def ledger():
    return Memory(keep=True)


@pytest.fixture
def shard(ledger):
    made = Shard("s", Sync(), Add(), workers=3, ledger=ledger, give_up=True, deadline=5.0)
    made.handle(Init("worker0", 1, {"a": np.zeros(2), "b": np.zeros(2)}), 0.0)
    return made


def test_a_server_tells_up_to_which_step_a_lost_worker_counts(shard, ledger):
    assert report(shard, brief=True).changes == 0
    for step in range(2):
        for worker in range(3):
            shard.handle(push(worker, step), 1.0)
    shard.handle(push(0, 2), 2.0)
    shard.handle(push(2, 2), 2.0)
    shard.handle(push(1, 2, ["a"]), 2.0)  # it dies between two slices
    shard.handle(Leave("job", 5, 1, 3), 3.0)
    found = report(shard)
    assert found.changes == 1 and [w for w, _ in found.members] == [0, 2]
    assert found.tenures == [(1, 0, {"a": 3, "b": 2})]
    # The slice that had its push counts it; a restart before its round is committed forgets it.
    assert shard.slots["a"].value.tolist() == [9, 9] and shard.slots["b"].value.tolist() == [8, 8]
    again = Shard("s", Sync(), Add(), workers=3, ledger=ledger)
    assert report(again).tenures == found.tenures and report(again, brief=True).changes == 1
    assert report(again, brief=True).slices == {}


def test_what_stood_in_an_open_round_does_not_count_after_a_restart(shard, ledger):
    shard.handle(push(1, 0), 1.0)
    shard.handle(Leave("job", 5, 1, 3), 3.0)
    assert report(shard).tenures == [(1, 0, {"a": 1, "b": 1})]
    again = Shard("s", Sync(), Add(), workers=3, ledger=ledger)
    assert report(again).tenures == [(1, 0, {"a": 0, "b": 0})]


def test_who_is_restarted_was_never_away_and_who_comes_back_was(shard):
    shard.handle(Join("worker1", 2, 1, 0, 4), 0.0)
    assert (1, 0) in report(shard).members
    shard.handle(Leave("job", 5, 1, 7), 0.0)
    shard.handle(Join("worker1", 6, 1, 4, 8), 0.0)
    assert (1, 4) in report(shard).members
    # A newcomer that learns that the others have gone on begins later.
    shard.handle(Join("worker1", 7, 1, 6, 9), 0.0)
    found = report(shard)
    assert (1, 6) in found.members and [t[:2] for t in found.tenures] == [(1, 0)]


def reports(**servers):
    return {
        name: Report(name, 1, slices, 0, 1, members, tenures)
        for name, (slices, members, tenures) in servers.items()
    }


def at(version):
    return {"version": version}


def test_a_loss_takes_effect_after_the_step_that_is_missing_somewhere():
    """Server s2 has not given worker 1 up yet: it stood in one round more there."""
    found = changes_of(
        reports(
            s1=(
                {"a": at(5), "b": at(5), "idle": at(0)},
                [(0, 0)],
                [(1, 0, {"a": 5, "b": 4, "idle": 0})],
            ),
            s2=({"c": at(5)}, [(0, 0), (1, 0)], []),
        ),
        5,
    )
    assert found == [Change(1, False, 4)] and found[0].before == 5
    # Until a slice in step says so, nothing is known.
    none = reports(s1=({"idle": at(0)}, [(0, 0)], [(1, 0, {"idle": 0})]))
    assert changes_of(none, 5) == []


def test_changes_come_in_order_and_joins_after_losses():
    found = changes_of(
        reports(s1=({"a": at(9)}, [(0, 0), (3, 4), (1, 8)], [(1, 0, {"a": 4}), (2, 0, {"a": 2})])),
        9,
    )
    assert [tuple(change) for change in found] == [
        (2, False, 2),
        (1, False, 4),
        (3, True, 4),
        (1, True, 8),
    ]


def test_all_survivors_hear_of_a_loss_before_the_same_step():
    heard = {}

    def worker(store):
        value = mx.nd.zeros((4,))
        store.init("w", value)
        for step in range(6):
            heard[store.rank, step] = store.changes_before(step)
            if store.rank == 1 and step == 2:
                store.abandon()
                return
            time.sleep(0.02 * store.rank)
            store.pushpull("w", mx.nd.ones((4,)), out=value)
        mx.nd.waitall()

    with job(3, 2, missed=6.0, give_up=True) as stores:
        together(worker, stores)
    change = [Change(1, False, 2)]
    for rank in (0, 2):
        assert [heard[rank, step] for step in range(6)] == [[], [], [], change, [], []]


def written(folder, samples):
    np.save(folder / "data.npy", np.arange(3.0 * samples, dtype="f4").reshape(samples, 3))
    np.save(folder / "label.npy", np.zeros(samples, "f4"))
    return {"kind": "npy", **{n: str(folder / f"{n}.npy") for n in ("data", "label")}}


def test_a_joiner_begins_among_the_others_who_hear_of_it_after_its_first_step(tmp_path):
    """And each example of what they share comes once."""
    source, seen = written(tmp_path, 80), []
    ready, halt = threading.Barrier(3), threading.Event()

    def train(store):
        rank, parts = store.rank, max(2, store.rank + 1)
        with mx.io.PartitionedIter(source, 2, 1, num_parts=parts, part_index=rank) as data:
            data.follow(store)
            value = mx.nd.zeros((4,))
            store.init("w", value)
            for number, batch in enumerate(data):
                seen.append((rank, data._step - 1, batch.index.tolist()))
                store.pushpull("w", mx.nd.ones((4,)), out=value)
                mx.nd.waitall()
                if number == 3 and rank < 2:
                    ready.wait(SECONDS)
                    halt.wait(SECONDS)
        store.close()

    with job(2, 2) as stores:
        threads = [threading.Thread(target=train, args=[store]) for store in stores]
        for thread in threads:
            thread.start()
        ready.wait(SECONDS)
        known = stores[0]._link._addresses
        joiner = DistKVStore("dist_sync", 2, 2, known, stores[0].options)
        assert joiner.first_step == 4
        halt.set()
        threads.append(threading.Thread(target=train, args=[joiner]))
        threads[-1].start()
        for thread in threads:
            thread.join(SECONDS)
    found = [number for _, _, index in seen for number in index]
    assert sorted(found) == list(range(80)), sorted(seen, key=lambda s: (s[1], s[0]))
    assert [step for rank, step, _ in seen if rank == 2][:6] == [4, 5, 6, 7, 8, 9]


def test_what_cannot_be_followed_is_said(tmp_path):
    source = written(tmp_path, 8)

    def iterator(**options):
        return mx.io.PartitionedIter(source, 2, 1, **options)

    with (
        job(1, 1, policy=Async()) as (store,),
        iterator() as data,
        pytest.raises(MixflowError, match="expected a store of 'dist_sync' to follow"),
    ):
        data.follow(store)
    with job(1, 1) as (store,):
        text = "one batch per partition to follow a store, got 2"
        with iterator(batches_per_partition=2) as data, pytest.raises(ParamError, match=text):
            data.follow(store)
        with iterator() as data:
            plain = data.state_dict()
            data.next()
            with pytest.raises(MixflowError, match="follow a store from the first batch"):
                data.follow(store)
        with iterator().follow(store) as data:
            data.next()
            with pytest.raises(MixflowError, match="expected members of its store, got a redeal"):
                data.redeal([0])
            with pytest.raises(MixflowError, match="expected the epoch's end, got a reset"):
                data.reset()
            with pytest.raises(MixflowError, match="members of a store"):
                data.load_state_dict(plain)
            state = data.state_dict()
            expected = data.next().index.tolist()
            data.load_state_dict(state)
            assert data.next().index.tolist() == expected
