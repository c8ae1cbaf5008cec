"""The same on PyTorch (eager on CPU: pushed and sustained are one thing)."""

import sys
import time

here = sys.path.pop(0)
import torch  # noqa: E402 - this file's own folder must not shadow the package

sys.path.insert(0, here)
VERSION = f"torch {torch.__version__}"


def calls(count):
    def build():
        a = torch.ones(4, 4)

        def measure():
            began = time.perf_counter()
            for _ in range(count):
                a + a
            return (time.perf_counter() - began) / count

        return measure

    return build


CASES = {"a + a pushed": calls(1000), "a + a sustained": calls(100_000)}
