"""Measures the parameters of the scaling model on one worker, and checks what it says of 2 and 3.

    python benchmarks/scaling/calibrate.py [--wrap "nice"] [--phases trips ...] [--fit]

Writes benchmarks/results/scaling.json: costs, workloads, the check. --wrap: a command that runs each
measurement (some 20 s each); --fit only fits again what was measured before (.bench/scaling).
What is measured on more than one worker is only compared with, never fitted to; except that the
computing alone runs twice at once, without any store, to see what two busy cores lose.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]
from workloads import WORKLOADS, sizes  # noqa: E402

import mixflow as mx  # noqa: E402
import run as benchmarks  # noqa: E402 - facts on the machine
from mixflow.kvstore import scaling  # noqa: E402
from mixflow.kvstore.appliers import Optimizing  # noqa: E402
from mixflow.kvstore.cluster import Job, JobOptions  # noqa: E402
from mixflow.kvstore.costs import Cost, Costs, Spread, Workload  # noqa: E402
from mixflow.kvstore.ledger import SharedLedger  # noqa: E402
from mixflow.kvstore.messages import Configure, Gradient, Init, Push  # noqa: E402
from mixflow.kvstore.options import StoreOptions  # noqa: E402
from mixflow.kvstore.policy import Async, Part, Sync  # noqa: E402
from mixflow.kvstore.server import Shard  # noqa: E402
from mixflow.optimizer.describe import describe  # noqa: E402

RAW = ROOT / ".bench" / "scaling"
TARGET = HERE.parent / "results" / "scaling.json"
CASES = [(k, n) for n in (64, 16_384, 131_072) for k in (1, 8)] + [(32, 64), (1, 900_000)]
STEPS = {"mlp": 200, "lenet": 100, "resnet-20": 60}
LIMIT = 0.15
POLICIES = {"dist_sync": Sync(), "dist_async": Async()}
PHASES = (
    "alone1", "alone2", "trips", "close",
    *(f"{policy}-{n}" for policy in POLICIES for n in (1, 2, 3)),
)  # fmt: skip


def members(policy, workers: int, task: dict) -> list:
    """What each worker of a job of this host has found."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, HERE / "member.py", json.dumps(task), folder]
        store = StoreOptions(policy=policy, deadline=30.0)
        job = Job([str(word) for word in command], JobOptions(workers, 1, store, deadline=60.0))
        if job.run():
            raise SystemExit("a worker failed")
        return [json.loads((Path(folder) / f"rank{r}.json").read_text()) for r in range(workers)]


def alone(processes: int) -> list:
    """The computing without a store, in so many processes at once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin = time.time() + 4
    at = {name: begin + 5.0 * i for i, name in enumerate(WORKLOADS)}
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank in range(processes):
            task = {"kind": "alone", "rank": rank, "seconds": 4.0, "at": at}
            command = [sys.executable, HERE / "member.py", json.dumps(task), folder]
            running.append(subprocess.Popen(command, env=environment))
        if any(process.wait(60) for process in running):
            raise SystemExit("a process failed")
        return [json.loads((Path(folder) / f"rank{r}.json").read_text()) for r in range(processes)]


def close() -> list:
    """Seconds that a shard takes for a push that waits in its round, and for one that ends it."""
    rows = []
    for elements in (64, 16_384, 131_072, 900_000):
        folder = tempfile.mkdtemp(dir="/dev/shm")
        shard = Shard("s", Sync(), Optimizing(), workers=2, ledger=SharedLedger(folder))
        optimizer = describe(mx.optimizer.create("sgd", learning_rate=1e-6, momentum=0.9))
        shard.handle(Configure("w", 1, "optimizer", optimizer), 0.0)
        shard.handle(Init("w", 2, {"0/0": np.zeros(elements, np.float32)}), 0.0)
        times = {0: [], 1: []}
        for step in range(40):
            for worker in (0, 1):
                gradient = Gradient((Part(worker, step),), np.ones(elements, np.float32))
                push = Push(f"w{worker}", 3 + step, {"0/0": gradient}, True)
                begin = time.perf_counter()
                shard.handle(push, 0.0)
                times[worker].append(time.perf_counter() - begin)
        shutil.rmtree(folder)
        wait, end = (statistics.median(times[w]) for w in (0, 1))
        rows.append({"bytes": 4 * elements, "wait": wait, "end": end})
    return rows


def measure(phase: str) -> None:
    """Runs one measurement and keeps it."""
    RAW.mkdir(parents=True, exist_ok=True)
    if phase.startswith("alone"):
        found = alone(int(phase[-1]))
    elif phase == "trips":
        task = {"kind": "trips", "store": "dist_sync", "cases": CASES}
        found = members(Sync(), 1, {**task, "blocks": 5, "block_seconds": 0.15})
    elif phase == "close":
        found = close()
    else:
        name, _, workers = phase.rpartition("-")
        task = {"kind": "training", "store": name, "workloads": list(WORKLOADS), "steps": STEPS}
        found = members(POLICIES[name], int(workers), task)
    (RAW / f"{phase}.json").write_text(json.dumps(found))


def raw(phase: str):
    return json.loads((RAW / f"{phase}.json").read_text())


def line(rows: list, seconds: list[float]) -> Cost:
    """Least squares of (messages, bytes) -> seconds in relative terms; no negative cost."""
    matrix = np.array([(row["keys"], row["bytes"]) for row in rows], float)
    y = np.maximum(np.array(seconds), 1e-7)
    scaled = matrix / y[:, None]
    found, *_ = np.linalg.lstsq(scaled, np.ones(len(y)), rcond=None)
    if found.min() < 0:  # one of the two explains it all
        keep = int(np.argmax(found))
        found = np.zeros(2)
        column = scaled[:, keep]
        found[keep] = column.sum() / (column @ column)
    return Cost(float(found[0]), float(found[1]))


def fit_costs() -> tuple[Costs, list]:
    """The costs, and how well they give back the trips of the one worker."""
    trips = raw("trips")[0]
    by_kind = {k: [r for r in trips if r["kind"] == k] for k in ("pull", "pushpull")}
    pulls, pushes = by_kind["pull"], by_kind["pushpull"]

    def push_only(what: str) -> list[float]:
        return [p[what] - q[what] for p, q in zip(pushes, pulls, strict=True)]

    ends = [{"keys": 1, **row} for row in raw("close")]
    closing = line(ends, [r["end"] - r["wait"] for r in ends])
    rest = [s - closing.of(r["bytes"], r["keys"])
            for r, s in zip(pushes, push_only("server"), strict=True)]  # fmt: skip
    costs = {
        "worker_send": line(pushes, push_only("worker")),
        "worker_receive": line(pulls, [r["worker"] for r in pulls]),
        "server_receive": line(pushes, rest),
        "server_close": closing,
        "server_send": line(pulls, [r["server"] for r in pulls]),
        "cores": os.cpu_count() or 1,
        "speed": speeds(),
    }
    hop = min(np.linspace(0, 1e-3, 41), key=lambda h: error(Costs(**costs, hop=float(h)), pushes))
    found = Costs(**costs, hop=float(hop))
    shown = [{**row, "model": trip(found, row)} for row in pushes]
    return found, shown


def trip(costs: Costs, row: dict) -> float:
    """Seconds of a round trip of one worker, simulated."""
    load = Workload("trip", 0.0, (row["bytes"] // row["keys"],) * row["keys"])
    return scaling.simulate(scaling.Scenario(load, Sync(), exact=True, steps=5), costs).step_seconds


def error(costs: Costs, rows: list) -> float:
    return sum(np.log(trip(costs, row) / row["wall"]) ** 2 for row in rows)


def speeds() -> tuple[float, float]:
    """Speed of a core alone, and of each of two that compute."""
    one, two = raw("alone1"), raw("alone2")
    ratios = []
    for number in range(len(WORKLOADS)):
        single = statistics.median(one[0][number]["compute"])
        ratios += [single / statistics.median(r[number]["compute"]) for r in two]
    return 1.0, min(1.0, float(np.exp(np.mean(np.log(ratios)))))


def workloads() -> dict[str, Workload]:
    """The steps of one worker: its computing beside its store."""
    found = {}
    for row in raw("dist_sync-1")[0]:
        times = np.array(row["compute"])
        median = float(np.median(times))
        # Of the middle: single interruptions are no property of the workload.
        low, high = np.quantile(times, (0.16, 0.84))
        spread = Spread(sigma=round(float(np.log(high / low) / 2), 4))
        name = row["workload"]
        found[name] = Workload(name, median, tuple(sizes(name)), spread=spread)
    return found


def check(costs: Costs, loads: dict[str, Workload]) -> list[dict]:
    """Measured and simulated step times of 1, 2 and 3 workers on this host."""
    rows = []
    for policy in POLICIES:
        for workers in (1, 2, 3):
            for number, name in enumerate(WORKLOADS):
                found = raw(f"{policy}-{workers}")
                measured = statistics.mean(middle(r[number]["step"]) for r in found)
                scenario = scaling.Scenario(
                    loads[name], POLICIES[policy], workers=workers, exact=True, steps=40
                )
                model = scaling.simulate(scenario, costs).step_seconds
                rows.append(
                    {
                        "policy": policy, "workload": name, "workers": workers,
                        "measured": measured, "model": model, "off": model / measured - 1,
                    }
                )  # fmt: skip
    return rows


def middle(times: list[float]) -> float:
    """Mean of the middle four fifths: steps that something else interrupted are left out."""
    low, high = np.quantile(times, (0.1, 0.9))
    return float(np.mean([t for t in times if low <= t <= high]))


def fit() -> dict:
    """Parameters and check, kept and printed."""
    costs, trips = fit_costs()
    loads = workloads()
    rows = check(costs, loads)
    found = {
        "costs": costs.to_json(),
        "workloads": {n: {"seconds": w.seconds, "sizes": w.sizes, "sigma": w.spread.sigma}
                      for n, w in loads.items()},
        "limit": LIMIT,
        "check": rows,
        "trips": trips,
        **benchmarks.facts(1),
    }  # fmt: skip
    TARGET.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(costs.lines()))
    for row in trips:
        print(f"trip {row['keys']:3} keys {row['bytes']:9} B: measured {1e3 * row['wall']:7.2f} ms, "
              f"model {1e3 * row['model']:7.2f}")  # fmt: skip
    for row in rows:
        print(f"{row['policy']:10} {row['workload']:10} {row['workers']} workers: measured "
              f"{1e3 * row['measured']:7.2f} ms, model {1e3 * row['model']:7.2f} "
              f"({100 * row['off']:+.0f} %)")  # fmt: skip
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wrap", default="", help="command that runs each measurement")
    parser.add_argument("--phases", nargs="*", default=list(PHASES), choices=PHASES)
    parser.add_argument("--fit", action="store_true", help="only fit what was measured before")
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.phase:
        measure(args.phase)
        return
    for phase in () if args.fit else args.phases:
        command = [*shlex.split(args.wrap), sys.executable, __file__, "--phase", phase]
        subprocess.run([str(word) for word in command], check=True)
    fit()


if __name__ == "__main__":
    main()
