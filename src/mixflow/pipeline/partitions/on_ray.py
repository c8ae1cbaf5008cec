"""Executors as actors of a Ray cluster; results come through its object store."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from ...arguments import check_fields, number, optional, text
from ...extras import load
from .compute import Computer
from .executors import Done, Event, Failed, Lost, Ready, Result, describe_error
from .partition import Partition

_LOOK_SECONDS = 0.02


class Actor:
    """The actor's class: a `Computer` on its node."""

    def __init__(self) -> None:
        self._computer = Computer()

    def ready(self) -> bool:
        """Answers once the actor lives."""
        return True

    def compute(self, partition: str) -> tuple[Any, Any]:
        """(arrays, None) of a partition in JSON, or (None, its error as plain values)."""
        try:
            return self._computer.compute(Partition.from_json(partition)), None
        except Exception as error:
            return None, describe_error(error)


@dataclass
class _Held:
    life: int
    actor: Any
    question: Any
    number: int | None = None


@dataclass
class RayExecutors:
    """Actors, spread over the nodes; a lost actor or node counts as a lost executor.

    Every node must reach the source's files under the same path.

    Args:
        address: of a cluster ('auto', 'host:port'); None: the one in use, else one is started here.
        cpus: CPUs that each actor reserves.

    Raises:
        ParamError: an address or number that is none.
        MissingExtraError: Ray is not installed.
    """

    address: str | None = None
    cpus: float = 1.0
    _held: dict[int, _Held] = field(default_factory=dict, init=False)
    _lost: list[Event] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_fields("partitions", self, address=optional(text), cpus=number(0))
        self._ray = load("ray", "partitions")
        self._own = not self._ray.is_initialized()
        if self._own:
            here = {"include_dashboard": False} if self.address is None else {}
            self._ray.init(address=self.address, log_to_driver=False, **here)
        self._class = self._ray.remote(Actor)

    @property
    def actors(self) -> dict[int, Any]:
        """Actors by place."""
        return {place: held.actor for place, held in list(self._held.items())}

    def spawn(self, place: int, life: int) -> None:
        """Creates an actor. See `Executors`."""
        options = {"num_cpus": self.cpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        actor = self._class.options(**options).remote()
        self._held[place] = _Held(life, actor, actor.ready.remote())

    def compute(self, place: int, number: int, partition: str) -> None:
        """Calls an actor. See `Executors`."""
        held = self._held[place]
        held.number, held.question = number, held.actor.compute.remote(partition)

    def stop(self, place: int) -> None:
        """Kills an actor. See `Executors`."""
        held = self._held.pop(place, None)
        if held is not None:
            self._kill(held)
            self._lost.append(Lost(place, held.life, "it was ended"))

    def wait(self, timeout: float | None) -> list[Event]:
        """See `Executors`. Looks up every 20 ms: Ray has no wait that a thread could end."""
        seconds = _LOOK_SECONDS if timeout is None else min(timeout, _LOOK_SECONDS)
        events, self._lost = self._lost, []
        asked = {h.question: (p, h) for p, h in self._held.items() if h.question is not None}
        if asked and not events:
            ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=seconds)
            events += [self._news(*asked[reference]) for reference in ready]
        elif not events:
            time.sleep(seconds)
        return events

    def wake(self) -> None:
        """See `Executors`: the next look comes soon."""

    def close(self) -> None:
        """Kills all actors; ends Ray if it was started here. See `Executors`."""
        for held in self._held.values():
            self._kill(held)
        self._held = {}
        if self._own:
            self._ray.shutdown()

    def _news(self, place: int, held: _Held) -> Event:
        question, held.question = held.question, None
        try:
            answer = self._ray.get(question)
        except self._ray.exceptions.RayError as error:
            del self._held[place]
            self._kill(held)
            return Lost(place, held.life, f"{type(error).__name__} of its actor")
        if held.number is None:
            return Ready(place, held.life)
        number, held.number = held.number, None
        arrays, problem = answer
        if problem is not None:
            return Failed(place, held.life, number, problem)
        return Done(place, held.life, number, Result(arrays))

    def _kill(self, held: _Held) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(held.actor)
