"""Text of a graph, one node a line, for people and for tests."""

from __future__ import annotations

from .graph import Graph, Node, Value


def format_graph(graph: Graph) -> str:
    """The graph as text.

    Inputs first, then ``%3, %4 = op(%0, %1) {params} : types  # label``, then outputs and updates.
    """
    numbers: dict[Value, str] = {}

    def name(value: Value) -> str:
        if value not in numbers:
            numbers[value] = f"%{len(numbers)}"
        return numbers[value]

    lines = [_line(node, name) for node in graph.nodes()]
    lines.append("return " + ", ".join(name(v) for v in graph.outputs))
    lines += [f"update {var.node.name} <- {name(new)}" for new, var in graph.updates]
    return "\n".join(lines)


def _line(node: Node, name) -> str:  # type: ignore[no-untyped-def]
    left = ", ".join(name(v) for v in node.values)
    types = ", ".join("?" if t is None else str(t) for t in node.types)
    if node.op is None:
        return f"{left} = {node.kind} {node.name} : {types}"
    inputs = ", ".join(name(v) for v in node.inputs)
    params = ", ".join(f"{k}={v}" for k, v in node.params.items() if v is not None)
    label = f"  # {node.origin}" if node.origin and node.origin != node.name else ""
    return (
        f"{left} = {node.op.name}({inputs})"
        + (f" {{{params}}}" if params else "")
        + f" : {types}{label}"
    )
