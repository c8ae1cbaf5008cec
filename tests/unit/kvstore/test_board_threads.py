"""The threads of a worker's boards: one for each server that lives."""

import os
import subprocess
import sys

import pytest

from mixflow import _rt

pytestmark = pytest.mark.skipif(
    not (hasattr(_rt.core, "ServerDesk") and os.path.isdir("/proc/self/task")),
    reason="the plain core has no boards, or threads can't be counted",
)
#: In a process of its own, where no other threads come and go.
PROGRAM = """
import os, time
import numpy as np
from mixflow import _rt
from mixflow.kvstore.transport.boards import address_of

def threads():
    return len(os.listdir("/proc/self/task"))

def come_to(number):
    for _ in range(6000):
        if threads() == number:
            return
        time.sleep(0.01)
    raise AssertionError(f"{threads()} threads, not {number}")

lane = _rt.core.WorkerLane(-1, 1000)
before = threads()
for _ in range(5):
    memory = np.zeros(4096, np.uint8)
    lane.drop_desk(lane.add_desk(address_of(memory), 0, -1, memory))
    come_to(before)
memory = np.zeros(4096, np.uint8)
lane.add_desk(address_of(memory), 0, -1, memory)
assert threads() == before + 1
lane.close()
come_to(before)
"""


def test_a_lost_server_keeps_no_thread():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
