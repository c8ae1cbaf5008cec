"""The model that placement by cost searches: units of the user's nodes, with tasks and bytes.

Hazard: the plan that runs is fused and laid out, so a task may do the work of several of the user's
nodes, and a node may have no task of its own. Such a node goes where the task that contains it
goes: apart from it, it would only break the fusion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..ir import Graph, Node, Value
from .auto_place import Model, Unit
from .infer import Types
from .place import Device
from .placed import Link
from .schedule import Task


@dataclass
class Wishes:
    """What is fixed beforehand.

    Attributes:
        devices: that may be used.
        allowed: devices by name of a node, where they are fewer.
        together: pairs of names of nodes that stay together.
    """

    devices: tuple[Device, ...]
    allowed: dict[str, tuple[Device, ...]] = field(default_factory=dict)
    together: list[tuple[str, str]] = field(default_factory=list)

    def of(self, name: str) -> tuple[Device, ...]:
        """Devices that a node may run on."""
        return self.allowed.get(name, self.devices)


def modelled(
    graph: Graph,
    types: Types,
    requests: Mapping[str, str],
    tasks: Sequence[Task],
    seconds: Sequence[float],
    wishes: Wishes,
    link: Link,
) -> Model:
    """Units of a Symbol's graph, with the tasks of its plan on one device.

    Args:
        graph: at Symbol level.
        types: of its values.
        requests: gradients that are asked for, by argument.
        tasks: in order.
        seconds: of each task.
    """
    return _Building(graph, tasks, wishes).model(types, requests, seconds, link)


class _Building:
    def __init__(self, graph: Graph, tasks: Sequence[Task], wishes: Wishes) -> None:
        self.graph, self.tasks, self.wishes = graph, tasks, wishes
        self.nodes = [n for n in graph.nodes() if n.op is not None]
        self.users: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                self.users.setdefault(value.node, []).append(node)
        self.leader: dict[str, str] = {n.origin: n.origin for n in self.nodes}
        self._join()
        self.units: list[Unit] = []
        self.unit: dict[str, int] = {}  # by leader
        for node in self.nodes:
            self._unit(self.find(node.origin), node.origin)

    # -- units

    def find(self, name: str) -> str:
        """The name that stands for those that stay together."""
        while self.leader[name] != name:
            name = self.leader[name]
        return name

    def _merge(self, name: str, into: str) -> bool:
        """Keeps two names together, where what they may use is not disjoint."""
        a, b = self.find(name), self.find(into)
        common = tuple(d for d in self.wishes.of(b) if d in self.wishes.of(a))
        if a == b or not common:
            return a == b
        self.leader[a] = b
        self.wishes.allowed[b] = common
        return True

    def _join(self) -> None:
        # A node whose result is made inside of another's program: its gradient may have a task.
        busy = {t.origin for t in self.tasks if t.phase == 0}
        for node in reversed(self.nodes):
            if node.origin not in busy:
                near = [*self.users.get(node, ()), *(v.node for v in node.inputs)]
                for other in near:
                    if other.op is not None and self._merge(node.origin, other.origin):
                        break
        for name, other in self.wishes.together:
            self._merge(name, other)

    def _unit(self, leader: str, label: str) -> int:
        found = self.unit.get(leader)
        if found is None:
            found = self.unit[leader] = len(self.units)
            self.units.append(Unit([], self.wishes.of(leader)))
        if label not in self.units[found].labels:
            self.units[found].labels.append(label)
        return found

    def of(self, node: Node) -> int:
        """Unit of an operator, or of a variable: that of its first reader, unless it is tied."""
        if node.op is not None:
            return self.unit[self.find(node.origin)]
        if node.name in self.wishes.allowed or node not in self.users:
            key = f"variable {node.name}"
            if key not in self.unit:
                self.unit[key] = len(self.units)
                self.units.append(Unit([node.name], self.wishes.of(node.name)))
            return self.unit[key]
        return self.of(self.users[node][0])

    # -- the model

    def model(
        self, types: Types, requests: Mapping[str, str], seconds: Sequence[float], link: Link
    ) -> Model:
        """Units, the unit of each task, and where arguments lie."""
        homes = self._homes(types, requests)
        unit_of = self._units_of_tasks(homes)
        for at, unit in enumerate(unit_of):
            self.units[unit].seconds += seconds[at]
        self._kept(unit_of)
        return Model(self.units, self.tasks, unit_of, seconds, homes, link)

    def _homes(self, types: Types, requests: Mapping[str, str]) -> dict[int, int]:
        """Unit by number of the plan's argument: inputs, head gradients, gradients."""
        wanted = [v for v in self.graph.inputs if requests.get(v.node.name, "null") != "null"]
        values: list[Value] = list(self.graph.inputs)
        if wanted:
            values += [*self.graph.outputs, *wanted]
        homes = {k: self.of(v.node) for k, v in enumerate(values)}
        for value in (*self.graph.inputs, *wanted):
            self.units[self.of(value.node)].nbytes += types[value].nbytes
        return homes

    def _units_of_tasks(self, homes: Mapping[int, int]) -> list[int]:
        """By the user's node; what belongs to none goes with what it reads, or where it writes."""
        found: list[int] = []
        position = {t.index: k for k, t in enumerate(self.tasks)}
        for task in self.tasks:
            if task.origin in self.leader:
                found.append(self.unit[self.find(task.origin)])
                continue
            writers = (u.buffer.writers[u.epoch] for u in task.reads)
            near = [found[position[w.index]] for w in writers if w is not None]
            slots = [u.buffer.slot for u in (*task.writes, *task.reads)]
            near += [homes[s[1]] for s in slots if s and s[0] == "arg" and s[1] in homes]
            found.append(near[0] if near else 0)
        return found

    def _kept(self, unit_of: Sequence[int]) -> None:
        """Adds the values of the forward phase that the backward phase reads."""
        seen: set[int] = set()
        position = {t.index: k for k, t in enumerate(self.tasks)}
        for task in self.tasks:
            for use in task.reads:
                writer = use.buffer.writers[use.epoch]
                if not task.phase or writer is None or writer.phase:
                    continue
                if use.buffer.number not in seen and use.buffer.slot is None:
                    seen.add(use.buffer.number)
                    self.units[unit_of[position[writer.index]]].nbytes += use.buffer.nbytes
