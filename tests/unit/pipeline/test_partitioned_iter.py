"""`PartitionedIter` with real executors: killed, stopped, and fed with bad data."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from forks import run_child
from picture_files import write_records

import mixflow as mx
from mixflow.errors import FormatError, MixflowError, ParamError, UnknownNameError
from mixflow.pipeline.partitions import Partition, Pool, Rules, compute
from mixflow.pipeline.partitions.local import LocalExecutors

COUNT = 20 if os.environ.get("MIXFLOW_FULL_COUNTS") else 2
CHILD = Path(__file__).with_name("partitions_child.py")
SAMPLES, BATCH = 22, 4


def executors_left() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def until(what: Callable[[], Any]) -> None:
    """Waits until something is true. Not by a clock: the machine may stop all of them."""
    for _ in range(6000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come true")


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before, handles = executors_left(), len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    until(lambda: executors_left() <= before)
    assert len(os.listdir("/proc/self/fd")) <= handles + 2


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    paths = write_records(folder, SAMPLES, ".jpg", height=300, width=400)
    augment = {"resize": 250, "rand_crop": True, "rand_mirror": True, "max_rotate_angle": 10}
    files = {"path": paths["path_imgrec"], "index": paths["path_imgidx"]}
    shape = {"shape": [3, 128, 128], "augment": augment}
    return {"kind": "records", **files, **shape, "shuffle": True}


def epochs(iterator: Any, count: int) -> list[list[bytes]]:
    """All that an iterator gives."""
    found = []
    for _ in range(count):
        found.append([content(batch) for batch in iterator])
        iterator.reset()
    return found


def content(batch: Any) -> bytes:
    arrays = [batch.data[0].asnumpy(), batch.label[0].asnumpy(), batch.index, np.array(batch.pad)]
    return b"".join(a.tobytes() for a in arrays)


@pytest.fixture(scope="module")
def expected(source: dict[str, Any]) -> list[list[bytes]]:
    """Two epochs, computed here without executors."""
    found = []
    for epoch in range(2):
        found.append([])
        for first in range(0, SAMPLES, BATCH):
            rows = min(BATCH, SAMPLES - first)
            at = epoch * SAMPLES + first
            part = compute(Partition(source, at, at + rows, 9))
            pad = BATCH - rows
            full = [np.concatenate([v, np.repeat(v[-1:], pad, 0)]) for v in part.values()]
            found[-1].append(b"".join(a.tobytes() for a in [*full, np.array(pad)]))
    return found


@pytest.mark.parametrize("executors", [1, 2, 3])
def test_what_comes_out_does_not_depend_on_executors(
    source: dict[str, Any], expected: list[list[bytes]], executors: int
) -> None:
    with mx.io.PartitionedIter(source, BATCH, executors, seed=9) as iterator:
        assert len(iterator) == 6
        assert epochs(iterator, 2) == expected


@pytest.mark.parametrize("number", range(COUNT))
def test_executors_killed_at_random_moments(
    source: dict[str, Any], expected: list[list[bytes]], number: int
) -> None:
    draw, killed, over = random.Random(number), [0], threading.Event()
    rules = Rules(tries=1000, strikes=1000)
    with mx.io.PartitionedIter(source, BATCH, 2, seed=9, rules=rules) as iterator:
        first = iterator.next()
        executors: Any = iterator.pool.executors

        def kill() -> None:
            while not over.wait(draw.uniform(0.02, 0.3)) and killed[0] < 6:
                pids = list(executors.pids.values())
                with suppress(IndexError, ProcessLookupError):  # one is being replaced just now
                    os.kill(draw.choice(pids), signal.SIGKILL)
                    killed[0] += 1

        killer = threading.Thread(target=kill)
        killer.start()
        found = [content(first), *(content(batch) for batch in slowly(iterator))]
        until(lambda: killed[0])
        iterator.reset()
        second = [content(batch) for batch in slowly(iterator)]
        over.set()
        killer.join()
        assert [found, second] == expected
        until(lambda: iterator.counts.replaced)


def slowly(iterator: Any) -> Iterator[Any]:
    for batch in iterator:
        time.sleep(0.1)
        yield batch


def test_a_stopped_executor_is_overtaken_and_replaced(
    source: dict[str, Any], expected: list[list[bytes]]
) -> None:
    rules = Rules(grace=0.3)
    with mx.io.PartitionedIter(source, BATCH, 2, seed=9, rules=rules) as iterator:
        found = [content(iterator.next()), content(iterator.next())]
        until(lambda: "starting" not in iterator.pool.report())
        stopped = iterator.pool.executors.pids[0]
        os.kill(stopped, signal.SIGSTOP)
        found += [content(batch) for batch in iterator]
        iterator.reset()
        assert [found, [content(batch) for batch in iterator]] == expected
        until(lambda: iterator.pool.executors.pids.get(0, stopped) != stopped)
        counts = iterator.counts
        # The copy may be what it was given while it was stopped: then the first was first.
        assert counts.copies >= 1 and counts.replaced >= 1 and counts.lost == 0


def test_bad_data_is_an_error_where_it_would_have_come(tmp_path: Path) -> None:
    paths = write_records(tmp_path, 12)
    record = Path(paths["path_imgrec"])
    index = [int(line.split()[1]) for line in Path(paths["path_imgidx"]).read_text().splitlines()]
    raw = bytearray(record.read_bytes())
    raw[index[5] + 40 : index[5] + 400] = bytes(360)
    record.write_bytes(raw)
    source = {"kind": "records", "path": str(record), "shape": [3, 20, 20]}
    with mx.io.PartitionedIter(source, 4, executors=2) as iterator:
        for _ in range(2):
            labels = [iterator.next().label[0].asnumpy().tolist()]
            with pytest.raises(FormatError, match=r"sample 5 of .*positions \d+ to \d+"):
                iterator.next()
            labels.append(iterator.next().label[0].asnumpy().tolist())
            assert labels == [[0, 1, 2, 3], [8, 9, 10, 11]]
            with pytest.raises(StopIteration):
                iterator.next()
            iterator.reset()
        assert iterator.counts.retried == 0


def test_a_file_that_is_gone_is_looked_for_by_others_and_named(tmp_path: Path) -> None:
    source = npy(tmp_path, 12)
    pool = Pool(2, rules=Rules(tries=3))
    Path(source["data"]).unlink()
    partition = Partition(source, 0, 4)
    text = r"expected the partition of positions 0 to 4 to be computed, got: 3 computations failed"
    number = pool.submit(partition)
    with pytest.raises(MixflowError, match=text + r".*data.npy"):
        pool.take(number)
    assert pool.counts.retried == 3
    with pytest.raises(MixflowError, match="expected a submitted number, got 17"):
        pool.take(17)
    pool.close()
    pool.close()
    with pytest.raises(MixflowError, match="expected an open pool, got one after close"):
        pool.submit(partition)


def npy(folder: Path, samples: int, **more: Any) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    images = draw.normal(size=(samples, 12)).astype("float32")
    np.save(folder / "data.npy", images)
    labels = (images @ draw.normal(size=(12, 3))).argmax(axis=1)
    np.save(folder / "label.npy", labels)
    names = {k: str(folder / f"{k}.npy") for k in ("data", "label")}
    return {"kind": "npy", **names, **more}


def test_executors_that_cannot_live_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with mx.io.PartitionedIter(npy(tmp_path, 12), 4, executors=2) as iterator:
        for _ in range(2):
            text = "expected executors that live, got executor 0: it ended with code 1"
            with pytest.raises(MixflowError, match=text):
                iterator.next()


def test_executors_that_cannot_be_started_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with mx.io.PartitionedIter(npy(tmp_path, 12), 4, executors=2) as iterator:
        text = "expected executors that live, got executor 0: it could not be started: .*none"
        with pytest.raises(MixflowError, match=text):
            iterator.next()


def test_no_wait_without_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalExecutors, "compute", lambda *_: None)
    with mx.io.PartitionedIter(npy(tmp_path, 12), 4, executors=1, deadline=0.2) as iterator:
        text = r"positions 0 to 4 within 0.2 s, got: executor 0 (starting|busy)"
        with pytest.raises(MixflowError, match=text):
            iterator.next()
    with pytest.raises(ParamError, match="expected deadline to be a finite number above 0, got 0"):
        Pool(1, deadline=0)


def test_names_and_sizes_that_are_none(tmp_path: Path) -> None:
    source = npy(tmp_path, 12)
    with pytest.raises(UnknownNameError, match="expected a known name, got 'spark'; known: local"):
        mx.io.PartitionedIter(source, 4, where="spark")
    with pytest.raises(ParamError, match="part_index below num_parts, got 2 of 2"):
        mx.io.PartitionedIter(source, 4, num_parts=2, part_index=2)
    with pytest.raises(UnknownNameError, match=r"executors 'local'.* got 'adress'; known: keep"):
        mx.io.PartitionedIter(source, 4, adress="auto")
    with pytest.raises(ParamError, match="expected last to be one of 'pad', 'discard', got 'wrap'"):
        mx.io.PartitionedIter(source, 4, last="wrap")
    with pytest.raises(ParamError, match="expected at least one batch of 20, got 12 samples"):
        mx.io.PartitionedIter(source, 20, last="discard")


WRONG: dict[str, list[Any]] = {
    "source": [None, "records", 3, [("kind", "npy")]],
    "batch_size": [0, -1, 1.5, None, "x", 10**30, np.zeros(2)],
    "executors": [0, 1.5, None, 10**6],
    "where": [None, 3, ["local"]],
    "seed": [1.5, None, 1 << 64],
    "num_parts": [0, None, 0.5],
    "part_index": [-1, None, 1],
    "batches_per_partition": [0, 2.5, None],
    "last": [None, "wrap", 3],
    "memory": [None, "much", -1, float("nan")],
    "deadline": [0, -1, float("nan"), float("inf"), None, "soon"],
    "rules": [3, {"tries": 2}],
    "data_name": [None, 3],
    "label_name": [None, 3],
    "keep": [-1, None],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_name_themselves_and_start_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(LocalExecutors, "spawn", lambda *_: pytest.fail("an executor was started"))
    good = {"source": npy(tmp_path, 12), "batch_size": 4}
    for value in WRONG[name]:
        with pytest.raises(MixflowError, match=f"expected {name} |choose a smaller {name}"):
            mx.io.PartitionedIter(**{**good, name: value})


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("last", ["pad", "discard"])
def test_batches_cut_partitions(tmp_path: Path, batches: int, last: str) -> None:
    source = npy(tmp_path, 22)
    options = {"batches_per_partition": batches, "last": last}
    with mx.io.PartitionedIter(source, 4, 2, **options) as iterator:
        for _ in range(2):
            found = list(iterator)
            assert len(found) == len(iterator) == (6 if last == "pad" else 5)
            assert [b.pad for b in found] == [0] * 5 + [2] * (last == "pad")
            index = np.concatenate([b.index for b in found])
            assert index.tolist()[:20] == list(range(20))
            assert last == "discard" or index.tolist()[20:] == [20, 21, 21, 21]
            rows = np.load(source["data"])[index]
            data = np.concatenate([b.data[0].asnumpy() for b in found])
            assert np.array_equal(data, rows)
            iterator.reset()


def test_a_bound_of_memory_holds_back(tmp_path: Path) -> None:
    source = npy(tmp_path, 400)
    one = 10 * (12 * 4 + 4 + 8)
    for memory, ahead in ((0, 1), (7 * one, 3), ("1G", 6)):
        with mx.io.PartitionedIter(source, 10, 2, memory=memory) as iterator:
            iterator.next()
            assert iterator.ahead == ahead
            until(lambda ahead=ahead: iterator.counts.computed >= 1 + ahead)
            time.sleep(0.1)
            assert iterator.counts.computed == 1 + ahead


@pytest.mark.parametrize("batches", [1, 3])
def test_a_saved_position_is_exact(tmp_path: Path, batches: int) -> None:
    source = npy(tmp_path, 22, shuffle=True)
    options = {"seed": 3, "batches_per_partition": batches, "executors": 1}
    with mx.io.PartitionedIter(source, 4, **options) as iterator:
        states, found = [], []
        for _ in range(2):
            states.append(iterator.state_dict())
            for batch in iterator:
                found.append(content(batch))
                states.append(iterator.state_dict())
            iterator.reset()
        with mx.io.PartitionedIter(source, 4, **options) as other:
            for place in (8, 2, 5, 0, 13):
                other.load_state_dict(states[place])
                given = place if place < 7 else place - 1  # one more state at the second epoch
                rest = [content(batch) for batch in other]
                other.reset()
                rest += [content(batch) for batch in other] if given < 6 else []
                assert rest == found[given:] if given < 6 else rest == found[given:12]
        with pytest.raises(FormatError, match=r"expected a state of state_dict\(\), got {}"):
            iterator.load_state_dict({})
        with pytest.raises(FormatError, match=r"the same samples .* seed 3 .saved: 4"):
            changed = {**states[0]["identity"], "seed": 4}
            iterator.load_state_dict({**states[0], "identity": changed})
        with pytest.raises(FormatError, match=r"part_index 0 .saved: 1"):
            iterator.load_state_dict({**states[1], "rank": 1})
        with pytest.raises(FormatError, match="expected a position in the epoch, got 99"):
            iterator.load_state_dict({**states[1], "partitions": 99})


def test_workers_share_an_epoch(tmp_path: Path) -> None:
    source = npy(tmp_path, 22, shuffle=True)
    workers = [
        mx.io.PartitionedIter(source, 4, 1, num_parts=3, part_index=rank) for rank in range(3)
    ]
    for _ in range(2):
        index = [i for w in workers for b in w for i in b.index[: 4 - b.pad].tolist()]
        assert sorted(index) == list(range(22))
        for worker in workers:
            worker.reset()
    for worker in workers:
        worker.close()


def test_what_a_leaver_had_goes_to_the_others_and_a_joiner_takes_part(tmp_path: Path) -> None:
    source = npy(tmp_path, 40, shuffle=True)
    workers = {
        rank: mx.io.PartitionedIter(source, 4, 1, num_parts=2, part_index=rank) for rank in range(2)
    }
    index: list[int] = []

    def step(*ranks: int) -> None:
        for rank in ranks:
            index.extend(workers[rank].next().index.tolist())

    step(0, 1, 0, 1)
    workers[0].redeal([0])
    workers[1].redeal([0])
    with pytest.raises(StopIteration):
        workers[1].next()
    step(0, 0)
    workers[0].redeal([0, 2])
    workers[2] = mx.io.PartitionedIter(source, 4, 1, num_parts=3, part_index=2)
    workers[2].load_state_dict(workers[0].state_dict())
    assert len(workers[0]) == 6 and len(workers[2]) == 2
    step(0, 2, 0, 2)
    for rank in (0, 2):
        with pytest.raises(StopIteration):
            workers[rank].next()
        workers[rank].reset()
    assert sorted(index) == list(range(40))
    index.clear()
    step(0, 2, 0, 2, 0, 2, 0, 2, 0, 2)
    assert sorted(index) == list(range(40)), "the next epoch is theirs"
    for worker in workers.values():
        worker.close()


def test_no_redeal_in_the_middle_of_a_partition(tmp_path: Path) -> None:
    with mx.io.PartitionedIter(npy(tmp_path, 40), 4, 1, batches_per_partition=3) as iterator:
        iterator.next()
        text = "expected the end of a partition, got one of which batch 1 comes next"
        with pytest.raises(MixflowError, match=text):
            iterator.redeal([0])


def test_reset_in_the_middle_begins_the_next_epoch(tmp_path: Path) -> None:
    source = npy(tmp_path, 22, shuffle=True)
    with mx.io.PartitionedIter(source, 4, 2, seed=3) as iterator:
        iterator.reset()
        assert iterator.epoch == 0
        iterator.next()
        iterator.reset()
        assert iterator.epoch == 1
        found = np.concatenate([b.index for b in iterator])[:22]
        assert np.array_equal(found, compute(Partition(source, 22, 44, 3))["index"])


def test_an_iterator_that_nobody_has_ends_its_executors(tmp_path: Path) -> None:
    iterator = mx.io.PartitionedIter(npy(tmp_path, 12), 4)
    iterator.next()
    del iterator  # the fixture looks for what is left


def test_a_fork_cannot_use_its_parents_executors(tmp_path: Path) -> None:
    with mx.io.PartitionedIter(npy(tmp_path, 12), 4, 1) as iterator:
        iterator.next()

        def work() -> int:
            try:
                iterator.next()
            except MixflowError as error:
                return 0 if "by a fork of it" in str(error) else 2
            return 3

        assert run_child(work) == 0
        iterator.next()


def runs(pid: int) -> bool:
    """Whether a process runs: one that ended may wait for somebody to ask how."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("how", ["killed", "exit"])
def test_executors_end_with_their_process(tmp_path: Path, how: str) -> None:
    source = npy(tmp_path, 12)
    command = [sys.executable, str(CHILD), source["data"], source["label"], how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pids = [int(word) for word in child.stdout.readline().split()]
        assert len(pids) == 2 and child.wait(60) == (-signal.SIGKILL if how == "killed" else 0)
    until(lambda: not any(map(runs, pids)))


def test_fit(tmp_path: Path) -> None:
    source = npy(tmp_path, 300, shuffle=True)
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3)
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    mx.random.seed(1)
    with mx.io.PartitionedIter(source, 20, 2) as train:
        module.fit(train, num_epoch=6, optimizer_params={"learning_rate": 0.5})
        assert train.counts.computed >= 90
    ((_, accuracy),) = module.score(
        mx.io.NDArrayIter(np.load(source["data"]), np.load(source["label"]), 20), "acc"
    )
    assert accuracy > 0.9
