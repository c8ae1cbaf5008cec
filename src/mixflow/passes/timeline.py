"""Jobs on lanes, simulated: when each would start and end, and on what way the end depends.

Hazard: the order in which jobs are pushed is the order in which a lane gets to them. An order that
looks only at the data runs a whole branch before the first job that another lane waits for. So a
lane takes the ready job with the longest way to the end first (upward rank of Topcuoglu et al.,
"Performance-effective and low-complexity task scheduling for heterogeneous computing", 2002).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass
class Job:
    """One thing that a lane does.

    Attributes:
        lane: who does it; a lane does one job at a time.
        seconds: how long it takes.
        after: jobs that end first, by number, all smaller than its own.
        delay: seconds that pass before the lane begins, once it could (a thread that wakes).
        phase: among ready jobs of a lane, those of an earlier phase come first.
    """

    lane: Hashable
    seconds: float
    after: Sequence[int]
    delay: float = 0.0
    phase: int = 0


@dataclass
class Timeline:
    """When jobs start and end, in seconds from the beginning.

    Attributes:
        start, end: by number of the job.
        makespan: end of the last job.
    """

    start: list[float]
    end: list[float]
    makespan: float

    def critical(self, jobs: Sequence[Job]) -> list[int]:
        """The jobs whose waiting for each other makes the makespan, first to last.

        Before each job stands the one whose end it waited for: one that it needs, or the one that
        its lane did before.
        """
        if not jobs:
            return []
        before = _on_lane(jobs, self.start)
        at = max(range(len(jobs)), key=self.end.__getitem__)
        way = [at]
        while True:
            waited = [*jobs[at].after, *([before[at]] if at in before else [])]
            if not waited:
                return way[::-1]
            at = max(waited, key=self.end.__getitem__)
            way.append(at)


def _on_lane(jobs: Sequence[Job], start: Sequence[float]) -> dict[int, int]:
    """The job that the same lane did before, where there is one."""
    last: dict[Hashable, int] = {}
    before = {}
    for number in sorted(range(len(jobs)), key=lambda k: (start[k], k)):
        lane = jobs[number].lane
        if lane in last:
            before[number] = last[lane]
        last[lane] = number
    return before


def ranks(jobs: Sequence[Job]) -> list[float]:
    """Seconds from the start of each job to the end, if no lane were ever busy."""
    found = [job.delay + job.seconds for job in jobs]
    for number in range(len(jobs) - 1, -1, -1):
        for earlier in jobs[number].after:
            own = jobs[earlier].delay + jobs[earlier].seconds
            found[earlier] = max(found[earlier], own + found[number])
    return found


def simulate(jobs: Sequence[Job], first: Sequence[float] | None = None) -> Timeline:
    """Runs the jobs on their lanes; each lane takes the ready job of the highest rank.

    Args:
        first: other numbers than ranks to go by, by job.
    """
    rank = ranks(jobs) if first is None else first
    users: list[list[int]] = [[] for _ in jobs]
    missing = []
    for number, job in enumerate(jobs):
        missing.append(len(job.after))
        for earlier in job.after:
            users[earlier].append(number)
    start, end = [0.0] * len(jobs), [0.0] * len(jobs)
    ready: dict[Hashable, list[tuple[int, float, int]]] = {job.lane: [] for job in jobs}
    busy: set[Hashable] = set()
    events: list[tuple[float, int]] = []

    def offer(number: int) -> None:
        job = jobs[number]
        heapq.heappush(ready[job.lane], (job.phase, -rank[number], number))

    def begin(lane: Hashable, now: float) -> None:
        if lane in busy or not ready[lane]:
            return
        number = heapq.heappop(ready[lane])[2]
        start[number] = now
        end[number] = now + jobs[number].delay + jobs[number].seconds
        busy.add(lane)
        heapq.heappush(events, (end[number], number))

    for number, count in enumerate(missing):
        if not count:
            offer(number)
    for lane in ready:
        begin(lane, 0.0)
    while events:
        now, touched = events[0][0], set()
        while events and events[0][0] <= now:  # all that ends now, before anything begins
            number = heapq.heappop(events)[1]
            busy.discard(jobs[number].lane)
            touched.add(jobs[number].lane)
            for user in users[number]:
                missing[user] -= 1
                if not missing[user]:
                    offer(user)
                    touched.add(jobs[user].lane)
        for lane in sorted(touched, key=repr):
            begin(lane, now)
    return Timeline(start, end, max(end, default=0.0))
