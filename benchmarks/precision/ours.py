"""Mixed precision against float32: forward + backward, batch 32, 3x224x224, and CIFAR's at 128.

    python benchmarks/run.py precision

Prints the bytes of the arenas too: they are the other half of the answer.
"""

import sys

import mixflow as mx
import timed
from mixflow import models

VERSION = f"mixflow {mx.__version__}"
NETS = {"alexnet": 32, "googlenet": 32, "vgg-11": 32, "resnet-50": 32, "resnet-20-cifar": 128}


def case(name, batch, precision):
    def build():
        symbol, shapes = models.NETWORKS[name](), models.input_shapes(name, batch)
        names = symbol.list_arguments()
        requests = {n: "null" if n in ("data", "softmax_label") else "write" for n in names}
        executor = symbol.simple_bind(mx.cpu(), requests, precision=precision, **shapes)
        for key, array in executor.arg_dict.items():
            if key != "softmax_label":
                mx.nd.random.uniform(-0.05, 0.05, out=array)
        plan = executor.plan(is_train=True)
        print(f"{name} {precision}: {plan.memory['arena']} bytes", file=sys.stderr)

        return timed.steps(mx, executor)

    return build


CASES = {
    f"{name} {precision}": case(name, batch, precision)
    for name, batch in NETS.items()
    for precision in ("float32", "bfloat16")
}
