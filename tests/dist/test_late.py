"""Backup workers in processes: who is late once counts again, and no part counts twice."""

import json
import sys
from pathlib import Path

import pytest
from jobs_support import JOB_SECONDS, STORE_SECONDS

from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.protocol.policy import Backup

pytest.importorskip("zmq")
PROGRAM = str(Path(__file__).with_name("late.py"))


def run_late(folder):
    """One job; which share of its worker 0's pushes counted after it had been held up."""
    rounds, step, delay = 80, 0.05, 0.325
    folder.mkdir()
    command = [sys.executable, PROGRAM, str(rounds), str(step), str(delay), str(folder)]
    store = StoreOptions(Backup(take=2), deadline=STORE_SECONDS, repeat=0.1)
    job = Job(command, JobOptions(3, 1, store, deadline=JOB_SECONDS))
    assert job.run() == 0
    ends = [json.loads((folder / f"end{rank}").read_text()) for rank in range(3)]
    (state,) = ends[0]["slices"]
    # Whoever stands in the open round has neither been counted nor dropped.
    standing = sum(end["pushes"] for end in ends) - state["applied"] - state["stale"]
    assert 0 <= standing <= 1
    assert state["applied"] == 2 * state["version"] == sum(ends[0]["cells"]) >= 2 * rounds
    # A worker that was stopped from outside has made few, and says nothing.
    made = max(ends[0]["pushes"] - 3, rounds / 2)
    return (ends[0]["cells"][0] - ends[0]["at_delay"]) / made


def test_a_worker_that_was_late_once_counts_again(tmp_path):
    """Two of three pushes would; one of six, where a late worker is told the version at once."""
    assert any(run_late(tmp_path / str(number)) >= 0.3 for number in range(3))
