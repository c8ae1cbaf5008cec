"""The same nets on PyTorch, compiled by inductor for prediction: the best of contiguous,
channels_last, and both with frozen weights (norms folded, weights packed once)."""

import importlib.util
import itertools
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes that idles
# The eager rival's file has the nets; it leaves its folder, where torch.py would hide the package.
spec = importlib.util.spec_from_file_location("bench_torch", Path(__file__).parent / "torch.py")
eager = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dynamo looks it up
spec.loader.exec_module(eager)
torch = eager.torch
import torch._inductor.config as inductor  # noqa: E402 - after the eager rival's import

VERSION = f"torch {torch.__version__} compiled"
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def stepper(net, layout, frozen):
    net = net.to(memory_format=layout).eval()
    data = torch.rand(32, 3, 224, 224).to(memory_format=layout)
    torch._dynamo.reset()
    inductor.freezing = frozen

    def predict(x):
        return torch.softmax(net(x), 1)

    run = torch.compile(predict)

    def measure():
        began = time.perf_counter()
        with torch.inference_mode():
            run(data)
        return time.perf_counter() - began

    measure()  # compiles
    return measure


def case(name):
    def build():
        best = None
        for layout, frozen in itertools.product(LAYOUTS, (False, True)):
            net = eager.NETS[name]()
            with torch.inference_mode():
                net(torch.zeros(2, 3, 224, 224))
            measure = stepper(net, layout, frozen)
            seconds = min(measure() for _ in range(2))
            if best is None or seconds < best[0]:
                best = (seconds, measure)
        return best[1]

    return build


CASES = {f"{name} predict": case(name) for name in eager.NETS}
