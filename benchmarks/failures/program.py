"""A worker's program: trains a small network on the packaged digits by `Module.fit`, and counts.

    python program.py FOLDER SEED PAUSE [barriers]

Each step a worker also pushes a constant gradient of one more key, the counter: the servers' SGD
with momentum and a schedule turns the number of pushes into a value that can be told in advance,
and one push too many or too few into another one. Each step leaves a line in FOLDER/steps<rank>:
process, step, moment, training loss; the end leaves FOLDER/end<rank>.json.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import mixflow as mx
from mixflow import datasets

EPOCHS, BATCH = 5, 32
#: Key of the counter: no parameter has this number.
COUNTER = 1000
RATE, MOMENTUM, HALVED_EVERY = 0.1, 0.9, 40
TINY = 1e-12
#: Before this step of 110 it waits (looks of 10 ms) until what is to hurt the run has done so: the
#: thread that does it may have been kept waiting.
HELD, LOOKS = 105, 10_000
#: The file that tells it.
STRUCK = "struck"


def network():
    """Two layers, the first of them large enough to be cut over the servers."""
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=64, name="hidden")
    output = mx.sym.FullyConnected(
        mx.sym.Activation(hidden, act_type="relu"), num_hidden=10, name="output"
    )
    return mx.sym.SoftmaxOutput(output, name="softmax")


def loss_of(module, labels):
    """Mean cross-entropy of the batch that the module has seen last."""
    scores = module.get_outputs()[0].asnumpy()
    right = scores[np.arange(len(scores)), labels.asnumpy().astype(int)]
    return float(-np.log(np.maximum(right, TINY)).mean())


def wait_for(path):
    for _ in range(LOOKS):
        if path.exists():
            return
        time.sleep(0.01)


def main():
    folder, seed, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    barriers = sys.argv[4:] == ["barriers"]
    store = mx.kv.create("dist_sync")
    digits = datasets.load("digits")
    mine = slice(store.rank, None, store.num_workers)
    images = digits.train_images.reshape(len(digits.train_labels), -1)[mine]
    labels = digits.train_labels[mine].astype("float32")
    mx.random.seed(seed)
    data = mx.io.NDArrayIter(
        images, labels, batch_size=BATCH, shuffle=True, last_batch_handle="discard"
    )
    counter = mx.nd.zeros((3,))
    store.init(COUNTER, counter)
    one = mx.nd.full((3,), -BATCH)
    module = mx.mod.Module(network())
    log = folder / f"steps{store.rank}"

    def step_ended(param):
        store.pushpull(COUNTER, one, out=counter)
        step = store.step
        loss = loss_of(module, param.locals["batch"].label[0])
        mx.nd.waitall()
        with open(log, "a") as lines:
            lines.write(f"{os.getpid()} {step} {time.time():.4f} {loss!r}\n")
        time.sleep(pause)
        if barriers:
            store.barrier()
        if step >= HELD:
            wait_for(folder / STRUCK)

    schedule = mx.lr_scheduler.FactorScheduler(step=HALVED_EVERY, factor=0.5, base_lr=RATE)
    module.fit(
        data,
        num_epoch=EPOCHS,
        kvstore=store,
        batch_end_callback=step_ended,
        initializer=mx.init.Xavier(),
        optimizer_params={"momentum": MOMENTUM, "lr_scheduler": schedule},
    )
    test = mx.io.NDArrayIter(
        digits.test_images.reshape(len(digits.test_labels), -1), digits.test_labels, BATCH
    )
    accuracy = dict(module.score(test, "acc"))["accuracy"]
    weights = {k: v.asnumpy() for k, v in module.get_params()[0].items()}
    found = {"counter": counter.asnumpy().tolist(), "accuracy": float(accuracy)}
    found["weights"] = float(sum(np.abs(v).sum(dtype=np.float64) for v in weights.values()))
    store.close()
    (folder / f"end{store.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
