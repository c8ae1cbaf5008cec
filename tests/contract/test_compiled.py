"""Every primitive and its gradient through the compiler and the core, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import F64, SAMPLES, Sample

import mixflow.ops.primitives  # noqa: F401 - fills the registry
from mixflow import _rt, ir
from mixflow import dtype as dtypes
from mixflow.backends import default_backend
from mixflow.backends.reference import evaluate
from mixflow.passes.gradient import gradient
from mixflow.passes.pipeline import compile_graph

PRIMITIVES = {op.name: op for op in ir.all_operators() if op.primitive}
CPU = (1, 0)
Feeds = dict[ir.Value, np.ndarray]


def _cases() -> list[Any]:
    return [
        pytest.param(PRIMITIVES[name], sample, id=f"{name}-{i}")
        for name, samples in sorted(SAMPLES.items())
        for i, sample in enumerate(samples)
        if not PRIMITIVES[name].random
    ]


def _graph(op: ir.Operator, sample: Sample) -> tuple[ir.Graph, Feeds]:
    """The call and, where there is one, the gradient of its outputs' sum of squares."""
    values = [
        ir.variable(f"x{i}", ir.TensorType(a.shape, a.dtype)) for i, a in enumerate(sample.inputs)
    ]
    node = ir.emit_node(op, *values, **sample.params)
    plain = node.values[: len(node.values) - len(node.mutated)]
    updates = tuple((node[o], values[i]) for o, i in node.aliases.items())
    outputs = list(plain)
    names = op.input_names(dict(node.params))
    wrt = [v for v, n in zip(values, names, strict=False) if v.dtype == F64 and n not in op.nondiff]
    heads = [v for v in plain if v.dtype == F64]
    if op.vjp is not None and wrt and heads:
        outputs += gradient(heads, [v * 2.0 for v in heads], wrt)
    feeds = dict(zip(values, (a.copy() for a in sample.inputs), strict=True))
    return ir.Graph(tuple(values), tuple(outputs), updates), feeds


def _run(graph: ir.Graph, feeds: Feeds, **options: Any) -> list[np.ndarray]:
    core = _rt.core
    made = compile_graph(graph, default_backend(), **options)
    args = [core.from_numpy(np.array(feeds[v], order="C"), CPU) for v in graph.inputs]
    outs = [core.empty(v.shape, dtypes.code(v.dtype), CPU) for v in graph.outputs]
    made.plan.run([*args, *outs])
    position = {v: i for i, v in enumerate(graph.inputs)}
    return [a.to_numpy() for a in (*outs, *(args[position[old]] for _, old in graph.updates))]


@pytest.mark.parametrize(("memory", "fuse"), [("arena", True), ("none", False)])
@pytest.mark.parametrize(("op", "sample"), _cases())
def test_compiled_call_and_gradient(
    op: ir.Operator, sample: Sample, memory: str, fuse: bool
) -> None:
    graph, feeds = _graph(op, sample)
    expected = evaluate(graph, feeds)
    for got, want in zip(_run(graph, feeds, memory=memory, fuse=fuse), expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(F64), want.astype(F64), 1e-9, 1e-9)


def _layer(x: ir.Value, w: ir.Value, b: ir.Value) -> ir.Value:
    how = {"stride": (1, 1), "dilate": (1, 1), "pad": (0, 0), "groups": 1}
    y = ir.emit("tanh", ir.emit("conv", x, w, b, **how))
    two, zero = (2, 2), (0, 0)
    return ir.emit("pool", y, kernel=two, stride=two, pad=zero, pad_after=zero, mode="max")


def test_training_step_of_a_small_lenet() -> None:
    rng = np.random.default_rng(1)
    shapes = [(4, 1, 12, 12), (3, 1, 3, 3), (3,), (4, 3, 2, 2), (4,), (16, 5), (5,)]
    values = [ir.variable(f"v{i}", ir.TensorType(s, F64)) for i, s in enumerate(shapes)]
    x, w1, b1, w2, b2, w3, b3 = values
    hidden = ir.emit("reshape", _layer(_layer(x, w1, b1), w2, b2), shape=(4, 16))
    scores = ir.emit("matmul", hidden, w3) + b3
    loss = -ir.emit(
        "reduce_sum", ir.emit("log_softmax", scores, axis=1), axes=(0, 1), keepdims=False
    )
    grads = gradient([loss], None, values[1:])
    updates = tuple(
        (ir.emit_node("assign", v, v - g * 0.1)[0], v)
        for v, g in zip(values[1:], grads, strict=True)
    )
    graph = ir.Graph(tuple(values), (loss,), updates)
    feeds = {v: rng.normal(size=v.shape) * 0.3 for v in values}
    for got, want in zip(_run(graph, feeds), evaluate(graph, feeds), strict=True):
        np.testing.assert_allclose(got, want, 1e-9, 1e-9)
