"""A worker that is lost for good: the others go through what it had left, each example once."""

import itertools
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from jobs_support import JOB_SECONDS, STORE_SECONDS

from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions

pytest.importorskip("zmq")
PROGRAM = str(Path(__file__).with_name("follow_partitions.py"))
SAMPLES, EPOCHS = 100, 3


@pytest.mark.parametrize("death, restarts", [(3, 0), (9, 0), (3, 1)])
def test_each_example_of_each_pass_is_seen_once(tmp_path, death, restarts):
    np.save(tmp_path / "data.npy", np.arange(SAMPLES * 3, dtype="f4").reshape(SAMPLES, 3))
    np.save(tmp_path / "label.npy", np.zeros(SAMPLES, "f4"))
    command = [sys.executable, PROGRAM, str(tmp_path), str(death), str(EPOCHS)]
    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1, give_up=True, bound=1000)
    job = Job(command, JobOptions(3, 2, store, worker_restarts=restarts, deadline=JOB_SECONDS))
    assert job.run() == 0
    assert -signal.SIGKILL in [e.get("code") for e in job.events if e["who"] == "worker1"]
    seen = [[] for _ in range(EPOCHS)]
    for rank in range(3):
        for line in (tmp_path / f"seen{rank}").read_text().splitlines():
            _, epoch, *index = map(int, line.split())
            seen[epoch] += index
    # Of a lost one's last partition in an epoch the next one may have the rest.
    together = sorted(itertools.chain.from_iterable(seen))
    assert together == sorted(EPOCHS * list(range(SAMPLES)))
    if death == 3:
        assert [sorted(epoch) for epoch in seen] == EPOCHS * [list(range(SAMPLES))]
