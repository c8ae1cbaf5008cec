"""What a rival's processes use over time, read from /proc: the same measure for every platform."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

PERIOD_SECONDS = 0.2
AROUND_SECONDS = 2.0
TICKS = os.sysconf("SC_CLK_TCK")


class Sampler:
    """A thread that notes the processor time of some processes and their descendants, and the
    bytes that went over the host's loop-back interface (those of every process).

    Args:
        roots: process numbers.
    """

    def __init__(self, roots: list[int]) -> None:
        self._roots = roots
        self._rows: list[tuple[float, float, int]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._rows.append((time.monotonic(), busy_seconds(self._roots), loopback_bytes()))
            self._stopped.wait(PERIOD_SECONDS)

    def close(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        self._thread.join()

    def columns(self, began: float, ended: float) -> dict[str, list[float] | float]:
        """Use between one sample and the next: % of one core, and MB per s.

        Args:
            began, ended: of the timed part; `AROUND_SECONDS` before and after it are kept too.
        """
        first = began - AROUND_SECONDS
        found: dict = {"seconds": [], "cpu_percent": [], "megabytes_per_s": []}
        for (t, cpu, sent), (u, more, later) in itertools.pairwise(self._rows):
            if not first <= t or u > ended + AROUND_SECONDS:
                continue
            found["seconds"].append(round(u - first, 2))
            # What a process has used goes with it when it ends.
            found["cpu_percent"].append(round(100 * max(0.0, more - cpu) / (u - t), 1))
            found["megabytes_per_s"].append(round((later - sent) / 1e6 / (u - t), 3))
        return {**found, "began": round(began - first, 2), "ended": round(ended - first, 2)}


def busy_seconds(roots: list[int]) -> float:
    """Processor time of processes and their descendants so far."""
    parents, ticks = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(entry)] = int(fields[1])
        ticks[int(entry)] = int(fields[11]) + int(fields[12])
    total = 0
    for process in parents:
        above = process
        while above not in roots and above in parents:
            above = parents[above]
        total += ticks[process] if above in roots else 0
    return total / TICKS


def loopback_bytes() -> int:
    """Bytes that the loop-back interface has sent so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[8])
    return 0
