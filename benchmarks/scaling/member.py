"""A worker of the jobs that `calibrate.py` measures. Its task is JSON in MIXFLOW's argument list.

trips: processor and wall seconds of pushes and pulls of some keys, and of the server for them.
training: seconds of whole steps (compute, push and pull every key, wait) and of their computing,
and processor seconds of worker and server.
Everything is told block by block or step by step, each with `span`, its begin and end
(`time.monotonic`), so that what was measured while a core was slow can be left out (`pace.py`).
"""

import json
import os
import sys
import time
from pathlib import Path

import psutil
from workloads import compute

import mixflow as mx

task, out = json.loads(sys.argv[1]), Path(sys.argv[2])


def server_clock():
    """Reads the processor seconds of the job's server: a sibling of this process."""
    for process in psutil.Process().parent().children():
        if "mixflow.kvstore.job.serve" in process.cmdline():
            clock = (~process.pid << 3) | 2  # Linux: processor clock of another process
            return lambda: time.clock_gettime(clock)
    raise SystemExit("no server beside this worker")


class Others:
    """Share of the processors that processes of others have used since it was made."""

    def __init__(self):
        self._ours = [(~p.pid << 3) | 2 for p in psutil.Process().parent().children()]
        self._begin = self._now()

    def _now(self):
        busy = psutil.cpu_times()
        total = busy.user + busy.nice + busy.system + busy.irq + busy.softirq + busy.steal
        ours = sum(time.clock_gettime(clock) for clock in self._ours)
        return time.perf_counter(), total - ours

    def share(self):
        """Of all cores, since the beginning."""
        (begin, before), (end, after) = self._begin, self._now()
        return max(0.0, (after - before) / (end - begin) / psutil.cpu_count())


def trips(store):
    """One row per (keys, elements, kind): seconds per round of all keys."""
    server, rows, others = server_clock(), [], Others()
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
    return rows, others.share()


def notes(store):
    """Rows for one and for many messages at once that say nothing, each with its answer."""
    server, others, rows = server_clock(), Others(), []
    for count in (1, 32):

        def burst(count=count):
            # Barrier 0, before any push, is behind everybody: the answer comes at once.
            calls = [
                store._link.call("note", lambda client, now: client.enter("server0", 0, 0, 0, now))
                for _ in range(count)
            ]
            for call in calls:
                call.wait(10.0)

        rows.append({"count": count, **measured(burst, server)})
    return rows, others.share()


def measured(body, server):
    """Blocks of rounds, in seconds per round."""
    for _ in range(3):
        body()
    begin = time.perf_counter()
    body()
    count = max(2, int(task["block_seconds"] / (time.perf_counter() - begin)))
    found = {name: [] for name in ("span", "wall", "worker", "server")}
    for _ in range(task["blocks"]):
        starts = time.monotonic(), time.process_time(), server()
        for _ in range(count):
            body()
        ends = time.monotonic(), time.process_time(), server()
        found["span"].append((starts[0], ends[0]))
        for name, end, start in zip(("wall", "worker", "server"), ends, starts, strict=True):
            found[name].append((end - start) / count)
    return found


def training(store):
    """Wall seconds of each step and of its computing; processor seconds of worker and server."""
    server, name, steps = server_clock(), task["workload"], task["steps"]
    batch, gradients, weights = compute(name)
    names = [f"{name}-{k}" for k in range(len(weights))]
    store.init(names, weights)
    found = {name: [] for name in ("span", "compute", "step", "worker", "server")}
    for step in range(steps + 3):
        if step == 3:
            store.barrier()
            others = Others()
        starts = time.monotonic(), time.process_time(), server()
        batch()
        computed = time.monotonic()
        for key, gradient, weight in zip(names, gradients, weights, strict=True):
            store.pushpull(key, gradient, out=weight)
        mx.nd.waitall()
        ends = time.monotonic(), time.process_time(), server()
        if step >= 3:
            found["span"].append((starts[0], ends[0]))
            found["compute"].append(computed - starts[0])
            for name, end, start in zip(("step", "worker", "server"), ends, starts, strict=True):
                found[name].append(end - start)
    share = others.share()
    store.barrier()
    return found, share


def alone():
    """Seconds of the computing of a workload without a store."""
    batch, _, _ = compute(task["workload"])
    for _ in range(3):
        batch()
    # Those that run at the same time begin at the same time.
    time.sleep(max(0.0, task["at"] - time.time()))
    spans, others, end = [], Others(), time.monotonic() + task["seconds"]
    while time.monotonic() < end:
        begin = time.monotonic()
        batch()
        spans.append((begin, time.monotonic()))
    return {"span": spans, "compute": [end - begin for begin, end in spans]}, others.share()


def beside():
    """Computes until whoever started it is gone."""
    batch, _, _ = compute(task["workload"])
    parent = os.getppid()
    while os.getppid() == parent:
        batch()


if __name__ == "__main__":
    if task["kind"] == "beside":
        beside()
        sys.exit()
    if task["kind"] == "alone":
        found, share = alone()
        rank = task["rank"]
    else:
        store = mx.kv.create(task["store"])
        store.set_optimizer(mx.optimizer.create("sgd", learning_rate=1e-6, momentum=0.9))
        found, share = {"trips": trips, "training": training, "notes": notes}[task["kind"]](store)
        rank = store.rank
        if store._link.local_bytes:
            raise SystemExit("expected messages over the network only, got some by shared memory")
        store.close()
    (out / f"rank{rank}.json").write_text(json.dumps({"found": found, "others": share}))
