"""The threads of a worker's boards: one for each server that lives."""

import os
import time

import numpy as np
import pytest

from mixflow import _rt
from mixflow.kvstore.transport.boards import address_of

pytestmark = pytest.mark.skipif(
    not (hasattr(_rt.core, "ServerDesk") and os.path.isdir("/proc/self/task")),
    reason="the plain core has no boards, or threads can't be counted",
)


def threads():
    return len(os.listdir("/proc/self/task"))


def test_a_lost_server_keeps_no_thread():
    lane = _rt.core.WorkerLane(-1, 1000)
    before = threads()
    for _ in range(5):
        memory = np.zeros(4096, np.uint8)
        lane.drop_desk(lane.add_desk(address_of(memory), 0, -1, memory))
        for _ in range(1000):
            if threads() == before:
                break
            time.sleep(0.01)
        assert threads() == before
    memory = np.zeros(4096, np.uint8)
    lane.add_desk(address_of(memory), 0, -1, memory)
    assert threads() == before + 1
    lane.close()
    assert threads() == before
