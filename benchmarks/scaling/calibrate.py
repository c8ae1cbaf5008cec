"""Measures the parameters of the scaling model on one worker, and checks what it says of 2 and 3.

    python benchmarks/scaling/calibrate.py [--wrap "nice"] [--phases trips ...] [--fit]

Writes benchmarks/results/scaling/parameters.json: costs, workloads, the check. --wrap: a command
that runs each measurement (some 5 s each); --fit only fits again what was measured before
(.bench/scaling).
What is measured on more than one worker is only compared with, never fitted to; except that the
computing alone runs twice at once, without any store, to see what two busy cores lose.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
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
from mixflow.kvstore.costs import MESSAGES, Cost, Costs, Spread, Workload  # noqa: E402
from mixflow.kvstore.ledger import SharedLedger  # noqa: E402
from mixflow.kvstore.messages import Configure, Gradient, Init, Push  # noqa: E402
from mixflow.kvstore.options import StoreOptions  # noqa: E402
from mixflow.kvstore.policy import Async, Part, Sync  # noqa: E402
from mixflow.kvstore.server import Shard  # noqa: E402
from mixflow.optimizer.describe import describe  # noqa: E402

RAW = ROOT / ".bench" / "scaling"
TARGET = HERE.parent / "results" / "scaling" / "parameters.json"
CASES = [(k, n) for n in (64, 16_384, 131_072) for k in (1, 8)] + [(32, 64), (1, 900_000)]
STEPS = {"mlp": 300, "lenet": 100, "resnet-20": 30}
LIMIT = 0.15
POLICIES = {"dist_sync": Sync(), "dist_async": Async()}
#: A measurement during which others used more of the processors is made again, so often.
OTHERS, TRIES = 0.03, 6
PHASES = (
    "trips", "close",
    *(f"alone:{n}:{name}" for name in WORKLOADS for n in (1, 2)),
    *(f"{policy}:{n}:{name}" for name in WORKLOADS for policy in POLICIES for n in (1, 2, 3)),
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


def alone(processes: int, name: str) -> list:
    """The computing without a store, in so many processes at once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    at = time.time() + 2.5
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank in range(processes):
            task = {"kind": "alone", "rank": rank, "workload": name, "seconds": 1.5, "at": at}
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


def measure(phase: str) -> float:
    """Runs one measurement, keeps it if it is the least disturbed, and returns the share of the
    processors that others used."""
    if phase == "trips":
        task = {"kind": "trips", "store": "dist_sync", "cases": CASES}
        rows = members(Sync(), 1, {**task, "blocks": 5, "block_seconds": 0.08})
    elif phase == "close":
        rows = [{"found": close(), "others": 0.0}]
    else:
        kind, count, name = phase.split(":")
        if kind == "alone":
            rows = alone(int(count), name)
        else:
            task = {"kind": "training", "store": kind, "workload": name, "steps": STEPS[name]}
            rows = members(POLICIES[kind], int(count), task)
    found = {"rows": [r["found"] for r in rows], "others": max(r["others"] for r in rows)}
    path = RAW / f"{phase}.json"
    if not path.exists() or found["others"] < json.loads(path.read_text())["others"]:
        RAW.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return found["others"]


def measure_quietly(phase: str, wrap: list[str]) -> None:
    """Measures until others leave the machine alone, or `TRIES` times."""
    (RAW / f"{phase}.json").unlink(missing_ok=True)
    for _ in range(TRIES):
        command = [*wrap, sys.executable, __file__, "--phase", phase]
        subprocess.run([str(word) for word in command], check=True)
        if json.loads((RAW / f"{phase}.json").read_text())["others"] <= OTHERS:
            return
    print(f"{phase}: others used the machine", file=sys.stderr)


def raw(phase: str) -> list:
    """What each worker has found."""
    return json.loads((RAW / f"{phase}.json").read_text())["rows"]


def line(columns: list, seconds: list[float], whole: list[float] | None = None) -> list[float]:
    """Factors >= 0 of some columns (one row per measurement) whose sums are `seconds`: least
    squares relative to `whole` (what the seconds are a part of; default: themselves), the best of
    all choices of columns that leaves none negative."""
    scale = np.array(seconds if whole is None else whole)
    scaled, target = np.array(columns, float) / scale[:, None], np.array(seconds) / scale
    best, least = np.zeros(scaled.shape[1]), np.inf
    for chosen in itertools.product((False, True), repeat=scaled.shape[1]):
        part = scaled[:, np.array(chosen)]
        found, *_ = np.linalg.lstsq(part, target, rcond=None)
        off = ((part @ found - target) ** 2).sum()
        if found.min(initial=0) >= 0 and off < least:
            best, least = np.zeros(len(chosen)), off
            best[np.array(chosen)] = found
    return [float(v) for v in best]


def fit_costs() -> Costs:
    """The costs, from round trips of one worker."""
    trips = raw("trips")[0]
    by_kind = {k: [r for r in trips if r["kind"] == k] for k in ("pull", "pushpull")}
    pulls, pushes = by_kind["pull"], by_kind["pushpull"]

    def push_only(what: str) -> list[float]:
        return [p[what] - q[what] for p, q in zip(pushes, pulls, strict=True)]

    pull_columns = [(1, r["keys"], r["bytes"]) for r in pulls]
    push_columns = [(r["keys"], r["bytes"]) for r in pushes]
    whole = {what: [r[what] for r in pushes] for what in ("worker", "server")}
    ends = raw("close")[0]
    closing = Cost(*line([(1, r["bytes"]) for r in ends], [r["end"] - r["wait"] for r in ends]))
    worker_wake, *worker_receive = line(pull_columns, [r["worker"] for r in pulls])
    server_wake, *server_send = line(pull_columns, [r["server"] for r in pulls])
    sent = [s - worker_wake for s in push_only("worker")]  # to send wakes it once more
    taken = [s - closing.of(r["bytes"], r["keys"])
             for r, s in zip(pushes, push_only("server"), strict=True)]  # fmt: skip
    costs = Costs(
        worker_send=Cost(*line(push_columns, sent, whole["worker"])),
        worker_receive=Cost(*worker_receive),
        server_receive=Cost(*line(push_columns, taken, whole["server"])),
        server_close=closing,
        server_send=Cost(*server_send),
        worker_wake=worker_wake,
        server_wake=server_wake,
        cores=os.cpu_count() or 1,
        speed=speeds(),
    )
    loads = [(Workload("trip", 0.0, (r["bytes"] // r["keys"],) * r["keys"]), r["wall"])
             for r in pushes]  # fmt: skip
    return with_hop(costs, loads)


def with_hop(costs: Costs, loads: list) -> Costs:
    """The costs with the `hop` that gives back step times of one worker best."""

    def error(hop: float) -> float:
        made = replace(costs, hop=float(hop))
        return sum(np.log(one_worker(made, load).step_seconds / wall) ** 2 for load, wall in loads)

    return replace(costs, hop=float(min(np.linspace(0, 2e-3, 41), key=error)))


def one_worker(costs: Costs, load: Workload) -> scaling.Outcome:
    """A worker and its server on this host, simulated; a step's median."""
    calm = replace(load, spread=Spread())
    return scaling.simulate(scaling.Scenario(calm, Sync(), exact=True, steps=12), costs)


def fitted(costs: Costs, loads: dict[str, Workload]) -> Costs:
    """One set of costs for everything that is checked and shown: those of the round trips, scaled
    to the processor seconds and step times of one worker that trains (beside computing, messages
    find colder caches): one factor for what a message costs and one for what a byte does, of
    workers and of servers, from all workloads together."""
    rows = {name: raw(f"dist_sync:1:{name}")[0] for name in loads}
    spent = {
        "worker": [r["worker"] - statistics.mean(r["compute"]) for r in rows.values()],
        "server": [r["server"] for r in rows.values()],
    }
    for _ in range(3):  # what is woken how often changes with the costs
        whole = [one_worker(costs, load) for load in loads.values()]
        bare = [one_worker(weighed(costs, who, 1.0, 0.0), load)
                for who in ("worker", "server") for load in loads.values()]  # fmt: skip
        for number, (who, seconds) in enumerate(spent.items()):
            parts = []
            for one, other in zip(whole, bare[number * len(loads) :], strict=False):
                total, messages = (getattr(o, f"{who}_seconds") for o in (one, other))
                parts.append((messages, total - messages))
            costs = weighed(costs, who, *line(parts, seconds))
    return with_hop(costs, [(load, middle(rows[n]["step"])) for n, load in loads.items()])


def weighed(costs: Costs, who: str, message: float, byte: float) -> Costs:
    """The costs with those of workers or servers times a factor each for messages and bytes."""
    changed = {}
    for name in MESSAGES:
        if name.startswith(who):
            cost = getattr(costs, name)
            changed[name] = Cost(message * cost.message, byte * cost.byte)
    wake = f"{who}_wake"
    return replace(costs, **changed, **{wake: message * getattr(costs, wake)})


def speeds() -> tuple[float, float]:
    """Speed of a core alone, and of each of two that compute."""
    ratios = []
    for name in WORKLOADS:
        single = statistics.median(raw(f"alone:1:{name}")[0]["compute"])
        ratios += [single / statistics.median(r["compute"]) for r in raw(f"alone:2:{name}")]
    return 1.0, min(1.0, float(np.exp(np.mean(np.log(ratios)))))


def workloads() -> dict[str, Workload]:
    """The steps of one worker: its computing beside its store."""
    found = {}
    for name in WORKLOADS:
        times = np.array(raw(f"dist_sync:1:{name}")[0]["compute"])
        median = float(np.median(times))
        # Of the middle: single interruptions are no property of the workload.
        low, high = np.quantile(times, (0.16, 0.84))
        spread = Spread(sigma=round(float(np.log(high / low) / 2), 4))
        found[name] = Workload(name, median, tuple(sizes(name)), spread=spread)
    return found


def check(costs: Costs, loads: dict[str, Workload]) -> list[dict]:
    """Step times of 1, 2 and 3 workers on this host, measured and simulated, with the very costs
    that larger figures use."""
    rows = []
    for policy, name in itertools.product(POLICIES, WORKLOADS):
        for workers in (1, 2, 3):
            found = raw(f"{policy}:{workers}:{name}")
            measured = statistics.mean(middle(row["step"]) for row in found)
            scenario = scaling.Scenario(
                loads[name], POLICIES[policy], workers=workers, exact=True, steps=60
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
    loads = workloads()
    costs = fitted(fit_costs(), loads)
    rows = check(costs, loads)
    found = {
        "costs": costs.to_json(),
        "workloads": {n: {"seconds": w.seconds, "sizes": w.sizes, "sigma": w.spread.sigma}
                      for n, w in loads.items()},
        "limit": LIMIT,
        "check": rows,
        **benchmarks.facts(1),
    }  # fmt: skip
    TARGET.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(costs.lines()))
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
        measure_quietly(phase, shlex.split(args.wrap))
    fit()


if __name__ == "__main__":
    main()
