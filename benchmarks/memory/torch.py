"""The same net on PyTorch (eager): the smaller of contiguous and channels_last."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("BENCH_THREADS", "2")
HERE = Path(__file__).resolve().parent
UNIT, WARM_UP, ROUNDS = "bytes", 0, 3
BATCH = 32


def nets():
    """benchmarks/convnets/torch.py, which has the net and a step of batch 32."""
    spec = importlib.util.spec_from_file_location("nets", HERE.parent / "convnets" / "torch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peak():
    """Most bytes that this process ever had in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(x.split()[1] for x in lines if x.startswith("VmHWM:")))


def steps(layout, count=3):
    """Trains in this process; returns its peak."""
    module = nets()
    layout = getattr(module.torch, layout)
    step = module.stepper(module.NETS["resnet-50"](), True, layout)
    for _ in range(count):
        step()
    return peak()


def resident():
    def run(layout):
        found = subprocess.run(
            [sys.executable, __file__, layout],
            capture_output=True,
            text=True,
            timeout=900,
            check=True,
        )
        return int(found.stdout.split()[-1])

    return lambda: min(run("contiguous_format"), run("channels_last"))


CASES = {f"resnet-50 train, batch {BATCH}, resident": resident}

if __name__ == "__main__":
    print(steps(sys.argv[1]))
else:
    VERSION = nets().VERSION
