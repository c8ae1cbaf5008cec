"""The same step on MXNet 1.9.1: its Module, symbols of the same layers."""

import sys
import time

here = sys.path.pop(0)
import mxnet as mx  # noqa: E402 - this file's own folder must not shadow the package

sys.path.insert(0, here)
VERSION = f"mxnet {mx.__version__}"
STEPS = {"softmax": 200, "mlp": 100, "lenet": 5}
BATCH = 100
sym = mx.sym


def dense(hidden):
    net = sym.Flatten(sym.Variable("data"))
    for number, units in enumerate(hidden, 1):
        net = sym.FullyConnected(net, num_hidden=units, name=f"fc{number}")
        net = sym.Activation(net, act_type="relu")
    net = sym.FullyConnected(net, num_hidden=10, name="last")
    return sym.SoftmaxOutput(net, name="softmax")


def lenet():
    net = sym.Variable("data")
    for number, filters in ((1, 20), (2, 50)):
        net = sym.Convolution(net, kernel=(5, 5), num_filter=filters, name=f"conv{number}")
        net = sym.Activation(net, act_type="tanh")
        net = sym.Pooling(net, pool_type="max", kernel=(2, 2), stride=(2, 2))
    net = sym.FullyConnected(sym.Flatten(net), num_hidden=500, name="fc1")
    net = sym.Activation(net, act_type="tanh")
    net = sym.FullyConnected(net, num_hidden=10, name="fc2")
    return sym.SoftmaxOutput(net, name="softmax")


NETS = {"softmax": lambda: dense(()), "mlp": lambda: dense((128, 64)), "lenet": lenet}


def case(name):
    def build():
        shape = (BATCH, 1, 28, 28)
        module = mx.mod.Module(NETS[name]())
        module.bind([("data", shape)], [("softmax_label", (BATCH,))])
        module.init_params(mx.init.Xavier())
        module.init_optimizer(
            optimizer="sgd", optimizer_params={"learning_rate": 0.01, "momentum": 0.9}
        )
        label = mx.nd.array([i % 10 for i in range(BATCH)])
        batch = mx.io.DataBatch([mx.nd.random.uniform(shape=shape)], [label])

        def steps(count):
            for _ in range(count):
                module.forward_backward(batch)
                module.update()
            mx.nd.waitall()

        def measure():
            steps(max(1, STEPS[name] // 10))  # threads and caches as in a training run
            began = time.perf_counter()
            steps(STEPS[name])
            return (time.perf_counter() - began) / STEPS[name]

        return measure

    return build


CASES = {name: case(name) for name in STEPS}
