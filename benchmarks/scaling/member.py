"""A worker of the jobs that `calibrate.py` measures. Its task is JSON in MIXFLOW's argument list.

trips: processor and wall seconds of pushes and pulls of some keys, and of the server for them.
training: seconds of whole steps (compute, push and pull every key, wait) and of their computing.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import psutil
from workloads import WORKLOADS, compute

import mixflow as mx

task, out = json.loads(sys.argv[1]), Path(sys.argv[2])


def server_clock():
    """Reads the processor seconds of the job's server: a sibling of this process."""
    for process in psutil.Process().parent().children():
        if "mixflow.kvstore.serve" in process.cmdline():
            clock = (~process.pid << 3) | 2  # Linux: processor clock of another process
            return lambda: time.clock_gettime(clock)
    raise SystemExit("no server beside this worker")


def trips(store):
    """One row per (keys, elements, kind): seconds per round of all keys."""
    server, rows = server_clock(), []
    for keys, elements in task["cases"]:
        names = [f"{keys}x{elements}-{k}" for k in range(keys)]
        gradients = [mx.nd.ones((elements,)) for _ in names]
        values = [mx.nd.zeros((elements,)) for _ in names]
        store.init(names, values)

        def push_pull(names=names, gradients=gradients, values=values):
            for name, gradient, value in zip(names, gradients, values, strict=True):
                store.pushpull(name, gradient, out=value)
            mx.nd.waitall()

        def pull(names=names, values=values):
            for name, value in zip(names, values, strict=True):
                store.pull(name, out=value)
            mx.nd.waitall()

        for kind, body in (("pushpull", push_pull), ("pull", pull)):
            rows.append({"kind": kind, "keys": keys, "bytes": 4 * elements * keys,
                         **measured(body, server)})  # fmt: skip
    return rows


def measured(body, server):
    """Medians over blocks of rounds, in seconds per round."""
    for _ in range(3):
        body()
    begin = time.perf_counter()
    body()
    count = max(2, int(task["block_seconds"] / (time.perf_counter() - begin)))
    blocks = []
    for _ in range(task["blocks"]):
        starts = time.perf_counter(), time.process_time(), server()
        for _ in range(count):
            body()
        ends = time.perf_counter(), time.process_time(), server()
        blocks.append([(b - a) / count for a, b in zip(starts, ends, strict=True)])
    wall, worker, served = (statistics.median(column) for column in zip(*blocks, strict=True))
    return {"wall": wall, "worker": worker, "server": served}


def training(store):
    """Wall seconds of each step and of its computing."""
    rows = []
    for name in task["workloads"]:
        batch, gradients, weights = compute(name)
        names = [f"{name}-{k}" for k in range(len(weights))]
        store.init(names, weights)
        store.barrier()
        times = []
        for _ in range(task["steps"][name] + 2):
            begin = time.perf_counter()
            batch()
            computed = time.perf_counter()
            for key, gradient, weight in zip(names, gradients, weights, strict=True):
                store.pushpull(key, gradient, out=weight)
            mx.nd.waitall()
            times.append((computed - begin, time.perf_counter() - begin))
        store.barrier()
        compute_seconds, step_seconds = np.array(times[2:]).T.tolist()
        rows.append({"workload": name, "compute": compute_seconds, "step": step_seconds})
    return rows


def alone():
    """The computing of each workload without a store, for some seconds."""
    rows = []
    for name in WORKLOADS:
        batch, _, _ = compute(name)
        for _ in range(3):
            batch()
        # Those that run at the same time begin at the same time.
        time.sleep(max(0.0, task["at"][name] - time.time()))
        times, end = [], time.perf_counter() + task["seconds"]
        while time.perf_counter() < end:
            begin = time.perf_counter()
            batch()
            times.append(time.perf_counter() - begin)
        rows.append({"workload": name, "compute": times})
    return rows


if __name__ == "__main__":
    if task["kind"] == "alone":
        found = alone()
        rank = task["rank"]
    else:
        store = mx.kv.create(task["store"])
        store.set_optimizer(mx.optimizer.create("sgd", learning_rate=1e-6, momentum=0.9))
        found = {"trips": trips, "training": training}[task["kind"]](store)
        rank = store.rank
        store.close()
    (out / f"rank{rank}.json").write_text(json.dumps(found))
