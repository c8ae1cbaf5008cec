"""Random convolutional nets: blocked activations and kernel ends change no result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt
from mixflow.backends import default_backend
from mixflow.backends.reference import evaluate
from mixflow.executor import bound_types
from mixflow.ir import Graph
from mixflow.passes.joint import forward_graph, joint_graph
from mixflow.passes.manager import verified
from mixflow.passes.memory import check_overlap
from mixflow.passes.pipeline import build_plan, finish

CPU = (1, 0)


class _Wanting:
    """A backend that wants blocks of 8 and 16 wherever they fit, whatever the processor."""

    def __init__(self, backend: Any) -> None:
        self.prepare = backend.prepare
        self.layouts = self._layouts

    def _layouts(self, op: Any, params: Any, ins: Any, outs: Any) -> tuple[int, int] | None:
        name = op.name
        data = {"conv": ins[0], "conv_data_grad": outs[0]}.get(name, ins[1])
        result = outs[0] if name == "conv" else ins[0]
        groups = params["groups"]
        sizes = tuple(
            next((b for b in (16, 8) if (c if groups in (1, c) else c // groups) % b == 0), 0)
            for c in (data.shape[1], result.shape[1])
        )
        if sizes == (0, 0) or (0 in sizes and (groups > 1 or name == "conv_data_grad")):
            return None
        return sizes  # type: ignore[return-value]


@pytest.fixture
def backend() -> Iterator[Any]:
    if _rt.core.name == "pure" or not default_backend().block_size:
        pytest.skip("needs oneDNN")
    yield _Wanting(default_backend())


class _Builder:
    """A random net, layer by layer."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.count = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def conv(self, x: Any, filters: int, kernel: int = 3, groups: int = 1) -> Any:
        return mx.sym.Convolution(
            x,
            kernel=(kernel, kernel),
            pad=(kernel // 2,) * 2,
            num_filter=filters,
            num_group=groups,
            no_bias=bool(self.rng.integers(2)),
            name=self.name("conv"),
        )

    def norm(self, x: Any) -> Any:
        return mx.sym.BatchNorm(x, fix_gamma=bool(self.rng.integers(2)), name=self.name("bn"))

    def relu(self, x: Any) -> Any:
        return mx.sym.Activation(x, act_type="relu", name=self.name("relu"))

    def layer(self, x: Any, channels: int) -> tuple[Any, int]:
        """One random layer on `channels` channels; returns it and its channels."""
        filters = int(self.rng.choice([8, 16, 24, 32, 5]))
        kind = self.rng.integers(9)
        if kind == 0:
            return self.relu(self.norm(self.conv(x, filters))), filters
        if kind == 1:  # residual
            y = self.norm(self.conv(self.relu(self.norm(self.conv(x, filters))), channels))
            return self.relu(y + x), channels
        if kind == 2:  # residual with a projection
            y = self.norm(self.conv(x, filters))
            return self.relu(y + self.norm(self.conv(x, filters, 1))), filters
        if kind == 3:  # inception
            parts = [self.relu(self.conv(x, f, k)) for f, k in ((8, 1), (16, 3), (filters, 1))]
            return mx.sym.concat(*parts, dim=1, name=self.name("concat")), 24 + filters
        if kind == 4:
            return self.pool(x, "max"), channels
        if kind == 5:
            return self.pool(x, "avg"), channels
        if kind == 6 and channels % 8 == 0:
            return self.relu(self.conv(x, channels, 3, channels)), channels
        if kind == 7:
            y = self.conv(x, filters)
            return mx.sym.LRN(self.relu(y), nsize=5, name=self.name("lrn")), filters
        scale = mx.sym.mean(x, axis=(2, 3), keepdims=True)
        return mx.sym.broadcast_mul(self.conv(x, channels), mx.sym.sigmoid(scale)), channels

    def pool(self, x: Any, kind: str) -> Any:
        how = dict(self.rng.choice([dict(kernel=(3, 3), pad=(1, 1)), dict(kernel=(2, 2))]))
        convention = str(self.rng.choice(["valid", "full"]))
        return mx.sym.Pooling(
            x, pool_type=kind, pooling_convention=convention, name=self.name("pool"), **how
        )

    def net(self, layers: int) -> Any:
        x = self.conv(mx.sym.Variable("data"), int(self.rng.choice([8, 16, 24])))
        channels = int(x.infer_shape(data=(2, 3, 9, 9))[1][0][1])
        for _ in range(layers):
            x, channels = self.layer(x, channels)
        x = mx.sym.Flatten(mx.sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1)))
        return mx.sym.FullyConnected(x, num_hidden=4, name="fc") * 3.0


def _feeds(graph: Graph, seed: int) -> dict[Any, np.ndarray]:
    rng = np.random.default_rng(seed)
    feeds = {v: (rng.normal(size=v.shape) * 0.5).astype("f") for v in graph.inputs}
    return {v: np.abs(x) + 0.5 if "var" in v.node.name else x for v, x in feeds.items()}


def _run(graph: Graph, backend: Any, feeds: dict[Any, np.ndarray]) -> list[np.ndarray]:
    core = _rt.core
    made = build_plan(graph, backend, CPU, "arena", 0)
    check_overlap(made)
    assert made.plan.host_calls == 0
    args = [core.from_numpy(feeds[v].copy(), CPU) for v in graph.inputs]
    outs = [core.empty(v.shape, 0, CPU) for v in graph.outputs]
    arena = core.Arena(CPU)
    bound = made.plan.bind([*args, *outs], arena)
    for phase in range(made.plan.phases):
        bound.run((), phase)
    place = {v: i for i, v in enumerate(graph.inputs)}
    return [a.to_numpy() for a in (*outs, *(args[place[old]] for _, old in graph.updates))]


def _graph(seed: int, train: bool) -> Graph:
    net = _Builder(seed).net(3)
    types = bound_types(net, {"data": (2, 3, 9, 9)}, None)
    if not train:
        return forward_graph(net.graph(), types, train=False)
    requests = {n: "write" for n in net.list_arguments() if n != "data"}
    return joint_graph(net.graph(), types, requests)[0]


def _close(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for a, b in zip(got, want, strict=True):
        scale = max(0.1, float(np.abs(b).max()))  # some gradients are zero but for rounding
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=3e-4)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("seed", range(16))
def test_layouts_and_ends_keep_results(backend: Any, seed: int, train: bool) -> None:
    graph = _graph(seed, train)
    feeds = _feeds(graph, seed)
    with verified():
        laid_out = finish(graph, backend=backend)
    names = {n.op.name for n in laid_out.nodes() if n.op is not None}
    assert "blocked_conv" in names
    plain = finish(graph)
    want = evaluate(finish(graph, fuse=False), feeds)
    _close(evaluate(laid_out, feeds), want)
    _close(_run(laid_out, backend, feeds), want)
    _close(_run(plain, backend, feeds), want)
