"""A serial order of the tasks that keeps peak memory low and writes gradients early.

Hazard: a breadth-first order keeps every branch alive. Two orders are made, the natural one of the
data flow and a greedy one that always runs the ready task that frees the most bytes; the one with
the lower peak wins.
"""

from __future__ import annotations

import heapq

from ..ir import Value
from .schedule import Schedule, Task

_WINDOW = 48  # ready tasks that the greedy order looks at


def order(schedule: Schedule, keep: bool = False) -> list[Task] | None:
    """Tasks in the order in which they will run, forward phase first; None where none exists.

    Args:
        keep: the tasks' own order is meant: it becomes the natural one.
    """
    tasks = schedule.tasks
    before, users = _edges(schedule)
    if any(tasks[b].phase > t.phase for t in tasks for b in before[t.index]):
        return None
    natural = _natural(tasks, before, users)
    if len(natural) < len(tasks):
        return None
    if keep or len(tasks) <= 2:
        return natural
    greedy = _greedy(tasks, before, users)
    return min((greedy, natural), key=peak)


def stuck(schedule: Schedule, mutations: dict[int, Value]) -> list[Value]:
    """The mutations that have a part in an impossible order."""
    tasks = schedule.tasks
    before, users = _edges(schedule)
    done = {t.index for t in _natural(tasks, before, users)}
    found = []
    for index, new in mutations.items():
        late = any(tasks[b].phase > tasks[index].phase for b in before[index])
        if index not in done or late:
            found.append(new)
    return found


def _edges(schedule: Schedule) -> tuple[list[set[int]], list[list[int]]]:
    tasks = schedule.tasks
    before: list[set[int]] = []
    users: list[list[int]] = [[] for _ in tasks]
    for task in tasks:
        needs = set(task.after)
        for use in task.reads:
            writer = use.buffer.writers[use.epoch]
            if writer is not None and writer is not task:
                needs.add(writer.index)
        needs.discard(task.index)
        before.append(needs)
        for index in needs:
            users[index].append(task.index)
    return before, users


def _natural(tasks: list[Task], before: list[set[int]], users: list[list[int]]) -> list[Task]:
    missing = [len(b) for b in before]
    ready = [(t.phase, t.index) for t in tasks if not missing[t.index]]
    heapq.heapify(ready)
    result = []
    while ready:
        _, index = heapq.heappop(ready)
        result.append(tasks[index])
        for user in users[index]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (tasks[user].phase, user))
    return result


class _Greedy:
    """State of the greedy order: how many readers each buffer still waits for."""

    def __init__(self, tasks: list[Task]) -> None:
        self.left: dict[int, int] = {}
        for task in tasks:
            for buffer in {u.buffer.number: u.buffer for u in task.reads}.values():
                if buffer.slot is None:
                    self.left[buffer.number] = self.left.get(buffer.number, 0) + 1

    def cost(self, task: Task) -> int:
        """Bytes that running the task now adds (negative: frees)."""
        total = sum(u.buffer.nbytes for u in task.writes if u.buffer.slot is None and u.epoch == 0)
        seen = set()
        for use in task.reads:
            buffer = use.buffer
            if buffer.slot is None and buffer.number not in seen:
                seen.add(buffer.number)
                if self.left[buffer.number] == 1:
                    total -= buffer.nbytes
        return total

    def run(self, task: Task) -> None:
        for number in {u.buffer.number for u in task.reads if u.buffer.slot is None}:
            self.left[number] -= 1


def _greedy(tasks: list[Task], before: list[set[int]], users: list[list[int]]) -> list[Task]:
    missing = [len(b) for b in before]
    state = _Greedy(tasks)
    waves: list[list[int]] = [[], []]
    for task in tasks:
        if not missing[task.index]:
            waves[task.phase].append(task.index)
    result: list[Task] = []
    for ready in waves:
        while ready:
            window = range(max(0, len(ready) - _WINDOW), len(ready))
            best = min(window, key=lambda k: (state.cost(tasks[ready[k]]), ready[k]))
            index = ready.pop(best)
            state.run(tasks[index])
            result.append(tasks[index])
            for user in users[index]:
                missing[user] -= 1
                if not missing[user]:
                    waves[tasks[user].phase].append(user)
    return result


def lifetimes(order: list[Task]) -> None:
    """Sets `pos` of the tasks and `first`, `last` of every buffer they touch."""
    for pos, task in enumerate(order):
        task.pos = pos
        for use in (*task.reads, *task.writes):
            use.buffer.first = -1
    for pos, task in enumerate(order):
        for use in (*task.writes, *task.reads):
            if use.buffer.first < 0:
                use.buffer.first = pos
            use.buffer.last = pos


def peak(order: list[Task]) -> int:
    """Largest sum of live arena bytes over the steps of an order, without in-place reuse."""
    lifetimes(order)
    change = [0] * (len(order) + 1)
    seen = set()
    for task in order:
        for use in task.writes:
            buffer = use.buffer
            if buffer.slot is None and buffer.number not in seen:
                seen.add(buffer.number)
                change[buffer.first] += buffer.nbytes
                change[buffer.last + 1] -= buffer.nbytes
    live = most = 0
    for delta in change:
        live += delta
        most = max(most, live)
    return most
