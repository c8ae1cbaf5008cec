"""Snapshots: consistent over slices, cut anew for other servers, whole or not there; their plan."""

import json

import numpy as np
import pytest

import mixflow as mx
from mixflow.errors import FormatError, ParamError
from mixflow.kvstore.protocol.messages import Applied, Configure, Gradient, Init, Place, Push
from mixflow.kvstore.protocol.policy import Async, Part, Sync
from mixflow.kvstore.protocol.sharding import Directory
from mixflow.kvstore.server import snapshot
from mixflow.kvstore.server.plan import SnapshotOptions, SnapshotPlan
from mixflow.kvstore.server.shard import Add, Shard
from mixflow.kvstore.server.snapshot import Capture, Snapshot


def shard_of(policy, every=0, keys=("a", "b")):
    shard = Shard(
        "server0",
        policy,
        Add(),
        workers=1,
        directory=Directory(1, bound=50),
        capture=Capture(policy.rounds, every),
    )
    shard.handle(Place("worker0", 1, {key: (100, "<f4", 4) for key in keys}), 0.0)
    shard.handle(Init("worker0", 2, {f"{k}/0": np.zeros(100, "f4") for k in keys}), 0.0)
    return shard


def push(shard, key, step):
    gradient = Gradient((Part(0, step),), np.arange(100, dtype="f4"))
    shard.handle(Push("worker0", 100 + step, {f"{key}/0": gradient}), 0.0)


def test_slices_are_taken_at_one_version_whenever_they_come_to_it():
    shard = shard_of(Sync(), every=2)
    for key, step in (("a", 0), ("a", 1), ("b", 0), ("a", 2)):
        push(shard, key, step)
    assert not shard.capture.done
    push(shard, "b", 1)
    (found,) = shard.capture.done
    assert found.number == 2
    assert {r.progress["version"] for r in found.slices.values()} == {2}
    assert all(r.value[1] == 2 for r in found.slices.values())


def test_big_slices_that_are_committed_later_are_taken_at_every_version(monkeypatch):
    """Two rounds close at once when the push that both waited for has come."""
    monkeypatch.setattr("mixflow.kvstore.server.books.DEFER_BYTES", 0)
    shard = shard_of(Sync(), every=1)
    shard.deferring = True
    for key in ("a", "b"):
        push(shard, key, 1)
    for key in ("a", "b"):
        push(shard, key, 0)
        assert [type(m) for _, m in shard.finish()] == [Applied, Applied]
    assert [c.number for c in shard.capture.done] == [1, 2]
    for captured in shard.capture.done:
        for record in captured.slices.values():
            assert record.progress["version"] == captured.number
            assert record.value[1] == captured.number


def test_a_mark_in_the_past_is_late_and_one_to_come_is_kept():
    shard = shard_of(Sync())
    for step in range(3):
        push(shard, "a", step)
    shard.capture.wanted.extend([2, 4])
    shard.tick(0.0)
    assert shard.capture.late == {2}
    for key, step in (("b", 0), ("b", 1), ("b", 2), ("b", 3), ("a", 3)):
        push(shard, key, step)
    assert [c.number for c in shard.capture.done] == [4]
    shard.capture.wanted.append(4)  # said again, as others have yet to save it
    shard.tick(0.0)
    assert shard.capture.late == {2}


def test_a_key_that_nobody_pushes_is_saved_as_it_is():
    shard = shard_of(Sync(), every=1, keys=("a", "idle"))
    push(shard, "a", 0)
    assert not shard.capture.done
    push(shard, "a", 1)
    assert [c.number for c in shard.capture.done] == [1]
    assert shard.capture.done[0].slices["idle/0"].value.tolist() == [0] * 100


def test_without_rounds_slices_are_taken_as_they_stand():
    shard = shard_of(Async())
    push(shard, "a", 0)
    shard.capture.wanted.append(1)
    shard.tick(0.0)
    versions = {k: r.progress["version"] for k, r in shard.capture.done[0].slices.items()}
    assert versions == {"a/0": 1, "b/0": 0}


def saved(place, policy):
    """A snapshot of two keys, cut over one server."""
    shard = shard_of(policy, every=1)
    shard.handle(Configure("worker0", 3, "other", {}), 0.0)
    for step in (0, 1):
        for key in ("a", "b"):
            push(shard, key, step)
    captured = shard.capture.done[-1]
    folder = snapshot.folder_of(place, captured.number)
    snapshot.write_shard(folder, "server0", captured)
    snapshot.write_worker(folder, 0, {"epoch": 3, "arrays": {"mean": mx.nd.ones((2,))}})
    assert snapshot.newest(place) is None, "without an index there is no snapshot"
    index = {"number": captured.number, "servers": ["server0"], "workers": [0]}
    snapshot.write_index(folder, {**index, "num_workers": 1, "policy": policy.name})
    return Snapshot(folder)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_keys_are_cut_anew_for_any_number_of_servers(tmp_path, servers):
    found = saved(tmp_path, Sync())
    whole = {}
    for number in range(servers):
        directory, records = found.shard(number, servers, True, bound=50)
        for name, record in records:
            whole[name] = record.value
            assert snapshot.progress_at(record, 2, True).version == 2
    for key, entry in directory.entries.items():
        assert len(entry.slices) == servers
        joined = np.concatenate([whole[piece.name] for piece in entry.slices])
        assert joined.tolist() == (2 * np.arange(100)).tolist(), key


def test_without_rounds_slices_keep_their_bounds_and_progress(tmp_path):
    found = saved(tmp_path, Async())
    names = []
    for number in range(2):
        _, records = found.shard(number, 2, False, bound=50)
        for name, record in records:
            names.append(name)
            assert snapshot.progress_at(record, 2, False).clocks[0] in (1, 2)
    assert sorted(names) == ["a/0", "b/0"]


def test_a_workers_part_is_read_back(tmp_path):
    found = saved(tmp_path, Sync())
    state = found.worker(0)
    assert state["epoch"] == 3 and state["arrays"]["mean"].asnumpy().tolist() == [1, 1]
    assert found.worker(1) is None


@pytest.mark.parametrize("damage", ["bytes", "short", "dtype", "index", "part", "outside"])
def test_damaged_snapshots_are_an_error_of_ours(tmp_path, damage):
    folder = saved(tmp_path, Sync()).folder
    array, part = folder / "server0/000000.value.npy", folder / "server0.json"
    if damage == "bytes":
        array.write_bytes(array.read_bytes()[:-1] + b"x")
    elif damage == "short":
        array.write_bytes(array.read_bytes()[:-9])
    elif damage == "dtype":
        np.save(array, np.zeros(100))
    elif damage == "index":
        (folder / snapshot.INDEX).write_text(json.dumps({"version": 1}))
    elif damage == "part":
        part.write_text("{")
    else:
        part.write_text(part.read_text().replace("server0/000000", "../server0/000000"))
    with pytest.raises(FormatError, match=r"\[snapshot\] expected"):
        list(Snapshot(folder).shard(0, 1, True, bound=50)[1])


def test_an_older_whole_snapshot_is_taken_where_the_newest_is_damaged(tmp_path):
    older = saved(tmp_path, Sync())
    newer = snapshot.folder_of(tmp_path, 9)
    newer.mkdir()
    snapshot.write_index(newer, {**older.index, "number": 9})
    assert snapshot.newest(tmp_path).number == older.number
    snapshot.forget_after(tmp_path, older.number)
    assert [n for n, _ in snapshot.complete(tmp_path)] == [older.number]


def test_the_plan_announces_what_nobody_has_come_to_and_tries_again(tmp_path):
    plan = SnapshotPlan(SnapshotOptions(str(tmp_path), seconds=1.0), True, "dist_sync", 1)
    plan.tick(0.0, ["server0"], [])
    plan.beat("server0", 10, 0.5)
    plan.beat("server0", 30, 1.5)
    plan.tick(1.6, ["server0"], [])
    (number,) = plan.beat("server0", 31, 1.7)["marks"]
    assert number > 31 + 20 * 1.5 - 1
    assert plan.beat("server0", 90, 2.0, late=[number])["marks"] == []
    plan.tick(2.1, ["server0"], [])
    (second,) = plan.beat("server0", 91, 2.2)["marks"]
    assert second - 90 > number - 30, "the room has grown"
    folder = snapshot.folder_of(tmp_path, second)
    folder.mkdir()
    plan.beat("worker0", 5, 2.2, states=True)
    plan.beat("server0", second, 3.0, saved=[second])
    assert plan.tick(3.0, ["server0"], ["worker0"]) == [], "the worker has not saved its part"
    assert plan.unfinished
    plan.beat("worker0", second, 3.1, saved=[second], states=True)
    assert plan.tick(3.2, ["server0"], ["worker0"]) == [second]
    assert snapshot.complete(tmp_path) == [(second, folder)] and not plan.unfinished


def test_options_of_snapshots_are_checked():
    assert SnapshotOptions.period("60s") == (60.0, 0)
    assert SnapshotOptions.period("1.5s, 200") == (1.5, 200)
    with pytest.raises(ParamError, match="a period such as"):
        SnapshotOptions.period("soon")
    with pytest.raises(ParamError, match="expected a folder"):
        SnapshotOptions(versions=3)
    with pytest.raises(ParamError, match="periods >= 0"):
        SnapshotOptions("x", seconds=-1)


def test_an_iterator_goes_to_a_saved_position():
    data = mx.io.NDArrayIter(np.arange(20.0), batch_size=3, shuffle=True)
    next(data)
    state = json.loads(json.dumps(data.state_dict()))
    expected = [batch.data[0].asnumpy().tolist() for batch in data]
    other = mx.io.NDArrayIter(np.arange(20.0), batch_size=3, shuffle=True)
    other.load_state_dict(state)
    assert [batch.data[0].asnumpy().tolist() for batch in other] == expected
    for bad in ({}, {**state, "samples": 19}, {**state, "idx": [0]}, {**state, "cursor": 99}):
        with pytest.raises(FormatError, match=r"\[NDArrayIter\] expected the|a state of"):
            other.load_state_dict(bad)
