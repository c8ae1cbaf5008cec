"""Faults on purpose: messages that are lost, repeated, delayed and so reordered.

Part of the product: the same knobs serve the tests of this library and users who want to see what
their job does on a bad network.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ParamError

AHEAD_SECONDS = 2e-3


@dataclass(frozen=True)
class Faults:
    """Shares of messages that are lost, sent twice, or delayed by up to `delay_s` seconds; and a
    slow link: `rate` bytes per second of each sender (0: as fast as it goes). A store with a rate
    takes its servers for far, wherever they are.

    Raises:
        ParamError: a share outside of [0, 1), or a negative delay or rate.
    """

    lose: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.05
    seed: int = 0
    rate: float = 0.0

    def __post_init__(self) -> None:
        shares = {"lose": self.lose, "repeat": self.repeat, "delay": self.delay}
        for name, share in shares.items():
            if not 0 <= share < 1:
                raise ParamError(f"[faults] expected {name} in [0, 1), got {share}")
        if self.delay_s < 0:
            raise ParamError(f"[faults] expected delay_s >= 0, got {self.delay_s}")
        if self.rate < 0:
            raise ParamError(f"[faults] expected rate >= 0, got {self.rate}")

    @staticmethod
    def from_text(text: str) -> Faults:
        """The setting of a text such as 'lose=0.1,repeat=0.05,delay=0.2,delay_s=0.1,seed=3'.

        Raises:
            ParamError: unknown name or not a number.
        """
        values: dict[str, Any] = {}
        for piece in filter(None, (p.strip() for p in text.split(","))):
            name, _, value = piece.partition("=")
            if name not in Faults.__dataclass_fields__:
                known = ", ".join(Faults.__dataclass_fields__)
                raise ParamError(f"[faults] expected one of {known}, got {name!r}")
            try:
                values[name] = int(value) if name == "seed" else float(value)
            except ValueError:
                raise ParamError(f"[faults] expected {name}=number, got {piece!r}") from None
        return Faults(**values)


class Mangler:
    """Applies `Faults` to a stream of messages. Not thread-safe.

    `put` takes a message and gives those that go out now; `due` gives the delayed ones whose time
    has come, `next_time` when that is.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.counts: Mapping[str, int] = {"lost": 0, "repeated": 0, "delayed": 0}
        self._random = random.Random(faults.seed)
        self._late: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._free_at = 0.0

    def busy_until(self, now: float) -> float | None:
        """When the slow link takes another message, or None when it does now. The next one may
        wait in it for `AHEAD_SECONDS`, so that it never stands still between two."""
        return self._free_at - AHEAD_SECONDS if self._free_at - AHEAD_SECONDS > now else None

    def take_time(self, message: Any, nbytes: int, now: float) -> list[Any]:
        """Puts a message on a slow link: it goes out (see `due`) when its last byte would have.
        The messages that go out now: this one, where there is no rate."""
        if not self.faults.rate:
            return [message]
        self._free_at = max(now, self._free_at) + nbytes / self.faults.rate
        heapq.heappush(self._late, (self._free_at, next(self._order), message))
        return []

    def put(
        self, message: Any, now: float, bytes_of: Callable[[Any], Any] = lambda message: message
    ) -> list[Any]:
        """The copies of a message that go out at once. Delayed ones are kept as `bytes_of` it."""
        draw, faults = self._random.random, self.faults
        if faults.lose and draw() < faults.lose:
            self._count("lost")
            return []
        copies = 1
        if faults.repeat and draw() < faults.repeat:
            self._count("repeated")
            copies = 2
        found = []
        for _ in range(copies):
            if faults.delay and draw() < faults.delay:
                self._count("delayed")
                entry = (now + draw() * faults.delay_s, next(self._order), bytes_of(message))
                heapq.heappush(self._late, entry)
            else:
                found.append(message)
        return found

    def due(self, now: float) -> list[Any]:
        """Delayed messages whose time has come."""
        found = []
        while self._late and self._late[0][0] <= now:
            found.append(heapq.heappop(self._late)[2])
        return found

    @property
    def next_time(self) -> float | None:
        """When `due` next has something."""
        return self._late[0][0] if self._late else None

    def _count(self, what: str) -> None:
        self.counts = {**self.counts, what: self.counts[what] + 1}
