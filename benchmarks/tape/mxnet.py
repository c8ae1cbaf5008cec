"""The same on MXNet 1.9.1."""

import sys
import time

here = sys.path.pop(0)
import mxnet as mx  # noqa: E402 - this file's own folder must not shadow the package

sys.path.insert(0, here)

VERSION = f"mxnet {mx.__version__}"


def run(x):
    """Records 50 operators, then times backward and the wait for its result."""
    with mx.autograd.record():
        y = x
        for _ in range(25):
            y = mx.nd.tanh(y) * 1.01
    y.wait_to_read()
    began = time.perf_counter()
    y.backward()
    x.grad.wait_to_read()
    return time.perf_counter() - began


def first():
    x = mx.nd.ones((32, 32))
    x.attach_grad()
    seconds = run(x)
    return lambda: seconds


def repeated():
    x = mx.nd.ones((32, 32))
    x.attach_grad()
    run(x)
    return lambda: sum(run(x) for _ in range(20)) / 20


CASES = {"50 operators, first": first, "50 operators, repeated": repeated}
