"""Batch normalisation by fixed statistics goes into the convolution before it.

(conv(x, w) + b - mean) * s + beta, s = gamma * inv_std, is conv(x, w * s) + (b - mean) * s + beta:
a product over the weights takes the place of a pass over the activations. Equal to rounding, not
bit by bit. Only where nobody else needs the convolution's own result, and where no gradient is
asked for: a graph with a backward phase keeps its norms.
"""

from __future__ import annotations

from ..ir import Graph, Node, Value, emit, origin
from ..ops.primitives.rules import along
from .rewrite import with_heads, with_inputs


def fold_norm(graph: Graph) -> Graph:
    """The graph with inference norms folded into their convolutions."""
    if graph.phase_outputs is not None:
        return graph
    order = graph.nodes()
    folded = {n.inputs[0].node: n for n in order if _foldable(n)}
    if not folded:
        return graph
    users: dict[Value, int] = {}
    heads = [*graph.outputs, *(new for new, _ in graph.updates)]
    for value in (*heads, *(v for n in order for v in n.inputs)):
        users[value] = users.get(value, 0) + 1
    norms = {norm: conv for conv, norm in folded.items() if users[conv[0]] == 1}
    new: dict[Value, Value] = {}
    for node in order:
        if node.op is None:
            continue
        inputs = [new.get(v, v) for v in node.inputs]
        if node in norms:
            with origin(node.origin):
                new[node[0]] = _folded(node, norms[node], inputs, new)
        else:
            made = with_inputs(node, inputs)
            if made is not node:
                new.update(zip(node.values, made.values, strict=True))
    return with_heads(graph, new)


def _foldable(node: Node) -> bool:
    if node.op is None or node.op.name != "batch_norm":
        return False
    source = node.inputs[0]
    made_by = source.node.op
    return made_by is not None and made_by.name == "conv" and node.params["axis"] % source.ndim == 1


def _folded(norm: Node, conv: Node, inputs: list[Value], new: dict[Value, Value]) -> Value:
    _, gamma, beta, mean, inv_std = inputs
    x, w, *bias = (new.get(v, v) for v in conv.inputs)
    scale = gamma * inv_std
    shift = (bias[0] - mean if bias else -mean) * scale + beta
    return emit("conv", x, w * along(scale, 0, w.ndim), shift, **conv.params)
