"""The speed of each core while something is measured on it.

The hazard: a virtual core is as fast as its neighbours leave it. Those of this machine fall from
full speed to 0.57 of it and back within seconds, each by itself, whenever (it seems) somebody
computes on the other half of the physical core; nothing that the system counts shows it. So a probe
on each core takes the processor time of the same small piece of work again and again, and what was
measured while one of them was slow is left out.

    python benchmarks/scaling/pace.py CORE    # prints: time.monotonic(), seconds of the piece
"""

from __future__ import annotations

import bisect
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

#: Seconds between two samples (a piece takes some 0.2 ms), and how much slower than the fastest a
#: piece may be: the other level lies at 1.75.
PERIOD, SLOW = 0.02, 1.3
PIECE = range(2_000)


def piece() -> float:
    """Processor seconds of the piece of work."""
    begin = time.thread_time()
    total = 0
    for number in PIECE:
        total += number * number % 7
    return time.thread_time() - begin


def probe(core: int) -> None:
    """Samples a core until whoever reads is gone."""
    os.sched_setaffinity(0, {core})
    parent = os.getppid()
    while os.getppid() == parent:
        # The first one finds cold caches.
        print(time.monotonic(), min(piece(), piece()), flush=True)
        time.sleep(PERIOD)


class Pace:
    """Probes on all cores of this process, from `__enter__` to `__exit__`; then what they saw.

    Args:
        fastest: seconds of the piece at full speed, if known.
    """

    def __init__(self, fastest: float = float("inf")) -> None:
        self.fastest = fastest
        self._probes: list[tuple[subprocess.Popen[bytes], IO[str]]] = []
        self._samples: list[tuple[list[float], list[float]]] = []

    def __enter__(self) -> Pace:
        command = [sys.executable, str(Path(__file__).resolve())]
        for core in sorted(os.sched_getaffinity(0)):
            out = tempfile.TemporaryFile("w+")
            self._probes.append((subprocess.Popen([*command, str(core)], stdout=out), out))
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(2 * PERIOD)
        for process, out in self._probes:
            process.kill()
            process.wait(10)
            out.seek(0)
            rows = [tuple(map(float, line.split())) for line in out if line.endswith("\n")]
            out.close()
            self._samples.append(([r[0] for r in rows], [r[1] for r in rows]))
        for _, seconds in self._samples:
            if seconds:
                self.fastest = min(self.fastest, sorted(seconds)[len(seconds) // 20])

    def steady(self, begin: float, end: float) -> bool:
        """Whether all cores were at full speed around an interval of `time.monotonic`: in every
        sample of it, the last one before and the first one after."""
        for times, seconds in self._samples:
            first = max(0, bisect.bisect_right(times, begin) - 1)
            found = seconds[first : bisect.bisect_left(times, end) + 1]
            if not found or max(found) > SLOW * self.fastest:
                return False
        return True

    def kept(self, spans: Iterable[Sequence[float]]) -> list[bool]:
        """Of each interval (begin, end), whether it was `steady`."""
        return [self.steady(begin, end) for begin, end in spans]


if __name__ == "__main__":
    probe(int(sys.argv[1]))
