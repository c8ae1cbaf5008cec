"""What simplify removes, what fuse joins, and what both must leave alone."""

import numpy as np
from graphs import F, expected, feeds, graphs, run, tensor
from hypothesis import given, settings

from mixflow import ir
from mixflow.ir import Graph, emit
from mixflow.ir.verify import verify
from mixflow.passes.fuse import MAX_INSTRUCTIONS, MAX_OPERANDS, fuse
from mixflow.passes.simplify import simplify


def ops(graph):
    return [n.op.name for n in graph.nodes() if n.op is not None]


def simplified(*outputs):
    graph = Graph(tuple(v for v in _variables(outputs)), tuple(outputs))
    return ops(simplify(graph))


def _variables(outputs):
    return [n[0] for n in Graph((), tuple(outputs)).nodes() if n.op is None]


def test_algebra():
    x = tensor("x", (2, 3))
    assert simplified(x * 1.0) == []
    assert simplified(x + 0.0) == []
    assert simplified(x / 1.0 - 0.0) == []
    assert simplified(emit("negative", -x)) == []
    assert simplified(emit("cast", x, dtype=F)) == []
    assert simplified(emit("identity", x)) == []
    flat = emit("reshape", x, shape=(6,))
    assert simplified(emit("reshape", flat, shape=(2, 3))) == []
    assert simplified(emit("reshape", flat, shape=(3, 2))) == ["reshape"]
    turned = emit("permute", x, axes=(1, 0))
    assert simplified(emit("permute", turned, axes=(1, 0))) == []
    assert simplified(emit("reduce_sum", x, axes=(), keepdims=False)) == []


def test_scalar_chains_and_constants_fold():
    x = tensor("x", (2,))
    graph = simplify(Graph((x,), (x * 2.0 * 3.0,)))
    assert ops(graph) == ["full", "multiply"]
    full = emit("full", value=2.0, shape=(2,), dtype=F)
    graph = simplify(Graph((), (emit("add", full, full),)))
    assert ops(graph) == ["full"] and graph.outputs[0].node.params["value"] == 4.0


def test_broadcasts_go_into_elementwise():
    x, y = tensor("x", (2, 3)), tensor("y", (3,))
    wide = emit("broadcast", y, shape=(2, 3))
    assert simplified(emit("add", x, wide)) == ["add"]
    assert simplified(emit("add", wide, wide)) == ["broadcast", "add"]


def test_common_subexpressions_merge_but_effects_do_not():
    x = tensor("x", (2,))
    assert simplified(emit("exp", x) + emit("exp", x)) == ["exp", "add"]
    draws = [emit("random_uniform", shape=(2,), low=0.0, high=1.0, dtype=F) for _ in range(2)]
    assert simplified(draws[0] + draws[1]).count("random_uniform") == 2
    assert simplified(emit("copy", x) + emit("copy", x)).count("copy") == 2


def test_dead_code_goes():
    x = tensor("x", (2,))
    emit("exp", x)
    assert simplified(emit("sin", x)) == ["sin"]


def test_chain_becomes_one_program_with_several_outputs():
    x, y = tensor("x", (2, 3)), tensor("y", (3,))
    a = emit("tanh", x + y)
    graph = fuse(Graph((x, y), (a, a * 2.0)))
    assert ops(graph) == ["fused"]
    node = graph.outputs[0].node
    assert node.params["program"] == (
        "t0 = add i0 i1; t1 = tanh t0; t2 = multiply t1 2.0; out t1 t2"
    )


def test_no_cycle_through_an_outside_node():
    x = tensor("x", (3, 3))
    a = emit("exp", x)
    b = emit("matmul", a, x, transpose_a=False, transpose_b=False)
    graph = fuse(Graph((x,), (emit("add", a, b),)))
    verify(graph)
    assert ops(graph) == ["fused", "matmul", "fused"]


def test_phases_stay_apart():
    x = tensor("x", (3,))
    a = emit("exp", x)
    graph = fuse(Graph((x,), (a, emit("sin", a)), phase_outputs=1))
    assert ops(graph) == ["fused", "fused"]


def test_classes_meet_only_at_casts():
    x = tensor("x", (3,), np.float32)
    a = emit("cast", emit("exp", x), dtype=F)
    graph = fuse(Graph((x,), (a,)))
    assert ops(graph) == ["fused"] and graph.outputs[0].dtype == F
    i = tensor("i", (3,), np.int32)
    both = emit("add", emit("cast", i, dtype=np.dtype(np.float32)), x)
    assert ops(fuse(Graph((x, i), (both,)))) == ["fused"]


def test_bounds_hold():
    values = [tensor(f"x{k}", (2,)) for k in range(40)]
    total = values[0]
    for v in values[1:]:
        total = total + v
    graph = fuse(Graph(tuple(values), (total,)))
    for node in graph.nodes():
        if node.op is not None:
            lines = node.params["program"].count(";")
            assert lines <= MAX_INSTRUCTIONS and len(node.inputs) + len(node.types) <= MAX_OPERANDS
    assert 3 <= len(ops(graph)) <= 5


def test_random_draws_stay_out_of_programs():
    x = tensor("x", (2,))
    noise = emit("random_uniform", shape=(2,), low=0.0, high=1.0, dtype=F)
    assert ops(fuse(Graph((x,), (x + noise,)))) == ["random_uniform", "fused"]


@settings(max_examples=80, deadline=None)
@given(graphs(mutate=False, max_nodes=20))
def test_both_keep_values_and_invariants(graph):
    values = feeds(graph)
    want = expected(graph, values)
    small = simplify(graph)
    verify(small, typed=True, primitives=True)
    for a, b in zip(expected(small, values), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    joined = fuse(small)
    verify(joined, typed=True, primitives=True)
    got, compiled, _ = run(joined, values, fuse=False)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert compiled.memory["arena"] <= compiled.memory["lower_bound"] * 1.5 + 64 * 20


def test_scalar_of_the_run_becomes_a_scalar_input():
    from mixflow.ir import TensorType, variable

    x = tensor("x", (2,), np.float32)
    s = variable("s", TensorType((), F), kind="scalar")
    graph = Graph((x, s), (ir.binary("multiply", x, s),))
    from graphs import REFERENCE

    from mixflow.passes.pipeline import compile_graph

    compiled = compile_graph(graph, REFERENCE)
    assert compiled.steps[0].inputs == [("arg", 0), ("scalar", 0, 0)]
