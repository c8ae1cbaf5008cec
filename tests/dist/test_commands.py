"""Jobs from another terminal: detached, looked at, grown and shrunk, stopped, lost."""

import json
import os
import random
import signal
import sys

import gate
import pytest
import survivors
from commands_support import mixflow, scaled, start, status
from jobs_support import (
    COUNT,
    COUNTER,
    STORE_SECONDS,
    counted,
    enough,
    gone,
    last_values,
    progressed,
    until,
)

from mixflow.kvstore.job import registry

pytest.importorskip("zmq")


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path, monkeypatch):
    """No other jobs are seen, and none of its processes is left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = survivors.marked()
    yield
    left = survivors.left_behind(before)
    for process in survivors.marked() - before:
        process.kill()
    assert not left


def launched(folder, steps, pause=0.01, name="one", workers=2, more=()):
    program = [sys.executable, COUNTER, steps, pause, folder]
    words = ["-n", workers, "--deadline", STORE_SECONDS, "--detach", "--name", name, *more]
    return mixflow("launch", *words, *program)


@pytest.mark.parametrize("number", range(COUNT))
def test_a_detached_job_grows_and_shrinks_by_commands(tmp_path, number):
    draw = random.Random(number)
    said = launched(tmp_path, 100000, pause=0.005)
    assert "job one runs" in said and f"{registry.place()}/one/log" in said
    began = status("one")
    assert began["state"] == "running" and len(began["servers"]) == 1
    progressed(tmp_path, 1 + draw.randrange(20))
    watcher = start("attach", "one")
    assert "one: 4 workers (worker0, worker1, worker2, worker3)" in scaled("-n", 4)
    found = status("one")
    assert [(w["rank"], w["state"], w["part"]) for w in found["workers"]] == [
        (rank, "at work", rank % 2) for rank in range(4)
    ]
    assert "one: 1 workers (worker0)" in scaled("one", "-n", 1)
    assert "2 workers (worker0, worker4)" in scaled("one", "-n", 2)
    assert "running" in mixflow("jobs")
    enough(tmp_path)
    assert watcher.wait(STORE_SECONDS) == 0
    total = float(counted(tmp_path))
    assert last_values(tmp_path) == {"small": [total], "big": [total]}
    report = json.loads((registry.place() / "one" / "report.json").read_text())
    asked = [e["who"] for e in report["events"] if e["what"] == "asked to leave"]
    assert asked == ["worker1", "worker2", "worker3"]
    assert "ended (0)" in mixflow("jobs")
    assert "'one', which has ended with code 0" in mixflow("scale", "one", "-n", 2, code=1)


def test_what_a_job_says_is_in_its_log_and_its_code_is_told(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import time; print('hear me', flush=True); time.sleep(1); raise SystemExit(3)"
    )
    mixflow("launch", "-n", "1", "--detach", sys.executable, program)
    (card,) = registry.known()
    assert card["name"].startswith("program-")
    said = mixflow("attach", card["name"], code=3)
    assert said.count("hear me") == 1 and "worker0 ended with 3 (1 of it)" in said
    assert os.stat(registry.place() / card["name"]).st_mode & 0o77 == 0
    assert mixflow("attach", card["name"], code=3) == said, "also when it has ended"
    assert "code 3" in mixflow("status", card["name"])
    assert registry.find(card["name"])["begun"], "for whoever asks when it is over"


def test_a_job_is_stopped_and_its_name_is_free_again(tmp_path):
    launched(tmp_path, 100000)
    found = status("one")
    assert "one: stopped" in mixflow("stop", "one")
    until(lambda: gone(p["pid"] for p in [*found["workers"], *found["servers"]]))
    assert status("one")["code"] == 143
    assert "the job was stopped" in mixflow("attach", "one", code=143)
    launched(tmp_path, 3, 0)
    assert mixflow("attach", "one") == ""


def test_a_killed_coordinator_takes_all_with_it_and_the_job_goes_on(tmp_path):
    saved = ["--snapshot-folder", tmp_path / "snapshots", "--snapshot-every", "5"]
    gate.close(tmp_path, 399)
    launched(tmp_path, 400, 0.02, more=saved)
    progressed(tmp_path, 30)
    assert "running" in mixflow("jobs")
    os.kill(registry.find("one")["pid"], signal.SIGKILL)
    until(lambda: status("one")["state"] == "lost")
    assert "lost its coordinator" in mixflow("scale", "one", "-n", 2, code=1)
    gate.open_(tmp_path)
    launched(tmp_path, 400, 0.0, more=[*saved, "--resume"])
    said = mixflow("attach", "one").strip()
    assert "goes on from snapshot" in said and "\n" not in said
    assert json.loads((tmp_path / "end1").read_text()) == {"small": [800.0], "big": [800.0]}


def test_a_job_of_this_terminal_is_found_too_and_forgotten_with_it(tmp_path):
    program = [sys.executable, COUNTER, "100000", "0.01", tmp_path]
    launcher = start("launch", "-n", "2", "--name", "mine", *program)
    progressed(tmp_path, 3)
    assert "mine: 1 workers (worker0)" in scaled("-n", 1)
    assert "expected a job that was started with --detach" in mixflow("attach", "mine", code=1)
    assert "got 'mine'" in mixflow("launch", "-n", "1", "--name", "mine", "true", code=1)
    launcher.kill()
    launcher.wait(STORE_SECONDS)
    assert "mine" not in mixflow("jobs")
    assert not (registry.place() / "mine").exists()


def test_a_beginning_that_fails_is_told(tmp_path):
    said = mixflow("launch", "-n", "1", "--detach", "--name", "bad", "/no/program", code=1)
    assert "expected to start '/no/program'" in said
    assert "/no/program" in mixflow("attach", "bad", code=1)
    assert not registry.find("bad")["begun"]


def test_workers_that_do_not_leave_are_named(tmp_path):
    program = "import mixflow as mx, time; s = mx.kv.create('dist_sync'); time.sleep(1000)"
    mixflow("launch", "-n", "2", "--detach", "--name", "deaf", sys.executable, "-c", program)

    def states():
        return [worker["state"] for worker in status("deaf")["workers"]]

    until(lambda: states() == ["at work"] * 2)
    mixflow("scale", "deaf", "-n", 1, "--deadline", 0)
    until(lambda: states() == ["at work", "leaving"])
    said = mixflow("scale", "deaf", "-n", 1, "--deadline", 1, code=1)
    assert "expected 1 workers within 1 s, got 1 at work, worker1 leaving" in said
    assert "store.step_done" in said
    mixflow("stop", "deaf")
