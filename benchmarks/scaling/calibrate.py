"""Measures the parameters of the scaling model on one worker, and checks what it says of 2 and 3.

    python benchmarks/scaling/calibrate.py [--case mlp ...] [--wrap "nice"] [--fit]

Writes benchmarks/results/scaling/parameters.json: costs, workloads, the check. Everything is
measured in turn, until enough of it was measured while all cores were at full speed (`measure.py`).
--case measures only what is of some networks, and what belongs to none where it was never measured;
other rows stay.
--wrap: a command that runs each measurement (some 3 s each); --fit only fits again what was
measured before (.bench/scaling).
What is measured on more than one worker is only compared with, never fitted to; except that the
computing alone runs twice at once, without any store, to see what two busy cores lose.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from measure import (  # noqa: E402
    BESIDE,
    KINDS,
    PHASES,
    POLICIES,
    calm_runs,
    measure_in_turn,
    middle,
    raw,
    runs_of,
)  # fmt: skip
from workloads import WORKLOADS, sizes  # noqa: E402

import run as benchmarks  # noqa: E402 - facts on the machine
from mixflow.files import write_atomically  # noqa: E402
from mixflow.kvstore.simulation import scaling  # noqa: E402
from mixflow.kvstore.simulation.costs import MESSAGES, Cost, Costs, Spread, Workload  # noqa: E402

TARGET = HERE.parent / "results" / "scaling" / "parameters.json"
LIMIT = 0.15
SIMULATED = 100  # steps


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
    wakes, back = {}, {}
    for who in whole:
        wakes[who], message, byte = line(pull_columns, [r[who] for r in pulls])
        # A pull is asked for by a message of no content, which costs what a confirmation does: the
        # rest is the answer's. What a push costs more than a pull comes on top of the question.
        back[who] = Cost(max(0.0, message - notes[who]), byte)
    # To send wakes a worker once more. The confirmation of a push comes besides.
    sent = [s - wakes["worker"] for s in push_only("worker")]
    taken = [s - updates[r["policy"]].of(r["bytes"], r["keys"]).seconds
             for r, s in zip(pushes, push_only("server"), strict=True)]  # fmt: skip
    return Costs(
        worker_send=Cost(*line(push_columns, sent, whole["worker"])),
        worker_receive=back["worker"],
        server_receive=Cost(*line(push_columns, taken, whole["server"])),
        server_close=updates["dist_sync"],
        server_apply=updates["dist_async"],
        server_send=back["server"],
        worker_note=notes["worker"],
        server_note=notes["server"],
        worker_wake=wakes["worker"],
        server_wake=wakes["server"],
        cores=os.cpu_count() or 1,
        **speeds(),
    )


def note(who: str) -> float:
    """Seconds of a confirmation: half of what a message of no content and its answer cost the
    worker or the server in a burst, beyond those of one alone."""
    one, many = raw("notes")[0]
    return float((many[who] - one[who]) / (many["count"] - one["count"]) / 2)


def in_company(costs: Costs, loads: dict[str, Workload]) -> Costs:
    """The costs with the speed of handling messages beside processes that compute, by the processor
    time of one worker and its server that is no computing: of the worker, which has its core to
    itself beside one of them; and of the server then, and of both beside two, which share cores."""
    alone, shared = [], []
    for name, kind in itertools.product(loads, KINDS):
        calm, one, two = (
            raw(phase)[0]
            for phase in (f"{kind}:1:{name}", *(f"beside:{n}:{name}:{kind}" for n in BESIDE))
        )
        computing = {"worker": statistics.mean(calm["compute"]), "server": 0.0}

        def speed(who: str, beside: dict, name=name, kind=kind, calm=calm, of=computing) -> float:
            whole, bare = (
                getattr(one_worker(made, loads[name], kind), f"{who}_seconds")
                for made in (costs, weighed(costs, who, 1.0, 0.0))
            )
            quiet = calm[who] - of[who]
            handling = quiet * bare / whole
            return handling / (beside[who] - of[who] - (quiet - handling))

        alone.append(speed("worker", one))
        shared += [speed("server", one), speed("worker", two), speed("server", two)]
    return replace(costs, company=typical(alone), shared=typical(shared))


def typical(ratios: list[float]) -> float:
    """The geometric mean of speeds, at most 1."""
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
        ratios[count] = typical(found)
    pair = ratios[2]
    return {"speed": (1.0, pair), "crowded": min(1.0, ratios[3] / pair)}


def workloads() -> dict[str, Workload]:
    """The steps of one worker: its computing beside its store."""
    found = {}
    for name in WORKLOADS:
        times = np.concatenate([raw(f"{kind}:1:{name}")[0]["compute"] for kind in POLICIES])
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
    runs = [run["rows"][0]["step"] for run in calm_runs(phase)]
    means = [middle(steps) for steps in runs if len(steps) >= 10] or [1.0]
    model = foretold(costs, loads[name], policy, workers=workers)
    return {
        "policy": policy, "workload": name, "workers": workers,
        "measured": measured, "model": model, "off": model / measured - 1,
        "runs": len(runs), "steps": sum(map(len, runs)), "spread": max(means) / min(means) - 1,
        **{k: calm_runs(phase)[-1][k] for k in ("commit", "date")},
    }  # fmt: skip


def foretold(costs: Costs, load: Workload, policy: str, **scenario: int) -> float:
    """Seconds of a step on this host."""
    made = scaling.Scenario(load, POLICIES[policy], exact=True, steps=SIMULATED, **scenario)
    return scaling.simulate(made, costs).step_seconds


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


def fit() -> dict:
    """Parameters and check, kept."""
    loads = workloads()
    costs = in_company(fitted(fit_costs(), loads), loads)
    found = {
        "costs": costs.to_json(),
        "workloads": {n: {"seconds": w.seconds, "sizes": w.sizes, "sigma": w.spread.sigma}
                      for n, w in loads.items()},
        "limit": LIMIT,
        "check": check(costs, loads),
        "beside": crowds(costs, loads),
        **benchmarks.facts(1),
    }  # fmt: skip
    write_atomically(TARGET, (json.dumps(found, indent=1) + "\n").encode())
    return found


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
    parser.add_argument("--wrap", default="", help="command that runs each measurement")
    parser.add_argument("--phases", nargs="*", default=list(PHASES), choices=PHASES)
    parser.add_argument("--fit", action="store_true", help="only fit what was measured before")
    args = parser.parse_args()
    chosen = [p for p in args.phases if not args.fit and wanted(p, args.case)]
    wrap = shlex.split(args.wrap)
    measure_in_turn(chosen, wrap)
    report(fit())


if __name__ == "__main__":
    main()
