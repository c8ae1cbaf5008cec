"""Files of snapshots: damaged anywhere, of another job, on a disk that is full or loses power."""

import copy
import json
import os
import random
import stat

import numpy as np
import pytest
from test_snapshot import saved

from mixflow.errors import FileError, FormatError, ParamError
from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.protocol.policy import Progress, Sync
from mixflow.kvstore.server import snapshot
from mixflow.kvstore.server.plan import SnapshotOptions, SnapshotPlan
from mixflow.kvstore.server.snapshot import Captured, Record, Snapshot
from mixflow.kvstore.worker.pulse import Pulse

ODD = [None, True, -1, 1 << 70, 1.5, float("nan"), "", "x", [], [[1]], {}, {"a": 1}]


def read_all(folder):
    """Reads what a job would."""
    found = Snapshot(folder)
    found.settings  # noqa: B018  # it is read
    found.worker(0)
    _, records = found.shard(0, 2, True, bound=50)
    for _, record in records:
        snapshot.progress_at(record, found.number, True)
    found.check()


def places(value, at=()):
    """Where values stand in a tree of JSON."""
    yield at
    if isinstance(value, (dict, list)):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(child, (*at, key))


def changed(tree, at, draw):
    """A tree whose value at a place is another one, or missing."""
    tree = copy.deepcopy(tree)
    inside = tree
    for key in at[:-1]:
        inside = inside[key]
    if draw.random() < 0.3:
        del inside[at[-1]]
    else:
        inside[at[-1]] = draw.choice(ODD)
    return tree


@pytest.mark.parametrize("name", [snapshot.INDEX, "server0.json", "worker0.json"])
def test_whatever_is_wrong_in_its_texts_is_an_error_of_ours(tmp_path, name):
    folder = saved(tmp_path, Sync()).folder
    good = json.loads((folder / name).read_text())
    read_all(folder)
    draw, refused = random.Random(name), 0
    for at in [p for p in places(good) if p] * 8:
        (folder / name).write_text(json.dumps(changed(good, at, draw)))
        try:
            read_all(folder)
        except FormatError as error:
            refused += 1
            assert "[snapshot] expected" in str(error)
    assert refused > 3


def test_an_older_snapshot_is_taken_where_an_array_of_the_newest_is_damaged(tmp_path):
    older = saved(tmp_path, Sync())
    newer = snapshot.folder_of(tmp_path, 9)
    snapshot.write_shard(newer, "server0", Captured(9, {"a/0": record()}, {"directory": {}}))
    index = {"number": 9, "servers": ["server0"], "workers": [], "num_workers": 1}
    snapshot.write_index(newer, {**index, "policy": "dist_sync"})
    assert snapshot.newest(tmp_path).number == 9
    array = newer / "server0/000000.value.npy"
    array.write_bytes(array.read_bytes()[:-1] + b"x")
    assert snapshot.newest(tmp_path).number == older.number


def record(size=10):
    return Record(np.zeros(size, "f4"), {"0": np.zeros(0, "f4")}, Progress().to_json())


def test_arrays_without_values_are_read_back(tmp_path):
    snapshot.write_shard(tmp_path, "server0", Captured(1, {"a/0": record(0)}))
    (piece,) = json.loads((tmp_path / "server0.json").read_text())["slices"]
    snapshot.write_index(
        tmp_path,
        {"number": 1, "servers": ["server0"], "workers": [], "num_workers": 1, "policy": ""},
    )
    found = Snapshot(tmp_path).record(piece)
    assert found.value.shape == (0,) and found.states["0"].shape == (0,)


def test_parts_are_on_disk_before_the_index_says_so(tmp_path, monkeypatch):
    told, flush, rename = [], os.fsync, os.replace

    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            told.append(("flushed", os.readlink(f"/proc/self/fd/{handle}")))
        flush(handle)

    def replace(old, new):
        rename(old, new)
        told.append(("named", str(new)))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    folder = saved(tmp_path, Sync()).folder
    last = told.index(("named", str(folder / snapshot.INDEX)))
    for _, name in [t for t in told[:last] if t[0] == "named"]:
        after = told[told.index(("named", name)) : last]
        assert ("flushed", os.path.dirname(name)) in after, name
    assert ("flushed", str(tmp_path)) in told[:last]
    assert told[last + 1 :] == [("flushed", str(folder))]


def options(folder, **more):
    return JobOptions(snapshots=SnapshotOptions(str(folder), versions=1), **more)


def test_a_job_does_not_remove_the_snapshots_of_another(tmp_path):
    number = saved(tmp_path, Sync()).number
    with pytest.raises(ParamError, match=f"--resume.*snapshot {number} in"):
        Job(["true"], options(tmp_path)).run()
    assert snapshot.complete(tmp_path)


def test_a_folder_of_snapshots_is_for_one_job_at_a_time(tmp_path):
    with (
        snapshot.held(tmp_path / "new"),
        pytest.raises(ParamError, match=r"for this job alone, got .*new, which another writes to"),
    ):
        Job(["true"], options(tmp_path / "new", resume=True)).run()
    assert Job(["true"], options(tmp_path / "new", resume=True)).run() == 0


def full(*_):
    raise FileError("[files] expected to write it, got: No space left on device")


def test_a_full_disk_costs_a_snapshot_and_not_the_job(tmp_path, monkeypatch, capsys):
    plan = SnapshotPlan(SnapshotOptions(str(tmp_path), versions=5), True, "dist_sync", 1)
    plan.beat("server0", 5, 0.0, saved=[5])
    monkeypatch.setattr(snapshot, "write_atomically", full)
    assert plan.tick(0.1, ["server0"], []) == []
    assert "snapshot 5 is not kept: [files] expected to write it" in capsys.readouterr().err
    monkeypatch.undo()
    snapshot.folder_of(tmp_path, 10).mkdir()
    plan.beat("server0", 10, 0.0, saved=[10])
    assert plan.tick(0.2, ["server0"], []) == [10]
    assert "snapshot" not in capsys.readouterr().err


def test_a_worker_whose_part_has_no_room_goes_on(tmp_path, monkeypatch, capsys):
    pulse = Pulse("tcp://127.0.0.1:1", "token", 0, folder=str(tmp_path), every=1)
    pulse.close()
    monkeypatch.setattr(snapshot, "write_atomically", full)
    assert pulse.step_done(lambda: {"epoch": 1})
    assert "snapshot 1 is not kept: [files] expected to write it" in capsys.readouterr().err
    monkeypatch.undo()
    assert pulse.step_done(lambda: {"epoch": 1}) and pulse._saved == [2]
