"""Graphs over several devices: values, copies, pieces, order."""

import numpy as np
import pytest
from graphs import REFERENCE, evaluate, feeds, phased_graphs
from hypothesis import given, settings
from hypothesis import strategies as st

import mixflow.ndarray as nd
from mixflow import _rt
from mixflow import dtype as dtypes
from mixflow.context import Context
from mixflow.ir.verify import verify
from mixflow.passes.infer import infer
from mixflow.passes.lower import lower
from mixflow.passes.memory import check_overlap
from mixflow.passes.pipeline import finish
from mixflow.passes.place import Places, devices, place
from mixflow.passes.placed import Arenas, Link, compile_placed


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


def run_placed(graph, places, values, link=Link(), rounds=1, separate=True):
    """Outputs, then updated variables, of the placed plan, after checks of its parts."""
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
