"""Jobs whose servers seem to be on another host: workers share a merger, which may die too."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from mixflow.kvstore.cluster import Job, JobOptions, LocalSpawner
from mixflow.kvstore.options import StoreOptions

pytest.importorskip("zmq")
COUNTER = str(Path(__file__).with_name("counter.py"))
COUNT = 20 if os.environ.get("MIXFLOW_FULL_COUNTS") else 1


class Apart(LocalSpawner):
    """Workers on a host of another name than the servers'."""

    def worker(self, rank, command, env, folder=None):
        return super().worker(rank, command, {**env, "DMLC_NODE_HOST": "near"}, folder)


def mergers():
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "mixflow.kvstore.serve_host" in (process.info["cmdline"] or []):
            found.append(process.pid)
    return found


def progressed(folder, steps):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done = [len(p.read_text().splitlines()) for p in folder.glob("steps*")]
        if done and max(done) >= steps:
            return
        time.sleep(0.01)


@pytest.mark.parametrize("victim", ["merger", "worker"])
@pytest.mark.parametrize("number", range(COUNT))
def test_a_job_counts_every_push_when_one_dies(tmp_path, victim, number):
    before, seen = set(mergers()), []
    store = StoreOptions(deadline=30.0, repeat=0.1, bound=1000)
    command = [sys.executable, COUNTER, "20", "0.02", str(tmp_path)]
    job = Job(command, JobOptions(2, 2, store, deadline=90.0), Apart())

    def kill():
        progressed(tmp_path, 2 + number % 15)
        seen.extend(set(mergers()) - before)
        for pid in seen if victim == "merger" else [job.workers[0].pid]:
            os.kill(pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    assert job.run() == 0
    assert seen, "the workers share no merger"
    ends = [json.loads((tmp_path / f"end{rank}").read_text()) for rank in range(2)]
    assert ends == [{"small": [40.0], "big": [40.0]}] * 2
    deadline = time.monotonic() + 15
    while set(mergers()) - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(mergers()) <= before, "a merger is left behind"
