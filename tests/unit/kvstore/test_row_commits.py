"""Commits of some rows: in the ledger at every point of a write, and to a shard that stands by."""

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

import mixflow as mx
from mixflow.errors import FormatError
from mixflow.kvstore.protocol.compression import decode
from mixflow.kvstore.protocol.messages import (
    Applied,
    Configure,
    Gradient,
    Init,
    Push,
    PutStates,
    Replicate,
    Replicated,
)
from mixflow.kvstore.protocol.policy import Part, Progress, Sync
from mixflow.kvstore.protocol.row_gradients import pack
from mixflow.kvstore.protocol.touched import NOTHING, Touched, union
from mixflow.kvstore.server import slice_file
from mixflow.kvstore.server.appliers import Optimizing
from mixflow.kvstore.server.ledger import SharedLedger, SharedReplicas
from mixflow.kvstore.server.replica import MemoryReplicas, ReplicatedShard, StandBy
from mixflow.kvstore.server.replicator import Replicator
from mixflow.kvstore.server.shard import Memory, Shard
from mixflow.kvstore.server.slice_file import SliceFile
from mixflow.ndarray.rows import Rows
from mixflow.optimizer.describe import describe

COUNT = 1000 if os.environ.get("MIXFLOW_FULL_COUNTS") else 60


def some(draw, rows, width=3):
    numbers = sorted(draw.sample(range(rows), draw.randrange(rows + 1)))
    return Touched(width, np.array(numbers, np.int64))


class State:
    """A slice of 5 rows of 3, a state as long, and one that is not, changed at random."""

    def __init__(self, draw):
        self.draw, self.version = draw, 0
        self.arrays = [np.zeros(15), np.zeros(15, "f4"), np.zeros(1, np.int64)]

    def change(self, touched):
        self.version += 1
        for array in self.arrays[:2]:
            given = np.array([self.draw.random() for _ in range(touched.size)], array.dtype)
            touched.put(array, given)
        self.arrays[2][0] = self.version

    def rows(self, touched):
        return [*(touched.of(array) for array in self.arrays[:2]), self.arrays[2].copy()]

    def equals(self, arrays):
        return all(np.array_equal(a, b) for a, b in zip(self.arrays, arrays, strict=True))


@pytest.mark.parametrize("seed", range(COUNT))
def test_patches_and_whole_records_in_any_order_are_found_again(tmp_path, seed):
    draw = random.Random(seed)
    state, file = State(draw), SliceFile(tmp_path / "a.slice")
    assert not file.patch({}, NOTHING, state.rows(NOTHING)), "nothing is there yet"
    file.write({"version": 0}, state.arrays)
    for _ in range(draw.randrange(1, 12)):
        touched = some(draw, 5)
        state.change(touched)
        record = {"version": state.version, "text": "x" * draw.randrange(60)}
        if draw.random() < 0.7:
            assert file.patch(record, touched, state.rows(touched))
        else:
            file.write(record, state.arrays)
        if draw.random() < 0.5:
            file = SliceFile(file.path)
            found, arrays = file.read()
            assert found == record and state.equals(arrays)
    found, arrays = SliceFile(file.path).read()
    assert found == record and state.equals(arrays)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("stop", range(8))
def test_a_patch_that_is_cut_off_anywhere_is_made_or_not(tmp_path, monkeypatch, stop):
    """The process ends before any of the stores that matter, or between two arrays."""
    state, file = State(random.Random(1)), SliceFile(tmp_path / "a.slice")
    state.change(Touched(3, np.arange(5)))
    file.write({"version": 1}, state.arrays)
    before = [array.copy() for array in state.arrays]
    touched = Touched(3, np.array([1, 4]))
    state.change(touched)
    steps = iter(range(100))

    def counted(action):
        def act(*args):
            if next(steps) == stop:
                raise Stopped
            return action(*args)

        return act

    with monkeypatch.context() as patched:
        fake = SimpleNamespace(**vars(struct))
        fake.pack_into = counted(struct.pack_into)
        patched.setattr(slice_file, "struct", fake)
        patched.setattr(Touched, "put", counted(Touched.put))
        try:
            file.patch({"version": 2}, touched, state.rows(touched))
            assert stop == 7, "7 points at which it may end"
        except Stopped:
            pass
    shutil.copy(file.path, tmp_path / "b.slice")
    for path in (file.path, tmp_path / "b.slice", tmp_path / "b.slice"):
        found, arrays = SliceFile(path).read()
        if stop < 2:  # its number was not written
            assert found == {"version": 1}
            assert all(np.array_equal(a, b) for a, b in zip(before, arrays, strict=True))
        else:
            assert found == {"version": 2} and state.equals(arrays)


def test_what_does_not_fit_takes_a_whole_record(tmp_path):
    state, file = State(random.Random(2)), SliceFile(tmp_path / "a.slice")
    file.write({"version": 0}, state.arrays)
    touched = Touched(3, np.array([1]))
    good = state.rows(touched)
    assert not file.patch({}, touched, good[:2])
    assert not file.patch({}, touched, [good[0].astype("f4"), *good[1:]])
    assert not file.patch({}, touched, [np.zeros(4), *good[1:]])
    assert not file.patch({}, Touched(3, np.array([5])), good), "a row that there is not"
    assert not file.patch({}, Touched(3, np.array([-1])), good)
    assert not file.patch({"text": "x" * 5000}, touched, good), "a text without room"
    big = np.zeros(200_000)
    file.write({}, [big])
    half = Touched(2, np.arange(50_000))
    assert not file.patch({}, half, [half.of(big)]), "as good as all"


def test_a_damaged_redo_record_is_an_error_of_ours(tmp_path):
    state, file = State(random.Random(2)), SliceFile(tmp_path / "a.slice")
    file.write({"version": 0}, state.arrays)
    file.patch({"version": 1}, NOTHING, state.rows(NOTHING))
    data = bytearray(file.path.read_bytes())
    start = file._start(2)
    struct.pack_into("<Q", data, start, 3)
    data[start + 24] = 0
    file.path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match=r"\[ledger\] expected a slice"):
        SliceFile(file.path).read()


CHILD = """
import sys, numpy as np
from mixflow.kvstore.server.ledger import SharedLedger
from mixflow.kvstore.protocol.policy import Progress
from mixflow.kvstore.protocol.touched import Touched
ledger, step = SharedLedger(sys.argv[1]), 0
ledger.commit("k", np.zeros(400_000), {"0": np.zeros(400_000)}, Progress())
while True:
    step += 1
    rows = Touched(100, np.arange(step % 7, 4000, 7))
    full = np.full(rows.size, step, "f8")
    assert ledger.commit_rows("k", rows, full, {"0": -full}, Progress(version=step))
"""


def test_a_kill_at_any_moment_leaves_whole_rows(tmp_path):
    versions = []
    for number, wait in enumerate((0.02, 0.05, 0.11)):
        folder = tmp_path / str(number)
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder)])
        deadline = time.monotonic() + 60
        while not list(folder.glob("*.slice")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(wait)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(60)
        ledger = SharedLedger(folder)
        ((_, value, states, state),) = ledger.slices()
        expected = np.zeros(4000)
        for step in range(max(1, state.version - 6), state.version + 1):
            expected[step % 7 :: 7] = step
        np.testing.assert_array_equal(value.reshape(4000, 100)[:, 0], expected)
        np.testing.assert_array_equal(states["0"], -value)
        versions.append(state.version)
        ledger.close()
    assert max(versions) > 0


# -- a shard's commits


def push(step, numbers, width=2, dtype="f4"):
    values = np.full((len(numbers), width), step + 1.0, dtype)
    gradient = pack(Rows(np.array(numbers, np.int64), values))
    gradient.parts = (Part(0, step),)
    return Push("worker0", 100 + step, {"t/0": gradient})


def optimizer(name):
    extra = {"momentum": 0.9} if name == "sgd" else {}
    text = describe(mx.optimizer.create(name, learning_rate=0.1, **extra))
    return Configure("worker0", 2, "optimizer", text)


def started(ledger, incarnation=0):
    options = {"workers": 1, "decode": decode, "incarnation": incarnation}
    return Shard("s", Sync(), Optimizing(), ledger=ledger, **options)


@pytest.mark.parametrize("name", ["sgd", "adam", "ftrl", "adagrad", "rmsprop"])
@pytest.mark.parametrize("deferring", [False, True])
def test_a_shard_on_a_ledger_goes_on_like_one_that_never_ended(
    tmp_path, monkeypatch, name, deferring
):
    monkeypatch.setattr("mixflow.kvstore.server.books.DEFER_BYTES", 0)
    steps = [[0, 2], [2], [], [2, 3], [1], [0, 1, 2, 3], [3], [1, 2]]
    ledger = SharedLedger(tmp_path)
    servers = [started(Memory()), started(ledger)]
    for server in servers:
        server.deferring = deferring
        server.handle(Init("worker0", 1, {"t/0": np.ones(8, "f4")}), 0)
        server.handle(optimizer(name), 0)
    for step, numbers in enumerate(steps):
        if step in (3, 4, 6):
            ledger.close()
            ledger = SharedLedger(tmp_path)
            servers[1] = started(ledger, step)
            servers[1].deferring = deferring
        for server in servers:
            out = server.handle(push(step, numbers), 0) + server.finish()
            assert any(isinstance(message, Applied) for _, message in out)
        np.testing.assert_array_equal(servers[0].slots["t/0"].value, servers[1].slots["t/0"].value)
        ((_, value, states, progress),) = SharedView(tmp_path).slices()
        np.testing.assert_array_equal(value, servers[0].slots["t/0"].value)
        for state, kept in servers[0].states("t/0").items():
            np.testing.assert_array_equal(states[state], kept)
        assert progress.version == step + 1


class SharedView(SharedLedger):
    """Reads a ledger that another one owns: what a process that starts now would find."""

    def __init__(self, folder):
        self.folder, self._files = folder, {}


def test_only_the_rows_are_written_where_the_optimizer_leaves_the_others(tmp_path, monkeypatch):
    written = []
    original = SliceFile.write
    monkeypatch.setattr(SliceFile, "write", lambda *a: (written.append(1), original(*a))[1])
    shard = started(SharedLedger(tmp_path))
    shard.handle(Init("worker0", 1, {"t/0": np.ones(8, "f4")}), 0)
    shard.handle(optimizer("adam"), 0)
    counts = []
    for step in range(4):
        shard.handle(push(step, [step]), 0)
        counts.append(len(written))
    assert counts == [2, 2, 2, 2], "the first update makes the states"
    shard.handle(PutStates("worker0", 7, {"t/0|0": np.ones(8, "f4")}), 0)
    shard.handle(push(4, [0]), 0)
    shard.handle(push(5, [1]), 0)
    assert len(written) == 4, "states that were set are kept as a whole"


# -- a shard that stands by


class Source:
    """A shard's records, for a replicator."""

    def __init__(self, state):
        self.state = state

    def keys(self):
        return ["k"]

    def record(self, key):
        arrays = [array.copy() for array in self.state.arrays]
        return {"version": self.state.version}, dict(zip(NAMES, arrays, strict=True))


NAMES = ("", "0", "count")


@pytest.mark.parametrize("seed", range(COUNT))
@pytest.mark.parametrize("shared", [False, True])
def test_a_stand_by_holds_the_last_state_that_it_confirmed(tmp_path, seed, shared):
    """Through losses and copies, and though it may lose its record without a word."""
    draw = random.Random(seed)
    state = State(draw)
    store = SharedReplicas(tmp_path) if shared else MemoryReplicas()
    stands_by, made = StandBy("s1", store), Replicator("s0", 0, Source(state))
    made.stand_by(("s1", "x"))
    states, seen, now = {}, [], 0.0
    for _ in range(60):
        now += 1
        if draw.random() < 0.6:
            touched = None if draw.random() < 0.1 else some(draw, 5)
            state.change(touched or Touched(3, np.arange(5)))
            arrays = state.rows(touched) if touched else state.arrays
            record = {"version": state.version}
            named = dict(zip(NAMES, arrays, strict=True))
            made.commit("k", record, named, touched, NAMES[:2])
            states[state.version] = [array.copy() for array in state.arrays]
        if draw.random() < 0.02:
            store = MemoryReplicas()
            stands_by = StandBy("s1", store)
        for _, message in made.send(now):
            seen.append(message)
            if draw.random() < 0.3:
                continue
            if draw.random() < 0.2:
                message = draw.choice(seen)
            for _, answer in stands_by.replicate(message):
                if draw.random() < 0.7:
                    made.acknowledged(answer)
        check(store, states, state)
    for _ in range(40):
        now += 100
        for _, message in made.send(now):
            for _, answer in stands_by.replicate(message):
                made.acknowledged(answer)
    assert made.synced and made.next_time() is None
    assert check(store, states, state) == state.version


def check(store, states, state):
    found = store.get("s0", "k")
    if found is None:
        return None
    version = found[0]["record"]["version"]
    expected = states.get(version, [np.zeros(15), np.zeros(15, "f4"), np.zeros(1, np.int64)])
    for name, array in zip(NAMES, expected, strict=True):
        np.testing.assert_array_equal(found[1][name], array)
    return version


def test_a_push_of_rows_sends_its_rows_to_the_stand_by():
    shard = ReplicatedShard("s0", 0, started, Memory(keep=True), MemoryReplicas())
    stands_by = StandBy("s1", MemoryReplicas())
    shard.wanted_backup = ("s1", "x")
    records = []

    def say(message):
        out = shard.handle(message, 0.0) if message else shard.tick(0.0)
        while out:
            found = [m for _, m in out if isinstance(m, Replicate)]
            records.extend(found)
            answers = [a for m in found for _, a in stands_by.replicate(m)]
            out = [o for a in answers for o in shard.handle(a, 0.0)]

    say(Init("worker0", 1, {"t/0": np.ones(2000, "f4")}))
    say(optimizer("adam"))
    say(None)
    for step in range(4):
        say(push(step, [3, 7 + step]))
    sizes = [sum(v.nbytes for v in m.values.values()) for m in records if m.key == "t/0"]
    # The first one holds all; so does that of the first update, which makes the states.
    assert sizes[:2] == [8000 + 8, 3 * 8000 + 8]
    assert sizes[2:] == [3 * 2 * 2 * 4 + 8] * 3
    _, arrays = stands_by.store.get("s0", "t/0")
    np.testing.assert_array_equal(arrays[""], shard.shard.slots["t/0"].value)


def test_a_difference_to_what_is_not_there_is_asked_for_as_a_whole():
    stands_by = StandBy("s1", MemoryReplicas())
    rows = {"": np.array([1, 0])}
    difference = Replicate("s0", 9, "k", 0, {}, {"": np.ones(1)}, rows, base=8)
    ((_, answer),) = stands_by.replicate(difference)
    assert isinstance(answer, Replicated) and answer.number == 0
    stands_by.replicate(Replicate("s0", 8, "k", 0, {}, {"": np.zeros(3)}))
    for bad in ({}, {"": np.empty(0, np.int64)}, {"": np.array([1, 5])}, {"": np.array([2, 0])}):
        ((_, answer),) = stands_by.replicate(
            Replicate("s0", 9, "k", 0, {}, {"": np.ones(1)}, bad, base=8)
        )
        assert answer.number == 0
    ((_, answer),) = stands_by.replicate(difference)
    assert answer.number == 9
    assert stands_by.store.get("s0", "k")[1][""].tolist() == [1, 0, 0]


def test_what_was_touched_twice():
    first, second = Touched(2, np.array([1, 3])), Touched(2, np.array([2, 3]))
    assert union(first, second).numbers.tolist() == [1, 2, 3]
    assert union(NOTHING, second) is second and union(first, NOTHING) is first
    assert union(first, None) is None and union(first, Touched(4, np.array([0]))) is None


def test_dense_gradients_and_late_parts_are_kept_too(tmp_path):
    """A dense push after rows is a whole commit; progress alone is none of values."""
    ledger = SharedLedger(tmp_path)
    shard = started(ledger)
    shard.handle(Init("worker0", 1, {"t/0": np.ones(8, "f4")}), 0)
    shard.handle(optimizer("sgd"), 0)
    shard.handle(push(0, [1]), 0)
    dense = Gradient((Part(0, 1),), np.ones(8, "f4"))
    shard.handle(Push("worker0", 50, {"t/0": dense}), 0)
    ((_, value, _, progress),) = SharedView(tmp_path).slices()
    np.testing.assert_array_equal(value, shard.slots["t/0"].value)
    progress = Progress.from_json(shard.slots["t/0"].progress.to_json())
    progress.stale = 3
    states = shard.slots["t/0"].applier.states("t/0", NOTHING)
    assert ledger.commit_rows("t/0", NOTHING, np.empty(0, "f4"), states, progress)
    ((_, value, _, progress),) = SharedView(tmp_path).slices()
    assert progress.stale == 3
    np.testing.assert_array_equal(value, shard.slots["t/0"].value)
