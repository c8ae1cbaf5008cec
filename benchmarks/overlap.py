"""How much of the communication of a training step is hidden behind computing.

    python benchmarks/overlap.py [--depth 20] [--batch 128] [--steps 6]

Two synchronous workers train the CIFAR form of ResNet over links of a given rate (the transport's
own throttle, in each direction and process). The rates are such that communication alone (push and
pull of every parameter, nothing else) takes 0.25, 0.5 and 1.0 of the time of the backward pass.

The hidden share is 1 - (step - step without a limit) / communication alone. It is checked by the
engine's trace: the share of the time of pushes and pulls during which the plan's tasks ran. Writes
benchmarks/results/overlap/rows.json, where rows of other nets stay.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import run as benchmarks  # noqa: E402 - facts on the machine

SHARES = (0.25, 0.5, 1.0)
#: Bytes per second for the first look at how long communication takes, and of a link without a
#: limit: the same way (ZeroMQ, as between hosts), so that only the rate differs.
FIRST_RATE, NO_LIMIT = 20e6, 1e12


def seconds_of(count, action, pick=statistics.median):
    """Median (or best) seconds of some calls of an action, after one that is not counted."""
    action()
    took = []
    for _ in range(count):
        began = time.perf_counter()
        action()
        took.append(time.perf_counter() - began)
    return pick(took)


def overlapped(events):
    """Share of the time of pushes and pulls during which something was computed."""
    busy = sorted((e["start_ns"], e["end_ns"]) for e in events if e["lane"] in ("compute", "small"))
    spans = sorted((e["start_ns"], e["end_ns"]) for e in events if e["name"].startswith("pushpull"))
    merged = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    both = sum(max(0, min(e, f) - max(b, c)) for b, e in merged for c, f in busy)
    return both / max(1, sum(e - b for b, e in merged))


def worker(depth, batch, steps, out):
    """A worker of the job."""
    import numpy as np

    import mixflow as mx
    from mixflow import _rt

    store = mx.kv.create("dist_sync")
    net = mx.models.resnet_cifar(depth=depth)
    module = mx.mod.Module(net)
    module.bind([("data", (batch, 3, 32, 32))], [("softmax_label", (batch,))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer(store, "sgd", {"learning_rate": 0.01})
    images = mx.nd.array(np.random.default_rng(store.rank).normal(size=(batch, 3, 32, 32)))
    given = mx.io.DataBatch([images], [mx.nd.zeros((batch,))])

    def forward():
        module.forward(given, is_train=True)
        mx.nd.waitall()

    def both():
        module.forward_backward(given)
        mx.nd.waitall()

    def exchange():
        module.update()
        mx.nd.waitall()

    def step():
        module.forward_backward(given)
        module.update()

    def several():
        for _ in range(steps):
            step()
        mx.nd.waitall()

    found = {"forward": seconds_of(5, forward), "both": seconds_of(5, both)}
    store.barrier()
    found["alone"] = seconds_of(5, exchange)
    store.barrier()
    found["step"] = seconds_of(5, several, min) / steps
    _rt.core.start_trace()
    several()
    found["trace"] = overlapped(_rt.core.stop_trace())
    names = module._trained_names()
    found["bytes"] = sum(4 * module.get_params()[0][n].size for n in names)
    store.close()
    if store.rank == 0:
        Path(out).write_text(json.dumps(found))


def run(args, rate):
    """Figures of one job."""
    from mixflow.kvstore.cluster import Job, JobOptions
    from mixflow.kvstore.options import StoreOptions
    from mixflow.kvstore.transport.faults import Faults

    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        command = [sys.executable, __file__, "--worker", out, "--depth", str(args.depth)]
        command += ["--batch", str(args.batch), "--steps", str(args.steps)]
        os.environ["OMP_NUM_THREADS"] = "1"
        options = StoreOptions(faults=Faults(rate=rate), repeat=30.0)
        if Job(command, JobOptions(2, 1, options)).run():
            raise SystemExit("a worker failed")
        return json.loads(Path(out).read_text())


def main():
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.depth, args.batch, args.steps, args.worker)
    net = f"resnet{args.depth} CIFAR"
    free, first = run(args, NO_LIMIT), run(args, FIRST_RATE)
    backward = free["both"] - free["forward"]
    rows = []
    for share in SHARES:
        rate = FIRST_RATE * first["alone"] / (share * backward)
        found = run(args, rate)
        exposed = found["step"] - free["step"]
        hidden = 1 - exposed / found["alone"]
        row = {"net": net, "batch": args.batch}
        row |= {"share": found["alone"] / backward, "rate_bytes_per_s": rate, "hidden": hidden}
        row |= {"backward_s": backward, "free_step": free["step"]}
        rows.append({**row, **found, **benchmarks.facts(1)})
        print(
            f"communication {found['alone'] / backward:.2f} of the backward pass "
            f"({1e3 * backward:.0f} ms): step {1e3 * found['step']:.0f} ms, without a limit "
            f"{1e3 * free['step']:.0f} ms: {100 * hidden:.0f} % hidden; by the trace "
            f"{100 * found['trace']:.0f} %",
            flush=True,
        )
    target = HERE / "results" / "overlap" / "rows.json"
    target.parent.mkdir(exist_ok=True)
    others = json.loads(target.read_text()) if target.exists() else []
    rows = [row for row in others if row["net"] != net] + rows
    target.write_text(json.dumps(rows, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
