"""The launcher is killed at a random moment: nothing of its job is left, and it can go on."""

import json
import os
import random
import signal
import sys
from pathlib import Path

import gate
import psutil
import pytest
from commands_support import start
from jobs_support import COUNT, COUNTER, STORE_SECONDS, gone, progressed, until

from mixflow.cli import main
from mixflow.kvstore.server import snapshot

pytest.importorskip("zmq")


@pytest.mark.parametrize("number", range(COUNT))
def test_a_killed_launcher_leaves_nothing_and_goes_on_from_its_snapshot(tmp_path, number):
    draw, place = random.Random(number), tmp_path / "snapshots"
    command = ["launch", "-n", "2", "--snapshot-folder", str(place), "--snapshot-every", "5"]
    command += ["--deadline", str(STORE_SECONDS)]
    program = [sys.executable, COUNTER, "120", "0.03", str(tmp_path)]
    gate.close(tmp_path, 119)
    launcher = start(*command, *program)
    progressed(tmp_path, 1 + draw.randrange(80))
    family = psutil.Process(launcher.pid).children(recursive=True)
    # The place of its state, by the lock that a server holds.
    folders = {Path(f.path).parents[2] for p in family for f in p.open_files() if "owner" in f.path}
    assert folders and len(family) >= 3
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait(STORE_SECONDS)
    pids = [process.pid for process in family]
    until(lambda: gone(pids) and not any(map(Path.exists, folders)))
    gate.open_(tmp_path)
    found = snapshot.complete(place)
    events = tmp_path / "events.json"
    assert main([*command, "--resume", "--events", str(events), *program]) == 0
    for rank in range(2):
        end = json.loads((tmp_path / f"end{rank}").read_text())
        assert end == {"small": [240.0], "big": [240.0]}
    resumed = [e["snapshot"] for e in json.loads(events.read_text()) if e["what"] == "resumed"]
    assert resumed == [n for n, _ in found[-1:]]
