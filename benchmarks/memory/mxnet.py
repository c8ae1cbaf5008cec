"""The same net on MXNet 1.9.1, from the symbol file that ours writes."""

import subprocess
import sys
from pathlib import Path

here = sys.path.pop(0)
import mxnet as mx  # noqa: E402 - this file's own folder must not shadow the package

sys.path.insert(0, here)
VERSION = f"mxnet {mx.__version__}"
UNIT, WARM_UP, ROUNDS = "bytes", 0, 3
NET, BATCH = "resnet-50", 32
SYMBOLS = Path(__file__).resolve().parents[2] / ".bench" / "symbols"


def peak():
    """Most bytes that this process ever had in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(x.split()[1] for x in lines if x.startswith("VmHWM:")))


def steps(count=3):
    """Trains in this process; returns its peak."""
    symbol = mx.sym.load(str(SYMBOLS / f"{NET}.json"))
    names = symbol.list_arguments()
    executor = symbol.simple_bind(
        mx.cpu(),
        grad_req={n: "null" if n in ("data", "softmax_label") else "write" for n in names},
        data=(BATCH, 3, 224, 224),
        softmax_label=(BATCH,),
    )
    for key, array in executor.arg_dict.items():
        if key != "softmax_label":
            array[:] = mx.nd.random.uniform(-0.05, 0.05, shape=array.shape)
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


CASES = {f"{NET} train, batch {BATCH}, resident": resident}

if __name__ == "__main__":
    print(steps())
