"""Inference in both directions, lowering, versions, kept rules, verifier, printing, manager."""

import numpy as np
import pytest
from graphs import F, expected, tensor

import mixflow.symbol as sym
from mixflow import ir
from mixflow.errors import DTypeError, GraphError, ShapeError
from mixflow.ir import Graph, Node, TensorType, Value, emit, variable
from mixflow.ir.printing import format_graph
from mixflow.ir.verify import check_order, verify
from mixflow.name import NameManager
from mixflow.passes.infer import infer, merge
from mixflow.passes.lower import DRAW, TRAIN, lower
from mixflow.passes.manager import Pass, run_passes, verified

F32 = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def _names():
    with NameManager():
        yield


def types_of(symbol, **shapes):
    graph = symbol.graph()
    known = {v: TensorType(shapes[v.node.name], F32) for v in graph.inputs if v.node.name in shapes}
    return graph, infer(graph, known, partial=True)


def test_weights_from_data_and_data_from_output():
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc")
    graph, types = types_of(net, data=(2, 3))
    assert {v.node.name: types[v].shape for v in graph.inputs} == {
        "data": (2, 3), "fc_weight": (4, 3), "fc_bias": (4,),
    }  # fmt: skip
    a = sym.Variable("a") + sym.Variable("b", shape=(5,))
    graph, types = types_of(a)
    assert all(types[v].shape == (5,) for v in graph.inputs)


def test_deep_chain_backwards():
    x = sym.Variable("x")
    y = x
    for _ in range(300):
        y = sym.relu(y)
    y = y + sym.Variable("z", shape=(2,))
    graph, types = types_of(y)
    assert types[graph.inputs[0]].shape == (2,)


def test_errors_name_node_shapes_and_hint():
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc")
    with pytest.raises(ShapeError, match=r"fc\(data: float32\[2x3\], fc_weight: float32\[4x9\]"):
        types_of(net, data=(2, 3), fc_weight=(4, 9))
    graph = net.graph()
    with pytest.raises(ShapeError, match=r"argument 'data'; give its shape"):
        infer(graph)
    with pytest.raises(DTypeError, match=r"expected shapes and dtypes"):
        infer(graph, {graph.inputs[0]: TensorType((2, 3))})


def test_unknown_dtype_is_not_float64():
    assert TensorType((2,), None) != TensorType((2,), F)
    assert merge(TensorType((2,), None), TensorType((2,), F), "x").dtype == F
    with pytest.raises(DTypeError, match="cast one of the inputs"):
        merge(TensorType(None, F32), TensorType(None, F), "x")
    with pytest.raises(ShapeError, match="ranks differ"):
        merge(TensorType((1,)), TensorType((1, 2)), "x")
    with pytest.raises(ShapeError, match="dimension differs"):
        merge(TensorType((1, 3)), TensorType((1, 2)), "x")
    assert merge(TensorType((None, 3)), TensorType((2, None)), "x").shape == (2, 3)


def test_given_type_overrides_the_hint_of_a_variable():
    x = sym.Variable("x", shape=(2,), dtype="float32")
    graph = sym.relu(x).graph()
    types = infer(graph, {graph.inputs[0]: TensorType((3,), F)})
    assert types[graph.outputs[0]] == TensorType((3,), F)


def lowered(symbol, train=False, keep=False, **shapes):
    graph = symbol.graph()
    known = {v: TensorType(shapes[v.node.name], F32) for v in graph.inputs if v.node.name in shapes}
    types = infer(graph, known)
    made = lower(graph, types, train=train, keep_vjp=keep)
    verify(made, typed=True, primitives=not keep)
    return made


def test_labels_of_the_users_node():
    net = sym.FullyConnected(sym.relu(sym.Variable("x"), name="r"), num_hidden=2, name="fc")
    origins = {n.origin for n in lowered(net, x=(2, 3)).nodes() if n.op is not None}
    assert origins == {"r", "fc"}


def test_moving_statistics_are_updates_in_training_only():
    net = sym.BatchNorm(sym.Variable("x"), name="bn")
    assert len(lowered(net, train=True, x=(4, 3)).updates) == 2
    assert lowered(net, train=False, x=(4, 3)).updates == ()


def test_two_mutations_of_one_variable_are_threaded():
    v = sym.Variable("x")
    gamma, beta, mean, var = (sym.Variable(n) for n in ("g", "b", "m", "v"))
    first = sym.BatchNorm(v, gamma, beta, mean, var, name="one")
    both = sym.BatchNorm(first, gamma, beta, mean, var, name="two")
    graph = lowered(both, train=True, x=(4, 3))
    assert len(graph.updates) == 2
    for new, var in graph.updates:
        needed = Graph((), (new,)).nodes()
        assert sum(n.op is not None and n.op.name == "assign" for n in needed) == 2 or any(
            n.origin == "one" for n in needed
        )
        assert var.node.name in ("m", "v")


def test_kept_rules_are_lowered_the_second_time():
    net = sym.SoftmaxOutput(sym.Variable("x"), name="softmax")
    kept = lowered(net, keep=True, train=True, x=(4, 3))
    assert "SoftmaxOutput" in {n.op.name for n in kept.nodes() if n.op is not None}
    again = lower(kept)
    verify(again, typed=True, primitives=True)


def test_mode_is_kept_with_the_node():
    net = sym.Dropout(sym.Variable("x"), p=0.5, name="d")
    assert not any(n.op and n.op.random for n in lowered(net, x=(4,)).nodes())
    random = [n for n in lowered(net, train=True, x=(4,)).nodes() if n.op and n.op.random]
    assert [n.attrs[DRAW] for n in random] == ["d#0"] and TRAIN == "__train__"


def test_verifier():
    x = tensor("x", (2,))
    y = emit("exp", x)
    with pytest.raises(GraphError, match="among the inputs"):
        verify(Graph((), (y,)))
    with pytest.raises(GraphError, match="one twice"):
        verify(Graph((x, x), (y,)))
    with pytest.raises(GraphError, match="use assign"):
        verify(Graph((x,), (), ((y, x),)))
    new = emit("assign", x, y)
    with pytest.raises(GraphError, match="got two"):
        verify(Graph((x,), (), ((new, x), (new, x))))
    with pytest.raises(GraphError, match="expected 2 inputs, got 1"):
        verify(Graph((x,), (Value(Node(ir.primitive("add"), "a", [x]), 0),)))
    with pytest.raises(GraphError, match="expected known types"):
        verify(Graph((variable("u"),), ()), typed=True)
    with pytest.raises(GraphError, match="an output of 'x'"):
        verify(Graph((x,), (Value(Node(ir.primitive("exp"), "a", [Value(x.node, 3)]), 0),)))
    net = sym.FullyConnected(sym.Variable("x"), num_hidden=2)
    with pytest.raises(GraphError, match="expected primitives"):
        verify(net.graph(), primitives=True)
    a = Node(ir.primitive("exp"), "a", [x])
    a.inputs = (Value(a, 0),)
    with pytest.raises(GraphError, match="acyclic"):
        verify(Graph((x,), (Value(a, 0),)))


def test_verifier_enters_subgraphs():
    x, free = tensor("x", (2,)), tensor("free", (2,))
    body = Graph((x,), (emit("add", x, free),))
    node = Node(ir.primitive("exp"), "loop", [x], types=[x.type], subgraphs=[body])
    with pytest.raises(GraphError, match="'free' among the inputs"):
        verify(Graph((x,), (Value(node, 0),)))


def test_order_of_versions():
    x = tensor("x", (2,))
    new = emit("assign", x, emit("exp", x))
    late = emit("sin", x)
    nodes = Graph((x,), (new, late)).nodes()
    with pytest.raises(GraphError, match="before the write"):
        check_order(nodes, [(new, x)])
    check_order([n for n in nodes if n is not new.node] + [new.node], [(new, x)])


def test_printing():
    x = tensor("x", (2,))
    new = emit("assign", x, emit("exp", x))
    text = format_graph(Graph((x,), (x,), ((new, x),)))
    assert text.splitlines() == [
        "%0 = arg x : float64[2]",
        "%1 = exp(%0) : float64[2]",
        "%2 = assign(%0, %1) : float64[2]",
        "return %0",
        "update x <- %2",
    ]


def test_manager():
    x = tensor("x", (2,))
    graph = Graph((x,), (emit("exp", x),))
    keep = Pass("keep", lambda g: g, frozenset({"typed"}), frozenset({"kept"}))
    with pytest.raises(GraphError, match=r"\[keep\] expected a graph with typed"):
        run_passes(graph, [keep])
    assert run_passes(graph, [keep, keep], frozenset({"typed"})) is graph
    broken = Pass("broken", lambda g: Graph((), g.outputs))
    with verified(), pytest.raises(GraphError, match="after the pass broken"):
        run_passes(graph, [broken])
    assert run_passes(graph, [broken]).inputs == ()


def test_lowered_graph_runs():
    net = sym.FullyConnected(sym.Variable("x"), num_hidden=2, name="fc")
    graph = lowered(net, x=(2, 3))
    rng = np.random.default_rng(0)
    values = {v: rng.normal(size=v.shape).astype(np.float32) for v in graph.inputs}
    x, w, b = (values[v] for v in graph.inputs)
    np.testing.assert_allclose(expected(graph, values)[0], x @ w.T + b, rtol=1e-5)
