"""Ends of a process with work pending: exit, fork, Ctrl-C, use after close."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from core_support import native

pytestmark = pytest.mark.skipif(native is None, reason="needs the compiled core")

PRELUDE = """
import os, signal, sys, threading, time
sys.path.insert(0, {here!r})
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
import numpy as np
from core_support import CPU, add_one, empty, native as core, plan, step, vector
def slow(ins, outs, rng):
    time.sleep(0.02)
    outs[0][...] = ins[0] + 1
made = plan(core, [step(slow, [('arg', 0)], [('arg', 0)])], 'rw')
quick = plan(core, [step(add_one, [('arg', 0)], [('arg', 0)])], 'rw')
a = vector(core, 0, 0, 0, 0)
"""


def run(body: str, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    text = PRELUDE.format(here=str(Path(__file__).parent)) + body
    source = str(Path(__file__).parents[2] / "src")
    env = {**os.environ, "PYTHONPATH": source, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=timeout, env=env
    )


def test_exit_drains_pending_work() -> None:
    done = run("for _ in range(20): made.run([a])\nprint('pushed')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "pushed\n", "")


def test_exit_with_an_error_that_nobody_waited_for() -> None:
    done = run("core.push(lambda: 1 / 0, [], [a])\nmade.run([a])")
    assert done.returncode == 0 and "terminate" not in done.stderr


def test_exit_with_callbacks_pending() -> None:
    done = run("for _ in range(10): core.push(lambda: time.sleep(0.01), [], [a])")
    assert (done.returncode, done.stderr) == (0, "")


def test_fork_with_work_pending() -> None:
    done = run(
        """
for _ in range(10): made.run([a])
child = os.fork()
for _ in range(5): quick.run([a])
total = float(a.to_numpy()[0])
if child == 0:
    sys.exit(int(total))
_, status = os.waitpid(child, 0)
print(total, os.waitstatus_to_exitcode(status))
"""
    )
    assert (done.stdout, done.stderr, done.returncode) == ("15.0 15\n", "", 0)


def test_interrupt_ends_a_wait_and_leaves_the_engine_usable() -> None:
    done = run(
        """
go = threading.Event()
core.push(lambda: go.wait(30) and None, [], [a])
try:
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    a.to_numpy()
except KeyboardInterrupt:
    print('interrupted')
go.set()
quick.run([a])
print(a.to_numpy()[0])
"""
    )
    assert (done.stdout, done.returncode) == ("interrupted\n1.0\n", 0), done.stderr


def test_use_after_close_is_an_error() -> None:
    done = run(
        """
from mixflow.errors import MXNetError
made.run([a])
core.close()
core.close()
try:
    quick.run([a])
except MXNetError as error:
    print('closed' in str(error))
print(a.to_numpy()[0])
"""
    )
    assert (done.stdout, done.returncode) == ("True\n1.0\n", 0), done.stderr


def test_threads_that_die_with_pushed_work() -> None:
    done = run(
        """
def work():
    b = vector(core)
    for _ in range(100): quick.run([b])
threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
core.wait_all()
print('ok')
"""
    )
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr
