"""Backup workers in processes: who is late once counts again, and no part counts twice."""

import json
import sys
from pathlib import Path

import pytest

from mixflow.kvstore.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.policy import Backup

pytest.importorskip("zmq")
PROGRAM = str(Path(__file__).with_name("late.py"))


def run_late(folder):
    """One job; how often its worker 0 counted after it had been held up."""
    rounds, step, delay = 40, 0.05, 0.325
    folder.mkdir()
    command = [sys.executable, PROGRAM, str(rounds), str(step), str(delay), str(folder)]
    store = StoreOptions(Backup(take=2), deadline=60.0, repeat=0.1)
    job = Job(command, JobOptions(3, 1, store, deadline=100.0))
    assert job.run() == 0
    ends = [json.loads((folder / f"end{rank}").read_text()) for rank in range(3)]
    (state,) = ends[0]["slices"]
    # Whoever stands in the open round has neither been counted nor dropped.
    standing = sum(end["pushes"] for end in ends) - state["applied"] - state["stale"]
    assert 0 <= standing <= 1
    assert state["applied"] == 2 * state["version"] == sum(ends[0]["cells"]) >= 2 * rounds
    return ends[0]["cells"][0] - ends[0]["at_delay"]


def test_a_worker_that_was_late_once_counts_again(tmp_path):
    """Who of three equal workers comes last is chance, and may be the same one for a whole job."""
    assert any(run_late(tmp_path / str(number)) >= 3 for number in range(3))
