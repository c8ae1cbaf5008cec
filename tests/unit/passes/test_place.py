"""Graphs over several devices: values, copies, pieces, order."""

import numpy as np
import pytest
from graphs import REFERENCE, evaluate, feeds, phased_graphs, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from mixflow import _rt
from mixflow import dtype as dtypes
from mixflow.errors import GraphError
from mixflow.ir import Graph, emit, origin
from mixflow.passes import cost
from mixflow.passes.infer import infer
from mixflow.passes.lower import lower
from mixflow.passes.manager import verified
from mixflow.passes.memory import check_overlap
from mixflow.passes.place import Places, devices, place, target
from mixflow.passes.placed import Arenas, Link, compile_placed
from mixflow.passes.split import split
from mixflow.passes.timeline import Job, ranks, simulate

A, B, C = (1, 0), (1, 1), (1, 2)
LINK = Link()


@st.composite
def placed_graphs(draw):
    """A graph of two phases, and a device for each of its nodes and values."""
    graph = draw(phased_graphs())
    count = draw(st.integers(1, 4))
    device = st.integers(0, count - 1).map(lambda k: (1, k))
    labels = {n.origin: draw(device) for n in graph.nodes() if n.op is not None}
    inputs = tuple(draw(device) for _ in graph.inputs)
    outputs = tuple(draw(device) for _ in graph.outputs)
    return graph, Places(labels, inputs, outputs, (1, 0))


def run_placed(graph, places, values, link=LINK, rounds=1, separate=True):
    """Outputs, then updated variables, of the placed plan, after checks of its parts."""
    with verified():
        compiled = compile_placed(lower(graph, infer(graph)), places, REFERENCE, link=link)
    for part in compiled.plan.parts:
        check_overlap(part.compiled)
    arrays = [
        _rt.core.from_numpy(np.ascontiguousarray(values[v]).reshape(v.shape), d)
        for v, d in zip(graph.inputs, places.inputs, strict=True)
    ]
    outs = [
        _rt.core.empty(v.shape, dtypes.code(v.dtype), d)
        for v, d in zip(graph.outputs, places.outputs, strict=True)
    ]
    bound = compiled.plan.bind([*arrays, *outs], Arenas())
    for _ in range(rounds):
        for phase in (0, 1) if separate else (-1,):
            bound.run((), phase)
    index = {v: k for k, v in enumerate(graph.inputs)}
    results = [o.to_numpy() for o in outs]
    results += [arrays[index[var]].to_numpy() for _, var in graph.updates]
    assert bound.executed_steps() == rounds * len(compiled.steps)
    return results, compiled


@settings(max_examples=150, deadline=None)
@given(case=placed_graphs(), grain=st.booleans(), separate=st.booleans())
def test_values_are_those_of_one_device(case, grain, separate):
    graph, places = case
    values = feeds(graph)
    # Costs of zero and costs above the grain cut the graph differently.
    link = Link(0.0, 1e15) if grain else Link(1.0, 1.0)
    found, _ = run_placed(graph, places, values, link, separate=separate)
    for got, want in zip(found, evaluate(graph, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_updates_are_those_of_many_steps():
    variable, step = tensor("w", (3,)), tensor("g", (3,))
    with origin("far"):
        new = emit("subtract", variable, emit("tanh", step))
    with origin("near"):
        out = emit("multiply", variable, step)
    graph = Graph((variable, step), (out,), ((emit("assign", variable, new), variable),))
    places = Places({"far": B, "near": C}, (A, A), (C,), A)
    values = {variable: np.arange(3.0), step: np.array([0.5, -1.0, 2.0])}
    (out, weight), compiled = run_placed(graph, places, values, rounds=3)
    np.testing.assert_allclose(weight, np.arange(3) - 3 * np.tanh([0.5, -1.0, 2.0]))
    np.testing.assert_allclose(
        out, (np.arange(3) - 2 * np.tanh([0.5, -1.0, 2.0])) * [0.5, -1.0, 2.0]
    )
    # What is sent of the variable is its content of before the update.
    assert sum(s.op == "copy" for s in compiled.steps) == 2


def chain():
    """exp on A, then tanh on B, then square on A; a constant is added on each."""
    x = tensor("x", (4,))
    two = emit("full", value=2.0, shape=(4,), dtype=np.dtype(np.float64))
    with origin("e"):
        e = emit("add", emit("exp", x), two)
    with origin("t"):
        t = emit("add", emit("tanh", e), two)
    with origin("s"):
        s = emit("square", t)
    return Graph((x,), (s,)), Places({"e": A, "t": B, "s": A}, (A,), (A,), A)


def test_one_copy_per_value_and_device_and_none_of_constants():
    graph, places = chain()
    placed = place(graph, places)
    copies = [n for n in placed.nodes() if target(n) is not None]
    assert [(n.inputs[0].node.op.name, target(n)) for n in copies] == [("add", B), ("add", A)]
    where = devices(placed, places)
    assert sorted(where[n] for n in placed.nodes() if n.op and n.op.name == "full") == [A, B]


def test_an_edge_without_a_copy_is_found():
    graph, places = chain()
    moved = Places(places.nodes, (B,), (A,), A)
    with pytest.raises(GraphError, match=r"\[place\] expected the inputs of .* on \(1, 0\)"):
        devices(place(graph, places), moved)


def cut(graph, places, link=LINK):
    placed = place(graph, places)
    order = {n: k for k, n in enumerate(placed.nodes())}
    return split(placed, places, lambda n: cost.known(n, A, 1), link.seconds, order)


def test_pieces_wait_for_nothing_that_is_pushed_later():
    graph, places = chain()
    found = cut(graph, places)
    shown = [
        ("copy", a.transfer) if a.part < 0 else (found.parts[a.part].device, a.piece)
        for a in found.actions
    ]
    assert shown == [(A, 0), ("copy", 0), (B, 0), ("copy", 1), (A, 1)]
    assert [(t.source, t.target, t.label) for t in found.transfers] == [(A, B, "e"), (B, A, "t")]


def test_one_array_sends_to_several_devices():
    x = tensor("x", (4,))
    with origin("a"):
        a = emit("exp", x)
    with origin("b"):
        b = emit("tanh", a)
    with origin("c"):
        c = emit("sin", a)
    graph = Graph((x,), (b, c))
    places = Places({"a": A, "b": B, "c": C}, (A,), (B, C), A)
    found = cut(graph, places)
    assert [t.first for t in found.transfers] == [0, 0]
    assert [o for p in found.parts if p.device == A for o in p.outputs] == [("out", 0)]
    values = {x: np.arange(4.0)}
    results, _ = run_placed(graph, places, values)
    np.testing.assert_allclose(results[0], np.tanh(np.exp(values[x])))
    np.testing.assert_allclose(results[1], np.sin(np.exp(values[x])))


def test_pieces_that_begin_together_are_joined():
    x, y = tensor("x", (4,)), tensor("y", (4,))
    with origin("far"):
        far = [emit("exp", y), emit("tanh", y), emit("sin", y)]
    with origin("near"):
        near = [emit("multiply", x, f) for f in far]
        out = emit("add", emit("add", *near[:2]), near[2])
    graph = Graph((x, y), (out,))
    places = Places({"far": B, "near": A}, (A, B), (A,), A)
    quick = cut(graph, places, Link(1e-7, 1e12))
    slow = cut(graph, places, Link(1e-3, 1e12))
    assert [sum(a.part >= 0 for a in s.actions) for s in (quick, slow)] == [2, 4]


def test_timeline():
    jobs = [
        Job("a", 2.0, []),
        Job("a", 1.0, []),
        Job("b", 5.0, [1]),
        Job("a", 1.0, [0, 2], delay=0.5),
    ]
    assert ranks(jobs) == [3.5, 7.5, 6.5, 1.5]
    line = simulate(jobs)
    assert line.start == [1.0, 0.0, 1.0, 6.0]
    assert line.makespan == 7.5
    assert line.critical(jobs) == [1, 2, 3]
    by_number = simulate(jobs, [4.0, 3.0, 2.0, 1.0])
    assert by_number.makespan == 9.5
    assert simulate([]).makespan == 0.0
    assert simulate([]).critical([]) == []


def test_a_phase_of_a_lane_comes_before_the_next():
    jobs = [Job("a", 1.0, [], phase=1), Job("a", 1.0, []), Job("b", 1.0, [0])]
    assert simulate(jobs).start[:2] == [1.0, 0.0]


def test_a_reader_does_not_hold_back_what_is_sent():
    x = tensor("x", (512, 512))
    with origin("a"):
        sent = emit("exp", x)
        more = emit("matmul", sent, sent, transpose_a=False, transpose_b=False)
        last = emit("matmul", more, sent, transpose_a=False, transpose_b=False)
    with origin("b"):
        far = emit("tanh", sent)
    graph = Graph((x,), (last, far))
    found = cut(graph, Places({"a": A, "b": B}, (A,), (A, B), A))
    shown = [(a.part, a.piece) for a in found.actions]
    assert shown == [(0, 0), (-1, -1), (0, 1), (1, 0)]
