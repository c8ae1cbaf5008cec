"""Measures the parameters of the scaling model on one worker, and checks what it says of 2 and 3.

    python benchmarks/scaling/calibrate.py [--case mlp ...] [--runs 3] [--wrap "nice"] [--fit]

Writes benchmarks/results/scaling/parameters.json: costs, workloads, the check. Everything is
measured in turn, --runs times; of each measurement the median run counts. --case measures only
what is of some networks, and what belongs to none where it was never measured; other rows stay.
--wrap: a command that runs each measurement (some 3 s each); --fit only fits again what was
measured before (.bench/scaling).
What is measured on more than one worker is only compared with, never fitted to; except that the
computing alone runs twice at once, without any store, to see what two busy cores lose.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]
from workloads import WORKLOADS, sizes  # noqa: E402

import mixflow as mx  # noqa: E402
import run as benchmarks  # noqa: E402 - facts on the machine
from mixflow.files import write_atomically  # noqa: E402
from mixflow.kvstore.job.cluster import Job, JobOptions, LocalSpawner  # noqa: E402
from mixflow.kvstore.options import StoreOptions  # noqa: E402
from mixflow.kvstore.protocol.messages import Configure, Gradient, Init, Push  # noqa: E402
from mixflow.kvstore.protocol.policy import Async, Bounded, Part, Sync  # noqa: E402
from mixflow.kvstore.server.appliers import Optimizing  # noqa: E402
from mixflow.kvstore.server.ledger import SharedLedger  # noqa: E402
from mixflow.kvstore.server.shard import Shard  # noqa: E402
from mixflow.kvstore.simulation import scaling  # noqa: E402
from mixflow.kvstore.simulation.costs import MESSAGES, Cost, Costs, Spread, Workload  # noqa: E402
from mixflow.optimizer.describe import describe  # noqa: E402

RAW = ROOT / ".bench" / "scaling"
TARGET = HERE.parent / "results" / "scaling" / "parameters.json"
CASES = [(k, n) for n in (64, 16_384, 131_072) for k in (1, 8)] + [(32, 64), (1, 900_000)]
STEPS = {"mlp": 300, "lenet": 100, "resnet-20": 30}
LIMIT = 0.15
#: Endings of files of runs: the last measurement that was ended, and one that is under way.
KEPT, NEW = ".json", ".new.json"
POLICIES = {"dist_sync": Sync(), "dist_async": Async(), "dist_ssp": Bounded(3)}
#: Those whose costs are measured: with rounds and without.
KINDS = ("dist_sync", "dist_async")
#: How many processes compute beside one worker and its server.
BESIDE = (1, 2)
#: A measurement during which others used more of the processors is made again, so often at most.
OTHERS, TRIES = 0.03, 2
#: Runs of each measurement; the median one counts.
RUNS = 3
#: Measurements of one worker (or none), to which the model is fitted, and those that it foretells.
FITTED = (
    *(f"trips:{policy}" for policy in KINDS), "close", "notes",
    *(f"alone:{n}:{name}" for name in WORKLOADS for n in (1, 2, 3)),
    *(f"{policy}:1:{name}" for name in WORKLOADS for policy in POLICIES),
    *(f"beside:{n}:{name}:{policy}" for name in WORKLOADS for policy in KINDS for n in BESIDE),
)  # fmt: skip
FORETOLD = tuple(f"{p}:{n}:{name}" for n in (2, 3) for name in WORKLOADS for p in POLICIES)
PHASES = (*FITTED, *FORETOLD)


class Apart(LocalSpawner):
    """Workers and servers of this machine that believe to be on hosts of their own: they speak as
    over a network, not by shared memory, and nothing is merged before it leaves."""

    def worker(self, rank, command, env, folder=None):
        """See `Spawner`."""
        return super().worker(rank, command, {**env, "DMLC_NODE_HOST": f"far{rank}"}, folder)


def members(policy, workers: int, task: dict) -> list:
    """What each worker of a job has found."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, HERE / "member.py", json.dumps(task), folder]
        store = StoreOptions(policy=policy, deadline=30.0)
        job = Job(
            [str(word) for word in command], JobOptions(workers, 1, store, deadline=60.0), Apart()
        )
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
            running.append(subprocess.Popen(command, env=environment, start_new_session=True))
        if any(process.wait(60) for process in running):
            raise SystemExit("a process failed")
        return [json.loads((Path(folder) / f"rank{r}.json").read_text()) for r in range(processes)]


@contextlib.contextmanager
def computing(processes: int, name: str) -> Iterator[None]:
    """So many processes that compute all the time, without a store."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, HERE / "member.py", json.dumps({"kind": "beside", "workload": name})]
    running = [
        subprocess.Popen([*command, ""], env=environment, start_new_session=True)
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait(10)


def training(store: str, name: str) -> dict:
    """The task of workers that train."""
    return {"kind": "training", "store": store, "workload": name, "steps": STEPS[name]}


def close() -> list:
    """Seconds that a shard takes for a push that waits in its round, for one that ends it, and for
    one that is applied at once."""
    rows = []
    for elements in (64, 16_384, 131_072, 900_000):
        gradient = np.ones(elements, np.float32)
        wait, end = pushes(Sync(), gradient)
        rows.append({"bytes": gradient.nbytes, "wait": wait, "end": end,
                     "apply": statistics.mean(pushes(Async(), gradient))})  # fmt: skip
    return rows


def pushes(policy, values) -> list[float]:
    """Seconds of a push of the first and of the second of two workers."""
    folder = tempfile.mkdtemp(dir="/dev/shm")
    shard = Shard("s", policy, Optimizing(), workers=2, ledger=SharedLedger(folder))
    optimizer = describe(mx.optimizer.create("sgd", learning_rate=1e-6, momentum=0.9))
    shard.handle(Configure("w", 1, "optimizer", optimizer), 0.0)
    shard.handle(Init("w", 2, {"0/0": np.zeros_like(values)}), 0.0)
    times: list[list[float]] = [[], []]
    for step in range(40):
        for worker in (0, 1):
            push = Push(f"w{worker}", 3 + step, {"0/0": Gradient((Part(worker, step),), values)})
            begin = time.perf_counter()
            shard.handle(push, 0.0)
            times[worker].append(time.perf_counter() - begin)
    shutil.rmtree(folder)
    return [statistics.median(some) for some in times]


def measure(phase: str) -> float:
    """Runs one measurement, keeps it beside those before, and returns the share of the processors
    that others used."""
    if phase.startswith("trips:"):
        kind = phase.removeprefix("trips:")
        task = {"kind": "trips", "store": kind, "cases": CASES}
        rows = members(POLICIES[kind], 1, {**task, "blocks": 5, "block_seconds": 0.08})
    elif phase == "notes":
        task = {"kind": "notes", "store": "dist_sync", "block_seconds": 0.1, "blocks": 5}
        rows = members(Sync(), 1, task)
    elif phase == "close":
        rows = [{"found": close(), "others": 0.0}]
    else:
        kind, count, name, *store = phase.split(":")
        if kind == "alone":
            rows = alone(int(count), name)
        elif kind == "beside":
            with computing(int(count), name):
                rows = members(POLICIES[store[0]], 1, training(store[0], name))
        else:
            rows = members(POLICIES[kind], int(count), training(kind, name))
    facts = benchmarks.facts(1)
    found = {"rows": [r["found"] for r in rows], "others": max(r["others"] for r in rows),
             "commit": facts["commit"], "date": facts["date"]}  # fmt: skip
    runs = [*runs_of(phase, NEW), found]
    RAW.mkdir(parents=True, exist_ok=True)
    write_atomically(RAW / f"{phase}{NEW}", json.dumps({"runs": runs}).encode())
    return found["others"]


def runs_of(phase: str, ending: str = KEPT) -> list[dict]:
    """Every run of a measurement: of the last one that was ended, or of the one under way."""
    path = RAW / f"{phase}{ending}"
    return json.loads(path.read_text())["runs"] if path.exists() else []


def calm_count(phase: str) -> int:
    """Runs of the measurement under way that others left alone."""
    return sum(run["others"] <= OTHERS for run in runs_of(phase, NEW))


def measure_in_turn(phases: list[str], wrap: list[str], count: int) -> None:
    """Measures everything once, then once more: where processes come to lie differs from start to
    start, and this machine's speed by a fifth from minute to minute, which must not hit the costs
    and what they foretell apart. Again where others used the machine, but not for ever. What was
    measured before stays until the end."""
    for phase in phases:
        (RAW / f"{phase}{NEW}").unlink(missing_ok=True)
    for _ in range(count + TRIES):
        left = [phase for phase in phases if calm_count(phase) < count]
        if not left:
            break
        for phase in left:
            command = [*wrap, sys.executable, __file__, "--phase", phase]
            subprocess.run([str(word) for word in command], check=True)
        print(f"{sum(map(calm_count, phases))} calm runs", flush=True)
    for phase in phases:
        (RAW / f"{phase}{NEW}").replace(RAW / f"{phase}{KEPT}")


def calm_runs(phase: str) -> list[dict]:
    """The runs of a measurement that nobody disturbed, or the least disturbed one, the fastest
    first.

    Raises:
        SystemExit: it was never made.
    """
    runs = runs_of(phase)
    if not runs:
        raise SystemExit(f"expected {phase} to be measured, got no run in {RAW}")
    calm = [run for run in runs if run["others"] <= OTHERS] or [
        min(runs, key=lambda run: run["others"])
    ]
    return sorted(calm, key=speed_of)


def raw(phase: str) -> list:
    """What each worker has found: the run of the median step."""
    calm = calm_runs(phase)
    return list(calm[len(calm) // 2]["rows"])


def speed_of(run: dict) -> float:
    """What the runs of a measurement are ordered by: seconds of a step, or all that was timed."""
    first = run["rows"][0]
    if isinstance(first, dict):
        return middle(first["step"] if "step" in first else first["compute"])
    return sum(row[name] for row in first for name in ("wall", "end") if name in row)


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
    trips = [{**row, "policy": kind} for kind in KINDS for row in raw(f"trips:{kind}")[0]]
    pulls, pushes = ([r for r in trips if r["kind"] == k] for k in ("pull", "pushpull"))

    def push_only(what: str) -> list[float]:
        return [p[what] - q[what] for p, q in zip(pushes, pulls, strict=True)]

    pull_columns = [(1, r["keys"], r["bytes"]) for r in pulls]
    push_columns = [(r["keys"], r["bytes"]) for r in pushes]
    whole = {what: [r[what] for r in pushes] for what in ("worker", "server")}
    updates = {kind: update(what) for kind, what in zip(KINDS, ("end", "apply"), strict=True)}
    notes = {who: note(who) for who in whole}
    worker_wake, *worker_receive = line(pull_columns, [r["worker"] for r in pulls])
    server_wake, *server_send = line(pull_columns, [r["server"] for r in pulls])
    sent = [s - worker_wake - notes["worker"] * r["keys"]  # to send wakes it once more
            for r, s in zip(pushes, push_only("worker"), strict=True)]  # fmt: skip
    taken = [s - updates[r["policy"]].of(r["bytes"], r["keys"]) - notes["server"] * r["keys"]
             for r, s in zip(pushes, push_only("server"), strict=True)]  # fmt: skip
    return Costs(
        worker_send=Cost(*line(push_columns, sent, whole["worker"])),
        worker_receive=Cost(*worker_receive),
        server_receive=Cost(*line(push_columns, taken, whole["server"])),
        server_close=updates["dist_sync"],
        server_apply=updates["dist_async"],
        server_send=Cost(*server_send),
        worker_note=notes["worker"],
        server_note=notes["server"],
        worker_wake=worker_wake,
        server_wake=server_wake,
        cores=os.cpu_count() or 1,
        company=company(),
        **speeds(),
    )


def note(who: str) -> float:
    """Seconds of a confirmation: half of what a message of no content and its answer cost the
    worker or the server in a burst, beyond those of one alone."""
    one, many = raw("notes")[0]
    return float((many[who] - one[who]) / (many["count"] - one["count"]) / 2)


def company() -> float:
    """Speed of messages beside a process that computes: of one worker and its server, by the
    processor time that is no computing."""
    ratios = []
    for name, kind in itertools.product(WORKLOADS, KINDS):
        alone, beside = (
            found["worker"] + found["server"] - statistics.mean(found["compute"])
            for found in (raw(f"{kind}:1:{name}")[0], raw(f"beside:1:{name}:{kind}")[0])
        )
        ratios.append(alone / beside)
    return min(1.0, float(np.exp(np.mean(np.log(ratios)))))


def update(what: str) -> Cost:
    """Cost of an update: of a push that makes one beyond a push that waits."""
    ends = raw("close")[0]
    return Cost(*line([(1, r["bytes"]) for r in ends], [r[what] - r["wait"] for r in ends]))


def with_hop(costs: Costs, loads: list) -> Costs:
    """The costs with the `hop` that gives back step times of one worker best."""

    def error(hop: float) -> float:
        made = replace(costs, hop=float(hop))
        found = [one_worker(made, load, kind).step_seconds / wall for load, kind, wall in loads]
        return sum(np.log(found) ** 2)

    coarse = min(np.linspace(0, 6e-4, 7), key=error)
    fine = min((max(0.0, coarse + part) for part in np.linspace(-8e-5, 8e-5, 9)), key=error)
    return replace(costs, hop=float(fine))


def one_worker(costs: Costs, load: Workload, kind: str) -> scaling.Outcome:
    """A worker and its server on this host, simulated."""
    calm = replace(load, spread=Spread())
    scenario = scaling.Scenario(calm, POLICIES[kind], exact=True, steps=12)
    return scaling.simulate(scenario, costs)


def fitted(costs: Costs, loads: dict[str, Workload]) -> Costs:
    """One set of costs for everything that is checked and shown: those of the round trips, scaled
    to the processor seconds and step times of one worker that trains (beside computing, messages
    find colder caches): one factor for what a message costs and one for what a byte does, of
    workers and of servers, from all workloads and both kinds of policies together."""
    rows = {(name, kind): raw(f"{kind}:1:{name}")[0] for name in loads for kind in KINDS}
    spent = {
        "worker": [r["worker"] - statistics.mean(r["compute"]) for r in rows.values()],
        "server": [r["server"] for r in rows.values()],
    }
    for _ in range(3):  # what is woken how often changes with the costs
        factors = {}
        whole = [one_worker(costs, loads[name], kind) for name, kind in rows]
        for who, seconds in spent.items():
            parts = []
            for (name, kind), one in zip(rows, whole, strict=True):
                bare = one_worker(weighed(costs, who, 1.0, 0.0), loads[name], kind)
                total, messages = (getattr(o, f"{who}_seconds") for o in (one, bare))
                parts.append((messages, total - messages))
            factors[who] = line(parts, seconds)
        for who, pair in factors.items():
            costs = weighed(costs, who, *pair)
    return with_hop(costs, [(loads[n], k, middle(r["step"])) for (n, k), r in rows.items()])


def weighed(costs: Costs, who: str, message: float, byte: float) -> Costs:
    """The costs with those of workers or servers times a factor each for messages and bytes."""
    changed = {}
    for name in MESSAGES:
        if name.startswith(who):
            cost = getattr(costs, name)
            changed[name] = Cost(message * cost.message, byte * cost.byte)
    for name in (f"{who}_wake", f"{who}_note"):
        changed[name] = message * getattr(costs, name)
    return replace(costs, **changed)


def speeds() -> dict:
    """Speed of a core alone, of each of two that compute, and what is left of it when three
    processes take turns."""
    ratios = {}
    for count in (2, 3):
        found = []
        for name in WORKLOADS:
            single = statistics.mean(raw(f"alone:1:{name}")[0]["compute"])
            each = [statistics.mean(r["compute"]) for r in raw(f"alone:{count}:{name}")]
            found.append(np.mean([single / seconds for seconds in each]) * count / 2)
        ratios[count] = float(np.exp(np.mean(np.log(found))))
    pair = min(1.0, ratios[2])
    return {"speed": (1.0, pair), "crowded": min(1.0, ratios[3] / pair)}


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
    """Step times of 1, 2 and 3 workers on this host, measured (where they are) and simulated, with
    the very costs that larger figures use."""
    cases = itertools.product(POLICIES, WORKLOADS, (1, 2, 3))
    return [checked(costs, loads, *case) for case in cases if runs_of("{0}:{2}:{1}".format(*case))]


def checked(costs: Costs, loads: dict[str, Workload], policy: str, name: str, workers: int) -> dict:
    """The row of a job."""
    phase = f"{policy}:{workers}:{name}"
    measured = statistics.mean(middle(row["step"]) for row in raw(phase))
    calm = calm_runs(phase)
    model = foretold(costs, loads[name], policy, workers=workers)
    return {
        "policy": policy, "workload": name, "workers": workers,
        "measured": measured, "model": model, "off": model / measured - 1,
        "runs": len(calm), "spread": speed_of(calm[-1]) / speed_of(calm[0]) - 1,
        **{k: calm[-1][k] for k in ("commit", "date") if k in calm[-1]},
    }  # fmt: skip


def foretold(costs: Costs, load: Workload, policy: str, **scenario: int) -> float:
    """Seconds of a step on this host, simulated as it is measured: as many steps and runs, since
    two workers are faster or slower for a while by where their threads come to lie."""
    made = scaling.Scenario(load, POLICIES[policy], exact=True, steps=STEPS[load.name], **scenario)
    return statistics.mean(scaling.simulate(made, costs, n).step_seconds for n in range(RUNS))


def crowds(costs: Costs, loads: dict[str, Workload]) -> list[dict]:
    """Step times of one worker beside processes that compute all the time, measured and
    simulated: what two and three workers do to each other's turns, without their messages."""
    rows = []
    for policy, name, beside in itertools.product(KINDS, WORKLOADS, BESIDE):
        measured = middle(raw(f"beside:{beside}:{name}:{policy}")[0]["step"])
        model = foretold(costs, loads[name], policy, beside=beside)
        rows.append(
            {
                "policy": policy, "workload": name, "beside": beside,
                "measured": measured, "model": model, "off": model / measured - 1,
            }
        )  # fmt: skip
    return rows


def middle(times: list[float]) -> float:
    """Mean of the middle four fifths: steps that something else interrupted are left out."""
    low, high = np.quantile(times, (0.1, 0.9))
    return float(np.mean([t for t in times if low <= t <= high]))


def fit() -> dict:
    """Parameters and check, kept."""
    loads = workloads()
    costs = fitted(fit_costs(), loads)
    found = {
        "costs": costs.to_json(),
        "workloads": {n: {"seconds": w.seconds, "sizes": w.sizes, "sigma": w.spread.sigma}
                      for n, w in loads.items()},
        "limit": LIMIT,
        "check": check(costs, loads),
        "beside": crowds(costs, loads),
        **benchmarks.facts(1),
    }  # fmt: skip
    keep(found)
    return found


def keep(found: dict) -> None:
    """Writes the parameters."""
    write_atomically(TARGET, (json.dumps(found, indent=1) + "\n").encode())


def foretell(found: dict, phase: str) -> None:
    """The row of a job that was just measured, in the place of an older one."""
    policy, workers, name = phase.split(":")
    row = checked(Costs.from_json(found["costs"]), workloads(), policy, name, int(workers))
    kept = [r for r in found["check"] if (r["policy"], r["workload"], r["workers"])
            != (policy, name, int(workers))]  # fmt: skip
    places = list(itertools.product(POLICIES, WORKLOADS, (1, 2, 3)))
    found["check"] = sorted(
        [*kept, row], key=lambda r: places.index((r["policy"], r["workload"], r["workers"]))
    )
    keep(found)
    print(told(row), flush=True)


def told(row: dict) -> str:
    """A row of the check in a line."""
    how = f"1 beside {row['beside']}" if "beside" in row else f"{row['workers']} workers"
    runs = f"; {row['runs']} runs, {100 * row['spread']:.0f} % apart" if "runs" in row else ""
    over = " MISSED" if row.get("workers", 1) > 1 and abs(row["off"]) > LIMIT else ""
    return (f"{row['policy']:10} {row['workload']:10} {how:10}: measured "
            f"{1e3 * row['measured']:7.2f} ms, model {1e3 * row['model']:7.2f} "
            f"({100 * row['off']:+.0f} %{runs}){over}")  # fmt: skip


def report(found: dict) -> None:
    """Prints the costs, the table, and what it says of each policy."""
    print("\n".join(Costs.from_json(found["costs"]).lines()))
    print("\n".join(told(row) for row in [*found["check"], *found["beside"]]))
    for policy in POLICIES:
        rows = [r for r in found["check"] if r["policy"] == policy and r["workers"] > 1]
        worst = max((abs(r["off"]) for r in rows), default=float("inf"))
        verdict = "larger figures may be shown" if worst <= LIMIT else "nothing larger is shown"
        print(f"{policy}: {len(rows)} of {2 * len(WORKLOADS)} rows, at most {100 * worst:.0f} % "
              f"off (limit {100 * LIMIT:.0f} %): {verdict}")  # fmt: skip


def wanted(phase: str, cases: list[str]) -> bool:
    """Whether a measurement is to be made: of some networks, or what was never made."""
    networks = [name for name in WORKLOADS if name in phase.split(":")]
    if not cases or not runs_of(phase):
        return True
    return any(name in cases for name in networks)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", nargs="*", default=[], choices=WORKLOADS, help="networks")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each measurement")
    parser.add_argument("--wrap", default="", help="command that runs each measurement")
    parser.add_argument("--phases", nargs="*", default=list(PHASES), choices=PHASES)
    parser.add_argument("--fit", action="store_true", help="only fit what was measured before")
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.phase:
        measure(args.phase)
        return
    chosen = [p for p in args.phases if not args.fit and wanted(p, args.case)]
    wrap = shlex.split(args.wrap)
    measure_in_turn(chosen, wrap, args.runs)
    found = fit()
    for phase in chosen:
        if phase in FORETOLD:
            foretell(found, phase)
    report(found)


if __name__ == "__main__":
    main()
