"""Bounded staleness in a job of real processes, one of them ten times slower."""

import bisect
import json
import sys
from pathlib import Path

import gate
import pytest
from jobs_support import JOB_SECONDS, STORE_SECONDS

from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.protocol.policy import Bounded

pytest.importorskip("zmq")
TABLER = str(Path(__file__).with_name("tabler.py"))
STEPS, STALENESS, PAUSE = 25, 2, 0.004


def test_the_fast_worker_is_never_more_than_s_clocks_ahead(tmp_path):
    # The store's own bound would let it run to the end.
    store = StoreOptions(policy=Bounded(staleness=1000), deadline=STORE_SECONDS, repeat=0.2)
    program = [sys.executable, TABLER, STEPS, STALENESS, PAUSE, tmp_path]
    job = Job([str(word) for word in program], JobOptions(2, 1, store, deadline=JOB_SECONDS))
    gate.close(tmp_path, 0)
    assert job.run() == 0
    logs = [json.loads((tmp_path / f"log{rank}").read_text()) for rank in range(2)]
    ahead = []
    for me, other in ((0, 1), (1, 0)):
        for at, clock, cells in logs[me]["reads"]:
            assert cells[me] == clock, "a worker reads its own writes"
            assert cells[other] >= clock - STALENESS, "all updates up to c - s - 1 are there"
            ended = bisect.bisect(logs[other]["clocks"], at)
            assert cells[other] <= ended, "nothing is read before it was sent"
            assert clock - ended <= STALENESS
            ahead.append(clock - ended)
    # The bound is what held the fast worker up: it has been as far ahead as it may be.
    assert max(ahead) == STALENESS
    # Worker 0 has waited: it has ended about when the slow one did, not after a tenth of the time.
    assert logs[0]["clocks"][-1] > logs[1]["clocks"][-1 - 2 * STALENESS - 1]
