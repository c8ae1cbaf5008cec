"""A job on a row_sparse table, with a worker and a server killed in the middle."""

import os
import signal
import sys
from pathlib import Path

import gate
import pytest
from jobs_support import JOB_SECONDS, STORE_SECONDS, beside, ends, progressed

from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions

pytest.importorskip("zmq")

STEPS = 60


def test_rows_are_counted_exactly_through_kills(tmp_path):
    def kill(job):
        progressed(tmp_path, 10)
        os.kill(job.workers[1].pid, signal.SIGKILL)
        gate.close(tmp_path, 50)
        progressed(tmp_path, 30)
        os.kill(job.servers["server1"].pid, signal.SIGKILL)

    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1, bound=1000)
    program = str(Path(__file__).with_name("row_keys.py"))
    command = [sys.executable, program, str(STEPS), str(tmp_path)]
    job = Job(command, JobOptions(2, 2, store, deadline=JOB_SECONDS))
    assert beside(job, kill, (tmp_path, 25)) == 0
    killed = {e["who"] for e in job.events if e.get("code") == -signal.SIGKILL}
    assert killed == {"worker1", "server1"}
    expected = {"0": [STEPS], "1": [STEPS], "1999": [2 * STEPS]}
    assert ends(tmp_path) == [expected] * 2
