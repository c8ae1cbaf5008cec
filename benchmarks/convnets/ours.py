"""AlexNet, GoogLeNet, VGG-11, ResNet-50 at batch 32, 3x224x224: forward + backward, forward alone.

The symbols are written to .bench/symbols for MXNet, so that both run the same nets.
"""

from pathlib import Path

import mixflow as mx
import timed
from mixflow import models, profiler

VERSION = f"mixflow {mx.__version__}"
NETS = ("alexnet", "googlenet", "vgg-11", "resnet-50")
SHAPE = (32, 3, 224, 224)
SYMBOLS = Path(__file__).resolve().parents[2] / ".bench" / "symbols"


def symbol(name):
    return models.NETWORKS[name](1000)


SYMBOLS.mkdir(parents=True, exist_ok=True)
for net in NETS:
    symbol(net).save(str(SYMBOLS / f"{net}.json"))


def bind(name, train):
    return symbol(name).simple_bind(
        mx.cpu(),
        grad_req={
            n: "write" if train and n not in ("data", "softmax_label") else "null"
            for n in symbol(name).list_arguments()
        },
        data=SHAPE,
        softmax_label=SHAPE[:1],
    )


def case(name, train):
    def build():
        executor = bind(name, train)
        for key, array in executor.arg_dict.items():
            if key != "softmax_label":
                mx.nd.random.uniform(-0.05, 0.05, out=array)

        return timed.steps(mx, executor, train)

    return build


def figures(name, train):
    """Operations and bytes of a step, and what this machine can do of them in a second."""

    def count():
        flops, nbytes = profiler.work(bind(name, train).plan(train))
        limits = profiler.machine_limits()
        return {
            "flops": flops,
            "bytes": nbytes,
            "flop_limit": limits.flops,
            "byte_limit": limits.nbytes,
        }

    return count


FIGURES = {
    f"{n} {kind}": figures(n, kind == "train") for n in NETS for kind in ("train", "predict")
}
CASES = {f"{n} {kind}": case(n, kind == "train") for n in NETS for kind in ("train", "predict")}
