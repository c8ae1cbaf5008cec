"""`a + a` on 4x4: pushed (1,000 calls into an empty queue) and sustained (100,000, then a wait)."""

import time

import mixflow as mx

VERSION = f"mixflow {mx.__version__}"


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
