"""Jobs that are ended from outside, and workers whose program has processes of its own."""

import json
import os
import signal
import sys

import psutil
import pytest
from commands_support import start
from jobs_support import gone, until

from mixflow.kvstore.job.cluster import LocalSpawner
from mixflow.kvstore.job.spawner import MemoryFolder

pytest.importorskip("zmq")
#: A worker as many start theirs: a script whose last word is not its program.
SCRIPT = 'sleep 1000 & echo $! > "$0/helper"; wait'


def helper(folder):
    """The process that a worker's script has started."""
    path = folder / "helper"
    until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


@pytest.fixture
def worker(tmp_path):
    spawner = LocalSpawner()
    yield spawner.worker(0, ["bash", "-c", SCRIPT, str(tmp_path)], {})
    spawner.close()


def test_what_a_worker_has_started_ends_with_it(worker, tmp_path):
    pid = helper(tmp_path)
    worker.kill()
    until(lambda: gone([pid]))
    assert worker.exit_code() == -signal.SIGKILL


def test_a_lost_worker_leaves_no_second_one_of_its_rank(worker, tmp_path):
    pid = helper(tmp_path)
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: worker.exit_code() is not None)
    assert worker.exit_code() == -signal.SIGKILL
    until(lambda: gone([pid]))
    worker.kill()  # nobody is left, and its number may be another's by now


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_launcher_that_is_told_to_end_ends_all_and_says_how_it_went(tmp_path, number):
    events = tmp_path / "events.json"
    words = ["launch", "-n", "1", "--events", events, "bash", "-c", SCRIPT, tmp_path]
    launcher = start(*words)
    pid = helper(tmp_path)
    family = [p.pid for p in psutil.Process(launcher.pid).children(recursive=True)]
    assert pid in family and len(family) >= 3
    launcher.send_signal(number)
    assert launcher.wait(60) in (128 + number, -number)
    until(lambda: gone(family))
    assert [e["what"] for e in json.loads(events.read_text())][-1] == "worker started"


def test_a_launcher_that_is_killed_leaves_nothing_that_its_workers_have_started(tmp_path):
    launcher = start("launch", "-n", "1", "bash", "-c", SCRIPT, tmp_path)
    pid = helper(tmp_path)
    family = [p.pid for p in psutil.Process(launcher.pid).children(recursive=True)]
    launcher.kill()
    launcher.wait(60)
    until(lambda: gone([pid, *family]))


def test_a_group_that_has_ended_is_nobody_elses_end(monkeypatch):
    said = []
    monkeypatch.setattr(MemoryFolder, "_say", lambda self, text: said.append(text))
    spawner = LocalSpawner()
    other = spawner.worker(0, ["true"], {})
    until(lambda: other.exit_code() is not None)
    other.kill()
    spawner.close()
    assert said == [f"+{other.pid}", f"-{other.pid}"]


def test_a_hangup_that_is_ignored_stays_ignored(tmp_path):
    code = f"import pathlib, time; time.sleep(0.3); pathlib.Path({str(tmp_path)!r}, 'end').touch()"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        launcher = start("launch", "-n", "1", sys.executable, "-c", code)
        until(lambda: psutil.Process(launcher.pid).children())
        launcher.send_signal(signal.SIGHUP)
        assert launcher.wait(60) == 0 and (tmp_path / "end").exists()
    finally:
        signal.signal(signal.SIGHUP, before)
