"""Jobs that are hurt at random moments: do they count exactly, learn the same, at what cost?

    python benchmarks/failures/run.py [--kind worker ...] [--moments 20] [--more] [--report]

A small network is trained by two workers and two servers (`program.py`), undisturbed some times
and once for each random moment of each kind of failure (`kinds.py`). Every run must end by itself,
with the counter that all steps make, and leave no process behind. Writes
benchmarks/results/failures/<kind>.json, the table of docs/failures.md and its picture; --report
only draws again. Exits with 1 where a run was wrong.

--more keeps the rows that are there and makes the missing ones; with --seconds it begins none that
would end later, so that a campaign can be made of short pieces. --together runs at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from kinds import KINDS  # noqa: E402

import run as benchmarks  # noqa: E402 - facts on the machine
from mixflow.files import write_atomically  # noqa: E402
from mixflow.kvstore.job.spawner import dying_with_this  # noqa: E402

RESULTS = HERE.parent / "results" / "failures"
#: Undisturbed runs of a kind, between its moments.
QUIET_RUNS = 3
#: Seeds of undisturbed trainings that tell how far apart curves are by chance.
NOISE_SEEDS = range(1, 6)
RUN_SECONDS = 400
#: Seconds that a run of a kind is thought to take, when it must end in time.
USUAL_SECONDS = {"job": 9.0, "launcher": 12.0, "ray": 28.0}
#: Moments that share one start of Ray.
RAY_RUNS = 4


class Results:
    """Rows of all kinds on disk, a file per kind; kept after each run."""

    def __init__(self, more: bool, names: list[str], timed: bool = True) -> None:
        self._timed = timed
        self._lock = threading.Lock()
        self._facts = benchmarks.facts(1)
        self.rows: dict[str, list[dict]] = {}
        for path in RESULTS.glob("*.json"):
            if more or path.stem not in names:
                self.rows[path.stem] = json.loads(path.read_text())

    def has(self, name: str, seed: int | None, count: int = 1) -> bool:
        """Whether a run (the `count`-th of this seed) is there."""
        return sum(row["seed"] == seed for row in self.rows.get(name, [])) >= count

    def add(self, row: dict) -> None:
        with self._lock:
            found = self.rows.setdefault(row["kind"], [])
            found.append({**row, "timed": self._timed, **self._facts})
            found.sort(key=lambda r: -1 if r["seed"] is None else r["seed"])
            RESULTS.mkdir(parents=True, exist_ok=True)
            lines = ",\n ".join(map(json.dumps, found))
            write_atomically(RESULTS / f"{row['kind']}.json", f"[{lines}]\n".encode())

    def all(self) -> list[dict]:
        return [row for name in sorted(self.rows) for row in self.rows[name]]


def tasks(names: list[str], moments: int, results: Results) -> deque[tuple[str, list[str]]]:
    """What is to be run: kinds, and the seeds of a process's runs; undisturbed ones are 'quiet'.
    All kinds take turns."""
    wanted: list[tuple[int, str, str]] = []
    for name in names:
        if name == "noise":
            wanted += [(s, name, f"{s}") for s in NOISE_SEEDS if not results.has(name, s)]
            continue
        wanted += [(s, name, f"{s}") for s in range(moments) if not results.has(name, s)]
        for number in range(QUIET_RUNS):
            if not results.has(name, None, number + 1):
                wanted.append((number * moments // QUIET_RUNS - 1, name, "quiet"))
    ordered = sorted(wanted, key=lambda task: task[0])
    found: deque[tuple[str, list[str]]] = deque()
    ray: dict[str, list[str]] = {}
    for _, name, seed in ordered:
        if name != "noise" and KINDS[name].way == "ray":
            ray.setdefault(name, []).append(seed)
        else:
            found.append((name, [seed]))
    for name, seeds in ray.items():
        found += [(name, seeds[at : at + RAY_RUNS]) for at in range(0, len(seeds), RAY_RUNS)]
    return found


def play(name: str, seeds: list[str], results: Results) -> None:
    """Some runs in a process of their own, which dies with this one; a line for who watches."""
    child = subprocess.Popen(
        [sys.executable, str(HERE / "jobs.py"), name, *seeds],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=dying_with_this(),
    )
    assert child.stdout is not None
    for line in child.stdout:
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        results.add(row)
        what = "undisturbed" if row["seed"] is None else f"seed {row['seed']}, {row['moment']}"
        state = "right" if row["right"] else f"WRONG: {row['wrong'] or 'the counter'}"
        print(f"{name}: {what}: {row['seconds']:.1f} s, {state}", flush=True)
    if child.wait(RUN_SECONDS):
        print(f"{name} {seeds}: the run itself ended with {child.returncode}", flush=True)


def run(args: argparse.Namespace, names: list[str], results: Results) -> None:
    """Runs what is missing, some at once, as long as there is time."""
    todo, began = tasks(names, args.moments, results), time.monotonic()

    def take() -> None:
        while todo:
            name, seeds = todo.popleft()
            usual = USUAL_SECONDS["job" if name == "noise" else KINDS[name].way]
            if args.seconds and time.monotonic() - began + usual > args.seconds:
                continue
            play(name, seeds, results)

    threads = [threading.Thread(target=take) for _ in range(args.together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", action="append", choices=[*KINDS, "noise"], help="default: all")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--more", action="store_true", help="only what is missing")
    parser.add_argument("--seconds", type=float, help="begin no run that would end later")
    parser.add_argument("--together", type=int, default=1, help="runs at once")
    parser.add_argument("--untimed", action="store_true", help="beside other work: no times")
    parser.add_argument("--report", action="store_true", help="draw what was measured before")
    args = parser.parse_args()
    names = args.kind or ["noise", *KINDS]
    results = Results(args.more or args.report, names, not args.untimed)
    if not args.report:
        run(args, names, results)
    if not args.seconds:
        from report import write

        write(results.all())
    rows = [row for name in names for row in results.rows.get(name, [])]
    print(f"{len(rows)} runs, {sum(not row['right'] for row in rows)} wrong; median "
          f"{statistics.median(row['seconds'] for row in rows):.1f} s")  # fmt: skip
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
