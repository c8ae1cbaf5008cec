"""`PartitionedIter` in jobs of several workers."""

import sys
from pathlib import Path

import numpy as np
import pytest
from jobs_support import JOB_SECONDS, STORE_SECONDS

from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions

pytest.importorskip("zmq")
PROGRAM = str(Path(__file__).with_name("fit_partitions.py"))


def fitted(folder, workers, batch_size, murder=False):
    out = folder / f"weights{workers}{murder}.npz"
    command = [sys.executable, PROGRAM, str(out), str(batch_size), str(folder), str(int(murder))]
    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1)
    job = Job(command, JobOptions(workers, 1, store, deadline=JOB_SECONDS))
    assert job.run() == 0
    return dict(np.load(out)), job.events


def test_two_workers_equal_one_with_twice_the_batch_whoever_dies(tmp_path):
    draw = np.random.default_rng(0)
    images = draw.normal(size=(320, 12)).astype("float32")
    np.save(tmp_path / "data.npy", images)
    np.save(tmp_path / "label.npy", (images @ draw.normal(size=(12, 3))).argmax(axis=1))
    one, _ = fitted(tmp_path, 1, 32)
    killed, events = fitted(tmp_path, 2, 16, murder=True)
    assert [e["who"] for e in events if e.get("code")] == ["worker1"]
    for name, values in one.items():
        np.testing.assert_allclose(killed[name], values, atol=1e-5)
