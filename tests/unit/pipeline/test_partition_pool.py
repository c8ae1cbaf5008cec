"""A pool whose executors are made up: random deaths, delays, bad data and old news."""

from __future__ import annotations

import random
import time
from collections import deque
from typing import Any

import numpy as np
import pytest

from mixflow.errors import FormatError, MixflowError
from mixflow.pipeline.partitions import Partition, Pool, Rules, pool
from mixflow.pipeline.partitions.executors import Done, Event, Failed, Lost, Ready, Result

RULES = Rules(tries=1000, strikes=1000, least=0.002, grace=0.01, deadline=0.2)


class Made:
    """Executors without processes: what they do and when is drawn."""

    def __init__(self, seed: int, bad: frozenset[int] = frozenset()) -> None:
        self.draw, self.bad = random.Random(seed), bad
        self.lives: dict[int, int] = {}
        self.news: list[tuple[float, Event]] = []
        self.waked: deque[None] = deque()
        self.released = self.made = 0

    def later(self, event: Event, most: float = 0.004) -> None:
        self.news.append((time.monotonic() + self.draw.uniform(0, most), event))

    def spawn(self, place: int, life: int) -> None:
        self.lives[place] = life
        self.later(Ready(place, life))

    def compute(self, place: int, number: int, partition: str) -> None:
        life, kind = self.lives[place], self.draw.random()
        if kind < 0.1:
            self.later(Lost(place, life, "killed"))
        if kind < 0.15:
            return  # dead, or hangs
        described = Partition.from_json(partition)
        if described.first in self.bad:
            error = {"names": ["FormatError"], "text": f"bad {described.first}", "final": True}
            self.later(Failed(place, life, number, error))
            return
        self.made += 1
        arrays = {"index": np.arange(described.first, described.end)}
        result = Result(arrays, self._released)
        self.later(Done(place, life, number, result), 0.1 if kind < 0.2 else 0.004)

    def _released(self, again: bool) -> None:
        self.released += again

    def stop(self, place: int) -> None:
        self.later(Lost(place, self.lives[place], "stopped"))

    def wait(self, timeout: float | None) -> list[Event]:
        time.sleep(0.0005)
        self.waked.clear()
        due = [event for at, event in self.news if at <= time.monotonic()]
        self.news = [(at, event) for at, event in self.news if event not in due]
        self.draw.shuffle(due)
        return due

    def wake(self) -> None:
        self.waked.append(None)

    def close(self) -> None:
        self.lives = {}


@pytest.mark.parametrize("executors", [1, 2, 4])
def test_results_come_once_in_order_and_errors_at_their_place(
    monkeypatch: pytest.MonkeyPatch, executors: int
) -> None:
    monkeypatch.setitem(pool.PLACES, "made", Made)
    bad = frozenset({12, 60, 117})
    made = Pool(executors, "made", RULES, 30.0, seed=executors, bad=bad)
    starts = deque(range(0, 150, 3))
    pending: deque[tuple[int, int]] = deque()
    found: list[int] = []
    errors: list[str] = []
    while starts or pending:
        while starts and len(pending) < 5:
            first = starts.popleft()
            pending.append((made.submit(Partition({}, first, first + 3)), first))
        number, first = pending.popleft()
        try:
            result = made.take(number)
        except FormatError as error:
            errors.append(str(error))
            continue
        assert result.arrays["index"].tolist() == [first, first + 1, first + 2]
        found += result.arrays["index"].tolist()
        result.release()
        assert made.settled(number)
    assert found == [i for i in range(150) if i // 3 * 3 not in bad]
    assert errors == [
        f"bad {first} (the partition of positions {first} to {first + 3})" for first in sorted(bad)
    ]
    counts: Any = made.counts
    assert counts.computed == 47 and counts.lost and counts.replaced
    assert executors == 1 or counts.copies
    made.close()


def test_cancelled_results_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pool.PLACES, "made", Made)
    made = Pool(2, "made", RULES, 30.0, seed=1)
    numbers = [made.submit(Partition({}, i, i + 1)) for i in range(6)]
    made.take(numbers[5]).release()
    made.cancel()
    with pytest.raises(MixflowError, match="expected a submitted number, got 0"):
        made.take(numbers[0])
    last = made.submit(Partition({}, 7, 8))
    assert made.take(last).arrays["index"].tolist() == [7]
    made.close()


def test_a_thread_that_fails_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Made):
        def wait(self, timeout: float | None) -> list[Event]:
            raise RuntimeError("no wait")

    monkeypatch.setitem(pool.PLACES, "made", Broken)
    made = Pool(1, "made", RULES, 30.0, seed=1)
    number = made.submit(Partition({}, 0, 1))
    with pytest.raises(MixflowError, match=r"expected a running pool, got RuntimeError\('no wait'"):
        made.take(number)
    made.close()
