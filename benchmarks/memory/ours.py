"""Peak resident memory of ResNet-50 training at batch 32, and planned bytes of internal arrays.

Resident: VmHWM of a fresh process after three steps. Planned: `Symbol.memory_report` at batch 64.
The symbol is written to .bench/symbols for MXNet, so that both run the same net.
"""

import subprocess
import sys
from pathlib import Path

import mixflow as mx
from mixflow import models

VERSION = f"mixflow {mx.__version__}"
UNIT, WARM_UP, ROUNDS = "bytes", 0, 3
NET, BATCH = "resnet-50", 32
PLANNED = ("alexnet", "googlenet", "vgg-16")
SYMBOLS = Path(__file__).resolve().parents[2] / ".bench" / "symbols"


def peak():
    """Most bytes that this process ever had in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(x.split()[1] for x in lines if x.startswith("VmHWM:")))


def steps(count=3):
    """Trains in this process; returns its peak."""
    symbol = models.NETWORKS[NET](1000)
    names = symbol.list_arguments()
    executor = symbol.simple_bind(
        mx.cpu(),
        grad_req={n: "null" if n in ("data", "softmax_label") else "write" for n in names},
        data=(BATCH, 3, 224, 224),
        softmax_label=(BATCH,),
    )
    for key, array in executor.arg_dict.items():
        if key != "softmax_label":
            mx.nd.random.uniform(-0.05, 0.05, out=array)
    for _ in range(count):
        executor.forward(is_train=True)
        executor.backward()
        mx.nd.waitall()
    return peak()


def resident():
    def measure():
        found = subprocess.run(
            [sys.executable, __file__], capture_output=True, text=True, timeout=900, check=True
        )
        return int(found.stdout.split()[-1])

    return measure


def planned(name, train, strategy):
    def build():
        shapes = models.input_shapes(name, 64, models.DEFAULT_SHAPES[name])
        report = models.NETWORKS[name]().memory_report(train, **shapes)
        return lambda: report[strategy]

    return build


CASES = {f"{NET} train, batch {BATCH}, resident": resident}
STRATEGIES = ("none", "inplace", "coshare", "both", "arena", "lower_bound", "lower_bound_unfused")
CASES |= {
    f"{net} {kind}, batch 64, planned {strategy}": planned(net, kind == "train", strategy)
    for net in PLANNED
    for kind in ("train", "predict")
    for strategy in STRATEGIES
}

if __name__ == "__main__":
    print(steps())
else:
    SYMBOLS.mkdir(parents=True, exist_ok=True)
    models.NETWORKS[NET](1000).save(str(SYMBOLS / f"{NET}.json"))
