"""Recomputation: equal results, fewer bytes, a reachable number in the error."""

import re

import numpy as np
import pytest
from graphs import REFERENCE, expected, feeds, phased_graphs, run, tensor
from hypothesis import given, settings

import mixflow as mx
from mixflow.errors import ParamError
from mixflow.ir import Graph, emit
from mixflow.passes import cache
from mixflow.passes.manager import verified
from mixflow.passes.memory import check_overlap
from mixflow.passes.order import lifetimes
from mixflow.passes.pipeline import build_plan, finish, scheduled
from mixflow.passes.recompute import Model, Saving, rebuilt

sym = mx.sym


def chain(depth, width=64):
    """Products and tanh in turn: nothing but the activations is large."""
    x = sym.Variable("data")
    for k in range(depth):
        x = sym.FullyConnected(x, num_hidden=width, name=f"fc{k}", no_bias=True)
        x = sym.tanh(x, name=f"tanh{k}")
    return sym.MakeLoss(sym.sum(x), name="loss")


def residual(blocks=6, filters=16):
    """Pre-pooled residual blocks with batch norms, then dropout and a classifier."""
    x = sym.Convolution(sym.Variable("data"), num_filter=filters, kernel=(3, 3), pad=(1, 1))
    for k in range(blocks):
        y = sym.BatchNorm(x, fix_gamma=False, name=f"bn{k}")
        y = sym.Activation(y, act_type="relu", name=f"relu{k}")
        y = sym.Convolution(y, num_filter=filters, kernel=(3, 3), pad=(1, 1), name=f"conv{k}")
        x = sym.elemwise_add(x, y, name=f"sum{k}")
    x = sym.Dropout(sym.Flatten(x), p=0.5, name="drop")
    x = sym.FullyConnected(x, num_hidden=10, name="fc")
    return sym.SoftmaxOutput(x, name="softmax")


RESIDUAL = {"data": (4, 3, 16, 16)}


def trained(net, shapes, limit=None, between=lambda: None, steps=2):
    """(plan, gradients and states after some steps)."""
    mx.random.seed(5)
    rng = np.random.default_rng(0)
    with verified():
        executor = net.simple_bind(mx.cpu(), memory_limit=limit, **shapes)
        plan = executor.plan(True)
    check_overlap(plan)
    for name, array in executor.arg_dict.items():
        label = name.endswith("label")
        array[:] = rng.integers(0, 10, array.shape) if label else rng.normal(0, 0.2, array.shape)
    for name, array in executor.aux_dict.items():
        array[:] = 1.0 if name.endswith("var") else 0.0
    for _ in range(steps):
        executor.forward(is_train=True)
        between()
        executor.backward()
    arrays = [*executor.grad_arrays, *executor.aux_arrays, *executor.outputs]
    return plan, [a.asnumpy() for a in arrays if a is not None]


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def least(net, **shapes):
    """The number that the error states."""
    with pytest.raises(ParamError, match=r"\[memory_limit\] expected at least") as caught:
        net.memory_report(memory_limit=1, **shapes)
    return int(re.search(r"at least (\d+)", str(caught.value))[1])


@pytest.mark.parametrize("share", [0.8, 0.5, 0.4])
def test_gradients_of_a_deep_chain_are_the_same(share):
    plain, wanted = trained(chain(24), {"data": (128, 64)})
    limit = int(share * plain.memory["arena"])
    plan, found = trained(chain(24), {"data": (128, 64)}, limit)
    assert plain.recomputed == 0 < plan.recomputed
    assert plan.memory["arena"] <= limit
    assert_same(found, wanted)


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_norms_draws_and_sums_are_the_same(share):
    plain, wanted = trained(residual(), RESIDUAL)
    plan, found = trained(residual(), RESIDUAL, int(share * plain.memory["arena"]))
    assert plan.recomputed > 0
    assert_same(found, wanted)


def dropped_draw():
    """A net whose dropout is worth dropping: its input is an argument."""
    x = sym.Dropout(sym.Variable("data"), p=0.5, name="drop")
    y = sym.FullyConnected(x, num_hidden=4, name="fc")
    for k in range(4):
        y = sym.tanh(sym.FullyConnected(y, num_hidden=512, name=f"wide{k}"), name=f"tanh{k}")
    return sym.MakeLoss(sym.sum(y) + sym.sum(x * x))


def test_a_draw_is_made_again_with_its_number():
    shapes = {"data": (256, 512)}
    _, wanted = trained(dropped_draw(), shapes)
    plan, found = trained(dropped_draw(), shapes, least(dropped_draw(), **shapes))
    assert any("drop" in s.label and s.label.endswith("again") for s in plan.steps)
    assert len(plan.draws) == 1
    assert_same(found, wanted)
    seeded = trained(dropped_draw(), shapes, between=lambda: mx.random.seed(9))[1]
    limited = trained(
        dropped_draw(), shapes, plan.memory["arena"], between=lambda: mx.random.seed(9)
    )[1]
    assert_same(limited, seeded)


def test_cheap_steps_go_first():
    net, whole = residual(12), residual(12).memory_report(**RESIDUAL)["arena"]
    plan, _ = trained(net, RESIDUAL, int(0.85 * whole), steps=0)
    again = [s.op for s in plan.steps if s.label.endswith("again")]
    assert again and not any("conv" in op or op == "matmul" for op in again)


def test_bytes_grow_with_the_root_of_the_depth():
    shallow, deep = (least(chain(n), data=(4096, 64)) for n in (16, 144))
    whole = chain(144).memory_report(data=(4096, 64))["arena"]
    assert deep < 4 * shallow and deep < 0.25 * whole


def test_the_stated_number_is_reachable():
    net, shapes = chain(12), {"data": (128, 64)}
    number = least(net, **shapes)
    report = net.memory_report(memory_limit=number, **shapes)
    assert report["recomputed"] <= number < report["arena"]
    executor = net.simple_bind(mx.cpu(), memory_limit=number - 64, **shapes)
    if number - 64 < least(net, **shapes):
        with pytest.raises(ParamError, match=f"got {number - 64}; without it they need"):
            executor.forward(is_train=True)


def test_a_generous_limit_changes_nothing():
    report = chain(4).memory_report(memory_limit="1G", data=(128, 64))
    assert report["recomputed"] == report["arena"]
    assert trained(chain(4), {"data": (128, 64)}, "1G")[0].recomputed == 0


@pytest.mark.parametrize("limit", ["much", -1, "3X"])
def test_limits_are_bytes(limit):
    with pytest.raises(ParamError, match=r"\[bind\] expected a memory_limit in bytes, got"):
        chain(1).simple_bind(mx.cpu(), memory_limit=limit, data=(2, 64))


def test_prediction_has_nothing_to_compute_again():
    executor = chain(3).simple_bind(mx.cpu(), grad_req="null", memory_limit=64, data=(128, 64))
    with pytest.raises(ParamError, match=r"\[memory_limit\] expected at least \d+ bytes"):
        executor.forward()


def test_force_mirroring_drops_what_it_marks():
    def net(**attrs):
        x = sym.Variable("data")
        for k in range(8):
            x = sym.FullyConnected(x, num_hidden=64, name=f"fc{k}")
            x = sym.tanh(x * x, name=f"tanh{k}", attr=attrs)
        return sym.MakeLoss(sym.sum(x))

    shapes = {"data": (256, 64)}
    plain, wanted = trained(net(), shapes)
    marked, found = trained(net(force_mirroring="True"), shapes)
    assert_same(found, wanted)
    again = [s.label for s in marked.steps if s.label.endswith("again")]
    assert len(again) == marked.recomputed > 0 and all("tanh" in label for label in again)
    assert marked.memory["arena"] < plain.memory["arena"]
    with mx.AttrScope(force_mirroring="false"):
        assert trained(net(), shapes)[0].recomputed == 0


def test_mirror_setting_keeps_products():
    plain, wanted = trained(residual(), RESIDUAL)
    with mx.config.override(mirror=True):
        plan, found = trained(residual(), RESIDUAL)
    assert_same(found, wanted)
    assert plan.memory["arena"] < plain.memory["arena"]
    assert not any("conv" in s.op for s in plan.steps if s.label.endswith("again"))


def test_name_of_mxnet_is_honoured():
    made = mx.config.from_environment({"MXNET_BACKWARD_DO_MIRROR": "1"})
    assert made.mirror
    with pytest.raises(ParamError, match="MXNET_BACKWARD_DO_MIRROR"):
        mx.config.from_environment({"MXNET_BACKWARD_DO_MIRROR": "perhaps"})


def test_python_code_runs_once():
    calls = []

    class Twice(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            calls.append("forward")
            self.assign(out_data[0], req[0], in_data[0] * 2)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            self.assign(in_grad[0], req[0], out_grad[0] * 2)

    @mx.operator.register("twice_once")
    class TwiceProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Twice()

    x = sym.Variable("data")
    for k in range(6):
        x = sym.tanh(sym.FullyConnected(x, num_hidden=64, name=f"fc{k}"))
        if k == 2:
            x = sym.Custom(x, op_type="twice_once", name="twice")
    net, shapes = sym.MakeLoss(sym.sum(x * x)), {"data": (256, 64)}
    _, wanted = trained(net, shapes, steps=1)
    plan, found = trained(net, shapes, least(net, **shapes), steps=1)
    assert plan.recomputed > 0 and calls == ["forward"] * 2
    assert cache.signature(net.heads) is None  # the code may have a state of its own
    assert_same(found, wanted)


def everything_again(graph):
    """The graph with every value dropped that may be."""
    if graph.phase_outputs is None:
        return graph
    _, order = scheduled(graph, REFERENCE, (1, 0), 0)
    lifetimes(order)
    model = Model(order, Saving(mirror=True))
    return rebuilt(graph, model, model.play(frozenset(model.candidates)))


@settings(max_examples=150, deadline=None)
@given(phased_graphs())
def test_random_graphs_with_mutations(graph):
    values = feeds(graph)
    wanted, _ = run(graph, values)[0], None
    for fuse in (False, True):
        found, _, _ = run(graph, values, fuse=fuse, change=everything_again)
        for a, b, c in zip(found, expected(graph, values), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(a, c, rtol=1e-12, atol=1e-12)


def test_long_chains_do_not_recurse():
    x = tensor("x", (4, 4))
    y, values = x, []
    for _ in range(1500):
        y = emit("sin", y)
        values.append(y)
    total = values[-1]
    for value in reversed(values[:-1]):
        total = emit("multiply", total, emit("cos", value))
    graph = Graph((x,), (values[-1], total), (), 1, 0)
    ready = everything_again(finish(graph, fuse=False))
    plan = build_plan(ready, REFERENCE, (1, 0), "arena", 0)
    assert plan.recomputed == 1499


def test_module_keeps_its_limit():
    def fitted(limit):
        mx.random.seed(1)
        module = mx.mod.Module(residual(3), context=mx.cpu())
        module.bind([("data", (4, 3, 16, 16))], [("softmax_label", (4,))], memory_limit=limit)
        module.init_params(mx.init.Xavier())
        module.init_optimizer()
        rng = np.random.default_rng(0)
        plan = module._executors.executors[0].plan(True)
        for size in (4, 2):
            data = mx.nd.array(rng.normal(size=(size, 3, 16, 16)))
            module.forward_backward(mx.io.DataBatch([data], [mx.nd.zeros(size)]))
            module.update()
        assert (module._executors.executors[0].plan(True).recomputed > 0) == (limit is not None)
        return plan, {k: v.asnumpy() for k, v in module.get_params()[0].items()}

    plain, wanted = fitted(None)
    assert plain.recomputed == 0
    plan, found = fitted(int(0.6 * plain.memory["arena"]))
    assert plan.recomputed > 0 and plan.memory["arena"] <= 0.6 * plain.memory["arena"]
    assert_same([*found.values()], [*wanted.values()])


def test_large_plans_are_thrifty(monkeypatch):
    plain, wanted = trained(residual(), RESIDUAL, "1G")
    monkeypatch.setattr("mixflow.passes.recompute._MANY", 1 << 10)
    monkeypatch.setattr("mixflow.passes.recompute._THRIFT", 0.15)
    cache.clear()
    plan, found = trained(residual(), RESIDUAL)
    cache.clear()
    assert plain.recomputed == 0 < plan.recomputed
    assert plan.memory["arena"] < plain.memory["arena"]
    assert_same(found, wanted)
