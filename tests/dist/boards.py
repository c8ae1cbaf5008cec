"""A worker's program: two keys in one call, as fast as it goes; every read is checked.

The sum of a step replaces the value ('replaced'); or an optimizer adds it in Python ('added'); or
one that the server's core runs takes it ('updated'), with a momentum of 1 and a schedule, so that
all numbers are whole and a lost or repeated update, state or rate shows. 'ahead' is 'added', but
ten steps are asked for at once, and only the last one of them is read. 'async' and 'ssp' are of the
policies of that name: each push takes 1 off, and now and then a value is only read.

    boards.py STEPS OUT_FOLDER replaced|added|updated|ahead|async|ssp [PATIENCE]

PATIENCE: seconds after which an exchange goes on by messages, if they are to be others.
"""

import json
import os
import sys

import gate
import numpy as np

import mixflow as mx
from mixflow.kvstore.transport import lane as lanes

steps, out_folder, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if len(sys.argv) > 4:
    lanes.PATIENCE_SECONDS = float(sys.argv[4])


def schedule():
    return mx.lr_scheduler.FactorScheduler(step=100, factor=0.5, base_lr=8)


def course():
    """The value after each step."""
    if kind != "updated":
        return [workers * (step + 1.0) for step in range(steps)]
    found, value, momentum, rate = [], 0.0, 0.0, schedule()
    for step in range(steps):
        momentum -= rate(step + 1) * workers
        value += momentum
        found.append(value)
    return found


def check_one_by_one(step, found, seen):
    """Whole updates of each slice ('big' has three), all steps of its own, and no fewer than were
    seen before."""
    for number, (values, before) in enumerate(zip(found, seen, strict=True)):
        assert len(values) <= 3, found
        assert max(step, before) <= -max(values), (step, found, seen)
        assert -min(values) <= workers * steps, (step, found, seen)
        seen[number] = -max(values)


one_by_one = kind in ("async", "ssp")
store = mx.kv.create(f"dist_{kind}" if one_by_one else "dist_sync")
workers = store.num_workers
keys = ["small", "big"]
values = [mx.nd.zeros((3,)), mx.nd.zeros((120_000,))]
store.init(keys, values)
if kind in ("added", "ahead"):
    store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))
if kind == "updated":
    store.set_optimizer(mx.optimizer.SGD(1.0, lr_scheduler=schedule()))
if one_by_one:
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1))
expected, seen = [] if one_by_one else course(), [0, 0]
progress = open(os.path.join(out_folder, f"steps{store.rank}"), "a", buffering=1)  # noqa: SIM115 - to its end
for step in range(store.first_step, steps):
    gate.wait(out_folder, step)
    own = step + 1.0 if kind == "replaced" else 1.0
    store.pushpull(keys, [mx.nd.ones(value.shape) * own for value in values], out=values)
    if one_by_one:
        found = [np.unique(value.asnumpy()).tolist() for value in values]
        check_one_by_one(step + 1, found, seen)
        if step % 5 == 0:
            store.pull(keys, values)
            check_one_by_one(step + 1, [np.unique(v.asnumpy()).tolist() for v in values], seen)
    elif kind != "ahead" or step % 10 == 9:
        found = [np.unique(value.asnumpy()).tolist() for value in values]
        assert found == [[expected[step]]] * 2, (step, found, expected[step])
    progress.write(f"{os.getpid()} {step}\n")
lane = store._link.lane
by_boards = lane.steps if lane is not None else 0
if one_by_one:
    store.barrier()
    store.pull(keys, values)
    found, expected = [np.unique(v.asnumpy()).tolist() for v in values], [-workers * steps]
store.close()
with open(os.path.join(out_folder, f"end{store.rank}"), "w") as file:
    right = found == [[expected[-1]]] * 2
    json.dump({"by_boards": by_boards, "found": found, "right": right}, file)
