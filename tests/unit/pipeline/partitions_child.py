"""Has executors at work, tells their process numbers, and ends; for test_partitioned_iter.py."""

from __future__ import annotations

import os
import signal
import sys
import time

import mixflow as mx

data, label, how = sys.argv[1:]
iterator = mx.io.PartitionedIter({"kind": "npy", "data": data, "label": label}, 4, executors=2)
iterator.next()
time.sleep(0.3)  # beyond the start of both interpreters
pids = list(iterator.pool.executors.pids.values())
os.kill(pids[0], signal.SIGSTOP)  # one that is stopped ends too
print(*pids, flush=True)
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
