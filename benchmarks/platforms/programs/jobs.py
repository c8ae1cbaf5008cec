"""Runs the processes of one cell and times their blocks. Standard library and NumPy only: it runs
in every rival's environment.

The hazard is a noisy machine. All platforms are started and warm before the first block of a cell;
then they take turns, one block each, while the others wait for a word on a pipe. So what disturbs
one platform disturbs all alike, and a platform is started once for all of its blocks.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crew import die_with_parent

from . import tasks
from .sampling import Sampler
from .tasks import Cell

PROGRAMS = Path(__file__).resolve().parent
#: Seconds that the start of a cell's processes may take, and each of its blocks.
LIMIT = float(os.environ.get("BENCH_LIMIT", "90"))


@dataclass
class Processes:
    """The processes of a cell.

    Attributes:
        commands: each with its environment, servers first.
        waited: how many of the last ones end by themselves.
        watches: how many processes have a `Watch`; they end when it says so.
        threads: of each process.
    """

    commands: list[tuple[list[str], dict[str, str]]]
    waited: int
    watches: int
    threads: int = 1


class Unfinished(Exception):
    """A measurement did not end well; the text says how."""


def program(name: str, cell: Cell, out: str, *more: str) -> list[str]:
    """The command of a rival's program, in this environment."""
    return [sys.executable, str(PROGRAMS / name), cell.to_json(), out, *more]


def environment(threads: int) -> dict[str, str]:
    """Of every process of a cell."""
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
        self._job: Job | None = None
        self._figures: dict[str, dict] = {}
        atexit.register(self._close)
        self.cases = {cell.name: self._case(cell) for cell in cells}
        self.figures = {cell.name: self._figures_of(cell.name) for cell in cells}

    def _case(self, cell: Cell) -> Callable[[], Callable[[], float | None]]:
        def start() -> Callable[[], float | None]:
            self._close()
            with self._reported(cell.name):
                self._job = Job(cell, self._processes)
            return lambda: self._block(cell)

        return start

    @contextlib.contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """What does not end well is a figure of the case, and the end of its job."""
        try:
            yield
        except Unfinished as reason:
            self._figures[name] = {"unfinished": str(reason)}
            self._close()

    def _block(self, cell: Cell) -> float | None:
        """Seconds per pass of one more block; None where there is none."""
        if self._job is None or (cell.times > 1 and self._job.blocks):
            return None
        with self._reported(cell.name):
            return self._job.block()
        return None

    def _figures_of(self, name: str) -> Callable[[], dict]:
        def figures() -> dict:
            if self._job is not None:
                with self._reported(name):
                    self._figures[name] = self._job.finish()
            self._close()
            return self._figures.get(name, {})

        return figures

    def _close(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job = None


class Job:
    """The processes of a cell, started and warm.

    Args:
        cell: what they train.
        processes: see `Runner`.

    Attributes:
        blocks: seconds per pass of each block so far.

    Raises:
        Unfinished: a process failed, or the time was over; so do its methods.
    """

    def __init__(self, cell: Cell, processes: Callable[[Cell, str], Processes]) -> None:
        self.blocks: list[float] = []
        self._cell, self._passes = cell, 0.0
        self._out = Path(tempfile.mkdtemp(prefix="platforms-"))
        self._started: list[subprocess.Popen] = []
        self._sampler: Sampler | None = None
        self._pipes: list[int] = []
        try:
            self._made = processes(cell, str(self._out))
            # Both ends of each pipe are open here: opening one never waits.
            names = ["said", *(f"go-{rank}" for rank in range(self._made.watches))]
            self._said, *self._go = [self._pipe(name) for name in names]
            self._rest = b""
            self._heard: dict[str, dict[int, dict]] = {"ready": {}, "end": {}}
            self._start()
            self._hear("ready")
        except BaseException:
            self.close()
            raise

    def _pipe(self, name: str) -> int:
        path = self._out / name
        os.mkfifo(path)
        self._pipes.append(os.open(path, os.O_RDWR))
        return self._pipes[-1]

    def _start(self) -> None:
        with open(self._out / "log", "wb") as log:
            for command, env in self._made.commands:
                process = subprocess.Popen(
                    command,
                    env={**environment(self._made.threads), **env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
                self._started.append(process)
        if self._cell in tasks.SAMPLED:
            self._sampler = Sampler([p.pid for p in self._started])

    def block(self) -> float:
        """Seconds per pass of a block: from the first process's start to the last one's end."""
        self._tell(tasks.GO)
        told = self._hear("end")
        self._began, self._ended = (min(t["begin"] for t in told), max(t["end"] for t in told))
        self._hear("ready")
        passes = told[0].get("passes", self._cell.passes)
        self._passes += passes
        self.blocks.append((self._ended - self._began) / passes)
        return self.blocks[-1]

    def finish(self) -> dict:
        """Ends the processes; the figures of the row."""
        self._tell(tasks.STOP)
        self._wait(self._started[-self._made.waited :])
        with np.load(self._out / "weights.npz") as found:
            figures = tasks.judge(self._cell, [found[name] for name in found.files])
        figures |= {"timed_passes": self._passes, "blocks": [round(b, 6) for b in self.blocks]}
        figures["process_threads"] = self._made.threads
        if self._sampler is not None:
            figures["use"] = self._sampler.columns(self._began, self._ended)
        return figures

    def close(self) -> None:
        """Ends what is left. Safe to call twice."""
        if self._sampler is not None:
            self._sampler.close()
        for process in self._started:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes.clear()
        shutil.rmtree(self._out, ignore_errors=True)

    def _tell(self, word: str) -> None:
        for pipe in self._go:
            os.write(pipe, word.encode())

    def _hear(self, what: str) -> list[dict]:
        """What every watch says of this kind ('ready' or 'end'), by rank."""
        deadline, heard = time.monotonic() + LIMIT, self._heard[what]
        while len(heard) < self._made.watches:
            if select.select([self._said], [], [], 0.1)[0]:
                *lines, self._rest = (self._rest + os.read(self._said, 65536)).split(b"\n")
                for told in map(json.loads, lines):
                    self._heard["end" if "end" in told else "ready"][told["rank"]] = told
            elif None not in self._check(deadline):
                raise Unfinished(f"ended before its time: {_last_lines(self._out)}")
        found = [heard[rank] for rank in sorted(heard)]
        heard.clear()
        return found

    def _check(self, deadline: float) -> list[int | None]:
        codes = [p.poll() for p in self._started[-self._made.waited :]]
        failed = [code for code in codes if code]
        if failed:
            raise Unfinished(f"ended with {failed[0]}: {_last_lines(self._out)}")
        if time.monotonic() > deadline:
            raise Unfinished(f"not within {LIMIT:g} s")
        return codes

    def _wait(self, processes: list[subprocess.Popen]) -> None:
        deadline = time.monotonic() + LIMIT
        while None in self._check(deadline):
            time.sleep(0.01)


def _last_lines(out: Path) -> str:
    lines = (out / "log").read_text(errors="replace").strip().splitlines()
    return " ".join(lines[-2:])[-200:]
