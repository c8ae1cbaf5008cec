"""Nodes to devices: context groups, propagation to primitives, copies at the borders.

Hazard: a node that reads what lies on another device would compute with foreign memory, and a
node on the wrong side of a border costs two copies instead of one. So every edge between devices
carries a copy node, which no other pass merges or moves, and after this pass the device of a node
follows from its inputs alone: whatever later passes make of the nodes in between is found again by
`devices`, which also proves that no edge crosses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import GraphError, UnknownNameError, describe_unknown
from ..ir import Graph, Node, Value, emit_node, origin
from .rewrite import has_effect, with_inputs

#: (type code, index), as of a Context.
Device = tuple[int, int]
#: Attribute of a user's node: the name of its group.
GROUP = "__ctx_group__"
#: Attributes: where a copy node leads; where a node without inputs runs.
TO, AT = "__copy_to__", "__device__"


@dataclass(frozen=True)
class Places:
    """Where the parts of a graph are.

    Attributes:
        nodes: device by label of the user's node.
        inputs: device of each input of the graph, in order.
        outputs: device of each output of the graph, in order.
        default: of what belongs to no node.
    """

    nodes: Mapping[str, Device]
    inputs: tuple[Device, ...]
    outputs: tuple[Device, ...]
    default: Device

    @property
    def key(self) -> tuple[object, ...]:
        """What a plan depends on, hashable."""
        return tuple(sorted(self.nodes.items())), self.inputs, self.outputs, self.default

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every device named, sorted."""
        return tuple(sorted({*self.nodes.values(), *self.inputs, *self.outputs}))


def grouped(
    graph: Graph,
    groups: Mapping[str, Device],
    default: Device,
    fixed: Mapping[Node, Device],
) -> dict[Node, Device]:
    """Device of every node of a Symbol's graph, by MXNet's rules.

    A node of a group runs on the group's device. An operator without a group runs where its first
    input is; a variable without one lies on the default device.

    Args:
        graph: at Symbol level.
        groups: device by name of the group; no groups at all = nobody asks for them.
        default: of variables without a group.
        fixed: nodes whose device is given.

    Raises:
        UnknownNameError: a node of a group that `groups` does not have.
    """
    found: dict[Node, Device] = {}
    for node in graph.nodes():
        group = node.attrs.get(GROUP)
        if node in fixed:
            found[node] = fixed[node]
        elif group is not None and groups:
            if group not in groups:
                text = describe_unknown("context group", group, list(groups))
                raise UnknownNameError(f"{text}; node '{node.name}' is in it")
            found[node] = groups[group]
        elif node.inputs:
            found[node] = found[node.inputs[0].node]
        else:
            found[node] = default
    return found


def by_label(nodes: Mapping[Node, Device]) -> dict[str, Device]:
    """Device of each operator of a Symbol by the label that its primitives will carry.

    Raises:
        GraphError: two nodes of one name on different devices.
    """
    labels: dict[str, Device] = {}
    for node, device in nodes.items():
        if node.op is not None and labels.setdefault(node.origin, device) != device:
            raise GraphError(
                f"[place] expected one context for the nodes named '{node.origin}', got two; "
                "give them different names"
            )
    return labels


def place(graph: Graph, places: Places) -> Graph:
    """The graph with a copy node on every edge between devices.

    Args:
        graph: of primitives.
    """
    return _Placing(graph, places).run()


class _Placing:
    def __init__(self, graph: Graph, places: Places) -> None:
        self.graph = graph
        self.places = places
        self.device: dict[Node, Device] = {
            v.node: d for v, d in zip(graph.inputs, places.inputs, strict=True)
        }
        self.new: dict[Value, Value] = {}  # old value -> new value, on its own device
        self.copies: dict[tuple[Value, Device], Value] = {}
        self.twins: dict[tuple[Value, Device], Value] = {}
        self.written = {variable.node for _, variable in graph.updates}
        self.saved: dict[Value, Value] = {}

    def run(self) -> Graph:
        """The new graph."""
        order = self.graph.nodes()
        for node in order:
            if node.op is not None:
                self.device[node] = self._own(node)
        for node in order:
            if node.op is not None and not _portable(node):
                self._node(node)
        outputs = tuple(
            self._output(v, d) for v, d in zip(self.graph.outputs, self.places.outputs, strict=True)
        )
        updates = tuple((self.on(new, self.device[v.node]), v) for new, v in self.graph.updates)
        graph = self.graph
        return Graph(
            graph.inputs,
            outputs,
            updates,
            graph.phase_outputs,
            graph.phase_updates,
            dict(graph.meta),
        )

    def _own(self, node: Node) -> Device:
        """A node that writes a variable runs where that is, the others where their label says."""
        if node.mutated:
            return self.device[node.inputs[node.mutated[0]].node]
        found = self.places.nodes.get(node.origin)
        if found is not None:
            return found
        known = (self.device[v.node] for v in node.inputs if not _portable(v.node))
        return next(known, self.places.default)

    def _node(self, node: Node) -> None:
        device = self.device[node]
        made = with_inputs(node, [self.on(v, device) for v in node.inputs])
        if not node.inputs:
            made = _marked(made, AT, device)
        if made is not node:
            self.device[made] = device
            self.new.update(zip(node.values, made.values, strict=True))

    def on(self, value: Value, device: Device) -> Value:
        """The value on a device: itself, a copy, or a constant made there."""
        if _portable(value.node):
            return self._twin(value, device)
        here = self.new.get(value, value)
        if self.device[value.node] == device:
            return here
        if value.node in self.written:  # what is sent is the content of before the write
            here = self._kept(value)
        found = self.copies.get((here, device))
        if found is None:
            found = self.copies[here, device] = _copied(here, TO, device)
        return found

    def _twin(self, value: Value, device: Device) -> Value:
        """A constant is cheaper made again than copied."""
        found = self.twins.get((value, device))
        if found is None:
            made = _marked(value.node, AT, device)
            found = self.twins[value, device] = made[value.index]
        return found

    def _kept(self, value: Value) -> Value:
        """A copy on the value's own device, made by a step."""
        found = self.saved.get(value)
        if found is None:
            found = self.saved[value] = _copied(value, AT, self.device[value.node])
        return found

    def _output(self, value: Value, device: Device) -> Value:
        """What no step on its device makes (an input, a copy from another) gets a step."""
        found = self.on(value, device)
        given = found.node.op is None or target(found.node) is not None
        return _copied(found, AT, device) if given else found


def _portable(node: Node) -> bool:
    """Whether a node is a constant."""
    return node.op is not None and not node.inputs and not has_effect(node)


def _copied(value: Value, key: str, device: Device) -> Value:
    with origin(value.node.origin):
        return _marked(emit_node("copy", value), key, device)[0]


def _marked(node: Node, key: str, device: Device) -> Node:
    """The node with an attribute that names a device."""
    return Node(
        node.op,
        node.name,
        node.inputs,
        dict(node.params),
        {**node.attrs, key: f"{device[0]}/{device[1]}"},
        node.types,
        node.subgraphs,
        node.origin,
        node.kind,
    )


def target(node: Node) -> Device | None:
    """Where a copy node leads; None for other nodes."""
    return _device(node.attrs.get(TO))


def _device(text: str | None) -> Device | None:
    if text is None:
        return None
    kind, _, index = text.partition("/")
    return int(kind), int(index)


def devices(graph: Graph, places: Places) -> Mapping[Node, Device]:
    """Device of every node of a placed graph, from its inputs.

    Raises:
        GraphError: an edge crosses devices without a copy, a fault of a pass.
    """
    found: dict[Node, Device] = {
        v.node: d for v, d in zip(graph.inputs, places.inputs, strict=True)
    }
    order = graph.nodes()
    for node in order:
        own = target(node) or _device(node.attrs.get(AT))
        if own is None and node not in found:
            own = next((found[v.node] for v in node.inputs if v.node in found), None)
        if own is not None:
            found[node] = own
    for value, device in zip(graph.outputs, places.outputs, strict=True):
        found.setdefault(value.node, device)
    for node in reversed(order):  # constants that passes have made stand where they are used
        for value in node.inputs:
            found.setdefault(value.node, found.get(node, places.default))
    for node in order:
        found.setdefault(node, places.default)
        _check(node, found)
    return MappingProxyType(found)


def _check(node: Node, found: Mapping[Node, Device]) -> None:
    if target(node) is not None:
        return
    for value in node.inputs:
        if found[value.node] != found[node]:
            raise GraphError(
                f"[place] expected the inputs of {node} on {found[node]}, got one on "
                f"{found[value.node]}"
            )
