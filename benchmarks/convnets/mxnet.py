"""The same nets on MXNet 1.9.1, from the symbol files that ours writes."""

import sys
from pathlib import Path

here = sys.path.pop(0)
import mxnet as mx  # noqa: E402 - this file's own folder must not shadow the package

import timed  # noqa: E402 - beside this folder

sys.path.insert(0, here)
VERSION = f"mxnet {mx.__version__}"
NETS = ("alexnet", "googlenet", "vgg-11", "resnet-50")
SHAPE = (32, 3, 224, 224)
SYMBOLS = Path(__file__).resolve().parents[2] / ".bench" / "symbols"


def case(name, train):
    def build():
        symbol = mx.sym.load(str(SYMBOLS / f"{name}.json"))
        executor = symbol.simple_bind(
            mx.cpu(),
            grad_req={
                n: "write" if train and n not in ("data", "softmax_label") else "null"
                for n in symbol.list_arguments()
            },
            data=SHAPE,
            softmax_label=SHAPE[:1],
        )
        for key, array in executor.arg_dict.items():
            if key != "softmax_label":
                array[:] = mx.nd.random.uniform(-0.05, 0.05, shape=array.shape)

        return timed.steps(mx, executor, train)

    return build


CASES = {f"{n} {kind}": case(n, kind == "train") for n in NETS for kind in ("train", "predict")}
