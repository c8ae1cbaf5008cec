"""A worker's program: Module.fit on its share of the samples; worker 0 leaves the weights."""

import os
import sys
import time
from pathlib import Path

import gate
import numpy as np

import mixflow as mx

out, batch_size = sys.argv[1], int(sys.argv[2])
pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
store = mx.kv.create("dist_sync")
draw = np.random.default_rng(0)
images = draw.normal(size=(320, 12)).astype("float32")
labels = (images @ draw.normal(size=(12, 3))).argmax(axis=1).astype("float32")
mine = slice(store.part_index, None, store.num_workers)
mx.random.seed(7)
data = mx.io.NDArrayIter(images[mine], labels[mine], batch_size=batch_size, shuffle=pause > 0)
net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
mx.random.seed(7)


def batch_ended(param):
    time.sleep(pause)
    with open(Path(out).with_name(f"steps{store.rank}"), "a") as file:
        file.write(f"{os.getpid()} {10 * param.epoch + param.nbatch}\n")
    gate.wait(Path(out).parent, 10 * param.epoch + param.nbatch + 1)


schedule = mx.lr_scheduler.FactorScheduler(step=20, factor=0.5, base_lr=0.5)
module.fit(
    data,
    num_epoch=5,
    kvstore=store,
    batch_end_callback=batch_ended,
    initializer=mx.init.Xavier(),
    optimizer_params={"momentum": 0.9, "lr_scheduler": schedule, "wd": 0.01},
)
if store.rank == 0:
    np.savez(out, **{k: v.asnumpy() for k, v in module.get_params()[0].items()})
