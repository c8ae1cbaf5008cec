"""What things cost in a simulated job: parameters that are measured (`benchmarks/scaling`).

The hazard is a figure whose premises nobody sees. So every parameter has a name, a unit and a line
in `Costs.lines`, which each figure prints.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import FormatError, ParamError


class Work(NamedTuple):
    """Processor seconds of some messages: of handling them, and of moving their bytes."""

    handling: float = 0.0
    moving: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.handling + self.moving


class Cost(NamedTuple):
    """Processor seconds of a message, and of each byte in it."""

    message: float = 0.0
    byte: float = 0.0

    def of(self, nbytes: float, messages: float = 1.0) -> Work:
        """For so many bytes in so many messages."""
        return Work(self.message * messages, self.byte * nbytes)


_FREE = Cost()
#: Names of the costs of messages.
MESSAGES = (
    "worker_send", "worker_receive",
    "server_receive", "server_close", "server_apply", "server_send",
)  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """Costs on one kind of host. Times are processor seconds on a core that has nothing else to do.

    Args:
        worker_send, worker_receive: a worker's thread that talks to the servers.
        server_receive: a server takes a push (decodes it, adds it to the sum of its round).
        server_close: a server sums a round of a slice, updates it and commits it.
        server_apply: the same of a single push, where there are no rounds.
        server_send: a server sends values.
        worker_note, server_note: a worker takes, or a server sends, the word that a push has
            arrived or is applied.
        worker_wake, server_wake: seconds that the thread of a worker's link or of a server takes to
            begin when it had nothing to do.
        hop: seconds until a message between two processes of a host is noticed.
        cores: processor cores of a host.
        speed: speed of each core when 1, 2, ... cores are busy, relative to one alone (memory
            and caches are shared); the last one counts for more.
        crowded: the same when threads take turns on a core.
        company: speed of handling messages while others of the host compute; bytes are moved as
            fast as ever.
        shared: the same on a core for which others wait (its caches are colder).
        slice: seconds for which a thread that runs is left alone.
        tick: seconds between two looks at who is to run.
    """

    worker_send: Cost = _FREE
    worker_receive: Cost = _FREE
    server_receive: Cost = _FREE
    server_close: Cost = _FREE
    server_apply: Cost = _FREE
    server_send: Cost = _FREE
    worker_note: float = 0.0
    server_note: float = 0.0
    worker_wake: float = 0.0
    server_wake: float = 0.0
    hop: float = 0.0
    cores: int = 1
    speed: tuple[float, ...] = (1.0,)
    crowded: float = 1.0
    company: float = 1.0
    shared: float = 1.0
    slice: float = 1.4e-3
    tick: float = 4e-3

    def __post_init__(self) -> None:
        speeds = (*self.speed, self.crowded, self.company, self.shared)
        if self.cores < 1 or not self.speed or min(speeds) <= 0:
            raise ParamError(
                "[simulate] expected at least one core and speeds above 0, got "
                f"{self.cores} and {speeds}"
            )
        if min(self.slice, self.tick) < 1e-6:  # else the one who runs is chosen for ever
            raise ParamError(
                "[simulate] expected a slice and a tick of at least 1 us, got "
                f"{self.slice} and {self.tick} s"
            )

    def rate(self, busy: int) -> float:
        """Speed of each of some cores that are busy."""
        return self.speed[min(busy, len(self.speed)) - 1]

    def lines(self) -> list[str]:
        """The parameters in words, one per line."""
        found = []
        for name in MESSAGES:
            cost: Cost = getattr(self, name)
            found.append(f"{name}: {1e6 * cost.message:.0f} us + {1e9 * cost.byte:.3f} ns/B")
        speeds = ", ".join(f"{s:.2f}" for s in self.speed)
        found.append(
            f"a confirmation: worker {1e6 * self.worker_note:.0f} us, server "
            f"{1e6 * self.server_note:.0f} us; handled at {self.company:.2f} of that speed while "
            f"others of the host compute, at {self.shared:.2f} on a core that they share"
        )
        found.append(
            f"wake: worker {1e6 * self.worker_wake:.0f} us, server {1e6 * self.server_wake:.0f} us"
        )
        found.append(
            f"hop: {1e6 * self.hop:.0f} us; {self.cores} cores, speeds {speeds}, "
            f"{self.crowded:.2f} of it in turns, of {1e3 * self.slice:g} ms or up to a tick of "
            f"{1e3 * self.tick:g} ms; each thread keeps to one"
        )
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Costs:
        """What `to_json` wrote.

        Raises:
            FormatError: a name is missing or unknown, or a value is none.
        """
        try:
            kept = dict(value)
            for name in MESSAGES:
                kept[name] = Cost(*(float(v) for v in kept[name]))
            kept["speed"] = tuple(float(v) for v in kept["speed"])
            return Costs(**kept)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"[simulate] expected costs, got {error!r}") from None


@dataclass(frozen=True)
class Spread:
    """How the time of a worker's step varies: a log-normal factor of median 1 and parameter
    `sigma`, and a share of steps that take `factor` times as long (stragglers).

    Raises:
        ParamError: a negative sigma, a share outside of [0, 1], or a factor below 1.
    """

    sigma: float = 0.0
    share: float = 0.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.sigma < 0 or not 0 <= self.share <= 1 or self.factor < 1:
            raise ParamError(
                "[simulate] expected sigma >= 0, a share in [0, 1] and a factor >= 1, got "
                f"{self.sigma}, {self.share}, {self.factor}"
            )

    def draw(self, chance: random.Random) -> float:
        """A factor of a step's time."""
        slow = self.factor if self.share and chance.random() < self.share else 1.0
        return slow * (chance.lognormvariate(0.0, self.sigma) if self.sigma else 1.0)

    def __str__(self) -> str:
        """In words."""
        return f"sigma {self.sigma:g}, {100 * self.share:g} % of steps x {self.factor:g}"


@dataclass(frozen=True)
class Workload:
    """A step of a worker: seconds of computing, bytes of each key's gradient (and value), the share
    of the computing after which each gradient is ready, and how the time varies.

    Raises:
        ParamError: no key, or shares outside of [0, 1].
    """

    name: str
    seconds: float
    sizes: tuple[int, ...]
    ready: tuple[float, ...] = ()
    spread: Spread = field(default_factory=Spread)

    def __post_init__(self) -> None:
        if not self.sizes or any(not 0 <= share <= 1 for share in self.ready):
            raise ParamError(
                f"[simulate] expected keys and shares in [0, 1] for '{self.name}', got "
                f"{self.sizes} and {self.ready}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients."""
        return sum(self.sizes)

    def groups(self) -> list[tuple[float, list[int]]]:
        """Keys by the share of computing after which they are ready, in order."""
        shares = self.ready or (1.0,) * len(self.sizes)
        return [
            (share, [key for key, other in enumerate(shares) if other == share])
            for share in sorted(set(shares))
        ]


def read(path: str | Path) -> dict[str, Any]:
    """A file of measured parameters.

    Raises:
        FormatError: no JSON object, or one without costs, limit, workloads or check.
    """
    try:
        found = json.loads(Path(path).read_text())
        Costs.from_json(found["costs"])
        float(found["limit"])
        for load in found["workloads"].values():
            Workload("", float(load["seconds"]), tuple(load["sizes"]))
        for row in found["check"]:
            _ = row["policy"], row["workload"], int(row["workers"]), float(row["off"])
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"[simulate] expected measured parameters in {path}, got {error!r}"
        ) from None
    return dict(found)
