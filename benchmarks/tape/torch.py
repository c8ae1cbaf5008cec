"""The same on PyTorch."""

import sys
import time

here = sys.path.pop(0)
import torch  # noqa: E402 - this file's own folder must not shadow the package

sys.path.insert(0, here)
VERSION = f"torch {torch.__version__}"


def run(x):
    """Records 50 operators, then times backward."""
    x.grad = None
    y = x
    for _ in range(25):
        y = torch.tanh(y) * 1.01
    began = time.perf_counter()
    y.backward(torch.ones_like(y))
    return time.perf_counter() - began


def first():
    x = torch.ones(32, 32, requires_grad=True)
    seconds = run(x)
    return lambda: seconds


def repeated():
    x = torch.ones(32, 32, requires_grad=True)
    run(x)
    return lambda: sum(run(x) for _ in range(20)) / 20


CASES = {"50 operators, first": first, "50 operators, repeated": repeated}
