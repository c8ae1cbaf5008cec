"""What passes share that build a new graph from an old one."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Graph, Node, Value, topological

#: Primitives that do something besides computing their outputs, or are never merged.
_KEPT = frozenset({"copy"})

#: Attribute of a cast that only undoes a rounding for storage: where nothing is stored in between,
#: neither cast is needed.
FREE = "__free__"


def has_effect(node: Node) -> bool:
    """Whether the node may not be merged, folded or duplicated."""
    op = node.op
    if op is None or op.random or op.host is not None or op.name in _KEPT:
        return True
    return bool(node.mutated) or bool(node.subgraphs)


def with_inputs(node: Node, inputs: Sequence[Value]) -> Node:
    """The same node on other inputs; itself where they are the same."""
    if all(a == b for a, b in zip(node.inputs, inputs, strict=True)):
        return node
    return Node(
        node.op,
        node.name,
        inputs,
        dict(node.params),
        dict(node.attrs),
        node.types,
        node.subgraphs,
        node.origin,
        node.kind,
    )


def with_heads(graph: Graph, new: dict[Value, Value]) -> Graph:
    """The graph whose outputs and updates are the replacements of the old ones."""
    return Graph(
        graph.inputs,
        tuple(new.get(v, v) for v in graph.outputs),
        tuple((new.get(v, v), var) for v, var in graph.updates),
        graph.phase_outputs,
        graph.phase_updates,
        dict(graph.meta),
    )


def backward_nodes(graph: Graph, order: Sequence[Node]) -> set[Node]:
    """Nodes of phase 1: those that no output or update of phase 0 needs."""
    if graph.phase_outputs is None:
        return set()
    heads = list(graph.outputs[: graph.phase_outputs])
    heads += [new for new, _ in graph.updates[: graph.phase_updates or 0]]
    first = set(topological(heads, graph.inputs))
    return {n for n in order if n not in first}
