"""Placement of bound symbols: groups, constraints, cost, modules, errors."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mixflow as mx
from mixflow import _rt, cli, config
from mixflow.errors import GraphError, MXNetError, ParamError, UnknownNameError
from mixflow.placement import Auto, Report

CPUS = [mx.cpu(k) for k in range(4)]


def two_groups():
    with mx.AttrScope(ctx_group="dev1"):
        data = mx.sym.Variable("data")
        hidden = mx.sym.FullyConnected(data, num_hidden=4, name="fc1")
        hidden = mx.sym.Activation(hidden, act_type="relu", name="act")
    with mx.AttrScope(ctx_group="dev2"):
        last = mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(last, name="softmax")


def bound(symbol, ctx=CPUS[0], **kwargs):
    """An executor with fixed random arguments."""
    executor = symbol.simple_bind(ctx, **{"data": (6, 5), **kwargs})
    rng = np.random.default_rng(0)
    for name, array in executor.arg_dict.items():
        array[:] = rng.uniform(-1, 1, array.shape) if "label" not in name else 1
    return executor


def step(executor):
    """Outputs and gradients of a training step."""
    executor.forward(is_train=True)
    executor.backward()
    made = {f"out{k}": o.asnumpy() for k, o in enumerate(executor.outputs)}
    return made | {n: g.asnumpy() for n, g in executor.grad_dict.items() if g is not None}


def assert_same(found, want, rtol=1e-5):
    assert sorted(found) == sorted(want)
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol, atol=1e-5, err_msg=name)


GROUPS = {"dev1": CPUS[1], "dev2": CPUS[2]}


def test_groups_as_mxnet_places_them():
    executor = bound(two_groups(), group2ctx=GROUPS)
    # As MXNet 1.9.1 says: variables of a group lie there, those without on the default context, and
    # an operator without a group runs where its first input is.
    assert {n: a.context for n, a in executor.arg_dict.items()} == {
        "data": CPUS[1],
        "fc1_weight": CPUS[1],
        "fc1_bias": CPUS[1],
        "fc2_weight": CPUS[2],
        "fc2_bias": CPUS[2],
        "softmax_label": CPUS[0],
    }
    assert executor.grad_dict["fc2_weight"].context == CPUS[2]
    assert executor.outputs[0].context == CPUS[2]
    assert_same(step(executor), step(bound(two_groups())))
    labels = [s.label for s in executor.plan(True).steps if s.op == "_CrossDeviceCopy"]
    assert labels == [
        "_CrossDeviceCopy act (6x4) 1/1 -> 1/2",
        "_CrossDeviceCopy softmax_label (6) 1/0 -> 1/2",
        "_CrossDeviceCopy fc2 (6x4) 1/2 -> 1/1",
    ]


def test_groups_of_one_context_are_a_plain_executor():
    executor = bound(two_groups(), group2ctx=dict.fromkeys(GROUPS, CPUS[0]))
    assert executor._placed is None
    assert not any(s.op == "_CrossDeviceCopy" for s in executor.plan(True).steps)


def test_groups_that_are_not_asked_for():
    other = {**GROUPS, "dev3": CPUS[3]}
    assert_same(step(bound(two_groups(), group2ctx=other)), step(bound(two_groups())))
    assert bound(two_groups()).placement is None
    with pytest.raises(UnknownNameError, match=r"context group.*'dev2'.*node 'fc2"):
        bound(two_groups(), group2ctx={"dev1": CPUS[1]})


def test_copies_run_on_copy_lanes():
    if _rt.core.name != "native":
        pytest.skip("the plain core has no lanes")
    executor = bound(two_groups(), data=(600, 500), group2ctx=GROUPS)
    step(executor)
    _rt.core.start_trace()
    step(executor)
    events = _rt.core.stop_trace()
    copies = [e for e in events if e["name"].startswith("copy") and e["lane"] == "copy_in"]
    assert sorted(e["device"] for e in copies) == [1, 2, 2]
    plans = {e["device"] for e in events if "on device" in e["name"]}
    assert plans == {0, 1, 2}


def test_arrays_stay_where_they_are_given():
    symbol = two_groups()
    arrays = {n: a for n, a in bound(symbol, group2ctx=GROUPS).arg_dict.items()}
    arrays["fc1_weight"] = arrays["fc1_weight"].as_in_context(CPUS[3])
    grads = {"fc1_weight": mx.nd.zeros((4, 5), CPUS[0]), "data": mx.nd.zeros((6, 5), CPUS[3])}
    executor = symbol.bind(CPUS[0], arrays, grads, group2ctx=GROUPS)
    assert executor.arg_dict["fc1_weight"].context == CPUS[3]
    found, want = step(executor), step(bound(symbol))
    assert_same(found, {n: want[n] for n in ("out0", "fc1_weight", "data")})
    assert executor.grad_dict["fc1_weight"].context == CPUS[0]


def test_constraints():
    executor = bound(
        two_groups(), placement={"fc1": CPUS[1], "softmax": "fc1", "fc2_weight": [CPUS[3]]}
    )
    assert executor.placement.nodes == {
        "fc1": CPUS[1],
        "act": CPUS[1],
        "fc2": CPUS[1],
        "softmax": CPUS[1],
    }
    assert executor.arg_dict["fc2_weight"].context == CPUS[3]
    assert executor.arg_dict["fc1_weight"].context == CPUS[0]
    assert_same(step(executor), step(bound(two_groups())))


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"placement": {"fc3": CPUS[1]}}, UnknownNameError, "'fc3'"),
        ({"placement": {"fc1": "fc3"}}, UnknownNameError, "'fc3'"),
        ({"placement": {"fc1": 3}}, ParamError, "a context, contexts or a node's name for 'fc1'"),
        ({"placement": {"fc1": []}}, ParamError, "a context, contexts or a node's name for 'fc1'"),
        ({"placement": "best"}, ParamError, r"placement None, 'auto'"),
        ({"group2ctx": ["dev1"]}, ParamError, "group2ctx to map names to contexts"),
        ({"group2ctx": {"dev1": "cpu"}}, ParamError, "group2ctx to map names to contexts"),
        ({"ctx": CPUS[:2]}, ParamError, "expected one context, got 2"),
        ({"ctx": []}, ParamError, "an empty list"),
        ({"group2ctx": {"dev1": mx.gpu(0), "dev2": CPUS[1]}}, MXNetError, "usable device"),
        ({"ctx": CPUS[:2], "placement": Auto({"no": CPUS[0]})}, UnknownNameError, "'no'"),
    ],
)
def test_errors(kwargs, error, text):
    if "usable" in text and _rt.core.name != "native":
        pytest.skip("the plain core has no devices")
    ctx = kwargs.pop("ctx", CPUS[0]) if "ctx" in (kwargs := dict(kwargs)) else CPUS[0]
    with pytest.raises(error, match=text):
        bound(two_groups(), ctx, **kwargs)


def test_errors_of_auto():
    with pytest.raises(ParamError, match="costs among measured, estimated"):
        Auto(costs="guessed")
    with pytest.raises(ParamError, match="a bandwidth above 0"):
        Auto(bandwidth=0.0)
    with pytest.raises(ParamError, match="a latency of at least 0"):
        Auto(latency=-1.0)


def test_nodes_of_one_name_on_two_contexts():
    data = mx.sym.Variable("data")
    twice = mx.sym.exp(
        mx.sym.exp(data, name="e", attr={"ctx_group": "a"}), name="e", attr={"ctx_group": "b"}
    )
    with pytest.raises(GraphError, match="one context for the nodes named 'e'"):
        twice.simple_bind(CPUS[0], data=(2,), group2ctx={"a": CPUS[1], "b": CPUS[2]})


def test_memory_limit_holds_for_each_context():
    plan = bound(two_groups(), group2ctx=GROUPS).plan(True)
    sent = 4 * (6 * 4 * 2 + 6 * 4 * 2 + 6)  # two activations on either side, labels on one
    assert plan.memory["copies"] == sent
    need = max(plan.plan.bytes_on(c.key) for c in CPUS)
    bound(two_groups(), group2ctx=GROUPS, memory_limit=need).plan(True)
    executor = bound(two_groups(), group2ctx=GROUPS, memory_limit=64)
    with pytest.raises(ParamError, match=r"at most 64 bytes on each context, got \d+ on cpu"):
        step(executor)
    assert_same(
        step(bound(two_groups(), group2ctx=GROUPS, memory_limit="1M")), step(bound(two_groups()))
    )


def test_executors_that_share_and_reshape():
    first = bound(two_groups(), group2ctx=GROUPS)
    other = first.reshape(data=(4, 5), softmax_label=(4,), partial_shaping=True)
    assert other.arg_dict["fc2_weight"].context == CPUS[2]
    assert other.outputs[0].context == CPUS[2]
    want = step(bound(two_groups()))
    assert_same(step(first), want)
    shared = two_groups().simple_bind(CPUS[0], data=(6, 5), group2ctx=GROUPS, shared_exec=first)
    assert shared.arg_dict["fc1_weight"].shares_storage(first.arg_dict["fc1_weight"])
    assert_same(step(shared), want)
    plain = two_groups().simple_bind(CPUS[0], data=(6, 5), shared_exec=first)
    for name, array in first.arg_dict.items():
        array.copyto(plain.arg_dict[name])
    assert_same(step(plain), want)
    first.forward(is_train=True)
    shared.forward(is_train=True)
    with pytest.raises(MXNetError, match="forward"):
        first.backward()


def test_monitor_sees_every_context():
    executor = bound(two_groups(), group2ctx=GROUPS)
    seen = {}
    executor.set_monitor_callback(lambda name, array: seen.update({name: array}), True)
    executor.forward(is_train=True)
    assert seen["act_output"].context == CPUS[1]
    assert seen["fc2_output"].context == CPUS[2]
    assert seen["softmax_label"].context == CPUS[0]
    assert (seen["act_output"].asnumpy() >= 0).all()


def test_head_gradients_lie_where_the_output_is():
    data = mx.sym.Variable("data")
    symbol = mx.sym.square(mx.sym.exp(data, name="e"), name="s")
    executor = symbol.simple_bind(CPUS[0], data=(3,), placement={"s": CPUS[1]})
    executor.arg_dict["data"][:] = [0.0, 1.0, 2.0]
    executor.forward(is_train=True)
    executor.backward(mx.nd.array([1.0, 2.0, 3.0], ctx=CPUS[2]))
    want = 2 * np.exp(2 * np.arange(3.0)) * [1, 2, 3]
    np.testing.assert_allclose(executor.grad_dict["data"].asnumpy(), want, 1e-5)


def test_errors_of_a_step_reach_the_outputs():
    class Bad(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            raise ValueError("went wrong")

    @mx.operator.register("placement_bad")
    class BadProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Bad()

    data = mx.sym.Variable("data")
    broken = mx.sym.Custom(data, op_type="placement_bad", name="bad")
    symbol = mx.sym.exp(broken, name="e")
    executor = symbol.simple_bind(CPUS[0], data=(3,), placement={"e": CPUS[1]})
    executor.forward()
    with pytest.raises(MXNetError, match="went wrong"):
        executor.outputs[0].asnumpy()


def test_deterministic_steps_are_equal_bit_by_bit():
    with config.override(deterministic=True):
        executor = bound(two_groups(), ctx=CPUS[:2], placement=Auto({"fc1": CPUS[1]}))
        assert executor.placement.costs == "estimated"
        first = step(executor)
        for _ in range(3):
            again = step(executor)
            assert all(np.array_equal(first[n], again[n]) for n in first)


# -- by cost


def tower(data, name, depth=3, width=256):
    for k in range(depth):
        data = mx.sym.FullyConnected(data, num_hidden=width, name=f"{name}{k}")
        data = mx.sym.Activation(data, act_type="relu", name=f"{name}{k}_relu")
    return data


def two_towers():
    data = mx.sym.Variable("data")
    both = tower(data, "a") + tower(data, "b")
    return mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(both, num_hidden=2, name="last"), name="loss"
    )


SHAPES = {"data": (256, 256)}
ESTIMATED = Auto(costs="estimated")


def test_two_towers_use_both_contexts():
    executor = bound(two_towers(), CPUS[:2], placement=ESTIMATED, **SHAPES)
    report = executor.placement
    for name in "ab":
        assert len({report.nodes[f"{name}{k}"] for k in range(3)}) == 1
    assert report.nodes["a0"] != report.nodes["b0"]
    assert report.makespan < 0.7 * report.single
    assert sum(load.seconds for load in report.loads) == pytest.approx(report.single, 0.01)
    for load in report.loads:
        assert load.seconds <= report.makespan
    # An input and its gradient, the end of one tower and its gradient: 256 x 256 floats each.
    assert sum(c.nbytes == 4 * 256 * 256 for c in report.copies) == 4
    assert 4 <= report.bytes_copied / (4 * 256 * 256) < 4.1
    assert report.critical_path
    assert "step" in str(report)
    assert "cpu(1)" in str(report)
    want = step(bound(two_towers(), **SHAPES))
    assert_same(step(executor), want, 1e-4)


def test_measured_costs_are_remembered():
    symbol = two_towers()
    first = bound(symbol, CPUS[:2], placement="auto", **SHAPES).placement
    again = bound(symbol, CPUS[:2], placement="auto", **SHAPES).placement
    assert first.costs == ("measured" if _rt.core.name == "native" else "estimated")
    assert first.nodes == again.nodes
    assert first.makespan == again.makespan
    assert first.makespan <= first.single


def test_a_chain_stays_on_one_context():
    symbol = mx.sym.LinearRegressionOutput(tower(mx.sym.Variable("data"), "a", 5), name="loss")
    executor = bound(symbol, CPUS[:2], placement=ESTIMATED, grad_req="null", **SHAPES)
    assert len(set(executor.placement.nodes.values())) == 1
    assert executor._placed is None
    assert executor.placement.bytes_copied == 0
    assert executor.placement.makespan == executor.placement.single


def test_constraints_and_groups_are_kept():
    wanted = Auto({"a1": CPUS[1], "b0": [CPUS[0], CPUS[1]], "last": "a1"}, costs="estimated")
    executor = bound(two_towers(), CPUS[:3], placement=wanted, **SHAPES)
    nodes = executor.placement.nodes
    assert nodes["a1"] == nodes["last"] == CPUS[1]
    assert nodes["b0"] in CPUS[:2]
    assert_same(step(executor), step(bound(two_towers(), **SHAPES)), 1e-4)
    with mx.AttrScope(ctx_group="g"):
        first = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="first")
    symbol = tower(first, "a")
    pinned = bound(symbol, CPUS[:2], placement=ESTIMATED, group2ctx={"g": CPUS[3]}, **SHAPES)
    assert pinned.placement.nodes["first"] == CPUS[3]
    assert pinned.arg_dict["first_weight"].context == CPUS[3]
    assert_same(step(pinned), step(bound(symbol, **SHAPES)), 1e-4)


def test_everything_tied_to_another_context():
    wanted = {n: CPUS[2] for n in ("fc1", "act", "fc2", "softmax")}
    executor = bound(two_groups(), CPUS[:2], placement=Auto(wanted, costs="estimated"))
    assert executor.outputs[0].context == CPUS[2]
    assert {a.context for a in executor.arg_dict.values()} == {CPUS[2]}
    assert executor._placed is None
    assert_same(step(executor), step(bound(two_groups())))


def test_slow_links_keep_towers_together():
    slow = Auto(costs="estimated", bandwidth=1e3)
    executor = bound(two_towers(), CPUS[:2], placement=slow, **SHAPES)
    assert len(set(executor.placement.nodes.values())) == 1


def test_a_limit_of_memory_spreads_a_chain():
    symbol = mx.sym.LinearRegressionOutput(tower(mx.sym.Variable("data"), "a", 6), name="loss")
    whole = bound(symbol, CPUS[:2], placement=ESTIMATED, **SHAPES).placement.loads
    limit = int(0.6 * sum(load.nbytes for load in whole))
    executor = bound(symbol, CPUS[:2], placement=ESTIMATED, memory_limit=limit, **SHAPES)
    report = executor.placement
    assert len(report.loads) == 2
    assert all(load.nbytes <= limit for load in report.loads)
    assert_same(step(executor), step(bound(symbol, **SHAPES)), 1e-4)


def test_report_of_groups():
    report = bound(two_groups(), group2ctx=GROUPS).placement
    assert isinstance(report, Report)
    assert report.nodes["fc2"] == CPUS[2]
    assert {load.context for load in report.loads} >= {CPUS[1], CPUS[2]}
    assert report.makespan >= report.single
    assert [c for c in report.copies if c.name == "act"]


@st.composite
def branching(draw):
    """A network of products whose inputs are any of the values before."""
    pool = [mx.sym.Variable("data")]
    for k in range(draw(st.integers(1, 12))):
        x, y = draw(st.sampled_from(pool)), draw(st.sampled_from(pool[-3:]))
        if draw(st.booleans()):
            pool.append(mx.sym.FullyConnected(x, num_hidden=64, name=f"n{k}"))
        else:
            pool.append(mx.sym.elemwise_add(x, y, name=f"n{k}"))
    return mx.sym.Group([pool[-1], draw(st.sampled_from(pool[1:]))])


@settings(max_examples=25, deadline=None)
@given(
    symbol=branching(),
    count=st.integers(2, 4),
    latency=st.sampled_from([0.0, 1e-5, 1e-3]),
    request=st.sampled_from(["write", "null"]),
)
def test_no_placement_is_estimated_worse_than_one_context(symbol, count, latency, request):
    wanted = Auto(costs="estimated", latency=latency)
    executor = symbol.simple_bind(CPUS[:count], data=(64, 64), placement=wanted, grad_req=request)
    report = executor.placement
    assert report.makespan <= report.single
    assert report.makespan * 1.0001 >= max(load.seconds for load in report.loads)
    assert len(set(report.nodes.values())) == len(executor.placement.loads)


# -- modules


def fitted(epochs=3, **kwargs):
    """Parameters after training from a fixed start, and the module."""
    rng = np.random.default_rng(1)
    data = rng.normal(size=(32, 5)).astype(np.float32)
    label = (data[:, 0] > 0) + (data[:, 1] > 0)
    batches = mx.io.NDArrayIter(data, label.astype(np.float32), 8)
    module = mx.mod.Module(two_groups(), **kwargs)
    module.bind(batches.provide_data, batches.provide_label)
    start = {
        n: mx.nd.array(rng.uniform(-0.5, 0.5, s))
        for n, s in zip(
            two_groups().list_arguments(), two_groups().infer_shape(data=(8, 5))[0], strict=True
        )
        if n not in ("data", "softmax_label")
    }
    module.init_params(arg_params=start)
    metric = mx.metric.Accuracy()
    module.fit(
        batches,
        eval_metric=metric,
        num_epoch=epochs,
        optimizer="adam",
        optimizer_params={"learning_rate": 0.05},
    )
    return {n: a.asnumpy() for n, a in module.get_params()[0].items()}, module


def test_module_with_groups_trains_as_one_context():
    want, _ = fitted()
    found, module = fitted(group2ctxs=GROUPS)
    assert_same(found, want, 1e-3)
    assert module._executors.arrays("arg", "fc2_weight")[0].context == CPUS[2]
    assert len(module._fused._bound) == 2


@pytest.mark.parametrize(
    "groups",
    [
        [{"dev1": CPUS[0], "dev2": CPUS[1]}, {"dev1": CPUS[2], "dev2": CPUS[3]}],
        {"dev1": [CPUS[0], CPUS[2]], "dev2": [CPUS[1], CPUS[3]]},
    ],
)
def test_data_parallel_groups(groups):
    want, _ = fitted()
    found, module = fitted(group2ctxs=groups, context=[CPUS[0], CPUS[2]])
    assert_same(found, want, 1e-3)
    places = [a.context for a in module._executors.arrays("arg", "fc2_weight")]
    assert places == [CPUS[1], CPUS[3]]


def test_one_context_for_all_executors_of_a_group():
    _, module = fitted(
        1, group2ctxs={"dev1": [CPUS[1]], "dev2": CPUS[2]}, context=[CPUS[0], CPUS[3]]
    )
    places = [a.context for a in module._executors.arrays("arg", "fc1_weight")]
    assert places == [CPUS[1], CPUS[1]]


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([GROUPS], "expected 2 group2ctxs, one for each context, got 1"),
        ({"dev1": CPUS[:3], "dev2": CPUS[1]}, "1 or 2 contexts for the group 'dev1', got 3"),
        ("dev1", "a mapping or a list of mappings"),
    ],
)
def test_group2ctxs_that_do_not_fit(groups, text):
    with pytest.raises(ParamError, match=text):
        mx.mod.Module(two_groups(), context=CPUS[:2], group2ctxs=groups)


def test_module_placed_by_cost():
    want, _ = fitted()
    wanted = Auto({"fc1": CPUS[0], "fc2": CPUS[1]}, costs="estimated")
    found, module = fitted(context=CPUS[:2], placement=wanted)
    assert_same(found, want, 1e-3)
    (executor,) = module._executors.executors
    assert executor.placement.nodes["fc2"] == CPUS[1]


# -- MXNet's example of model parallelism


def lstm(steps, hidden, layers):
    """An unrolled LSTM, each layer a context group."""
    data = mx.sym.SliceChannel(
        mx.sym.Variable("data"), num_outputs=steps, axis=1, squeeze_axis=True, name="steps"
    )
    inputs = list(data)
    for layer in range(layers):
        with mx.AttrScope(ctx_group=f"layer{layer}"):
            weights = {k: mx.sym.Variable(f"l{layer}_{k}") for k in ("x", "x_bias", "h", "h_bias")}
            state, cell = (mx.sym.Variable(f"l{layer}_init_{k}") for k in "hc")
            for t in range(steps):
                name = f"l{layer}_t{t}"
                gates = mx.sym.FullyConnected(
                    inputs[t],
                    weights["x"],
                    weights["x_bias"],
                    num_hidden=4 * hidden,
                    name=f"{name}x",
                ) + mx.sym.FullyConnected(
                    state, weights["h"], weights["h_bias"], num_hidden=4 * hidden, name=f"{name}h"
                )
                i, f, o, g = mx.sym.SliceChannel(gates, num_outputs=4, name=f"{name}gates")
                cell = mx.sym.sigmoid(f) * cell + mx.sym.sigmoid(i) * mx.sym.tanh(g)
                inputs[t] = state = mx.sym.sigmoid(o) * mx.sym.tanh(cell)
    with mx.AttrScope(ctx_group=f"layer{layers - 1}"):
        last = mx.sym.FullyConnected(mx.sym.Concat(*inputs, dim=0), num_hidden=7, name="last")
    return mx.sym.SoftmaxOutput(last, name="softmax")


def test_lstm_of_two_layers_over_two_contexts():
    steps, hidden, batch = 5, 8, 3
    symbol = lstm(steps, hidden, 2)
    shapes = {"data": (batch, steps, 4), "softmax_label": (batch * steps,)}
    shapes |= {f"l{k}_init_{n}": (batch, hidden) for k in (0, 1) for n in "hc"}
    groups = {"layer0": CPUS[0], "layer1": CPUS[1]}
    executor = bound(symbol, group2ctx=groups, **shapes)
    assert_same(step(executor), step(bound(symbol, **shapes)), 1e-4)
    # One step of the first layer after another goes to the second, and gradients come back.
    copies = [s for s in executor.plan(True).steps if s.op == "_CrossDeviceCopy"]
    assert len(copies) >= 2 * steps


# -- contexts run beside each other


@pytest.fixture
def threaded():
    if _rt.core.name != "native" or _rt.core.engine_kind() != "threaded":
        pytest.skip("needs tasks that run beside the caller")


def test_a_context_does_not_wait_for_another(threaded):
    left = mx.sym.exp(mx.sym.Variable("x"), name="left")
    right = mx.sym.square(mx.sym.Variable("y"), name="right")
    executor = mx.sym.Group([left, right]).simple_bind(
        CPUS[0], x=(4,), y=(4,), placement={"right": CPUS[1], "y": CPUS[1]}
    )
    executor.arg_dict["y"][:] = 3.0
    go = threading.Event()
    held = executor.arg_dict["x"]
    _rt.core.push(lambda: go.wait(20), [], [held], "hold")
    try:
        executor.forward()
        np.testing.assert_array_equal(executor.outputs[1].asnumpy(), 9.0)
    finally:
        go.set()
    np.testing.assert_array_equal(executor.outputs[0].asnumpy(), 1.0)


class Waiting(mx.operator.CustomOp):
    """Ends when told so."""

    go = threading.Event()

    def forward(self, is_train, req, in_data, out_data, aux):
        assert self.go.wait(20)
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("placement_waiting")
class WaitingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Waiting()


def test_a_piece_gives_away_what_it_made_before_it_ends(threaded):
    data = mx.sym.Variable("x")
    first = mx.sym.exp(data, name="first")
    slow = mx.sym.Custom(data, op_type="placement_waiting", name="slow")
    sent = mx.sym.square(first, name="sent")
    executor = mx.sym.Group([slow, sent]).simple_bind(CPUS[0], x=(4,), placement={"sent": CPUS[1]})
    plan = executor.plan().plan
    assert [len(p.compiled.phase_ends) for p in plan.parts] == [1, 1]
    Waiting.go.clear()
    try:
        executor.forward()
        np.testing.assert_array_equal(executor.outputs[1].asnumpy(), 1.0)
    finally:
        Waiting.go.set()
    np.testing.assert_array_equal(executor.outputs[0].asnumpy(), 0.0)


def test_many_steps_without_a_wait():
    symbol = two_groups()
    made = []
    for groups in (None, GROUPS):
        executor = bound(symbol, group2ctx=groups, grad_req="add")
        for _ in range(60):
            executor._forward_backward(None)
        made.append({n: g.asnumpy() for n, g in executor.grad_dict.items()})
    assert_same(made[1], made[0], 1e-4)


# -- the command


def test_command(capsys):
    arguments = ["placement", "--network", "mlp", "--batch-size", "4", "--costs", "estimated"]
    assert cli.main([*arguments, "--nodes"]) == 0
    shown = capsys.readouterr().out
    assert "cpu(0)" in shown
    assert "critical path: " in shown
    assert cli.main(["placement", "--network", "mlpp"]) == 1
    assert "mlp" in capsys.readouterr().err
