"""A worker's program: 100 steps on the digits with all that an optimizer may have; leaves weights.

    python equal.py WAY OUT

`WAY` is 'fit' (Module.fit) or 'loop' (an imperative loop). `train` does the same in one process.
"""

import sys

import numpy as np

import mixflow as mx
from mixflow import datasets

STEPS, EPOCHS, TOGETHER = 100, 2, 28
MULTIPLIERS = {"first_weight": (0.5, 2.0), "second_weight": (2.0, 0.5), "second_bias": (0.25, 1.0)}


def samples():
    """As many as make whole batches."""
    digits = datasets.load("digits")
    count = STEPS // EPOCHS * TOGETHER
    images = digits.train_images[:count].reshape(count, -1)
    return images.astype("float32"), digits.train_labels[:count].astype("float32")


def schedule():
    return mx.lr_scheduler.FactorScheduler(step=30, factor=0.5, base_lr=0.05)


def fit(store, images, labels, batch):
    """Module.fit; multipliers are attributes of the variables."""

    def variable(name):
        rate, decay = MULTIPLIERS.get(name, (1.0, 1.0))
        return mx.sym.Variable(name, lr_mult=rate, wd_mult=decay)

    net = mx.sym.Variable("data")
    for name, size in (("first", 32), ("second", 10)):
        weight, bias = variable(f"{name}_weight"), variable(f"{name}_bias")
        net = mx.sym.FullyConnected(net, weight, bias, num_hidden=size, name=name)
        net = mx.sym.tanh(net) if name == "first" else net
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    mx.random.seed(7)
    module.fit(
        mx.io.NDArrayIter(images, labels, batch_size=batch),
        num_epoch=EPOCHS,
        kvstore=store,
        initializer=mx.init.Xavier(),
        optimizer_params={"momentum": 0.9, "wd": 0.01, "lr_scheduler": schedule()},
    )
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}


def loop(store, images, labels, batch):
    """An imperative loop; multipliers are set on the optimizer."""
    draw = np.random.default_rng(7)
    shapes = {"first_weight": (32, 784), "first_bias": (32,)}
    shapes |= {"second_weight": (10, 32), "second_bias": (10,)}
    weights = {k: mx.nd.array(draw.normal(size=s) / 20, dtype="float32") for k, s in shapes.items()}
    names = list(weights)
    optimizer = mx.optimizer.create(
        "sgd",
        momentum=0.9,
        wd=0.01,
        lr_scheduler=schedule(),
        rescale_grad=1 / TOGETHER,
        param_idx2name=dict(enumerate(names)),
    )
    optimizer.set_lr_mult({name: rate for name, (rate, _) in MULTIPLIERS.items()})
    optimizer.set_wd_mult({name: decay for name, (_, decay) in MULTIPLIERS.items()})
    for number, weight in enumerate(weights.values()):
        store.init(number, weight)
        weight.attach_grad()
    store.set_optimizer(optimizer)
    for step in range(STEPS):
        part = slice(step * batch % len(labels), step * batch % len(labels) + batch)
        data, label = mx.nd.array(images[part]), mx.nd.array(labels[part])
        with mx.autograd.record():
            w1, b1, w2, b2 = weights.values()
            hidden = mx.nd.tanh(mx.nd.FullyConnected(data, w1, b1, num_hidden=32))
            scores = mx.nd.log_softmax(mx.nd.FullyConnected(hidden, w2, b2, num_hidden=10))
            loss = -mx.nd.sum(mx.nd.pick(scores, label))
        loss.backward()
        for number, weight in enumerate(weights.values()):
            store.pushpull(number, weight.grad, out=weight, priority=-number)
    return {name: weight.asnumpy() for name, weight in weights.items()}


WAYS = {"fit": fit, "loop": loop}

if __name__ == "__main__":
    way, out = sys.argv[1:]
    job = mx.kv.create("dist_sync")
    mine = slice(job.rank, None, job.num_workers)
    found = WAYS[way](job, *(a[mine] for a in samples()), TOGETHER // job.num_workers)
    job.close()
    if job.rank == 1:
        np.savez(out, **found)
