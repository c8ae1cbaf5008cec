"""Runs networks on the reference backend and on this process' own, from equal values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import mixflow as mx
from mixflow import _rt, models
from mixflow import random as mx_random
from mixflow.backends import default_backend
from mixflow.backends.reference import ReferenceBackend
from mixflow.executor import bound_types
from mixflow.ir import Graph
from mixflow.passes.joint import forward_graph, joint_graph
from mixflow.passes.memory import check_overlap
from mixflow.passes.pipeline import build_plan, finish
from mixflow.passes.plan import CompiledPlan

CPU = (1, 0)
INPUTS = ("data", "softmax_label")
#: Sides of small images on which a network still has maps of several numbers to normalise.
SIDES = {"alexnet": 99, "inception-v3": 139, "lenet": 28, "mlp": 28, "softmax": 28}
CLASSES = 10
Arrays = dict[str, np.ndarray]


def small_shapes(name: str, batch: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs of a named network, small enough for the reference backend."""
    if name == "lstm-lm":
        return models.input_shapes(name, batch)
    side = 16 if name.endswith("-cifar") else SIDES.get(name, 64)
    return models.input_shapes(name, batch, (models.DEFAULT_SHAPES[name][0], side, side))


def training_graph(name: str, shapes: dict[str, tuple[int, ...]], smooth: bool = False) -> Graph:
    """Losses, states and gradients of all parameters, as primitives.

    Args:
        smooth: softplus instead of relu. Where relu sees a value near zero, rounding alone decides
            whether a gradient passes, and all layers before it see the difference.
    """
    symbol = models.NETWORKS[name](CLASSES)
    if smooth:
        text = symbol.tojson().replace('"act_type": "relu"', '"act_type": "softrelu"')
        symbol = mx.sym.load_json(text)
    requests = {n: "write" for n in symbol.list_arguments() if n not in INPUTS}
    return joint_graph(symbol.graph(), bound_types(symbol, shapes, None), requests)[0]


def prediction_graph(name: str, shapes: dict[str, tuple[int, ...]]) -> Graph:
    """Outputs in prediction mode, as primitives."""
    symbol = models.NETWORKS[name](CLASSES)
    return forward_graph(symbol.graph(), bound_types(symbol, shapes, None), train=False)


def values(graph: Graph, seed: int = 0) -> Arrays:
    """An array for each input: He's weights, labels and words below `CLASSES`, drawn images."""
    rng = np.random.default_rng(seed)
    return {v.node.name: _value(v.node.name, v.shape, rng).astype(np.float32) for v in graph.inputs}


def _value(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if name == "softmax_label" or (name == "data" and len(shape) == 2):
        return rng.integers(0, CLASSES, shape)
    if name.endswith("_grad"):
        return np.ones(shape)
    if name.endswith(("_gamma", "_var")):
        return rng.uniform(0.5, 1.5, shape)
    if name.endswith("_weight"):
        return rng.normal(0, math.sqrt(2 / math.prod(shape[1:])), shape)
    return rng.normal(0, 1 if name == "data" else 0.1, shape)


def compiled(graph: Graph, *, fuse: bool, layout: bool, backend: Any = None) -> CompiledPlan:
    """The plan of a graph; its slots are checked for overlap."""
    backend = backend or default_backend()
    ready = finish(graph, fuse=fuse, backend=backend if layout else None)
    plan = build_plan(ready, backend, CPU, "arena", 0)
    check_overlap(plan)
    return plan


def run(graph: Graph, plan: CompiledPlan, feeds: Arrays) -> Arrays:
    """Outputs ('output0', ...), and what each updated input holds afterwards, by its name.

    Random draws start at the same number in every run.
    """
    core = _rt.core
    mx_random.seed(5)
    arguments = {v.node.name: core.from_numpy(feeds[v.node.name].copy(), CPU) for v in graph.inputs}
    outputs = [core.empty(v.shape, 0, CPU) for v in graph.outputs]
    bound = plan.plan.bind([*arguments.values(), *outputs], core.Arena(CPU))
    for phase in range(plan.plan.phases):
        bound.run((), phase)
    found = {f"output{k}": a.to_numpy() for k, a in enumerate(outputs)}
    changed = [old.node.name for _, old in graph.updates]
    return {**found, **{n: arguments[n].to_numpy() for n in changed}}


def reference(graph: Graph, feeds: Arrays) -> Arrays:
    """What the reference backend makes of the graph as it stands: no layouts, nothing fused."""
    plan = compiled(graph, fuse=False, layout=False, backend=ReferenceBackend())
    assert plan.plan.host_calls > 0
    return run(graph, plan, feeds)


def loss(found: Arrays, feeds: Arrays) -> float:
    """Cross entropy of the softmax."""
    labels = feeds["softmax_label"].reshape(-1).astype(int)
    scores = found["output0"].astype(np.float64)
    return float(-np.log(scores[np.arange(len(labels)), labels]).mean())


def distances(got: Arrays, want: Arrays) -> dict[str, float]:
    """Distance of each array from its reference, relative in the norm.

    A gradient counts against at least 1e-4 of the largest: that of a bias before a normalisation
    is zero but for rounding.
    """
    assert got.keys() == want.keys()
    size = {n: _rms(w) for n, w in want.items()}
    floor = 1e-4 * max((s for n, s in size.items() if n.endswith("_grad")), default=0)
    return {n: _rms(got[n] - w) / max(size[n], floor, 1e-30) for n, w in want.items()}


def _rms(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))
