"""When a job's snapshots are taken, and when one is complete: the part of the coordinator.

The hazard: nobody may wait for a snapshot, and nobody can be told of one in the past. So a number
is announced that no slice and no worker has come to yet, by what was last heard of them; whoever
had passed it already says so, and a later number is tried. Pure logic; any thread may call.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ...errors import ParamError
from . import snapshot

#: Seconds between two words of a process with its coordinator.
BEAT_SECONDS = 0.5
#: Tries to announce a number in time before the margin stops growing.
MAX_DOUBLINGS = 6


@dataclass(frozen=True)
class SnapshotOptions:
    """Where and when snapshots are taken.

    Args:
        folder: a folder that all hosts of the job see; '' takes none.
        seconds: time between two of them (0: not by time).
        versions: steps between two of them (0: not by steps).
        keep: how many are kept.

    Raises:
        ParamError: a negative period, or a folder without any period.
    """

    folder: str = ""
    seconds: float = 0.0
    versions: int = 0
    keep: int = 2

    def __post_init__(self) -> None:
        if self.seconds < 0 or self.versions < 0 or self.keep < 1:
            raise ParamError(
                "[snapshot] expected periods >= 0 and at least one that is kept, got "
                f"{self.seconds} s, {self.versions} steps, {self.keep}"
            )
        if not self.folder and (self.seconds or self.versions):
            raise ParamError("[snapshot] expected a folder for snapshots, got none")

    @staticmethod
    def period(text: str) -> tuple[float, int]:
        """Seconds and steps of a text such as '60s', '500' (steps) or '60s,500'.

        Raises:
            ParamError: something else.
        """
        seconds, versions = 0.0, 0
        for piece in filter(None, (p.strip() for p in text.split(","))):
            try:
                if piece.endswith("s"):
                    seconds = float(piece[:-1])
                else:
                    versions = int(piece)
            except ValueError:
                raise ParamError(
                    f"[snapshot] expected a period such as '60s' or '500', got {piece!r}"
                ) from None
        return seconds, versions


class SnapshotPlan:
    """Announces numbers and collects what was saved under them.

    Args:
        options: where and when.
        rounds: whether numbers are versions; else they only count.
        policy, num_workers: for the index.
        number: that of the snapshot which the job has started from.
    """

    def __init__(
        self,
        options: SnapshotOptions,
        rounds: bool,
        policy: str,
        num_workers: int,
        number: int = 0,
    ) -> None:
        self.options = options
        self._rounds, self._policy, self._num_workers = rounds, policy, num_workers
        self._last = number
        self._marks: list[int] = []
        self._steps: dict[str, tuple[float, int]] = {}
        self._rate = 0.0
        self._doublings = 0
        self._began: float | None = None
        self._announced_at = 0.0
        self._saved: dict[int, set[str]] = {}
        self._states: set[str] = set()
        self._lock = threading.Lock()

    def beat(
        self,
        who: str,
        step: int,
        now: float,
        *,
        saved: Collection[int] = (),
        late: Collection[int] = (),
        states: bool = False,
    ) -> dict[str, Any]:
        """One word of a process: its step (or highest version), what it has saved, what came too
        late, and whether it saves states of its own. The answer names the numbers that are
        wanted."""
        with self._lock:
            before = self._steps.get(who)
            if before and step > before[1] and now > before[0]:
                self._rate = max(self._rate / 2, (step - before[1]) / (now - before[0]))
            if before is None or step > before[1]:
                self._steps[who] = (now, step)
            for number in saved:
                self._saved.setdefault(int(number), set()).add(who)
            if states:
                self._states.add(who)
            for number in late:
                if number in self._marks:
                    self._marks.remove(number)
                    self._doublings = min(self._doublings + 1, MAX_DOUBLINGS)
                    self._began = now - self.options.seconds
            return {"marks": list(self._marks)}

    def tick(self, now: float, servers: Collection[str], workers: Collection[str]) -> list[int]:
        """Announces a number when it is time; ends snapshots that are complete, and returns their
        numbers.

        Args:
            servers: all of them.
            workers: those that are still at work.

        Where one can't be written that is said on standard error, and it does not count.
        """
        if not self.options.folder:
            return []
        with self._lock:
            self._began = now if self._began is None else self._began
            due = self.options.seconds and now - self._began >= self.options.seconds
            begun = any(step for _, step in self._steps.values())
            if due and not self._marks and begun:
                self._announce(now)
            elif self._marks and now - self._announced_at > max(60.0, 4 * self.options.seconds):
                self._marks.clear()  # slices that never meet in a number
            ready = [n for n in sorted(self._saved) if self._is_complete(n, servers, workers)]
        return [number for number in ready if self._finish(number, servers, now)]

    @property
    def unfinished(self) -> bool:
        """Whether somebody has saved a part of a snapshot that is not whole."""
        with self._lock:
            return any(number > self._last for number in self._saved)

    def _announce(self, now: float) -> None:
        """Numbers that all can still come to: by what was last heard, and what may have happened
        since, with some room that grows when it was too little."""
        highest = max(step for _, step in self._steps.values())
        if self._rounds:
            room = math.ceil(self._rate * 3 * BEAT_SECONDS) + 1
            number = max(highest, self._last) + room * 2**self._doublings
        else:
            number = max([self._last, *self._saved]) + 1
        self._marks.append(number)
        self._announced_at = now

    def _is_complete(self, number: int, servers: Collection[str], workers: Collection[str]) -> bool:
        wanted = {*servers, *(w for w in workers if w in self._states)}
        return number > self._last and wanted <= self._saved[number]

    def _finish(self, number: int, servers: Collection[str], now: float) -> bool:
        """Makes a snapshot exist; False: it can't be written."""
        with self._lock:
            ranks = [int(w.removeprefix("worker")) for w in self._saved[number] - set(servers)]
        index = {
            "number": number,
            "servers": sorted(servers, key=lambda name: (len(name), name)),
            "workers": sorted(ranks),
            "num_workers": self._num_workers,
            "policy": self._policy,
        }
        written = False
        with snapshot.optional(number):
            snapshot.write_index(snapshot.folder_of(self.options.folder, number), index)
            written = True
            snapshot.prune(self.options.folder, self.options.keep)
        with self._lock:
            self._last, self._began = number, now
            self._doublings = max(0, self._doublings - 1)
            self._marks = [n for n in self._marks if n > number]
            self._saved = {n: who for n, who in self._saved.items() if n > number}
        return written
