"""The check of `conftest.py`, that no process is left behind, sees what it is there for."""

import os
import signal
import subprocess
import sys

import survivors

SLEEPER = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\ntime.sleep(100)"


def test_a_process_that_nobody_waits_for_is_found(monkeypatch):
    monkeypatch.setattr(survivors, "GONE_SECONDS", 0.3)
    before = survivors.marked()
    subprocess.run([sys.executable, "-c", SLEEPER], check=True)
    (process,) = survivors.marked() - before
    (text,) = survivors.left_behind(before)
    assert text.startswith(f"{process.pid}: ") and "time.sleep(100)" in text
    os.kill(process.pid, signal.SIGKILL)
    monkeypatch.undo()
    assert survivors.left_behind(before) == []
