"""Room for a job on a Ray cluster: placement groups for its servers and its workers.

The hazard: Ray waits for ever for room that a cluster does not have. So a group is waited for until
a deadline, and the error says what the job needs, what the cluster has and what is missing.

Servers are spread over the nodes, one bundle for each, so that hosts can stand by for each other.
Workers are packed on few nodes, or spread. A newcomer has a group of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import MixflowError, ParamError
from ...extras import load

#: Strategies of workers by the name that a user gives.
STRATEGIES = {"pack": "PACK", "spread": "SPREAD"}
#: What a bundle asks for that reserves no CPU: Ray wants something (bytes of memory, as it counts).
NEXT_TO_NOTHING = {"memory": 1 << 20}
#: Seconds that a newcomer's place is waited for while its job goes on unwatched.
NEWCOMER_SECONDS = 10.0


@dataclass(frozen=True)
class Room:
    """What the processes of a job need of a cluster.

    Args:
        cpus_per_worker, cpus_per_server: that each reserves; 0: none.
        workers: 'pack' or 'spread'.
        deadline: seconds in which there must be room.

    Raises:
        ParamError: a negative number, no positive deadline, or another strategy.
    """

    cpus_per_worker: float = 1.0
    cpus_per_server: float = 0.0
    workers: str = "pack"
    deadline: float = 60.0

    def __post_init__(self) -> None:
        if min(self.cpus_per_worker, self.cpus_per_server) < 0 or self.deadline <= 0:
            raise ParamError(
                "[launch] expected CPUs per process >= 0 and a deadline > 0, got "
                f"{self.cpus_per_worker}, {self.cpus_per_server} and {self.deadline}"
            )
        if self.workers not in STRATEGIES:
            raise ParamError(
                f"[launch] expected workers to be placed by one of {sorted(STRATEGIES)}, got "
                f"{self.workers!r}"
            )


class Group:
    """A placement group that has its places.

    Args:
        what: whom they are for, in errors.
        count, cpus: bundles, and the CPUs of each.
        strategy: Ray's name of it.
        deadline: seconds.

    Raises:
        MixflowError: there is no room within the deadline.
    """

    def __init__(self, what: str, count: int, cpus: float, strategy: str, deadline: float) -> None:
        self._ray = load("ray", "launch")
        util = load("ray.util", "launch")
        bundles = [{"CPU": cpus} if cpus else NEXT_TO_NOTHING] * count
        self._group = util.placement_group(bundles, strategy=strategy)
        if not self._group.wait(deadline):
            error = _no_room(what, count, cpus, deadline)
            self.close()
            raise error

    def nodes(self) -> list[str]:
        """The node of each bundle."""
        table = self._ray.util.placement_group_table(self._group)
        found = {int(k): str(v) for k, v in table["bundles_to_node_id"].items()}
        return [found[k] for k in sorted(found)]

    def place(self, bundle: int) -> Any:
        """Ray's strategy for an actor in a bundle."""
        return self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=bundle
        )

    def close(self) -> None:
        """Gives the places back."""
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.util.remove_placement_group(self._group)


def _no_room(what: str, count: int, cpus: float, deadline: float) -> MixflowError:
    """Says what the cluster lacks for `count` processes."""
    ray = load("ray", "launch")
    return MixflowError(
        f"[launch] expected room for {what} with {cpus:g} CPUs each within {deadline:g} s, got "
        + _lacking(ray, count, cpus)
    )


def _lacking(ray: Any, count: int, cpus: float) -> str:
    """What a cluster has, and what it lacks."""
    nodes = [n["Resources"].get("CPU", 0.0) for n in ray.nodes() if n["Alive"]]
    free = float(ray.available_resources().get("CPU", 0.0))
    has = f"{len(nodes)} nodes of {_list(nodes)} CPUs, {free:g} of them free"
    if cpus > max(nodes, default=0.0):
        return f"{has}: no node has {cpus:g}; use a smaller --cpus-per-worker"
    if cpus * count > free:
        return (
            f"{has}: {cpus * count - free:g} are missing; wait for other jobs to end, or use a "
            "smaller --cpus-per-worker or -n"
        )
    return f"{has}, but in pieces that are too small; use a smaller --cpus-per-worker"


def _list(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in sorted(numbers, reverse=True)) or "no"


class Places:
    """The places of a job's processes. Not thread-safe."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._groups: list[Group] = []
        self._held: dict[int, tuple[Group, int]] = {}
        self._free: list[tuple[Group, int]] = []

    def reserve(self, workers: int, servers: int) -> list[str]:
        """Reserves places anew; the node of each server.

        Raises:
            MixflowError: there is no room.
        """
        self.close()
        each, room = self.room.cpus_per_server, self.room
        self._groups.append(Group(f"{servers} servers", servers, each, "SPREAD", room.deadline))
        how, each = STRATEGIES[room.workers], room.cpus_per_worker
        made = Group(f"{workers} workers", workers, each, how, room.deadline)
        self._groups.append(made)
        self._held = {rank: (made, rank) for rank in range(workers)}
        return self._groups[0].nodes()

    def of_worker(self, rank: int) -> Any:
        """The strategy for a worker's actor.

        Raises:
            MixflowError: no room for a newcomer.
        """
        if rank not in self._held:
            if not self._free:
                deadline = min(self.room.deadline, NEWCOMER_SECONDS)
                each = self.room.cpus_per_worker
                self._groups.append(Group("one more worker", 1, each, "PACK", deadline))
                self._free.append((self._groups[-1], 0))
            self._held[rank] = self._free.pop()
        group, bundle = self._held[rank]
        return group.place(bundle)

    def of_server(self, number: int, node: str) -> Any:
        """The strategy for a server's actor on a node; None where its place is on another."""
        nodes = self._groups[0].nodes()
        return self._groups[0].place(number) if nodes[number : number + 1] == [node] else None

    def leave(self, rank: int) -> None:
        """Gives the place of a worker that does not come back to the next newcomer."""
        if rank in self._held:
            self._free.append(self._held.pop(rank))

    def close(self) -> None:
        """Gives all places back. Safe to call twice."""
        for group in self._groups:
            group.close()
        self._groups.clear()
        self._held.clear()
        self._free.clear()

    def lacking(self, what: str, cpus: float) -> MixflowError:
        """The error of a process for which no place was found in time."""
        return _no_room(what, 1, cpus, self.room.deadline)
