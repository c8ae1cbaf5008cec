"""A worker's program: Module.fit on partitions; worker 0 leaves the weights.

    fit_partitions.py OUT BATCH_SIZE FOLDER MURDER

MURDER 1: this worker's executor is killed after each fifth batch, and worker 1 itself, once.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

import numpy as np

import mixflow as mx

out, batch_size, folder, murder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
store = mx.kv.create("dist_sync")
source = {"kind": "npy", "data": str(folder / "data.npy"), "label": str(folder / "label.npy")}
data = mx.io.PartitionedIter(
    {**source, "shuffle": True},
    batch_size,
    executors=1,
    seed=5,
    num_parts=store.num_workers,
    part_index=store.rank,
)


def kill(parameters):
    if murder == "1" and parameters.nbatch % 5 == 4:
        for pid in list(data.pool.executors.pids.values()):
            with contextlib.suppress(ProcessLookupError):  # it is being replaced just now
                os.kill(pid, signal.SIGKILL)
        note = folder / f"killed{store.rank}"
        if store.rank == 1 and parameters.epoch == 1 and not note.exists():
            note.write_text("once")
            os.kill(os.getpid(), signal.SIGKILL)


net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
mx.random.seed(7)
module.fit(
    data,
    num_epoch=4,
    kvstore=store,
    initializer=mx.init.Xavier(),
    batch_end_callback=kill,
    optimizer_params={"momentum": 0.9, "learning_rate": 0.5},
)
if store.rank == 0:
    np.savez(out, **{k: v.asnumpy() for k, v in module.get_params()[0].items()})
