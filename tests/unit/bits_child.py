"""Trains a network for a few steps and prints a hash of all losses, weights and states.

    bits_child.py NETWORK

Both networks of test_deterministic.py draw masks, so that draws are part of what must repeat.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np

import mixflow as mx

BATCH, STEPS = 24, 3  # enough work for Winograd to be considered


def conv_net() -> mx.sym.Symbol:
    """Convolutions that Winograd's kernels may serve, norms, a sum, pooling, dropout."""
    net = mx.sym.Variable("data")
    for k in range(3):
        net = mx.sym.Convolution(
            net, kernel=(3, 3), pad=(1, 1), num_filter=32, no_bias=True, name=f"conv{k}"
        )
        net = mx.sym.BatchNorm(net, fix_gamma=False, name=f"bn{k}")
        net = mx.sym.relu(net) + (net if k else 0)
    net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = mx.sym.Dropout(mx.sym.Flatten(net), p=0.3, name="drop")
    net = mx.sym.FullyConnected(net, num_hidden=10, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def mlp() -> mx.sym.Symbol:
    """Two dense layers and dropout."""
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=96, name="fc1")
    net = mx.sym.Dropout(mx.sym.Activation(net, act_type="tanh"), p=0.3, name="drop")
    net = mx.sym.FullyConnected(net, num_hidden=10, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


NETWORKS = {"conv_net": (conv_net, (32, 16, 16)), "mlp": (mlp, (50,))}


def train(name: str) -> str:
    """Hash of the losses of all steps, and of the parameters and states after the last."""
    make, sample = NETWORKS[name]
    rng = np.random.default_rng(0)
    mx.random.seed(3)
    module = mx.mod.Module(make())
    module.bind([("data", (BATCH, *sample))], [("softmax_label", (BATCH,))])
    module.init_params(mx.init.Xavier())
    settings = {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4}
    module.init_optimizer(optimizer="sgd", optimizer_params=settings)
    found = hashlib.sha256()
    for _ in range(STEPS):
        data = mx.nd.array(rng.normal(size=(BATCH, *sample)))
        label = mx.nd.array(rng.integers(0, 10, BATCH))
        module.forward_backward(mx.io.DataBatch([data], [label]))
        module.update()
        found.update(module.get_outputs()[0].asnumpy().tobytes())
    for values in module.get_params():
        for key in sorted(values):
            array = values[key].asnumpy()
            assert np.isfinite(array).all()
            found.update(array.tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    print(train(sys.argv[1]))
