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


def deep_first(graph: Graph) -> list[Node]:
    """Every node after its inputs, the longest way to an input first.

    What is cheap to reach (a mask of the forward phase) so stands right before its user, not at the
    far end of the way that the user's other input takes.
    """
    depth: dict[Node, int] = {}
    order = graph.nodes()
    for node in order:
        depth[node] = 1 + max((depth[v.node] for v in node.inputs), default=0)
    result: list[Node] = []
    entered: set[Node] = set()
    heads = [*graph.inputs, *graph.outputs, *(new for new, _ in graph.updates)]
    for start in (v.node for v in heads):
        stack = [] if start in entered else [(start, _deepest(start, depth))]
        entered.add(start)
        while stack:
            node, rest = stack[-1]
            if not rest:
                result.append(node)
                stack.pop()
                continue
            child = rest.pop()
            if child not in entered:
                entered.add(child)
                stack.append((child, _deepest(child, depth)))
    return result


def _deepest(node: Node, depth: dict[Node, int]) -> list[Node]:
    """Inputs of a node, the deepest one last."""
    return sorted({v.node: None for v in reversed(node.inputs)}, key=depth.__getitem__)


def backward_nodes(graph: Graph, order: Sequence[Node]) -> set[Node]:
    """Nodes of phase 1: those that no output or update of phase 0 needs."""
    if graph.phase_outputs is None:
        return set()
    heads = list(graph.outputs[: graph.phase_outputs])
    heads += [new for new, _ in graph.updates[: graph.phase_updates or 0]]
    first = set(topological(heads, graph.inputs))
    return {n for n in order if n not in first}
