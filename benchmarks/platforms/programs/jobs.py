"""Runs the processes of one measurement and reads what they leave. Standard library and NumPy only:
it runs in every rival's environment."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import tasks
from .sampling import Sampler
from .tasks import Cell

PROGRAMS = Path(__file__).resolve().parent
#: Seconds that a measurement may take, with start and warm-up.
LIMIT = float(os.environ.get("BENCH_LIMIT", "90"))


@dataclass
class Processes:
    """The processes of a measurement.

    Attributes:
        commands: each with its environment, servers first.
        waited: how many of the last ones end by themselves.
        threads: of each process.
    """

    commands: list[tuple[list[str], dict[str, str]]]
    waited: int
    threads: int = 1


class Unfinished(Exception):
    """A measurement did not end well; the text says how."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def program(name: str, cell: Cell, out: str, *more: str) -> list[str]:
    """The command of a rival's program, in this environment."""
    return [sys.executable, str(PROGRAMS / name), cell.to_json(), out, *more]


def environment(threads: int) -> dict[str, str]:
    """Of every process of a measurement."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads))}


class Runner:
    """The measurements of a rival, and the figures of the last one by case.

    Args:
        processes: commands and environments of a cell's processes, given the folder of the result.
        cells: those that the rival has.
    """

    def __init__(self, processes: Callable[[Cell, str], Processes], cells: list[Cell]) -> None:
        self._processes = processes
        self._figures: dict[str, dict] = {}
        self.cases = {cell.name: self._case(cell) for cell in cells}
        self.figures = {c.name: lambda name=c.name: self._figures.get(name, {}) for c in cells}

    def _case(self, cell: Cell) -> Callable[[], Callable[[], float | None]]:
        def measure() -> float | None:
            if "unfinished" in self._figures.get(cell.name, {}):
                return None  # it has had its time
            try:
                seconds, figures = run(cell, self._processes)
            except Unfinished as reason:
                self._figures.setdefault(cell.name, {"unfinished": str(reason)})
                return None
            self._figures[cell.name] = figures
            return seconds

        return lambda: measure


def run(cell: Cell, processes: Callable[[Cell, str], Processes]) -> tuple[float, dict]:
    """Seconds per pass, and the figures of the row.

    Raises:
        Unfinished: a process failed, or the time was over.
    """
    out = tempfile.mkdtemp(prefix="platforms-")
    try:
        job = processes(cell, out)
        samples = _run_processes(cell, job, Path(out))
        times = [
            json.loads((Path(out) / f"times-{rank}.json").read_text())
            for rank in range(len(list(Path(out).glob("times-*.json"))))
        ]
        began, ended = min(t["begin"] for t in times), max(t["end"] for t in times)
        passes = times[0].get("passes", cell.samples / cell.rows)
        with np.load(Path(out) / "weights.npz") as found:
            quality = tasks.judge(cell, [found[name] for name in found.files])
        seconds = (ended - began) / passes
        figures = {**quality, "passes": passes, "samples_per_second": cell.rows / seconds}
        figures["process_threads"] = job.threads
        if samples is not None:
            figures["use"] = samples.columns(began, ended)
        return seconds, figures
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _run_processes(cell: Cell, job: Processes, out: Path) -> Sampler | None:
    """Runs them until the last `waited` have ended; the others are ended then."""
    with open(out / "log", "wb") as log:
        started = [
            subprocess.Popen(
                command,
                env={**environment(job.threads), **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for command, env in job.commands
        ]
        sampler = Sampler([p.pid for p in started]) if cell in tasks.SAMPLED else None
        try:
            _wait(started[-job.waited :], out)
        finally:
            if sampler:
                sampler.close()
            for process in started:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return sampler


def _wait(processes: list[subprocess.Popen], out: Path) -> None:
    deadline = time.monotonic() + LIMIT
    while True:
        codes = [p.poll() for p in processes]
        failed = [code for code in codes if code]
        if failed:
            raise Unfinished(f"ended with {failed[0]}: {_last_lines(out)}")
        if None not in codes:
            return
        if time.monotonic() > deadline:
            raise Unfinished(f"not within {LIMIT:g} s")
        time.sleep(0.01)


def _last_lines(out: Path) -> str:
    lines = (out / "log").read_text(errors="replace").strip().splitlines()
    return " ".join(lines[-2:])[-200:]
