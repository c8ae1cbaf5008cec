"""Random small graphs of primitives, and how to run a graph both ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

import mixflow.ndarray as nd
from mixflow import _rt, ir
from mixflow import dtype as dtypes
from mixflow.backends.reference import ReferenceBackend, evaluate
from mixflow.ir import Graph, TensorType, emit, variable
from mixflow.ir.verify import verify
from mixflow.passes.infer import infer
from mixflow.passes.lower import lower
from mixflow.passes.memory import check_overlap
from mixflow.passes.pipeline import build_plan, finish

F = np.dtype(np.float64)
SHAPES = [(), (3,), (2, 3), (1, 3), (2, 1), (4, 2, 3)]
UNARY = ["negative", "tanh", "relu", "square", "sigmoid", "abs", "sin"]
BINARY = ["add", "subtract", "multiply", "maximum", "minimum", "greater"]
REFERENCE = ReferenceBackend()


def tensor(name, shape, dtype=F):
    return variable(name, TensorType(tuple(shape), np.dtype(dtype)))


@st.composite
def graphs(draw, mutate=True, max_nodes=14):
    """A typed graph of primitives over four variables, two of which may be updated."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=4, max_size=4))
    inputs = [tensor(f"v{k}", s) for k, s in enumerate(shapes)]
    pool = list(inputs)
    versions = {v: v for v in inputs[:2]} if mutate else {}
    for _ in range(draw(st.integers(1, max_nodes))):
        pool.append(_node(draw, pool))
        if versions and draw(st.integers(0, 4)) == 0:
            _mutate(draw, pool, versions)
    count = draw(st.integers(1, 3))
    outputs = tuple(draw(st.sampled_from(pool)) for _ in range(count))
    updates = tuple((new, var) for var, new in versions.items() if new != var)
    return Graph(tuple(inputs), outputs, updates)


def _node(draw, pool):
    kind = draw(st.integers(0, 9))
    x = draw(st.sampled_from(pool))
    if kind <= 2:
        return emit(draw(st.sampled_from(UNARY)), x)
    if kind <= 5:
        y = draw(st.sampled_from(pool))
        try:
            np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            y = x
        return emit(draw(st.sampled_from(BINARY)), x, y)
    if kind == 6:
        number = draw(st.sampled_from([0.0, 1.0, 2.0, -0.5]))
        return ir.binary(draw(st.sampled_from(["add", "multiply", "subtract"])), x, number)
    if kind == 7 and x.ndim:
        axis = draw(st.integers(0, x.ndim - 1))
        return emit("reduce_sum", x, axes=(axis,), keepdims=draw(st.booleans()))
    if kind == 8:
        return emit("reshape", x, shape=(int(np.prod(x.shape)),))
    if x.ndim > 1:
        return emit("permute", x, axes=tuple(reversed(range(x.ndim))))
    return emit("cast", emit("cast", x, dtype=np.dtype(np.float32)), dtype=F)


def _mutate(draw, pool, versions):
    var = draw(st.sampled_from(list(versions)))
    old = versions[var]
    fitting = [v for v in pool if v.shape == var.shape and v.dtype == var.dtype]
    value = draw(st.sampled_from(fitting))
    if var.ndim and draw(st.booleans()):
        rows = (0,) * var.ndim, tuple(max(1, d - 1) for d in var.shape), (1,) * var.ndim
        begin, end, step = rows
        part = emit("strided_slice", value, begin=begin, end=end, step=step)
        new = emit("slice_assign", old, part, begin=begin, end=end, step=step)
    else:
        new = emit("assign", old, value)
    versions[var] = new
    pool.append(new)


@st.composite
def phased_graphs(draw):
    """As `graphs`, with outputs and updates split between two phases."""
    graph = draw(graphs())
    outputs = draw(st.integers(0, len(graph.outputs)))
    updates = draw(st.integers(0, len(graph.updates)))
    return replace(graph, phase_outputs=outputs, phase_updates=updates)


def feeds(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {v: rng.normal(size=v.shape).astype(v.dtype) for v in graph.inputs}


def run(
    graph, values, *, fuse=True, memory="arena", backend=REFERENCE, scalars=(), change=lambda g: g
):
    """Outputs, then updated variables, of the compiled plan; checks it on the way.

    `change` is applied to the finished graph.
    """
    finished = change(finish(lower(graph, infer(graph)), fuse=fuse))
    verify(finished, typed=True, primitives=True)
    compiled = build_plan(finished, backend, (1, 0), memory, 0)
    check_overlap(compiled)
    arrays = [
        nd.array(values[v], dtype=v.dtype) if v.ndim else _scalar(values[v]) for v in graph.inputs
    ]
    outs = [nd.empty(d.shape, dtype=dtypes.from_code(d.dtype)) for d in compiled.out_descs]
    if graph.phase_outputs is None:
        compiled.plan.run([*arrays, *outs], scalars)
    else:
        both = compiled.plan.bind([*arrays, *outs], _rt.core.Arena((1, 0)))
        both.run(scalars, 0)
        both.run(scalars, 1)
    index = {v: k for k, v in enumerate(graph.inputs)}
    results = [o.asnumpy() for o in outs] + [
        arrays[index[var]].asnumpy() for _, var in graph.updates
    ]
    return results, compiled, [a.asnumpy() for a in arrays]


def _scalar(value):
    return _rt.core.from_numpy(np.asarray(value), (1, 0))


def expected(graph, values):
    return evaluate(graph, values)
