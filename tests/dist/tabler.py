"""A worker's program: adds 1 to its own cell each clock; worker 1 is ten times slower, and never
ends a clock before worker 0 is as far ahead of it as it may be.

Leaves what it read at each clock, with times of one clock for all processes of this host.
"""

import json
import os
import sys
import time

import gate

import mixflow as mx
from mixflow.kvstore import Table

steps, staleness, pause, out_folder = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]
slow = os.environ["DMLC_WORKER_ID"] == "1"
pause = float(pause) * (10 if slow else 1)
store = mx.kv.create("dist_ssp")
table = Table("counts", 2, store.num_workers, staleness=staleness, store=store)
store.barrier()
reads, clocks = [], []
for _ in range(steps):
    cells = table.get(0).asnumpy().tolist()
    reads.append((time.monotonic(), table.now, cells))
    if slow:
        gate.wait(out_folder, min(table.now + staleness, steps - 1))
    else:
        gate.close(out_folder, table.now + 1)
    time.sleep(pause)
    table.inc(0, store.rank, 1)
    clocks.append(time.monotonic())  # before the step is sent: nobody can have seen it yet
    table.clock()
store.close()
with open(os.path.join(out_folder, f"log{store.rank}"), "w") as file:
    json.dump({"reads": reads, "clocks": clocks}, file)
