"""The same on MXNet 1.9.1."""

import sys
import time

here = sys.path.pop(0)
import mxnet as mx  # noqa: E402 - this file's own folder must not shadow the package

sys.path.insert(0, here)
VERSION = f"mxnet {mx.__version__}"


def calls(count, wait):
    def build():
        a = mx.nd.ones((4, 4))
        a.asnumpy()

        def measure():
            mx.nd.waitall()
            began = time.perf_counter()
            for _ in range(count):
                a + a
            if wait:
                mx.nd.waitall()
            return (time.perf_counter() - began) / count

        return measure

    return build


CASES = {"a + a pushed": calls(1000, False), "a + a sustained": calls(100_000, True)}
