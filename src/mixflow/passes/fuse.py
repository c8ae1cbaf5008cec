"""Elementwise chains into programs that run as one kernel.

Hazard: a group must not depend on itself through a node outside of it. Before two groups merge,
a bounded search upwards from their outside inputs looks for a way back; when in doubt they stay
apart. Draws and effects never enter a program.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtype as dtypes
from ..ir import Graph, Node, Value, primitive
from .rewrite import FREE, backward_nodes, deep_first, with_heads, with_inputs

MAX_INSTRUCTIONS = 32
MAX_OPERANDS = 16
_SEARCH = 256


class _Group:
    """Nodes that become one program."""

    __slots__ = ("high", "klass", "low", "nodes", "phase", "shape", "terminal")

    def __init__(self, node: Node, at: int, klass: str, phase: int) -> None:
        self.nodes = [node]
        self.low = self.high = at
        self.klass = klass
        self.phase = phase
        self.shape = node[0].shape
        self.terminal: set[Node] = set()


def numeric_class(dtype: np.dtype[Any]) -> str:
    """Type that a program computes in: 'f' float32, 'd' double, 'i' 64-bit integers, 'b' bool."""
    if dtype == np.float64:
        return "d"
    if dtypes.is_float(dtype):
        return "f"
    return "b" if dtype == np.bool_ else f"i{dtype.itemsize}" if dtype.itemsize < 4 else "i"


def fuse(graph: Graph) -> Graph:
    """The graph with its elementwise chains as `fused` nodes."""
    groups = _Grouping(graph).run()
    if not groups:
        return graph
    return _emit_groups(graph, groups)


def _literal(value: Value) -> float | None:
    """The number of a scalar constant, which becomes a literal."""
    node = value.node
    if node.op is not None and node.op.name == "full" and value.shape == ():
        return float(node.params["value"])
    return None


def _widens(node: Node) -> bool:
    """Whether the node makes float32 of a narrower float.

    Such a cast stands in the program of its reader: with its producer it would store a wide tensor.
    """
    if node.op is None or node.op.name != "cast" or node[0].dtype != np.float32:
        return False
    source = node.inputs[0].dtype
    return dtypes.is_float(source) and source.itemsize == 2


class _Grouping:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order = deep_first(graph)
        self.at = {n: k for k, n in enumerate(self.order)}
        self.late = backward_nodes(graph, self.order)
        self.group: dict[Node, _Group] = {}
        self.users: dict[Node, list[Node]] = {}
        for node in self.order:
            for value in node.inputs:
                self.users.setdefault(value.node, []).append(node)

    def run(self) -> dict[Node, _Group]:
        """Group of every node that enters a program."""
        for node in self.order:
            if not self.fusable(node):
                continue
            klass = numeric_class(node[0].dtype)
            mine = _Group(node, self.at[node], klass, node in self.late)
            self.group[node] = mine
            for value in node.inputs:
                self._join(value.node, node)
                if _widens(value.node) and self.group.get(value.node) is self.group[node]:
                    self._join(value.node.inputs[0].node, node)
        return self.group

    def _join(self, producer: Node, node: Node) -> None:
        """Merges the group of a producer with that of `node`, which reads it, if it can be."""
        other = self.group.get(producer)
        if other is None or other is self.group[node] or producer in other.terminal:
            return
        if not _widens(node) or len(self.group[node].nodes) > 1:
            self._try_merge(other, self.group[node], node)

    def fusable(self, node: Node) -> bool:
        """Whether the node may stand in a program."""
        op = node.op
        if op is None or not op.elementwise or op.random or node.mutated or len(node.types) != 1:
            return False
        if op.name == "fused" or (op.params and op.name != "cast"):
            return False
        if op.name == "cast":
            source = node.inputs[0].node
            return not (source.op is None and source.kind == "scalar")
        if node[0].dtype == np.bool_:
            return False
        if op.name == "select":
            return self._fusable_select(node)
        same = all(v.dtype == node[0].dtype for v in node.inputs)
        return same and any(_literal(v) is None for v in node.inputs)

    def _fusable_select(self, node: Node) -> bool:
        condition, x, y = node.inputs
        if condition.dtype == x.dtype:
            return _literal(condition) is None
        both_literal = _literal(x) is not None and _literal(y) is not None
        return not dtypes.is_float(condition.dtype) and not both_literal

    def _try_merge(self, a: _Group, b: _Group, node: Node) -> None:
        """Merges the producer's group `a` and the consumer's `b` if nothing forbids it."""
        ends = False
        if a.klass != b.klass:
            ends = len(b.nodes) == 1 and self._is_end(node)
            if not ends:
                return
        if a.shape != b.shape or a.phase != b.phase:
            return
        if a.klass in ("i1", "i2", "b") or len(a.nodes) + len(b.nodes) > MAX_INSTRUCTIONS:
            return
        members = {*a.nodes, *b.nodes}
        if self._operands(members) > MAX_OPERANDS or self._returns(members, a, b):
            return
        a.nodes = [*a.nodes, *b.nodes]
        a.low, a.high = min(a.low, b.low), max(a.high, b.high)
        a.terminal |= b.terminal
        if ends:
            a.terminal.add(node)
        for member in b.nodes:
            self.group[member] = a

    def _is_end(self, node: Node) -> bool:
        """Whether a cast to another class ends a chain: nothing could go on from it."""
        assert node.op is not None
        if node.op.name != "cast":
            return False
        return not any(
            self.fusable(u) and u[0].shape == node[0].shape for u in self.users.get(node, ())
        )

    def _operands(self, members: set[Node]) -> int:
        inputs = {
            v for n in members for v in n.inputs if v.node not in members and _literal(v) is None
        }
        outputs = sum(any(u not in members for u in self.users.get(n, ())) for n in members)
        return len(inputs) + max(outputs, 1)

    def _returns(self, members: set[Node], a: _Group, b: _Group) -> bool:
        """Whether some way leads from a member through an outside node back to a member."""
        low = min(a.low, b.low)
        stack = [v.node for n in members for v in n.inputs if v.node not in members]
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            group = self.group.get(node)
            if node in seen or (self.at[node] if group is None else group.high) < low:
                continue
            if len(seen) > _SEARCH:
                return True
            visited = [node] if group is None else group.nodes
            seen.update(visited)
            for other in visited:
                for value in other.inputs:
                    if value.node in members:
                        return True
                    stack.append(value.node)
        return False


def _emit_groups(graph: Graph, groups: dict[Node, _Group]) -> Graph:
    order = graph.nodes()
    used = _used_outside(graph, order, groups)
    new: dict[Value, Value] = {}
    done: set[int] = set()
    for start in order:
        stack = [start]
        while stack:
            node = stack[-1]
            unit = groups.get(node)
            key = id(unit) if unit is not None else id(node)
            if key in done:
                stack.pop()
                continue
            members = unit.nodes if unit is not None else [node]
            missing = [
                v.node
                for m in members
                for v in m.inputs
                if (groups.get(v.node) is not unit or unit is None)
                and not _is_done(v.node, groups, done)
            ]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            done.add(key)
            if unit is not None:
                _emit_program(unit, used, new)
            elif node.op is not None:
                made = with_inputs(node, [new.get(v, v) for v in node.inputs])
                if made is not node:
                    new.update(zip(node.values, made.values, strict=True))
    return with_heads(graph, new)


def _is_done(node: Node, groups: dict[Node, _Group], done: set[int]) -> bool:
    unit = groups.get(node)
    return (id(unit) if unit is not None else id(node)) in done


def _used_outside(graph: Graph, order: list[Node], groups: dict[Node, _Group]) -> set[Value]:
    used = set(graph.outputs) | {new for new, _ in graph.updates}
    for node in order:
        mine = groups.get(node)
        for value in node.inputs:
            if mine is None or groups.get(value.node) is not mine:
                used.add(value)
    return used


def _emit_program(unit: _Group, used: set[Value], new: dict[Value, Value]) -> None:
    """Makes the `fused` node of a group and maps the values that others need to its outputs."""
    writer = _Writer(new, set(unit.nodes))
    members = _sorted(unit.nodes)
    outs = [n[0] for n in members if n[0] in used] or [members[-1][0]]
    needed = _needed(outs, set(members))
    for node in members:
        if node in needed:
            writer.instruction(node)
    text = "; ".join([*writer.lines, "out " + " ".join(writer.names[v] for v in outs)])
    made = Node(
        primitive("fused"),
        "fused",
        writer.inputs,
        {"program": text},
        None,
        [v.type for v in outs],
        (),
        members[-1].origin,
    )
    for k, value in enumerate(outs):
        new[value] = Value(made, k)


def _unrounded(value: Value, members: set[Node]) -> Value:
    """What a free cast in the program stands for: the value before it was rounded for storage."""
    node = value.node
    if FREE in node.attrs and node in members and node.inputs[0].node in members:
        source = node.inputs[0].node
        if source.op is not None and source.op.name == "cast":
            before = source.inputs[0]
            return before if before.dtype == value.dtype else value
    return value


def _needed(outs: list[Value], members: set[Node]) -> set[Node]:
    """Members that the outputs need, free casts left out."""
    needed: set[Node] = set()
    stack = [v.node for v in outs]
    while stack:
        node = stack.pop()
        if node in needed or node not in members:
            continue
        needed.add(node)
        stack.extend(_unrounded(v, members).node for v in node.inputs)
    return needed


def _sorted(nodes: list[Node]) -> list[Node]:
    """Members, inputs before users (depth-first, iterative)."""
    members, result, done = set(nodes), [], set()
    for start in nodes:
        stack = [start]
        while stack:
            node = stack[-1]
            missing = [v.node for v in node.inputs if v.node in members and v.node not in done]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if node not in done:
                done.add(node)
                result.append(node)
    return result


class _Writer:
    """Text of one program."""

    def __init__(self, new: dict[Value, Value], members: set[Node]) -> None:
        self.new = new
        self.members = members
        self.names: dict[Value, str] = {}
        self.inputs: list[Value] = []
        self.lines: list[str] = []

    def instruction(self, node: Node) -> None:
        assert node.op is not None
        op = node.op.name
        names = [self._operand(v) for v in node.inputs]
        if op == "select" and node.inputs[0].dtype != node[0].dtype:
            names[0] = self._line(f"cast:{dtypes.code(node[0].dtype)}", names[:1])
        if op == "cast":
            op = f"cast:{dtypes.code(node[0].dtype)}"
        self.names[node[0]] = self._line(op, names)

    def _line(self, op: str, names: list[str]) -> str:
        target = f"t{len(self.lines)}"
        self.lines.append(f"{target} = {op} {' '.join(names)}")
        return target

    def _operand(self, value: Value) -> str:
        value = _unrounded(value, self.members)
        found = self.names.get(value)
        if found is not None:
            return found
        number = _literal(value)
        if number is not None and value.node.op is not None:
            return repr(number)
        name = self.names[value] = f"i{len(self.inputs)}"
        self.inputs.append(self.new.get(value, value))
        return name
