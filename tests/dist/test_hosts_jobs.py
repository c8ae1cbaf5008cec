"""Jobs whose servers seem to be on another host: workers share a merger, which may die too."""

import contextlib
import os
import signal
import sys

import psutil
import pytest
from jobs_support import (
    COUNT,
    COUNTER,
    JOB_SECONDS,
    STORE_SECONDS,
    beside,
    ends,
    progressed,
    until,
)

from mixflow.kvstore.job.cluster import Job, JobOptions, LocalSpawner
from mixflow.kvstore.options import StoreOptions

pytest.importorskip("zmq")


class Apart(LocalSpawner):
    """Workers on a host of another name than the servers'."""

    def worker(self, rank, command, env, folder=None):
        return super().worker(rank, command, {**env, "DMLC_NODE_HOST": "near"}, folder)


def mergers(job):
    """Those of this job: other jobs of the machine have some too."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        if "mixflow.kvstore.host.serve_host" in (process.info["cmdline"] or []):
            with contextlib.suppress(psutil.Error):
                if process.environ().get("MIXFLOW_JOB_TOKEN") == job.rendezvous.token:
                    found.add(process.pid)
    return found


@pytest.mark.parametrize("victim", ["merger", "worker"])
@pytest.mark.parametrize("number", range(COUNT))
def test_a_job_counts_every_push_when_one_dies(tmp_path, victim, number):
    seen = []
    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1, bound=1000)
    command = [sys.executable, COUNTER, "20", "0.02", str(tmp_path)]
    job = Job(command, JobOptions(2, 2, store, deadline=JOB_SECONDS), Apart())

    def kill(job):
        progressed(tmp_path, 2 + number % 15)
        seen.extend(mergers(job))
        for pid in seen if victim == "merger" else [job.workers[0].pid]:
            os.kill(pid, signal.SIGKILL)

    assert beside(job, kill, (tmp_path, 19)) == 0
    assert seen, "the workers share no merger"
    assert ends(tmp_path) == [{"small": [40.0], "big": [40.0]}] * 2
    until(lambda: not mergers(job))  # no merger is left behind
