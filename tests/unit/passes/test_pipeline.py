"""Whole pipeline on random graphs: every storage strategy, fused and not, equals the reference."""

import numpy as np
import pytest
from graphs import F, expected, feeds, graphs, phased_graphs, run, tensor
from hypothesis import given, settings

from mixflow import ir
from mixflow.errors import GraphError
from mixflow.ir import Graph, TensorType, emit, variable
from mixflow.passes.pipeline import compile_graph, single

CASES = [(fuse, memory) for fuse in (True, False) for memory in ("arena", "inplace", "none")]


@settings(max_examples=120, deadline=None)
@given(graphs())
def test_random_graphs_equal_the_reference(graph):
    values = feeds(graph)
    want = expected(graph, values)
    updated = {var for _, var in graph.updates}
    for fuse, memory in CASES:
        got, _, after = run(graph, values, fuse=fuse, memory=memory)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        for var, array in zip(graph.inputs, after, strict=True):
            if var not in updated:
                np.testing.assert_array_equal(array, values[var])


@settings(max_examples=120, deadline=None)
@given(phased_graphs())
def test_random_graphs_of_two_phases(graph):
    values = feeds(graph)
    want = expected(graph, values)
    for fuse in (True, False):
        got, compiled, _ = run(graph, values, fuse=fuse)
        assert len(compiled.phase_ends) == 2
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_old_version_read_in_the_later_phase():
    a = tensor("a", (3,))
    new = emit("assign", a, emit("exp", a))
    graph = Graph((a,), (emit("sin", a),), ((new, a),), phase_outputs=0, phase_updates=1)
    values = feeds(graph)
    got, compiled, _ = run(graph, values)
    np.testing.assert_allclose(got[0], np.sin(values[a]))
    np.testing.assert_allclose(got[1], np.exp(values[a]))
    assert compiled.phase_ends[0] == 3  # save the old value, compute, store


def test_update_runs_in_place_as_one_program():
    w, g = tensor("w", (4, 3)), tensor("g", (4, 3))
    lr = variable("lr", TensorType((), F), kind="scalar")
    new = emit("assign", w, w - ir.binary("multiply", g, lr))
    compiled = compile_graph(Graph((w, g, lr), (), ((new, w),)), _reference())
    assert [s.op for s in compiled.steps] == ["fused"]
    assert compiled.steps[0].outputs == [("arg", 0)]
    assert compiled.arg_access == ["rw", "r"] and compiled.memory["arena"] == 0


def test_swap_needs_a_copy():
    a, b = tensor("a", (3,)), tensor("b", (3,))
    graph = Graph((a, b), (), ((emit("assign", a, b), a), (emit("assign", b, a), b)))
    values = feeds(graph)
    got, _, _ = run(graph, values)
    np.testing.assert_array_equal(got[0], values[b])
    np.testing.assert_array_equal(got[1], values[a])


def test_old_version_read_after_the_write_is_saved():
    a = tensor("a", (3,))
    new = emit("assign", a, emit("exp", a))
    graph = Graph((a,), (new + a, a), ((new, a),))
    values = feeds(graph)
    got, _, _ = run(graph, values)
    np.testing.assert_allclose(got[0], np.exp(values[a]) + values[a])
    np.testing.assert_array_equal(got[1], values[a])


def test_outputs_that_are_inputs_or_the_same_are_copied():
    a = tensor("a", (3,))
    y = emit("exp", a)
    graph = Graph((a,), (a, y, y, emit("reshape", y, shape=(1, 3))))
    got, compiled, _ = run(graph, feeds(graph))
    np.testing.assert_array_equal(got[1], got[2])
    np.testing.assert_array_equal(got[1], got[3][0])
    assert sorted(s.op for s in compiled.steps) == ["copy", "copy", "copy", "fused"]


def test_single_operator_may_overwrite_its_input():
    kind = TensorType((2, 2), F)
    compiled = compile_graph(single(ir.primitive("add"), {}, [kind, kind]), _reference())
    assert set(compiled.inplace) == {(0, 0), (0, 1)}
    graph = single(
        ir.primitive("matmul"), {"transpose_a": False, "transpose_b": False}, [kind, kind]
    )
    assert compile_graph(graph, _reference()).inplace == []


def test_unknown_memory_strategy():
    kind = TensorType((2,), F)
    with pytest.raises(GraphError, match="expected memory among"):
        compile_graph(single(ir.primitive("exp"), {}, [kind]), _reference(), memory="best")


def test_draws_are_numbered_in_order():
    a, b = (emit("random_uniform", shape=(2,), low=0.0, high=1.0, dtype=F) for _ in range(2))
    compiled = compile_graph(Graph((), (a, b)), _reference())
    assert sorted(s.draw_slot for s in compiled.steps) == [0, 1]
    assert len(set(compiled.draws)) == 2


def _reference():
    from graphs import REFERENCE

    return REFERENCE
