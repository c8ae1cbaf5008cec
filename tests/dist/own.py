"""A worker's program with an optimizer and a schedule of its own; tells its last values.

    python own.py STEPS FOLDER [FAILS_AT]

After step n each weight is larger by the sum of all pushes so far, and by n: `expected`.
"""

import json
import os
import sys
import time

import gate
import numpy as np
import own_base

import mixflow as mx

FAILS_AT = int(sys.argv[3]) if len(sys.argv) > 3 else 0


def rate(number):
    return float(number)


@mx.optimizer.register
class Mine(own_base.Counting):
    def update(self, index, weight, grad, state):
        count = self.counted(index)
        if count == FAILS_AT:
            raise ValueError(f"no update {count} of {index}")
        state[0] += grad
        weight += state[0] + count


def expected(steps, workers=2):
    """Every value after so many steps."""
    return (workers + 1) * steps * (steps + 1) / 2


if __name__ == "__main__":
    steps, out_folder = int(sys.argv[1]), sys.argv[2]
    store = mx.kv.create("dist_sync")
    values = {0: mx.nd.zeros((3,)), 1: mx.nd.zeros((5000,))}
    for key, value in values.items():
        store.init(key, value)
    store.set_optimizer(mx.optimizer.create("mine", lr_scheduler=rate))
    for step in range(store.first_step, steps):
        gate.wait(out_folder, step)
        for key, value in values.items():
            store.pushpull(key, mx.nd.ones(value.shape), out=value)
        mx.nd.waitall()
        time.sleep(0.02)
        with open(os.path.join(out_folder, f"steps{store.rank}"), "a") as file:
            file.write(f"{os.getpid()} {step}\n")
        if not store.step_done():
            break
    store.close()
    with open(os.path.join(out_folder, f"end{store.rank}"), "w") as file:
        json.dump({key: np.unique(v.asnumpy()).tolist() for key, v in values.items()}, file)
