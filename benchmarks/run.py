"""Runs the benchmarks: every rival in its own environment, interleaved with ours in one run.

    python benchmarks/run.py [QUESTION ...] [--rounds 9] [--threads 2]

One process per rival and question stays alive; each round asks every rival once, so that a noisy
neighbour hits all alike. Writes JSON rows (benchmarks/results/<question>.json) and prints medians
and ratios. A ratio above 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
QUESTIONS = ("import_time", "dispatch", "tape", "small_nets", "convnets", "recordio", "data")
#: Packages of each rival's environment; `ours` and `ours_*` use the
#: interpreter that runs this file.
ENVIRONMENTS = {
    "mxnet": ["mxnet==1.9.1", "numpy==1.23.5"],
    "torch": ["torch==2.13.0", "numpy", "opencv-python-headless==5.0.0.93"],
}
ANSWER_SECONDS = 300


def interpreter(rival: str) -> str:
    """Python of a rival's environment, made on first use under .bench/."""
    if rival.startswith("ours"):
        return sys.executable
    folder = ROOT / ".bench" / rival
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        print(f"setting up {folder} ({', '.join(ENVIRONMENTS[rival])})", flush=True)
        subprocess.run(["python3.11", "-m", "venv", str(folder)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", *ENVIRONMENTS[rival]], check=True
        )
        (folder / ".ready").touch()
    return str(python)


class Worker:
    """A rival's process; answers one JSON line per request."""

    def __init__(self, question: str, rival: str, threads: int) -> None:
        self.rival = rival
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
        assert self.process.stdin is not None
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        return self._answer()["seconds"]

    def close(self) -> None:
        """Ends the process."""
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


def run(question: str, rounds: int, threads: int) -> list[dict]:
    """Rows of one question."""
    rivals = [p.stem for p in sorted((HERE / question).glob("*.py"))]
    rivals.sort(key=lambda r: r != "ours")
    workers = [Worker(question, r, threads) for r in rivals]
    rows = []
    for case in workers[0].hello["cases"]:
        seconds: dict[str, list[float]] = {r: [] for r in rivals}
        for _ in range(rounds):
            for worker in workers:
                value = worker.measure(case)
                if value is not None:
                    seconds[worker.rival].append(value)
        for worker in workers:
            found = seconds[worker.rival]
            if found:
                rows.append(
                    {
                        "question": question,
                        "case": case,
                        "rival": worker.rival,
                        "version": worker.hello["version"],
                        "median_seconds": statistics.median(found),
                        "best_seconds": min(found),
                        "rounds": len(found),
                        **facts(threads),
                    }
                )
    for worker in workers:
        worker.close()
    return rows


def table(rows: list[dict]) -> str:
    """Markdown: medians, and how many times faster ours is."""
    rivals = sorted({r["rival"] for r in rows}, key=lambda r: r != "ours")
    lines = [
        "| case | "
        + " | ".join(rivals)
        + " | "
        + " | ".join(f"{r} / ours" for r in rivals[1:])
        + " |",
        "| --- |" + " ---: |" * (2 * len(rivals) - 1),
    ]
    for case in dict.fromkeys(r["case"] for r in rows):
        by_rival = {r["rival"]: r["median_seconds"] for r in rows if r["case"] == case}
        cells = [shown(by_rival.get(r)) for r in rivals]
        ratios = [
            f"{by_rival[r] / by_rival['ours']:.2f}" if r in by_rival else "" for r in rivals[1:]
        ]
        lines.append(f"| {case} | " + " | ".join([*cells, *ratios]) + " |")
    return "\n".join(lines)


def shown(seconds: float | None) -> str:
    """A time with its unit."""
    if seconds is None:
        return ""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.2f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("questions", nargs="*", default=list(QUESTIONS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    for question in args.questions:
        rows = run(question, args.rounds, args.threads)
        target = HERE / "results" / f"{question}.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"\n## {question}\n\n{table(rows)}", flush=True)


if __name__ == "__main__":
    main()
