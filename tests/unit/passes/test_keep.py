"""Weights that a prediction keeps between runs, and when they are made again."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt
from mixflow.passes.memory import check_overlap

pytestmark = pytest.mark.skipif(_rt.load_native() is None, reason="the compiled core is not built")
SHAPE = (2, 16, 12, 12)


def net(bias: bool = True) -> Any:
    """Two convolutions (3x3 and 1x1) with a norm and a sum."""
    data = mx.sym.Variable("data", shape=SHAPE)
    out = mx.sym.Convolution(
        data, kernel=(3, 3), pad=(1, 1), num_filter=32, no_bias=not bias, name="one"
    )
    out = mx.sym.BatchNorm(out, fix_gamma=False, name="norm")
    out = mx.sym.Activation(out, act_type="relu")
    out = mx.sym.Convolution(out, kernel=(1, 1), num_filter=16, name="two")
    return mx.sym.FullyConnected(mx.sym.Flatten(out + data), num_hidden=4, name="last")


def bound(symbol: Any, req: str = "write") -> Any:
    executor = symbol.simple_bind(mx.cpu(), grad_req=req, data=SHAPE)
    rng = np.random.default_rng(0)
    for name, array in executor.arg_dict.items():
        array[:] = rng.standard_normal(array.shape).astype(np.float32) * 0.3
        assert name
    for name, array in executor.aux_dict.items():
        array[:] = 1.0 + 0.5 * rng.random(array.shape).astype(np.float32)
        assert name
    return executor


def fresh(executor: Any) -> np.ndarray:
    """The prediction of a new executor with the same arrays' values: nothing is kept there."""
    other = bound(executor._symbol)
    for mine, theirs in ((executor.arg_dict, other.arg_dict), (executor.aux_dict, other.aux_dict)):
        for name, array in mine.items():
            theirs[name][:] = array.asnumpy()
    return np.array(other.forward(is_train=False)[0].asnumpy())


def predict(executor: Any) -> np.ndarray:
    return np.array(executor.forward(is_train=False)[0].asnumpy())


@pytest.mark.parametrize("bias", [False, True])
def test_equal_bits_from_run_to_run(bias: bool) -> None:
    executor = bound(net(bias))
    plan = executor.plan(False)
    assert plan.kept > 0 and plan.plan.kept_bytes == plan.kept
    check_overlap(plan)
    first = predict(executor)
    for _ in range(3):
        np.testing.assert_array_equal(predict(executor), first)


def test_a_batch_that_kept_values_are_made_of_is_not_read_in_place() -> None:
    module = mx.mod.Module(net(), data_names=["norm_gamma"], label_names=None)
    module.bind([("norm_gamma", (32,))], for_training=False)
    mx.random.seed(1)
    images = {"data": mx.nd.random.normal(shape=SHAPE)}
    module.init_params(mx.init.Uniform(0.5), images, allow_missing=True)
    assert module._executors.executors[0].plan().kept
    found = []
    for value in (1.0, 2.0, 1.0):
        module.forward(mx.io.DataBatch([mx.nd.full((32,), value)]))
        found.append(module.get_outputs()[0].asnumpy())
    np.testing.assert_array_equal(found[0], found[2])
    assert np.abs(found[1] - found[0]).max() > 1e-4


@pytest.mark.parametrize("place", ["one_weight", "norm_gamma", "norm_moving_var", "two_bias"])
@pytest.mark.parametrize("how", ["assign", "part", "operator", "view", "export"])
def test_a_parameter_changed_in_place_changes_the_prediction(place: str, how: str) -> None:
    executor = bound(net())
    array = {**executor.arg_dict, **executor.aux_dict}[place]
    view = array.reshape((-1,))
    shared = np.from_dlpack(array) if how == "export" else None
    for turn in range(3):
        before = [predict(executor) for _ in range(2)]
        np.testing.assert_array_equal(*before)
        if how == "assign":
            array[:] = array.asnumpy() * 1.5
        elif how == "part":
            array[0:1] = 2.0 + turn
        elif how == "operator":
            array *= 1.5
        elif how == "view":
            view[1:2] = 3.0 + turn
        else:
            assert shared is not None
            changed = shared * np.float32(1.5)  # NumPy's view is read-only, others' are not
            ctypes.memmove(shared.ctypes.data, changed.ctypes.data, changed.nbytes)
        after = predict(executor)
        assert np.abs(after - before[0]).max() > 1e-4
        np.testing.assert_array_equal(after, fresh(executor))


def test_training_between_predictions() -> None:
    executor = bound(net())
    for _ in range(3):
        predict(executor)
        executor.forward(is_train=True)
        executor.backward([mx.nd.ones((2, 4))])
        for name in ("one_weight", "two_weight"):
            executor.arg_dict[name] -= 0.05 * executor.grad_dict[name]
        np.testing.assert_array_equal(predict(executor), fresh(executor))


def test_other_data_uses_what_is_kept() -> None:
    executor = bound(net())
    predict(executor)
    steps = executor._program(False, False)
    times = steps.bound.profile()
    skipped = [t for t, s in zip(times, steps.compiled.steps, strict=True) if s.steady]
    assert skipped and all(t == 0.0 for t in skipped)
    rng = np.random.default_rng(1)
    executor.arg_dict["data"][:] = rng.standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_array_equal(predict(executor), fresh(executor))


def test_nothing_is_kept_in_training() -> None:
    plan = bound(net()).plan(True)
    assert plan.kept == 0 and not any(s.steady or s.prepared for s in plan.steps)


def test_the_core_refuses_what_it_cannot_keep() -> None:
    core: Any = _rt.load_native()
    compiled = bound(net()).plan(False)
    spec = (compiled.steps, compiled.arg_descs, compiled.arg_access, 0, compiled.memory["arena"])
    with pytest.raises(Exception, match="range inside the 64 bytes that are kept"):
        core.Plan(*spec, kept_bytes=64)
    with pytest.raises(Exception, match="expected one phase that ends by writing an argument"):
        core.Plan(*spec, [1, len(compiled.steps)], kept_bytes=compiled.kept)
    written = ["rw" if a == "r" else a for a in compiled.arg_access]
    with pytest.raises(Exception, match="not to be written, as values made of it are kept"):
        core.Plan(*spec[:2], written, *spec[3:], kept_bytes=compiled.kept)


def test_transformed_weights_are_kept() -> None:
    out = mx.sym.Variable("data")
    for k in range(2):
        out = mx.sym.Convolution(out, kernel=(3, 3), pad=(1, 1), num_filter=32, name=f"c{k}")
    with mx.config.override(deterministic=True):
        executor = out.simple_bind(mx.cpu(), grad_req="null", data=(6, 32, 32, 32))
        executor.arg_dict["data"][:] = 1.0
        weights = [executor.arg_dict[f"c{k}_weight"] for k in range(2)]
        for weight in weights:
            weight[:] = 0.01
        first = [predict(executor) for _ in range(2)]
        steps = executor.plan(False).steps
        kept = [s for s in steps if s.prepared is not None]
        assert [s.kernel.implementation for s in kept] == ["winograd:f4"] * 2
        weights[1][:] = 0.02
        np.testing.assert_array_equal(first[0], first[1])
        np.testing.assert_allclose(predict(executor), 2 * first[0], rtol=1e-5)
