"""Gradients against finite differences, second order, refusals."""

import numpy as np
import pytest
from graphs import expected, feeds, graphs, tensor
from hypothesis import assume, given, settings

from mixflow.errors import GraphError, ShapeError
from mixflow.ir import Graph, emit, primitive
from mixflow.passes.gradient import ONCE, flows, gradient

SMOOTH = {
    "negative",
    "tanh",
    "square",
    "sigmoid",
    "sin",
    "add",
    "subtract",
    "multiply",
    "reduce_sum",
    "reshape",
    "permute",
    "full",
}


def total(value):
    return emit("reduce_sum", value, axes=tuple(range(value.ndim)), keepdims=False)


@settings(max_examples=60, deadline=None)
@given(graphs(mutate=False, max_nodes=8))
def test_random_gradients_equal_finite_differences(graph):
    assume(all(n.op is None or n.op.name in SMOOTH for n in graph.nodes()))
    loss = emit("tanh", total(graph.outputs[0]))
    values = feeds(graph)
    used = [v for v in graph.inputs if v.node in {n for n in Graph((), (loss,)).nodes()}]
    grads = gradient([loss], None, used)
    got = expected(Graph(graph.inputs, tuple(grads)), values)
    whole = Graph(graph.inputs, (loss,))
    for var, grad in zip(used, got, strict=True):
        np.testing.assert_allclose(grad, _numeric(whole, values, var), rtol=1e-4, atol=1e-5)


def _numeric(graph, values, var, step=1e-5):
    result = np.zeros(var.shape)
    for at in np.ndindex(*var.shape):
        ends = []
        for sign in (1, -1):
            moved = np.array(values[var])
            moved[at] += sign * step
            ends.append(expected(graph, {**values, var: moved})[0])
        result[at] = (ends[0] - ends[1]) / (2 * step)
    return result


def test_second_order():
    x = tensor("x", (3,))
    loss = total(emit("tanh", x) * x)
    first = gradient([loss], None, [x])[0]
    second = gradient([total(first * first)], None, [x])[0]
    values = {x: np.array([0.3, -0.7, 1.2])}
    numeric = _numeric(Graph((x,), (total(first * first),)), values, x)
    np.testing.assert_allclose(expected(Graph((x,), (second,)), values)[0], numeric, rtol=1e-4)


def test_several_heads_and_head_gradients():
    x = tensor("x", (2,))
    seed = tensor("s", (2,))
    got = gradient([x * 2.0, x * 3.0], [seed, None], [x])[0]
    values = {x: np.ones(2), seed: np.array([10.0, 20.0])}
    np.testing.assert_array_equal(expected(Graph((x, seed), (got,)), values)[0], [23.0, 43.0])


def test_nothing_flows_gives_zeros():
    x, y = tensor("x", (2,)), tensor("y", (3,))
    assert flows([x * 2.0], None, [y]) == [None]
    assert gradient([x * 2.0], None, [y])[0].node.op.name == "full"
    assert flows([emit("greater", x, x)], None, [x]) == [None]


def test_gradient_of_an_intermediate_value():
    x = tensor("x", (2,))
    y = x * 3.0
    got = gradient([y * y], None, [y])[0]
    values = {x: np.array([1.0, 2.0])}
    np.testing.assert_array_equal(expected(Graph((x,), (got,)), values)[0], [6.0, 12.0])


def test_not_differentiable_is_an_error():
    x = tensor("x", (2,))
    from mixflow.ir import Value
    from mixflow.ir.graph import Node

    made = Node(primitive("fused"), "f", [x], {"program": "t0 = exp i0; out t0"}, None, [x.type])
    with pytest.raises(GraphError, match="expected a differentiable operator"):
        gradient([Value(made, 0)], None, [x])


def test_second_gradient_of_a_once_rule_is_an_error():
    from types import MappingProxyType

    x = tensor("x", (2,))
    y = emit("exp", x)
    y.node.attrs = MappingProxyType({ONCE: "once_op"})
    with pytest.raises(GraphError, match=r"\[once_op\] expected one differentiation"):
        gradient([y], None, [x])


def test_wrong_head_gradient_shape():
    x = tensor("x", (2,))
    with pytest.raises(ShapeError, match="head gradient of shape"):
        gradient([x * 2.0], [tensor("s", (3,))], [x])
