"""A worker's program: adds 1 to every cell of two keys, each step, and tells its last values.

It ends after so many steps, or when the folder has a file 'enough'.
"""

import json
import os
import sys
import time

import gate
import numpy as np

import mixflow as mx
from mixflow.kvstore import utilisation

utilisation.HAND_IN_SECONDS = 60.0  # what was used last is told, even if nobody listens just now
steps, pause, out_folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
store = mx.kv.create(sys.argv[4] if len(sys.argv) > 4 else "dist_sync")
values = {"small": mx.nd.zeros((3,)), "big": mx.nd.zeros((5000,))}
for key, value in values.items():
    store.init(key, value)
store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))
for step in range(store.first_step, steps):
    gate.wait(out_folder, step)
    for key, value in values.items():
        store.pushpull(key, mx.nd.ones(value.shape), out=value)
    mx.nd.waitall()
    time.sleep(pause)
    with open(os.path.join(out_folder, f"steps{store.rank}"), "a") as file:
        file.write(f"{os.getpid()} {step}\n")
    if not store.step_done() or os.path.exists(os.path.join(out_folder, "enough")):
        break
store.close()
np.save(os.path.join(out_folder, f"last{store.rank}.npy"), values["big"].asnumpy())
with open(os.path.join(out_folder, f"end{store.rank}"), "w") as file:
    json.dump({key: np.unique(value.asnumpy()).tolist() for key, value in values.items()}, file)
