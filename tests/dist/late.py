"""A worker's program under backup workers: each push that counts adds 1 to the worker's cell.
Worker 0 is held up once.

    late.py ROUNDS STEP_SECONDS DELAY_SECONDS OUT_FOLDER

Steps are a fifth longer or shorter by chance: else one of three equal workers may be last in all.
"""

import json
import random
import sys
import time
from pathlib import Path

import mixflow as mx

rounds, seconds, delay = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
store = mx.kv.create("dist_backup")
value = mx.nd.zeros((store.num_workers,))
store.init("cells", value)
store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))
mine = mx.nd.one_hot(mx.nd.array([store.rank]), store.num_workers).reshape((-1,))
draw = random.Random(store.rank)
pushes, at_delay = 0, 0.0
store.barrier()
while value.asnumpy().sum() < 2 * rounds:
    time.sleep(seconds * draw.uniform(0.8, 1.2))
    if store.rank == 0 and pushes == 3:
        time.sleep(delay)
        at_delay = float(value.asnumpy()[0])
    store.pushpull("cells", mine, out=value)
    pushes += 1
store.barrier()
report = store._reports()
found = {"pushes": pushes, "cells": value.asnumpy().tolist(), "at_delay": at_delay}
found["slices"] = [state for r in report.values() for state in r.slices.values()]
(Path(sys.argv[4]) / f"end{store.rank}").write_text(json.dumps(found))
store.barrier()
