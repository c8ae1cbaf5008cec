"""One training step (forward, backward, SGD update with momentum) at batch 100."""

import time

import mixflow as mx
from mixflow import models

VERSION = f"mixflow {mx.__version__}"
STEPS = {"softmax": 200, "mlp": 100, "lenet": 5}
BATCH = 100


def case(name):
    def build():
        symbol = models.NETWORKS[name]()
        shape = (BATCH, 1, 28, 28)
        module = mx.mod.Module(symbol)
        module.bind([("data", shape)], [("softmax_label", (BATCH,))])
        module.init_params(mx.init.Xavier())
        module.init_optimizer(
            optimizer="sgd", optimizer_params={"learning_rate": 0.01, "momentum": 0.9}
        )
        mx.random.seed(0)
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
