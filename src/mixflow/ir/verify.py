"""The verifier: what every graph must satisfy between two passes."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import GraphError
from .graph import Graph, Node, Value


def verify(graph: Graph, *, typed: bool = False, primitives: bool = False) -> None:
    """Checks the invariants of a graph.

    - acyclic; every variable that is read stands among the inputs;
    - each node has as many inputs as its operator states, each input index exists;
    - with `typed`, every value has a known type; with `primitives`, every node is a primitive;
    - every update aliases its variable through a chain of versions;
    - no older version of an updated variable is read by what depends on the newer one, so that the
      read can be ordered before the write (reads through a copy are free);
    - subgraphs satisfy the same.

    Raises:
        GraphError: names the node and the rule.
    """
    nodes = _acyclic([*graph.outputs, *(new for new, _ in graph.updates), *graph.inputs])
    given = {v.node for v in graph.inputs}
    if len(given) != len(graph.inputs):
        raise GraphError("[verify] expected distinct inputs, got one twice")
    for node in nodes:
        _check_node(node, given, typed, primitives)
        for inner in node.subgraphs:
            verify(inner, typed=typed, primitives=primitives)
    _check_updates(graph)
    _check_counts(graph)


def _acyclic(heads: Iterable[Value]) -> list[Node]:
    done: dict[Node, bool] = {}
    for head in heads:
        stack = [(head.node, 0)]
        while stack:
            node, at = stack.pop()
            if at == 0 and done.get(node):
                continue
            done[node] = False
            if at < len(node.inputs):
                stack.append((node, at + 1))
                child = node.inputs[at].node
                state = done.get(child)
                if state is False:
                    raise GraphError(
                        f"[verify] expected an acyclic graph, got a cycle at '{child.name}'"
                    )
                if state is None:
                    stack.append((child, 0))
            else:
                done[node] = True
    return list(done)


def _check_node(node: Node, given: set[Node], typed: bool, primitives: bool) -> None:
    for value in node.inputs:
        if not 0 <= value.index < len(value.node.types):
            raise GraphError(
                f"[verify] expected an output of '{value.node.name}', got number {value.index}"
            )
    if typed:
        for kind in node.types:
            if kind is None or not (kind.known or kind.dynamic):
                raise GraphError(f"[verify] expected known types, got none for '{node.name}'")
    if node.op is None:
        if node not in given:
            raise GraphError(f"[verify] expected variable '{node.name}' among the inputs, got none")
        return
    if primitives and not node.op.primitive:
        raise GraphError(f"[verify] expected primitives, got {node.op.name} in '{node.name}'")
    count = len(node.op.input_names(dict(node.params)))
    least = count - node.op.optional
    if node.op.variadic is None and not least <= len(node.inputs) <= count:
        raise GraphError(
            f"[{node.op.name}] expected {count} inputs, got {len(node.inputs)} in '{node.name}'"
        )


def _check_updates(graph: Graph) -> None:
    for new, var in graph.updates:
        at = new
        while at != var and at.node.op is not None and at.index in at.node.aliases:
            at = at.node.inputs[at.node.aliases[at.index]]
        if at != var:
            raise GraphError(
                f"[verify] expected an update that aliases '{var.node.name}', got {new}; use assign"
            )


def _check_counts(graph: Graph) -> None:
    seen: set[Value] = set()
    for _, var in graph.updates:
        if var in seen:
            raise GraphError(f"[verify] expected one update of '{var.node.name}', got two")
        if var.node.op is not None:
            raise GraphError(f"[verify] expected an update of a variable, got '{var.node.name}'")
        seen.add(var)


def check_order(order: Iterable[Node], updates: Iterable[tuple[Value, Value]]) -> None:
    """Checks a serial order: no read of an older version after the write of a newer one.

    Raises:
        GraphError: names the reader and the version.
    """
    position = {n: k for k, n in enumerate(order)}
    readers: dict[Value, list[Node]] = {}
    for node in position:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    for new, _ in updates:
        at = new
        while at.node.op is not None and at.index in at.node.aliases:
            old = at.node.inputs[at.node.aliases[at.index]]
            for reader in readers.get(old, ()):
                if reader is not at.node and position[reader] > position[at.node]:
                    raise GraphError(
                        f"[verify] expected reads of '{old}' before the write by '{at.node.name}', "
                        f"got '{reader.name}' after it"
                    )
            at = old
