"""Mixed precision: what the pass makes narrow, and that results stay within bfloat16's rounding."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt, config, models
from mixflow.backends import default_backend
from mixflow.backends.reference import evaluate
from mixflow.errors import ParamError
from mixflow.executor import bound_types
from mixflow.ir import Graph, TensorType, emit, variable
from mixflow.passes import precision as precision_pass
from mixflow.passes.joint import joint_graph
from mixflow.passes.manager import verified
from mixflow.passes.memory import check_overlap
from mixflow.passes.pipeline import build_plan, finish
from mixflow.passes.precision import precision

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
CPU = (1, 0)
needs_bfloat16 = pytest.mark.skipif(
    BF16 not in getattr(default_backend(), "narrow_dtypes", ()),
    reason="the processor does not multiply bfloat16",
)


class _Willing:
    """A backend for which every product pays, whatever the processor and the size."""

    narrow_dtypes = frozenset({BF16})
    small_tensor = 0

    def __init__(self) -> None:
        backend = default_backend()
        self.prepare = backend.prepare
        if getattr(backend, "block_size", 0):
            self.layouts = backend.layouts

    def narrow_products(self, *_: Any) -> bool:
        return True


@pytest.fixture(autouse=True)
def _fixed_rules() -> Iterator[None]:
    with config.override(deterministic=True), verified():
        yield


def small_net() -> mx.sym.Symbol:
    """Convolutions, norms, a residual sum, pooling, dense layers and a loss."""
    x = mx.sym.Variable("data")
    x = mx.sym.Convolution(x, num_filter=16, kernel=(3, 3), pad=(1, 1), no_bias=True, name="c0")
    x = mx.sym.Activation(mx.sym.BatchNorm(x, fix_gamma=False, name="b0"), act_type="relu")
    y = mx.sym.Convolution(x, num_filter=16, kernel=(3, 3), pad=(1, 1), no_bias=True, name="c1")
    x = mx.sym.Activation(mx.sym.BatchNorm(y, fix_gamma=False, name="b1") + x, act_type="relu")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    x = mx.sym.relu(mx.sym.Convolution(x, num_filter=24, kernel=(3, 3), name="c2"))
    x = mx.sym.LRN(x, nsize=3)
    x = mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=32, name="f0")
    x = mx.sym.FullyConnected(mx.sym.tanh(x), num_hidden=10, name="f1")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def lowered(symbol: Any = None, **shapes: Any) -> tuple[Graph, dict[Any, np.ndarray]]:
    """The training graph of a symbol, and arrays for its inputs."""
    symbol = symbol or small_net()
    types = bound_types(symbol, shapes or {"data": (4, 3, 12, 12)}, None)
    wanted = {n: "write" for n in symbol.list_arguments() if not n.endswith(("data", "label"))}
    graph, _ = joint_graph(symbol.graph(), types, wanted)
    rng = np.random.default_rng(3)
    feeds = {}
    for value in graph.inputs:
        name = value.node.name
        array = rng.normal(0, 0.3, value.shape)
        if name.endswith("label"):
            array = rng.integers(0, 10, value.shape)
        elif name.endswith(("gamma", "var", "grad")) and not name.startswith("c"):
            array = np.ones(value.shape)
        feeds[value] = array.astype(np.float32)
    return graph, feeds


def kinds(graph: Graph) -> Counter[tuple[str, str]]:
    """How often each (primitive, dtype of its first output) stands in a graph."""
    return Counter((n.op.name, n[0].dtype.name) for n in graph.nodes() if n.op is not None)


def close(got: list[Any], want: list[Any], share: float) -> None:
    """Norm of the difference at most `share` of the norm."""
    for a, b in zip(got, want, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.linalg.norm(a - b) <= share * max(np.linalg.norm(b), 1e-3)


def test_inputs_outputs_and_updates_stay_float32() -> None:
    graph, _ = lowered()
    made = precision(finish(graph, fuse=False), _Willing(), BF16)
    assert made.inputs == graph.inputs
    assert all(v.dtype == F32 for v in made.outputs)
    assert all(new.dtype == var.dtype == F32 for new, var in made.updates)


def test_products_run_narrow_and_gradients_of_weights_leave_wide() -> None:
    graph, _ = lowered()
    made = precision(finish(graph, fuse=False), _Willing(), BF16)
    for node in made.nodes():
        name = node.op.name if node.op is not None else ""
        if name in precision_pass.PRODUCTS:
            assert BF16 in {v.dtype for v in node.inputs}
        if name == "conv_weight_grad":
            assert node[0].dtype == F32
        if name.startswith("batch_norm"):
            assert node[0].dtype == BF16
            assert all(v.dtype == F32 for v in node.values[1:])
        if name in ("softmax", "log_softmax", "one_hot", "assign"):
            assert node[0].dtype == F32
    found = kinds(made)
    assert found["pool", "bfloat16"] == found["lrn", "bfloat16"] == 1
    assert found["relu", "bfloat16"] == 3


def test_weights_are_read_without_a_cast_of_their_own() -> None:
    graph, _ = lowered()
    made = precision(finish(graph, fuse=False), _Willing(), BF16)
    cast = [n.inputs[0].node for n in made.nodes() if n.op is not None and n.op.name == "cast"]
    variables = [n.name for n in cast if n.op is None]
    assert variables == ["data"]  # the first convolution needs one narrow factor


def test_few_casts_remain_as_steps() -> None:
    graph, _ = lowered()
    made = finish(graph, narrow=(_Willing(), BF16))
    alone = [n for n in made.nodes() if n.op is not None and n.op.name == "cast"]
    programs = [
        n.params["program"]
        for n in made.nodes()
        if n.op is not None and n.op.name == "fused" and n.params["program"].count("=") == 1
    ]
    assert not alone
    assert sum("cast" in p for p in programs) <= 4


def test_wide_values_are_not_stored_for_narrow_ones() -> None:
    """A program that widens a value for itself must not hand the wide form to others."""
    x, w = (variable(n, TensorType((64, 64), F32)) for n in "xw")
    v = variable("v", TensorType((64,), F32))
    y = emit("exp", emit("matmul", x, w))
    z = emit("matmul", emit("add", emit("matmul", emit("add", y, v), w), emit("multiply", y, v)), w)
    graph = finish(Graph((x, w, v), (emit("matmul", emit("multiply", y, z), w),)),
                   narrow=(_Willing(), BF16))  # fmt: skip
    assert len([n for n in graph.nodes() if n.op is not None and n.op.name == "fused"]) >= 3
    for node in graph.nodes():
        if node.op is not None and node.op.name == "fused":
            assert [v.dtype for v in node.values] == [BF16] * len(node.values)


@pytest.mark.parametrize("seed", range(3))
def test_values_are_those_of_float32_up_to_rounding(seed: int) -> None:
    graph, feeds = lowered()
    rng = np.random.default_rng(seed)
    feeds = {v: a + rng.normal(0, 0.02, a.shape).astype(np.float32) * (a.ndim > 1)
             for v, a in feeds.items()}  # fmt: skip
    plain = finish(graph, fuse=False)
    close(evaluate(precision(plain, _Willing(), BF16), feeds), evaluate(plain, feeds), 0.25)


@pytest.mark.skipif(_rt.core.name == "pure", reason="needs the compiled core")
def test_plans_compute_what_the_reference_gives() -> None:
    graph, feeds = lowered()
    backend = _Willing()
    ready = finish(graph, backend=backend, narrow=(backend, BF16))
    compiled = build_plan(ready, backend, CPU, "arena", 0)
    assert compiled.plan.host_calls == 0
    check_overlap(compiled)
    want = evaluate(precision(finish(graph, fuse=False), backend, BF16), feeds)
    arrays = [mx.nd.array(feeds[v], dtype=np.float32) for v in graph.inputs]
    outs = [mx.nd.zeros(v.shape) for v in graph.outputs]
    bound = compiled.plan.bind([*arrays, *outs], _rt.core.Arena(CPU))
    bound.run((), 0)
    bound.run((), 1)
    by_variable = dict(zip(graph.inputs, arrays, strict=True))
    got = [*outs, *(by_variable[var] for _, var in graph.updates)]
    close([a.asnumpy() for a in got], want, 0.06)


def test_a_backend_without_the_method_changes_nothing() -> None:
    graph, _ = lowered()
    plain = finish(graph, fuse=False)
    assert precision(plain, object(), BF16) is plain


def test_graphs_without_paying_products_stay() -> None:
    x = variable("x", TensorType((4, 4), F32))
    graph = Graph((x,), (emit("exp", x),))
    assert precision(graph, _Willing(), BF16) is graph


def test_small_tensors_stay_float32() -> None:
    class Choosy(_Willing):
        small_tensor = 1 << 30

    graph, _ = lowered()
    made = precision(finish(graph, fuse=False), Choosy(), BF16)
    assert not [n for n, dtype in kinds(made) if dtype == "bfloat16" and n != "cast"]


# -- the switch


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ParamError, match=r"^\[precision\] expected one of float32, .+, got 'int8'"):
        small_net().simple_bind(mx.cpu(), data=(4, 3, 12, 12), precision="int8")
    with pytest.raises(ParamError, match=r"^\[config\] expected a value for 'precision', got"):
        config.update(precision="int8")


@pytest.mark.skipif(_rt.core.name == "pure", reason="needs the native backend")
def test_without_instructions_the_switch_does_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(default_backend(), "narrow_dtypes", frozenset())
    monkeypatch.setattr(precision_pass, "_told", set())
    shape = {"data": (32, 3, 64, 64)}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            narrow = small_net().simple_bind(mx.cpu(), precision="bfloat16", **shape)
            wide = small_net().simple_bind(mx.cpu(), **shape)
            assert _dtypes(narrow) == _dtypes(wide) == {0}
    said = [r.message for r in caplog.records if "[precision]" in r.message]
    assert said == ["[precision] no instructions for bfloat16 here; float32 is used instead"]
    assert not mx.amp.is_supported("bfloat16")


def _dtypes(executor: Any) -> set[int]:
    steps = executor.plan(True).steps
    return {d.dtype for s in steps for d in (*s.input_descs, *s.output_descs)}


@needs_bfloat16
def test_switches_of_configuration_bind_and_module() -> None:
    shape = {"data": (32, 3, 64, 64)}
    with config.override(precision="bfloat16"):
        by_config = small_net().simple_bind(mx.cpu(), **shape)
    by_argument = small_net().simple_bind(mx.cpu(), precision="bfloat16", **shape)
    assert by_config.precision == by_argument.precision == "bfloat16"
    assert _dtypes(by_config) == _dtypes(by_argument) == {0, 12}
    again = by_argument.reshape(data=(16, 3, 64, 64), softmax_label=(16,))
    assert _dtypes(again) == {0, 12}
    module = mx.mod.Module(small_net(), precision="bfloat16")
    module.bind([("data", shape["data"])], [("softmax_label", (32,))])
    assert _dtypes(module._executors.executors[0]) == {0, 12}
    module.reshape([("data", (48, 3, 64, 64))], [("softmax_label", (48,))])
    assert _dtypes(module._executors.executors[0]) == {0, 12}
    assert {a.dtype for a in module._executors.executors[0].arg_dict.values()} == {np.float32}


@needs_bfloat16
@pytest.mark.parametrize("name", ["alexnet", "googlenet", "vgg-11", "resnet-50", "lenet", "mlp"])
def test_named_nets_need_no_host_calls_and_half_the_memory(name: str) -> None:
    symbol, shapes = models.NETWORKS[name](), models.input_shapes(name, 32)
    wide = symbol.simple_bind(mx.cpu(), **shapes).plan(True)
    narrow = symbol.simple_bind(mx.cpu(), precision="bfloat16", **shapes).plan(True)
    assert narrow.plan.host_calls == 0
    if name in ("googlenet", "resnet-50"):
        assert narrow.memory["arena"] < 0.6 * wide.memory["arena"]
    if name in ("alexnet", "vgg-11"):
        assert narrow.memory["arena"] < 0.85 * wide.memory["arena"]


@needs_bfloat16
def test_memory_report_follows_the_configuration() -> None:
    symbol, shapes = models.NETWORKS["resnet-20-cifar"](), {"data": (64, 3, 32, 32)}
    wide = symbol.memory_report(**shapes)
    with config.override(precision="bfloat16"):
        narrow = symbol.memory_report(**shapes)
    for key in ("none", "both", "arena", "lower_bound"):
        assert narrow[key] < 0.65 * wide[key]


@needs_bfloat16
@pytest.mark.parametrize("name", ["resnet-18", "squeezenet-1.1", "mobilenet-0.25"])
def test_losses_of_models_are_those_of_float32_up_to_rounding(name: str) -> None:
    symbol = models.NETWORKS[name](10)
    shape, losses = (16, 3, 64, 64), []
    rng = np.random.default_rng(11)
    data, label = rng.normal(size=shape), rng.integers(0, 10, 16)
    for chosen in ("float32", "bfloat16"):
        mx.random.seed(3)
        executor = symbol.simple_bind(mx.cpu(), precision=chosen, data=shape)
        initializer = mx.init.Xavier("gaussian", "in", magnitude=2.0)
        for key, array in {**executor.arg_dict, **executor.aux_dict}.items():
            if not key.endswith(("data", "label")):
                initializer(mx.init.InitDesc(key), array)
        executor.arg_dict["data"][:] = data
        executor.arg_dict["softmax_label"][:] = label
        made = executor.forward(is_train=True)[0].asnumpy()
        losses.append(float(-np.log(made[np.arange(16), label]).mean()))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
