"""The graph of a training step: outputs and states in phase 0, gradients in phase 1."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import GraphError
from ..ir import Graph, Value, emit, origin, variable
from .gradient import gradient
from .infer import Types
from .lower import lower

REQUESTS = ("write", "add", "null")


def joint_graph(
    graph: Graph, types: Types, requests: Mapping[str, str], *, train: bool = True
) -> tuple[Graph, list[Value]]:
    """Forward and backward as one graph.

    Its inputs are those of `graph`, one head gradient per output, then one gradient array per
    requested argument; the gradient arrays are updated in phase 1.

    Args:
        graph: at Symbol level.
        types: of its values.
        requests: 'write' or 'add' by argument name; others get no gradient.
        train: mode.

    Returns:
        The graph over primitives, and its gradient arrays in the order of the arguments.

    Raises:
        GraphError: an unknown request, or a way that is not differentiable.
    """
    forward = lower(graph, types, train=train, keep_vjp=True)
    wrt = [v for v in forward.inputs if requests.get(v.node.name, "null") != "null"]
    for name, request in requests.items():
        if request not in REQUESTS:
            raise GraphError(
                f"[grad_req] expected one of {', '.join(REQUESTS)}, got '{request}' for '{name}'"
            )
    heads = [variable(f"head{k}_grad", v.type) for k, v in enumerate(forward.outputs)]
    arrays = [variable(f"{v.node.name}_grad", v.type) for v in wrt]
    found = gradient(forward.outputs, heads, wrt)
    updates = [
        (_stored(requests[v.node.name], array, grad), array)
        for v, array, grad in zip(wrt, arrays, found, strict=True)
    ]
    joint = Graph(
        inputs=(*forward.inputs, *heads, *arrays),
        outputs=forward.outputs,
        updates=(*forward.updates, *updates),
        phase_outputs=len(forward.outputs),
        phase_updates=len(forward.updates),
    )
    return lower(joint, train=train), arrays


def _stored(request: str, array: Value, grad: Value) -> Value:
    with origin(grad.node.origin):
        return emit("assign", array, grad if request == "write" else emit("add", array, grad))


def forward_graph(graph: Graph, types: Types, *, train: bool) -> Graph:
    """The primitives of a graph without gradients."""
    return lower(graph, types, train=train)
