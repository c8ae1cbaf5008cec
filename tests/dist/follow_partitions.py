"""A worker's program: one pass and more over partitions; notes the samples of each step.

    follow_partitions.py FOLDER STEPS_BEFORE_DEATH EPOCHS

Worker 1 kills itself when it has done so many steps (0: never).
"""

import os
import signal
import sys
from pathlib import Path

import mixflow as mx

folder, death, epochs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = mx.kv.create("dist_sync")
source = {"kind": "npy", "data": str(folder / "data.npy"), "label": str(folder / "label.npy")}
data = mx.io.PartitionedIter(
    {**source, "shuffle": True},
    4,
    executors=1,
    seed=5,
    num_parts=store.num_workers,
    part_index=store.rank,
).follow(store)
values = {"small": mx.nd.zeros((3,)), "big": mx.nd.zeros((5000,))}
for key, value in values.items():
    store.init(key, value)
store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))
notes = open(folder / f"seen{store.rank}", "a")  # noqa: SIM115  # until the process ends
step = store.first_step
for epoch in range(epochs):
    for batch in data:
        index = batch.index[: 4 - batch.pad].tolist()
        for key, value in values.items():
            store.pushpull(key, mx.nd.ones(value.shape), out=value)
        mx.nd.waitall()
        # A step counts when its values have come: it is in every key then.
        print(step, epoch, *index, file=notes, flush=True)
        step += 1
        if store.rank == 1 and step == death:
            os.kill(os.getpid(), signal.SIGKILL)
        store.step_done()
    data.reset()
data.close()
store.close()
