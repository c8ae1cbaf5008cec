"""What the processes of a job use while it runs: processor, memory, bytes sent and received.

The hazard: figures that vanish with the process that they describe, or that are shifted by the
clocks of its host. So each process samples itself and hands what is new to the job's rendezvous
every period; a sample carries its age, never a time of day, and a number of its own, so that a
repeated message counts once. A killed process loses its last period at most.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import MixflowError, ParamError
from ..extras import load
from ..scalar_log import ScalarLog
from .transport.rendezvous import Enquirer

#: Samples that are kept while the rendezvous does not answer.
MOST_WAITING = 600
#: Samples that are kept of one process; past it every second one is dropped.
MOST_KEPT = 20_000
#: Seconds that a process waits for the rendezvous to take its samples.
HAND_IN_SECONDS = 2.0

Counters = Callable[[], tuple[int, int]]


@dataclass(frozen=True)
class Sample:
    """What a process has used up to a moment.

    Attributes:
        seconds: since the job's start.
        cpu_percent: of one core, over the time since the sample before; its children included.
        resident_bytes: memory of the process and its children.
        sent_bytes, received_bytes: that its store or server has sent and received so far.
    """

    seconds: float
    cpu_percent: float
    resident_bytes: int
    sent_bytes: int
    received_bytes: int


class Meter:
    """Reads this process's use, its children included. Not thread-safe.

    Args:
        counters: gives bytes sent and received so far.

    Raises:
        MissingExtraError: psutil is not installed.
    """

    def __init__(self, counters: Counters) -> None:
        self._psutil = load("psutil", "utilisation")
        self._process = self._psutil.Process()
        self._counters = counters
        self._last = (time.monotonic(), self._busy(self._tree()))

    def read(self) -> Sample:
        """Use since the last call; `seconds` is that of this host's monotonic clock."""
        tree = self._tree()
        now, busy = time.monotonic(), self._busy(tree)
        (then, before), self._last = self._last, (now, busy)
        # A child that ended and was not waited for takes its time with it: never below zero.
        percent = 100 * max(0.0, busy - before) / max(now - then, 1e-3)
        sent, received = self._counters()
        return Sample(now, round(percent, 1), self._resident(tree), sent, received)

    def _tree(self) -> list[Any]:
        with contextlib.suppress(self._psutil.Error):
            return [self._process, *self._process.children(recursive=True)]
        return [self._process]

    def _busy(self, tree: Sequence[Any]) -> float:
        """Seconds of processor time; children that have ended count with whoever waited."""
        total = 0.0
        for process in tree:
            with contextlib.suppress(self._psutil.Error):
                total += sum(process.cpu_times()[:4])
        return total

    def _resident(self, tree: Sequence[Any]) -> int:
        total = 0
        for process in tree:
            with contextlib.suppress(self._psutil.Error):
                total += process.memory_info().rss
        return total


class Sampler:
    """A thread that samples this process every period and hands the samples to the rendezvous.

    Args:
        enquirer: a connection to the job's rendezvous that nobody else uses.
        name: who this is ('worker0', 'server1').
        period: seconds between two samples.
        counters: gives bytes sent and received so far; called on the thread.
    """

    def __init__(self, enquirer: Enquirer, name: str, period: float, counters: Counters) -> None:
        self._enquirer, self._name, self._period = enquirer, name, period
        self._meter = Meter(counters)
        self._waiting: list[tuple[int, Sample]] = []
        self._number = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mixflow-utilisation", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._period):
            self._sample()
        self._sample()
        self._enquirer.close()

    def _sample(self) -> None:
        self._waiting.append((self._number, self._meter.read()))
        self._number += 1
        del self._waiting[:-MOST_WAITING]
        # The rendezvous may be busy or gone for good; the next sample tries again.
        with contextlib.suppress(MixflowError):
            now = time.monotonic()
            rows = [[n, now - s.seconds, *astuple(s)[1:]] for n, s in self._waiting]
            self._enquirer.ask("usage", HAND_IN_SECONDS, pid=os.getpid(), samples=rows)
            self._waiting.clear()

    def close(self) -> None:
        """Takes a last sample, hands it in and ends the thread. Safe to call twice."""
        self._stopped.set()
        self._thread.join(2 * HAND_IN_SECONDS + self._period)


def start_sampler(
    address: str, token: str, name: str, period: float, counters: Counters
) -> Sampler | None:
    """The sampler of a job's process; None where the job asks for none (period 0).

    Args:
        address, token: of the job's rendezvous.
        name, period, counters: see `Sampler`.
    """
    if period <= 0:
        return None
    return Sampler(Enquirer(address, token, name), name, period, counters)


class Collector:
    """The samples of all processes of a job, as the rendezvous receives them. Thread-safe.

    Args:
        began: the job's start on this host's monotonic clock; None: now.

    Attributes:
        listen: called with the process's name and each new sample, one call at a time.
    """

    def __init__(self, began: float | None = None) -> None:
        self._began = time.monotonic() if began is None else began
        self.listen: Callable[[str, Sample], None] | None = None
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, int], int] = {}
        self._samples: dict[str, list[Sample]] = {}

    def take(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Takes the samples of one message; those that came before are left out.

        Raises:
            KeyError, TypeError, ValueError: the message is not whole.
        """
        name, pid = str(request["name"]), int(request["pid"])
        now = time.monotonic() - self._began
        rows = [(int(row[0]), _sample_of(row, now)) for row in request["samples"]]
        with self._lock:
            last = self._seen.get((name, pid), -1)
            fresh = [sample for number, sample in rows if number > last]
            self._seen[name, pid] = max([last, *(number for number, _ in rows)])
            kept = self._samples.setdefault(name, [])
            kept.extend(fresh)
            if len(kept) > MOST_KEPT:
                del kept[1::2]
            listen = self.listen
        if listen is not None:
            # What listens may fail to write; that must not end the job.
            with contextlib.suppress(OSError):
                for sample in fresh:
                    listen(name, sample)
        return {}

    def samples(self) -> dict[str, list[Sample]]:
        """Every sample so far, by process, in order of time."""
        with self._lock:
            order = sorted(
                self._samples, key=lambda name: (name.rstrip("0123456789"), len(name), name)
            )
            return {name: sorted(self._samples[name], key=_seconds) for name in order}


def _seconds(sample: Sample) -> float:
    return sample.seconds


def _sample_of(row: Sequence[Any], now: float) -> Sample:
    _, age, percent, resident, sent, received = row
    values = (now - float(age), float(percent), int(resident), int(sent), int(received))
    if not all(math.isfinite(value) for value in values):
        raise ValueError("not finite")
    return Sample(*values)


def totals(samples: Sequence[Sample]) -> dict[str, float]:
    """What one process has used in all: its mean and largest `cpu_percent`, largest memory, bytes.

    Counters begin anew where a process was started again; the lives are added up.
    """
    if not samples:
        return {}
    spans = [b.seconds - a.seconds for a, b in itertools.pairwise(samples)]
    weights = [spans[0] if spans else 1.0, *spans]
    weighted = sum(w * s.cpu_percent for w, s in zip(weights, samples, strict=True))
    return {
        "cpu_percent_mean": round(weighted / max(sum(weights), 1e-9), 1),
        "cpu_percent_max": max(s.cpu_percent for s in samples),
        "resident_bytes_max": max(s.resident_bytes for s in samples),
        "sent_bytes": _added_up([s.sent_bytes for s in samples]),
        "received_bytes": _added_up([s.received_bytes for s in samples]),
    }


def _added_up(counts: Sequence[int]) -> int:
    """The sum of a counter that may have begun anew."""
    ends = [a for a, b in itertools.pairwise(counts) if b < a]
    return sum(ends) + counts[-1]


def to_json(samples: Mapping[str, Sequence[Sample]], period: float) -> dict[str, Any]:
    """The form of a job's report: columns by name for each process, and totals."""
    names = [field.name for field in fields(Sample)]
    processes = {}
    for name, found in samples.items():
        columns: dict[str, Any] = {n: [getattr(s, n) for s in found] for n in names}
        columns["seconds"] = [round(s.seconds, 3) for s in found]
        processes[name] = {"totals": totals(found), "samples": columns}
    return {"period": period, "processes": processes}


def from_json(report: Mapping[str, Any]) -> dict[str, list[Sample]]:
    """The samples by process of a job's report (`mixflow launch --report`).

    Raises:
        ParamError: it holds none; or columns are missing or of different length.
    """
    try:
        found = {}
        for name, process in report["utilisation"]["processes"].items():
            columns = [process["samples"][field.name] for field in fields(Sample)]
            found[str(name)] = [Sample(*row) for row in zip(*columns, strict=True)]
        return found
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ParamError(
            f"[utilisation] expected the report of a job ('mixflow launch --report FILE'), got "
            f"{error!r}"
        ) from None


def rates(samples: Sequence[Sample], column: str) -> list[float]:
    """Units per second of a counter between one sample and the next; 0 for the first."""
    found = [0.0]
    for a, b in itertools.pairwise(samples):
        grown = max(0, getattr(b, column) - getattr(a, column))
        found.append(grown / max(b.seconds - a.seconds, 1e-9))
    return found


class UtilisationLog:
    """Samples as TensorBoard scalars, one run per process; its step is milliseconds. Not
    thread-safe.

    Args:
        folder: what `tensorboard --logdir` reads.
        began: seconds since 1970 at which the job started.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | Path, began: float) -> None:
        self._log, self._began = ScalarLog(folder), began
        self._last: dict[str, Sample] = {}

    def __call__(self, name: str, sample: Sample) -> None:
        """Adds a sample of the process `name`."""
        before = self._last.get(name, sample)
        self._last[name] = sample
        values = {
            "cpu_percent": sample.cpu_percent,
            "resident_MB": sample.resident_bytes / 1e6,
            "sent_MB_per_s": rates([before, sample], "sent_bytes")[1] / 1e6,
            "received_MB_per_s": rates([before, sample], "received_bytes")[1] / 1e6,
        }
        for tag, value in values.items():
            step = round(1000 * sample.seconds)
            self._log.add(name, f"utilisation/{tag}", value, step, self._began + sample.seconds)

    def close(self) -> None:
        """Closes the files. Safe to call twice."""
        self._log.close()


def write_scalars(report: Mapping[str, Any], folder: str | Path) -> None:
    """A job's report as TensorBoard scalars.

    Args:
        report: `Job.report()`.
        folder: what `tensorboard --logdir` reads.

    Raises:
        ParamError: the report holds no samples.
        MissingExtraError: tensorboardX is not installed.
    """
    log = UtilisationLog(folder, float(report.get("began", 0.0)))
    for name, samples in from_json(report).items():
        for sample in samples:
            log(name, sample)
    log.close()
