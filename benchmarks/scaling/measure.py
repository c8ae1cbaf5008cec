"""Runs the measurements of the scaling model, and keeps every run (`.bench/scaling`).

    python benchmarks/scaling/measure.py PHASE    # one of `PHASES`; calibrate.py runs them all

The hazard: costs and what they foretell that come from a machine of another speed. So everything is
measured in turn, and only what was measured while all cores were at full speed is kept (`pace.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]
from pace import Pace  # noqa: E402
from workloads import WORKLOADS  # noqa: E402

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
from mixflow.optimizer.describe import describe  # noqa: E402

RAW = ROOT / ".bench" / "scaling"
CASES = [(k, n) for n in (64, 16_384, 131_072) for k in (1, 8)] + [(32, 64), (1, 900_000)]
STEPS = {"mlp": 600, "lenet": 200, "resnet-20": 60}
#: Steps, and blocks of other things, that have to be measured while all cores are at full speed.
NEEDED, BLOCKS = {"mlp": 150, "lenet": 50, "resnet-20": 20}, 4
#: Endings of files of runs: the last measurement that was ended, and one that is under way.
KEPT, NEW = ".json", ".new.json"
POLICIES = {"dist_sync": Sync(), "dist_async": Async(), "dist_ssp": Bounded(3)}
#: Those whose costs are measured: with rounds and without.
KINDS = ("dist_sync", "dist_async")
#: How many processes compute beside one worker and its server.
BESIDE = (1, 2)
#: A run during which others used more of the processors does not count. Each measurement is made
#: `RUNS` times, and again until there is enough of it, so often at most.
OTHERS, RUNS, TRIES = 0.03, 2, 12
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
    over a network, not by shared memory, and nothing is merged before it leaves. Each keeps to one
    core, as if it were its host's: they are dealt in turn, after `beside` others, workers first."""

    def __init__(self, workers: int, beside: int = 0) -> None:
        super().__init__()
        self._workers, self._beside = workers, beside

    def worker(self, rank, command, env, folder=None):
        """See `Spawner`."""
        made = super().worker(rank, command, {**env, "DMLC_NODE_HOST": f"far{rank}"}, folder)
        keep_to_core(made.pid, self._beside + rank)
        return made

    def server(self, task, host="host0"):
        """See `Spawner`; of the jobs here there is one."""
        made = super().server(task, host)
        keep_to_core(made.pid, self._beside + self._workers)
        return made


def keep_to_core(pid: int, number: int) -> None:
    """Keeps a process that has just begun to its core: they are dealt in turn."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {cores[number % len(cores)]})


def members(policy, workers: int, task: dict, beside: int = 0) -> list:
    """What each worker of a job has found."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, HERE / "member.py", json.dumps(task), folder]
        store = StoreOptions(policy=policy, deadline=30.0)
        options = JobOptions(workers, 1, store, deadline=60.0)
        job = Job([str(word) for word in command], options, Apart(workers, beside))
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
            keep_to_core(running[-1].pid, rank)
        if any(process.wait(60) for process in running):
            raise SystemExit("a process failed")
        return [json.loads((Path(folder) / f"rank{r}.json").read_text()) for r in range(processes)]


@contextlib.contextmanager
def computing(processes: int, name: str) -> Iterator[None]:
    """So many processes that compute all the time, without a store."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, HERE / "member.py", json.dumps({"kind": "beside", "workload": name})]
    running = []
    for number in range(processes):
        running.append(subprocess.Popen([*command, ""], env=environment, start_new_session=True))
        keep_to_core(running[-1].pid, number)
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
    """When a shard handled pushes that wait in their round, that end it, and that are applied at
    once."""
    rows: list[dict] = []
    for _ in range(8):
        found = []
        for elements in (64, 16_384, 131_072, 900_000):
            gradient = np.ones(elements, np.float32)
            (wait, end), (one, other) = pushes(Sync(), gradient), pushes(Async(), gradient)
            found.append({"bytes": gradient.nbytes, "wait": wait, "end": end, "apply": one + other})
        rows = pooled([rows, found]) if rows else found
        time.sleep(0.3)  # another moment: the machine's speed changes
    return rows


def pushes(policy, values) -> list[list[tuple[float, float]]]:
    """When the pushes of the first and of the second of two workers were handled."""
    folder = tempfile.mkdtemp(dir="/dev/shm")
    shard = Shard("s", policy, Optimizing(), workers=2, ledger=SharedLedger(folder))
    optimizer = describe(mx.optimizer.create("sgd", learning_rate=1e-6, momentum=0.9))
    shard.handle(Configure("w", 1, "optimizer", optimizer), 0.0)
    shard.handle(Init("w", 2, {"0/0": np.zeros_like(values)}), 0.0)
    spans: list[list[tuple[float, float]]] = [[], []]
    for step in range(40):
        for worker in (0, 1):
            push = Push(f"w{worker}", 3 + step, {"0/0": Gradient((Part(worker, step),), values)})
            begin = time.monotonic()
            shard.handle(push, 0.0)
            spans[worker].append((begin, time.monotonic()))
    shutil.rmtree(folder)
    return spans


def sifted(row: dict, pace: Pace) -> dict:
    """What of a row was measured at full speed: of the lists beside `span` the entries of good
    spans, of lists of spans how long the good ones are."""
    spans = row.get("span")
    kept = {}
    for name, values in row.items():
        if not isinstance(values, list):
            kept[name] = values
        elif spans is None:
            good = pace.kept(values)
            kept[name] = [end - begin for (begin, end), ok in zip(values, good, strict=True) if ok]
        elif name != "span":
            kept[name] = list(itertools.compress(values, pace.kept(spans)))
    return kept


def measure(phase: str) -> None:
    """Runs one measurement, and keeps what of it was made at full speed beside those before."""
    pace = Pace(fastest())
    with pace:
        rows = measured(phase)
    (RAW / "fastest").write_text(repr(pace.fastest))
    found = [
        [sifted(one, pace) for one in row["found"]]
        if isinstance(row["found"], list)
        else sifted(row["found"], pace)
        for row in rows
    ]
    facts = benchmarks.facts(1)
    run = {"rows": found, "others": max(r["others"] for r in rows),
           "commit": facts["commit"], "date": facts["date"]}  # fmt: skip
    runs = [*runs_of(phase, NEW), run]
    write_atomically(RAW / f"{phase}{NEW}", json.dumps({"runs": runs}).encode())


def fastest() -> float:
    """Seconds of a probe's piece of work at full speed, as far as it was ever seen here."""
    RAW.mkdir(parents=True, exist_ok=True)
    path = RAW / "fastest"
    return float(path.read_text()) if path.exists() else float("inf")


def measured(phase: str) -> list[dict]:
    """Runs one measurement: what each worker has found, and the share of the processors that
    others used."""
    if phase.startswith("trips:"):
        kind = phase.removeprefix("trips:")
        task = {"kind": "trips", "store": kind, "cases": CASES}
        return members(POLICIES[kind], 1, {**task, "blocks": 16, "block_seconds": 0.04})
    if phase == "notes":
        task = {"kind": "notes", "store": "dist_sync", "block_seconds": 0.05, "blocks": 16}
        return members(Sync(), 1, task)
    if phase == "close":
        return [{"found": close(), "others": 0.0}]
    kind, count, name, *store = phase.split(":")
    if kind == "alone":
        return alone(int(count), name)
    if kind == "beside":
        with computing(int(count), name):
            return members(POLICIES[store[0]], 1, training(store[0], name), int(count))
    return members(POLICIES[kind], int(count), training(kind, name))


def runs_of(phase: str, ending: str = KEPT) -> list[dict]:
    """Every run of a measurement: of the last one that was ended, or of the one under way."""
    path = RAW / f"{phase}{ending}"
    return json.loads(path.read_text())["runs"] if path.exists() else []


def calm_runs(phase: str, ending: str = KEPT) -> list[dict]:
    """The runs of a measurement that nobody disturbed."""
    return [run for run in runs_of(phase, ending) if run["others"] <= OTHERS]


def pooled(rows: list) -> Any:
    """Rows of the same thing as one: lists (of rows, or of values) are joined."""
    if isinstance(rows[0], list):
        return [pooled(list(same)) for same in zip(*rows, strict=True)]
    return {
        name: [v for row in rows for v in row[name]] if isinstance(value, list) else value
        for name, value in rows[0].items()
    }


def size(row: Any) -> int:
    """The least that a row has of anything."""
    if isinstance(row, list):
        return min(map(size, row))
    return min(len(values) for values in row.values() if isinstance(values, list))


def rows_of(phase: str, ending: str = KEPT) -> list:
    """What each worker has found, of all calm runs together."""
    runs = [run["rows"] for run in calm_runs(phase, ending)]
    return [pooled(list(same)) for same in zip(*runs, strict=True)]


def is_enough(phase: str) -> bool:
    """Whether the measurement under way has all that is needed."""
    rows = rows_of(phase, NEW)
    needed = next((n for name, n in NEEDED.items() if name in phase.split(":")), BLOCKS)
    return bool(rows) and min(map(size, rows)) >= needed


def measure_in_turn(phases: list[str], wrap: list[str]) -> None:
    """Measures everything at least `RUNS` times, one after the other, and then what lacks steady
    steps, but not for ever. What was measured before stays until the end.

    Raises:
        SystemExit: not enough of something was measured at full speed.
    """
    for phase in phases:
        (RAW / f"{phase}{NEW}").unlink(missing_ok=True)
    left = phases
    for number in range(TRIES):
        left = phases if number < RUNS else [phase for phase in phases if not is_enough(phase)]
        for phase in left:
            command = [*wrap, sys.executable, __file__, phase]
            subprocess.run([str(word) for word in command], check=True)
        print(f"{sum(map(is_enough, phases))} of {len(phases)} measured", flush=True)
    if lacking := [phase for phase in phases if not is_enough(phase)]:
        raise SystemExit(f"expected all cores at full speed for a while, got too little: {lacking}")
    for phase in phases:
        (RAW / f"{phase}{NEW}").replace(RAW / f"{phase}{KEPT}")


def raw(phase: str) -> list:
    """What each worker has found: of blocks the median, of steps all, and of their processor
    seconds the mean.

    Raises:
        SystemExit: it was never measured at full speed.
    """
    rows = rows_of(phase)
    if not rows or not min(map(size, rows)):
        raise SystemExit(f"expected {phase} to be measured at full speed, got too little in {RAW}")
    return [summed(row) for row in rows]


def summed(row: Any) -> Any:
    """A row whose lists, but for those of steps, are one value each."""
    if isinstance(row, list):
        return [summed(one) for one in row]
    mean = statistics.mean if "step" in row else statistics.median
    return {
        name: mean(values)
        if isinstance(values, list) and name not in ("step", "compute")
        else values
        for name, values in row.items()
    }


def middle(times: list[float]) -> float:
    """Mean of the middle four fifths: steps that something else interrupted are left out."""
    low, high = np.quantile(times, (0.1, 0.9))
    return float(np.mean([t for t in times if low <= t <= high]))


if __name__ == "__main__":
    measure(sys.argv[1])
