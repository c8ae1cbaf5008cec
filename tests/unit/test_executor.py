"""Executor: forward, backward, requests, shapes, sharing, pruning, errors."""

import gc
import weakref

import numpy as np
import pytest

import mixflow.ndarray as nd
import mixflow.symbol as sym
from mixflow.context import cpu
from mixflow.errors import GraphError, MXNetError, ParamError, ShapeError, UnknownNameError
from mixflow.executor import Executor
from mixflow.passes import cache
from mixflow.passes.manager import verified
from mixflow.passes.memory import check_overlap


def mlp():
    x = sym.Variable("data")
    h = sym.FullyConnected(x, num_hidden=4, name="fc1")
    h = sym.Activation(h, act_type="relu", name="relu1")
    h = sym.FullyConnected(h, num_hidden=3, name="fc2")
    return sym.SoftmaxOutput(h, name="softmax")


def bound(symbol=None, **options):
    symbol = mlp() if symbol is None else symbol
    with verified():
        executor = symbol.simple_bind(cpu(), data=(5, 6), **options)
        executor.plan(True)
        executor.plan(False)
    rng = np.random.default_rng(0)
    for array in executor.arg_dict.values():
        array[:] = rng.normal(size=array.shape).astype(np.float32)
    if "softmax_label" in executor.arg_dict:
        executor.arg_dict["softmax_label"][:] = np.array([0, 1, 2, 0, 1], np.float32)
    return executor


def numpy_step(executor):
    a = {k: v.asnumpy().astype(np.float64) for k, v in executor.arg_dict.items()}
    h = a["data"] @ a["fc1_weight"].T + a["fc1_bias"]
    r = np.maximum(h, 0)
    z = r @ a["fc2_weight"].T + a["fc2_bias"]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    d = p - np.eye(3)[a["softmax_label"].astype(int)]
    dh = (d @ a["fc2_weight"]) * (h > 0)
    grads = {
        "fc2_weight": d.T @ r,
        "fc2_bias": d.sum(0),
        "fc1_weight": dh.T @ a["data"],
        "fc1_bias": dh.sum(0),
    }
    return p, grads


def test_forward_and_backward_equal_numpy():
    executor = bound()
    out = executor.forward(is_train=True)[0]
    executor.backward()
    p, grads = numpy_step(executor)
    np.testing.assert_allclose(out.asnumpy(), p, rtol=1e-5, atol=1e-6)
    for name, grad in grads.items():
        np.testing.assert_allclose(executor.grad_dict[name].asnumpy(), grad, rtol=1e-4, atol=1e-5)
    assert list(executor.output_dict) == ["softmax_output"]
    check_overlap(executor.plan(True))
    check_overlap(executor.plan(False))


def test_outputs_are_stable_arrays():
    executor = bound()
    first = executor.forward()[0]
    executor.forward(is_train=True, data=np.zeros((5, 6), np.float32))
    assert executor.outputs[0] is first
    assert executor.outputs[0].shares_storage(first)


def test_grad_req_write_add_null():
    executor = bound(grad_req={"fc1_weight": "add", "fc2_weight": "write"})
    assert executor.grad_dict["fc1_bias"] is None and executor.grad_dict["data"] is None
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward()
    _, grads = numpy_step(executor)
    got = executor.grad_dict
    np.testing.assert_allclose(
        got["fc1_weight"].asnumpy(), 2 * grads["fc1_weight"], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        got["fc2_weight"].asnumpy(), grads["fc2_weight"], rtol=1e-4, atol=1e-5
    )
    listed = bound(grad_req=["null", "write", "null", "null", "null", "null"])
    assert [g is not None for g in listed.grad_arrays] == [False, True, False, False, False, False]


def test_inference_builds_no_backward_and_counts_steps():
    executor = bound()
    executor.forward(is_train=False)
    steps = executor.executed_steps()
    assert steps == executor.plan(False).phase_ends[-1] == len(executor.plan(False).steps)
    assert len(executor.plan(False).phase_ends) == 1
    assert not any("grad" in s.op for s in executor.plan(False).steps)
    train = executor.plan(True)
    assert train.phase_ends[0] == steps
    executor.forward(is_train=True)
    assert executor.executed_steps() == 2 * steps
    executor.backward()
    assert executor.executed_steps() == steps + len(train.steps)


def test_unused_branch_and_layers_behind_a_feature_do_not_run():
    net = mlp()
    feature = net.get_internals()["relu1_output"]
    executor = feature.simple_bind(cpu(), data=(5, 6), grad_req="null")
    executor.forward()
    assert executor.executed_steps() == 2  # matrix product, one program
    assert "fc2_weight" not in executor.arg_dict
    both = sym.Group([feature, net])[0]
    assert len(both.simple_bind(cpu(), data=(5, 6), grad_req="null").plan().steps) == 2


def test_only_requested_gradients_are_computed():
    everything = len(bound().plan(True).steps)
    one = len(bound(grad_req={"fc2_bias": "write"}).plan(True).steps)
    assert one < everything
    assert bound(grad_req="null").plan(True).phase_ends[0] == len(
        bound(grad_req="null").plan(True).steps
    )


def test_head_gradients():
    x = sym.Variable("data")
    executor = bound(x * 2.0 + 1.0)
    executor.forward(is_train=True)
    executor.backward()
    np.testing.assert_array_equal(executor.grad_dict["data"].asnumpy(), np.full((5, 6), 2.0))
    executor.forward(is_train=True)
    executor.backward(nd.array(np.full((5, 6), 3.0)))
    np.testing.assert_array_equal(executor.grad_dict["data"].asnumpy(), np.full((5, 6), 6.0))
    executor.forward(is_train=True)
    executor.backward()
    np.testing.assert_array_equal(executor.grad_dict["data"].asnumpy(), np.full((5, 6), 2.0))
    executor.forward(is_train=True)
    with pytest.raises(ShapeError, match="head gradient of shape"):
        executor.backward([nd.ones((5, 5))])


def test_backward_needs_a_training_forward():
    executor = bound()
    with pytest.raises(GraphError, match=r"expected a forward\(is_train=True\)"):
        executor.backward()
    executor.forward(is_train=False)
    with pytest.raises(GraphError, match="before each backward"):
        executor.backward()


def test_shared_arena_is_checked():
    first = bound()
    second = mlp().simple_bind(cpu(), data=(5, 6), shared_exec=first)
    assert second.arg_dict["fc1_weight"] is first.arg_dict["fc1_weight"]
    first.forward(is_train=True)
    second.forward(is_train=True)
    with pytest.raises(MXNetError, match="run forward again"):
        first.backward()
        first.grad_dict["fc1_weight"].asnumpy()
    second.forward(is_train=True)
    second.backward()


def test_bind_with_arrays():
    a, b = sym.Variable("a"), sym.Variable("b")
    args = {"a": nd.array([[1.0, 2.0]]), "b": nd.array([[3.0, 4.0]])}
    grads = {"a": nd.zeros((1, 2))}
    executor = (a * b).bind(cpu(), args, grads)
    np.testing.assert_array_equal(executor.forward(is_train=True)[0].asnumpy(), [[3.0, 8.0]])
    executor.backward()
    np.testing.assert_array_equal(grads["a"].asnumpy(), [[3.0, 4.0]])
    assert executor.grad_dict["b"] is None
    listed = (a * b).bind(cpu(), [args["a"], args["b"]], grad_req="null")
    np.testing.assert_array_equal(listed.forward()[0].asnumpy(), [[3.0, 8.0]])
    np.testing.assert_array_equal((a + b).eval(cpu(), **args)[0].asnumpy(), [[4.0, 6.0]])


def test_bind_errors():
    a, b = sym.Variable("a"), sym.Variable("b")
    one, two = nd.ones((1, 2)), nd.ones((2, 2))
    with pytest.raises(UnknownNameError, match="argument 'b', got none"):
        (a * b).bind(cpu(), {"a": one})
    with pytest.raises(ParamError, match=r"expected 2 arguments"):
        (a * b).bind(cpu(), [one])
    with pytest.raises(ShapeError):
        (a * b).bind(cpu(), [one, two])
    with pytest.raises(ShapeError, match="gradient of shape"):
        (a * b).bind(cpu(), [one, one], [two, two])
    with pytest.raises(ParamError, match="grad_req among"):
        (a * b).bind(cpu(), [one, one], grad_req="sum")
    with pytest.raises(GraphError, match="'a' twice"):
        (a * sym.Variable("a")).bind(cpu(), [one, one])
    with pytest.raises(UnknownNameError, match="did you mean data"):
        mlp().simple_bind(cpu(), dat=(5, 6))
    with pytest.raises(ShapeError, match="give its shape"):
        mlp().simple_bind(cpu())


def test_forward_kwargs():
    executor = bound()
    with pytest.raises(UnknownNameError, match="did you mean data"):
        executor.forward(dat=np.zeros((5, 6)))
    with pytest.raises(ShapeError, match=r"expected shape \(5, 6\)"):
        executor.forward(data=np.zeros((4, 6)))
    a = executor.forward(data=np.ones((5, 6), np.float32))[0].asnumpy()
    b = executor.forward(data=nd.ones((5, 6)))[0].asnumpy()
    np.testing.assert_array_equal(a, b)


def test_reshape_shares_parameters():
    executor = bound()
    small = executor.reshape(data=(2, 6), softmax_label=(2,))
    assert small.arg_dict["fc1_weight"] is executor.arg_dict["fc1_weight"]
    assert small.arg_dict["data"].shares_storage(executor.arg_dict["data"])
    want = executor.forward()[0].asnumpy()[:2]
    small.arg_dict["data"][:] = executor.arg_dict["data"].asnumpy()[:2]
    np.testing.assert_allclose(small.forward()[0].asnumpy(), want, rtol=1e-6)
    with pytest.raises(ShapeError, match="allow_up_sizing"):
        executor.reshape(data=(9, 6), softmax_label=(9,))
    large = executor.reshape(allow_up_sizing=True, data=(9, 6), softmax_label=(9,))
    assert large.forward()[0].shape == (9, 3)
    with pytest.raises(ShapeError, match="partial_shaping"):
        executor.reshape(data=(2, 6))
    assert isinstance(executor.reshape(partial_shaping=True, data=(2, 6)), Executor)


def test_copy_params_from():
    executor = bound()
    executor.copy_params_from({"fc1_bias": nd.ones((4,))})
    np.testing.assert_array_equal(executor.arg_dict["fc1_bias"].asnumpy(), np.ones(4))
    with pytest.raises(UnknownNameError):
        executor.copy_params_from({"nothing": nd.ones((4,))})
    executor.copy_params_from({"nothing": nd.ones((4,))}, allow_extra_params=True)
    with pytest.raises(ShapeError, match=r"expected shape \(4,\) for 'fc1_bias'"):
        executor.copy_params_from({"fc1_bias": nd.ones((5,))})


def test_monitor_sees_every_output():
    executor = bound()
    plain = executor.forward()[0].asnumpy()
    seen = {}
    executor.set_monitor_callback(lambda name, array: seen.update({name: array.asnumpy()}))
    executor.forward(is_train=True)
    executor.backward()
    assert list(seen) == ["fc1_output", "relu1_output", "fc2_output", "softmax_output"]
    np.testing.assert_allclose(seen["softmax_output"], plain, rtol=1e-6)
    _, grads = numpy_step(executor)
    np.testing.assert_allclose(
        executor.grad_dict["fc1_weight"].asnumpy(), grads["fc1_weight"], rtol=1e-4, atol=1e-5
    )
    executor.set_monitor_callback(lambda name, array: seen.update({name: 1}), monitor_all=True)
    executor.forward()
    assert seen["data"] == 1
    executor.set_monitor_callback(None)


def test_moving_statistics_move_in_training_only():
    x = sym.Variable("data")
    net = sym.BatchNorm(x, name="bn", momentum=0.5, fix_gamma=False)
    executor = net.simple_bind(cpu(), data=(8, 3))
    executor.arg_dict["data"][:] = np.random.default_rng(0).normal(2.0, 1.0, (8, 3))
    executor.arg_dict["bn_gamma"][:] = 1.0
    executor.aux_dict["bn_moving_var"][:] = 1.0
    executor.forward(is_train=False)
    np.testing.assert_array_equal(executor.aux_dict["bn_moving_mean"].asnumpy(), np.zeros(3))
    executor.forward(is_train=True)
    executor.backward()
    mean = executor.arg_dict["data"].asnumpy().mean(0)
    np.testing.assert_allclose(executor.aux_dict["bn_moving_mean"].asnumpy(), mean / 2, rtol=1e-5)
    check_overlap(executor.plan(True))


def test_dropout_mask_is_the_same_in_backward():
    x = sym.Variable("data")
    executor = sym.Dropout(x, p=0.5).simple_bind(cpu(), data=(50, 50))
    executor.arg_dict["data"][:] = 1.0
    out = executor.forward(is_train=True)[0].asnumpy()
    executor.backward()
    np.testing.assert_array_equal(out, executor.grad_dict["data"].asnumpy())
    assert 0.4 < (out == 0).mean() < 0.6
    np.testing.assert_array_equal(executor.forward()[0].asnumpy(), np.ones((50, 50)))


def test_memory_report():
    report = mlp().memory_report(data=(64, 784))
    assert set(report) == {
        "none",
        "inplace",
        "coshare",
        "both",
        "arena",
        "lower_bound",
        "lower_bound_unfused",
    }
    assert report["both"] <= min(report["inplace"], report["coshare"]) <= report["none"]
    assert report["lower_bound_unfused"] <= report["both"]
    assert report["arena"] <= 1.1 * report["lower_bound"] + 1024
    predict = mlp().memory_report(False, data=(64, 784))
    assert predict["both"] <= report["both"]


def test_second_bind_finds_the_plan():
    net = mlp()
    first, second = bound(net), bound(net)
    assert first.plan(True) is second.plan(True) and first.plan(False) is second.plan(False)
    assert bound(net, grad_req="null").plan(True) is not first.plan(True)
    assert bound(mlp()).plan(True) is first.plan(True)  # written the same way
    other = sym.identity(net)
    assert bound(other).plan(True) is not first.plan(True)
    second.arg_dict["data"][:] = 0.0
    outs = [e.forward(is_train=True)[0].asnumpy() for e in (first, second)]
    assert not np.allclose(*outs)
    for executor in (first, second):
        executor.backward()
        _, grads = numpy_step(executor)
        np.testing.assert_allclose(
            executor.grad_dict["fc1_weight"].asnumpy(), grads["fc1_weight"], rtol=1e-4, atol=1e-5
        )


def test_what_is_cached_keeps_no_graph_alive():
    net = mlp()
    seen = weakref.ref(net.heads[0].node)
    bound(net).plan(True)
    del net
    gc.collect()
    assert seen() is None


def test_signatures_tell_graphs_apart():
    def net(**params):
        x = sym.FullyConnected(sym.Variable("x"), num_hidden=3, name="fc", **params)
        return sym.Group([x, sym.relu(x, name="r")]).heads

    assert cache.signature(net()) == cache.signature(net())
    assert cache.signature(net()) != cache.signature(net(no_bias=True))
    assert cache.signature(net()) != cache.signature(net()[::-1])
    assert cache.signature(net()) != cache.signature(net(attr={"force_mirroring": "True"}))
