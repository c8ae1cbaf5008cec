"""Runs the benchmarks: every rival in its own environment, interleaved with ours in one run.

    python benchmarks/run.py [QUESTION ...] [--rounds 9] [--threads 2] [--case 'lenet*']

One process per rival and question stays alive; each round asks every rival once, so that a noisy
neighbour hits all alike. With --case or --without the rows of the others stay as they were. Writes
JSON rows (benchmarks/results/<question>.json) after each case, so that a run that is cut off keeps
what it has, and prints medians and ratios. A ratio above 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from worker import FIGURES, PREPARE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tools"))
import update_tables  # noqa: E402 - one way to print rows, here and in the documents

QUESTIONS = (
    "import_time",
    "dispatch",
    "tape",
    "small_nets",
    "convnets",
    "memory",
    "precision",
    "placement",
    "recordio",
    "data",
    "kvstore",
    "platforms",
)
#: Packages of each rival's environment; `ours` and `ours_*` use the Python that runs this file.
ENVIRONMENTS = {
    "mxnet": ["mxnet==1.9.1", "numpy==1.23.5"],
    "torch": ["torch==2.13.0", "numpy", "opencv-python-headless==5.0.0.93"],
    "tensorflow": ["tensorflow==2.21.0"],
    "spark": ["pyspark==4.3.0", "numpy", "pyarrow"],
}
#: Rivals that are another way to use a package: they share its environment.
SHARED = {"torch_compiled": "torch", "spark_mllib": "spark"}
ANSWER_SECONDS = 300
#: Before each measurement: OpenMP threads of the rival before spin for some 10 ms after their work.
REST_SECONDS = 0.05


def interpreter(rival: str) -> str:
    """Python of a rival's environment, made on first use under .bench/."""
    if rival.startswith("ours"):
        return sys.executable
    name = SHARED.get(rival, rival)
    folder = ROOT / ".bench" / name
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        print(f"setting up {folder} ({', '.join(ENVIRONMENTS[name])})", flush=True)
        subprocess.run(["python3.11", "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *ENVIRONMENTS[name]], check=True)
        (folder / ".ready").touch()
    return str(python)


class Worker:
    """A rival's process; answers one JSON line per request."""

    def __init__(self, question: str, rival: str, threads: int) -> None:
        self.rival = rival
        self.dead = False
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE"):
            environment.pop(name, None)  # they slow a rival down; see the machine's notes
        self.process = subprocess.Popen(
            [interpreter(rival), str(HERE / "worker.py"), question, rival, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.hello = self._answer()

    def _answer(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.rival}: the worker ended with {self.process.wait()}")
        return json.loads(line)

    def measure(self, case: str) -> float | None:
        """Seconds per unit, or None where the rival has no such case."""
        return self._ask(case).get("seconds")

    def figures(self, case: str) -> dict:
        """Numbers of a case that are no times; {} where the rival has none."""
        return self._ask(FIGURES + case)

    def prepare(self, case: str) -> Callable[[], dict]:
        """Has a case built; the function that is given waits until it is."""
        return self._begin(PREPARE + case)

    def _ask(self, line: str) -> dict:
        return self._begin(line)()

    def _begin(self, line: str) -> Callable[[], dict]:
        """Sends a line; the function that is given waits for the answer."""
        assert self.process.stdin is not None
        if not self.dead:
            with contextlib.suppress(OSError):  # seen when the answer does not come
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
        return functools.partial(self._end, line)

    def _end(self, line: str) -> dict:
        if self.dead:
            return {}
        try:
            return self._answer()
        except (OSError, SystemExit) as error:
            # The rows of the others count all the same.
            print(f"{self.rival}: lost in '{line.strip()}' ({error})", file=sys.stderr, flush=True)
            self.dead = True
            return {}

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()


def facts(threads: int) -> dict:
    """Where and on what the rows were measured."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    model = next(
        (
            x.split(":")[1].strip()
            for x in Path("/proc/cpuinfo").read_text().splitlines()
            if x.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "commit": commit,
        "processor": model,
        "cores": os.cpu_count(),
        "threads": threads,
        "date": time.strftime("%Y-%m-%d"),
    }


def wanted(case: str, patterns: list[str]) -> bool:
    """Whether a case is asked for; all are without patterns."""
    return not patterns or any(fnmatch.fnmatchcase(case, p) for p in patterns)


def run(
    question: str,
    rounds: int,
    threads: int,
    without: list[str],
    patterns: list[str],
    keep: Callable[[list[dict]], None] = lambda rows: None,
) -> list[dict]:
    """Rows of one question; `keep` gets those so far after each case."""
    rivals = [p.stem for p in sorted((HERE / question).glob("*.py")) if p.stem not in without]
    rivals.sort(key=lambda r: r != "ours")
    ours = Worker(question, rivals[0], threads)
    cases = [case for case in ours.hello["cases"] if wanted(case, patterns)]
    if not cases:
        names = "\n  ".join(ours.hello["cases"])
        raise SystemExit(f"{question}: expected a case that fits {patterns}, of\n  {names}")
    workers = [ours, *(Worker(question, r, threads) for r in rivals[1:])]
    rows = []
    unit, rounds = ours.hello["unit"], min(rounds, ours.hello["rounds"] or rounds)
    for case in cases:
        seconds: dict[str, list[float]] = {r: [] for r in rivals}
        if ours.hello["together"]:
            for built in [worker.prepare(case) for worker in workers]:
                built()
        for _ in range(rounds):
            for worker in workers:
                time.sleep(REST_SECONDS)
                value = worker.measure(case)
                if value is not None:
                    seconds[worker.rival].append(value)
        for worker in workers:
            found, figures = seconds[worker.rival], worker.figures(case)
            # A case that a rival has not finished is reported too.
            if found or "unfinished" in figures:
                rows.append(
                    {
                        "question": question,
                        "case": case,
                        "rival": worker.rival,
                        "version": worker.hello["version"],
                        **amounts(found, unit),
                        **figures,
                        **facts(threads),
                    }
                )
        keep(with_shares(rows))
    for worker in workers:
        worker.close()
    return with_shares(rows)


def amounts(found: list[float], unit: str) -> dict[str, float]:
    """Median and best of what was measured; nothing of nothing."""
    if not found:
        return {}
    return {
        f"median_{unit}": statistics.median(found),
        f"best_{unit}": min(found),
        "rounds": len(found),
    }


def merged(old: list[dict], new: list[dict]) -> list[dict]:
    """The rows with new ones in the places of old ones; what is wholly new comes after them."""
    kept = {(row["case"], row["rival"]): row for row in old}
    kept.update({(row["case"], row["rival"]): row for row in new})
    return list(kept.values())


def write(target: Path, rows: list[dict]) -> None:
    """The rows as a file; what it held stays whole until they are."""
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_suffix(".new")
    fresh.write_text(json.dumps(rows, indent=1) + "\n")
    fresh.rename(target)


def with_shares(rows: list[dict]) -> list[dict]:
    """The rows, with shares of the limits where operations and bytes of a step are known.

    A limit is the best that was seen in the whole run: on a shared machine a single one is low.
    """
    known = [row for row in rows if "flop_limit" in row]
    if not known:
        return rows
    flops, nbytes = (max(row[f"{kind}_limit"] for row in known) for kind in ("flop", "byte"))
    for row in known:
        row.update(flop_limit=flops, byte_limit=nbytes)
        row["flop_share"] = row["flops"] / row["median_seconds"] / flops
        row["byte_share"] = row["bytes"] / row["median_seconds"] / nbytes
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "questions", nargs="*", default=list(QUESTIONS), help=f"of: {', '.join(QUESTIONS)}"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without", action="append", default=[], help="a rival to leave out")
    parser.add_argument("--case", action="append", default=[], help="pattern of cases to measure")
    args = parser.parse_args()
    if unknown := [question for question in args.questions if not (HERE / question).is_dir()]:
        parser.error(f"expected questions of {', '.join(QUESTIONS)}, got {', '.join(unknown)}")
    for question in args.questions:
        target = HERE / "results" / f"{question}.json"
        old = json.loads(target.read_text()) if target.exists() else []

        def keep(rows: list[dict], old: list[dict] = old, target: Path = target) -> None:
            write(target, merged(old, rows))

        rows = run(question, args.rounds, args.threads, args.without, args.case, keep)
        if args.case or args.without:
            rows = merged(old, rows)
        write(target, rows)
        print(f"\n## {question}\n\n{update_tables.question_table(rows)}", flush=True)


if __name__ == "__main__":
    main()
