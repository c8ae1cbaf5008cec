"""Networks whose training steps are measured, on made-up images."""

import numpy as np

import mixflow as mx
from mixflow import models

#: Network, shape of a sample, samples per batch.
WORKLOADS = {
    "mlp": ("mlp", (784,), 64),
    "lenet": ("lenet", (1, 28, 28), 64),
    "resnet-20": ("resnet-20-cifar", (3, 32, 32), 16),
}


def compute(name):
    """(a function that runs forward and backward and waits, gradients, weights)."""
    network, sample, samples = WORKLOADS[name]
    symbol = models.NETWORKS[network](10)
    executor = symbol.simple_bind(mx.cpu(), data=(samples, *sample))
    draw = np.random.default_rng(0)
    for key, array in executor.arg_dict.items():
        if key == "softmax_label":
            array[:] = mx.nd.array(draw.integers(0, 10, samples).astype("float32"))
        else:
            array[:] = mx.nd.array(draw.normal(0, 0.05, array.shape).astype("float32"))
    names = [k for k in symbol.list_arguments() if k not in ("data", "softmax_label")]
    gradients = [executor.grad_dict[k] for k in names]

    def batch():
        executor.forward(is_train=True)
        executor.backward()
        mx.nd.waitall()

    return batch, gradients, [executor.arg_dict[k] for k in names]


def sizes(name):
    """Bytes of each key, in the order in which it is pushed."""
    _, _, weights = compute(name)
    return [4 * int(np.prod(w.shape)) for w in weights]
