"""A worker's program: two keys in one call, as fast as it goes; every read is checked.

Without an optimizer the sum of a step replaces the value; with one ('added') it is added.
"""

import json
import os
import sys

import gate
import numpy as np

import mixflow as mx

steps, out_folder, added = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "added"
store = mx.kv.create("dist_sync")
workers = store.num_workers
keys = ["small", "big"]
values = [mx.nd.zeros((3,)), mx.nd.zeros((120_000,))]
store.init(keys, values)
if added:
    store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))
progress = open(os.path.join(out_folder, f"steps{store.rank}"), "a", buffering=1)  # noqa: SIM115 - to its end
for step in range(store.first_step, steps):
    gate.wait(out_folder, step)
    own = 1.0 if added else step + 1.0
    store.pushpull(keys, [mx.nd.ones(value.shape) * own for value in values], out=values)
    found = [np.unique(value.asnumpy()).tolist() for value in values]
    assert found == [[workers * (step + 1.0)]] * 2, (step, found)
    progress.write(f"{os.getpid()} {step}\n")
lane = store._link.lane
by_boards = lane.steps if lane is not None else 0
store.close()
with open(os.path.join(out_folder, f"end{store.rank}"), "w") as file:
    json.dump({"by_boards": by_boards, "found": found}, file)
