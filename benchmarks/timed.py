"""The step that benchmarks of executors time: the same calls, whichever package is `mx`."""

import time


def steps(mx, executor, train=True):
    """Gives a function that runs a step of a bound executor and gives its seconds."""

    def measure():
        mx.nd.waitall()
        began = time.perf_counter()
        executor.forward(is_train=train)
        if train:
            executor.backward()
        mx.nd.waitall()
        return time.perf_counter() - began

    return measure
