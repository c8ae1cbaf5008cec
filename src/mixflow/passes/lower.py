"""Compositions to typed primitives; versions of mutated variables threaded through.

Hazard: a mutation is a pure node, so a second mutation of the same variable must read the first
one's version, and the last version must be listed in `Graph.updates` or it would be pruned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import GraphError
from ..ir import Graph, Node, TensorType, Value, emit, emit_node, origin, topological
from .infer import Types

#: Attribute of a random node: '<label of the user's node>#<number of the draw in it>'.
DRAW = "__draw__"
#: Attribute of a kept composition: '1' when it was lowered for training.
TRAIN = "__train__"


def lower(
    graph: Graph, types: Types | None = None, *, train: bool = False, keep_vjp: bool = False
) -> Graph:
    """The same graph over typed primitives.

    Args:
        graph: at any level; values that `types` does not list must be typed already.
        types: what `infer` found.
        train: passed to compositions that ask for the mode.
        keep_vjp: keep compositions that have a gradient rule of their own as one node, until
            `gradient` has used the rule; lower the result again.
    """
    work = _Lowering(types or {}, train, keep_vjp)
    nodes = graph.nodes()
    work.count_draws(nodes)
    for node in nodes:
        work.add(node)
    listed = len(graph.updates) if graph.phase_updates is None else graph.phase_updates
    updates, phase_updates = work.all_updates(graph, listed)
    outputs = tuple(work.value(v) for v in graph.outputs)
    return Graph(
        inputs=tuple(work.value(v) for v in graph.inputs),
        outputs=outputs,
        updates=updates,
        phase_outputs=graph.phase_outputs,
        phase_updates=phase_updates if graph.phase_outputs is not None else None,
        meta=dict(graph.meta),
    )


class _Lowering:
    def __init__(self, types: Types, train: bool, keep_vjp: bool) -> None:
        self.types = types
        self.train = train
        self.keep_vjp = keep_vjp
        self.done: dict[Node, tuple[Value, ...]] = {}
        self.final: set[Node] = set()
        self.versions: dict[Node, Value] = {}
        self.implicit: dict[Node, Value] = {}
        self.drawn: Counter[str] = Counter()

    def label_draw(self, label: str) -> str:
        """Label of the next draw of a user's node; nodes of one name go on counting."""
        self.drawn[label] += 1
        return f"{label}#{self.drawn[label] - 1}"

    def count_draws(self, nodes: Iterable[Node]) -> None:
        """Goes on after the draws that an earlier lowering labelled."""
        for node in nodes:
            label, mark, number = node.attrs.get(DRAW, "").rpartition("#")
            if mark:
                self.drawn[label] = max(self.drawn[label], int(number) + 1)

    def value(self, value: Value) -> Value:
        return self.done[value.node][value.index]

    def add(self, node: Node) -> None:
        """Lowers one node whose inputs are done."""
        if node.op is None:
            self.done[node] = (Value(self._variable(node), 0),)
            self.final.add(self.done[node][0].node)
            return
        inputs = [self.value(v) for v in node.inputs]
        for i in node.mutated:
            source = node.inputs[i].node
            if source.op is None:
                inputs[i] = self.versions.get(source, inputs[i])
        results = self._expand(node, inputs)
        self.done[node] = results
        first = len(node.types) - len(node.mutated)
        for k, i in enumerate(node.mutated):
            source = node.inputs[i].node
            if source.op is None:
                self.versions[source] = self.implicit[source] = results[first + k]

    def _variable(self, node: Node) -> Node:
        declared = node.types[0]
        found = self.types.get(Value(node, 0), declared)
        if declared is not None and (found == declared or found is None):
            return node
        return Node(None, node.name, attrs=dict(node.attrs), types=(found,), kind=node.kind)

    def _expand(self, node: Node, inputs: list[Value]) -> tuple[Value, ...]:
        op = node.op
        assert op is not None
        label = node.origin or node.name
        if op.primitive or (self.keep_vjp and op.vjp is not None):
            return self._keep(node, inputs, label)
        params = self._params(node)
        if op.needs_mode:
            params["train"] = node.attrs[TRAIN] == "1" if TRAIN in node.attrs else self.train
        assert op.compose is not None
        with origin(label):
            made = op.compose(*inputs, **params)
        results = (made,) if isinstance(made, Value) else tuple(made)
        expected = len(op.output_names(dict(node.params))) + len(node.mutated)
        if len(results) != expected:
            raise GraphError(
                f"[{op.name}] expected {expected} results of its composition, got {len(results)}"
            )
        return self._settle(results, label)

    def _settle(self, results: Sequence[Value], label: str) -> tuple[Value, ...]:
        """Lowers what a composition emitted down to the nodes that are final already."""
        inner = _new_nodes(results, self.final)
        for node in inner:
            if node.op is None:
                self.done[node] = (Value(node, 0),)
                self.final.add(node)
                continue
            inputs = [self.done[v.node][v.index] if v.node in self.done else v for v in node.inputs]
            if node.op.primitive and node.op.random and DRAW not in node.attrs:
                node = _numbered(node, self.label_draw(label), self.done)
            self.done[node] = self._expand(node, inputs)
        return tuple(self.done[v.node][v.index] if v.node in self.done else v for v in results)

    def _params(self, node: Node) -> dict[str, Any]:
        return {
            k: self.done[v.node][v.index] if isinstance(v, Value) and v.node in self.done else v
            for k, v in node.params.items()
        }

    def _keep(self, node: Node, inputs: list[Value], label: str) -> tuple[Value, ...]:
        """A node that stays: itself where nothing changed, else a typed copy."""
        op = node.op
        assert op is not None
        same = all(a == b for a, b in zip(node.inputs, inputs, strict=True))
        attrs = dict(node.attrs)
        if op.random and op.primitive and DRAW not in attrs and node.params.get("draw") is None:
            attrs[DRAW] = self.label_draw(label)
            same = False
        if not op.primitive and op.needs_mode and TRAIN not in attrs:
            attrs[TRAIN] = "1" if self.train else "0"
            same = False
        kept = node if same and None not in node.types else self._copy(node, inputs, attrs, label)
        self.final.add(kept)
        if kept is not node:
            self.done[kept] = kept.values
        return kept.values

    def _copy(self, node: Node, inputs: list[Value], attrs: dict[str, str], label: str) -> Node:
        types: Sequence[TensorType | None] = node.types
        if None in types:
            types = [self.types.get(v) for v in node.values]
        params = self._params(node)
        if any(t is None or not (t.known or t.dynamic) for t in types):
            with origin(label):
                assert node.op is not None
                types = emit_node(node.op, *inputs, **params).types
        name = node.name
        return Node(node.op, name, inputs, params, attrs, types, node.subgraphs, label)

    def all_updates(self, graph: Graph, first: int) -> tuple[tuple[tuple[Value, Value], ...], int]:
        """(next version, variable) pairs, and how many of them belong to phase 0.

        The first `first` listed pairs and those of mutating nodes that nobody listed belong to
        phase 0. Pairs whose version is the variable itself are dropped.
        """
        found: dict[Node, Value] = dict(self.implicit)
        listed = {var.node: k >= first for k, (_, var) in enumerate(graph.updates)}
        for new, var in graph.updates:
            found[var.node] = self.value(new)
        phases: list[list[tuple[Value, Value]]] = [[], []]
        for node in [*listed, *(n for n in found if n not in listed)]:
            var, new = self.done[node][0], found[node]
            if new != var:
                phases[listed.get(node, False)].append((self._assigned(new, var), var))
        return tuple(phases[0] + phases[1]), len(phases[0])

    def _assigned(self, new: Value, var: Value) -> Value:
        """`new` as a version that aliases `var`; wraps a plain value in `assign`."""
        at = new
        while at.node.op is not None and at.index in at.node.aliases:
            at = at.node.inputs[at.node.aliases[at.index]]
            if at == var:
                return new
        if new.dtype != var.dtype:
            new = emit("cast", new, dtype=var.dtype)
        with origin(new.node.origin):
            return emit("assign", var, new)


def _numbered(node: Node, label: str, done: dict[Node, tuple[Value, ...]]) -> Node:
    """`node` with its draw label; later readers find it under the old node too."""
    named = Node(
        node.op,
        node.name,
        node.inputs,
        dict(node.params),
        {**node.attrs, DRAW: label},
        node.types,
        node.subgraphs,
        node.origin,
    )
    done[node] = named.values
    return named


def _new_nodes(heads: Sequence[Value], final: set[Node]) -> list[Node]:
    """Nodes that `heads` need and that are not final, inputs before users."""
    order: list[Node] = []
    seen: set[Node] = set()
    for head in heads:
        if head.node in final or head.node in seen:
            continue
        stack = [(head.node, 0)]
        seen.add(head.node)
        while stack:
            node, at = stack.pop()
            inputs = node.inputs
            while at < len(inputs) and (inputs[at].node in final or inputs[at].node in seen):
                at += 1
            if at < len(inputs):
                stack.append((node, at + 1))
                seen.add(inputs[at].node)
                stack.append((inputs[at].node, 0))
            else:
                order.append(node)
    return order


__all__ = ["DRAW", "TRAIN", "lower", "topological"]
