"""Networks over one to four contexts compute what one context computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mixflow as mx

BATCH, CHANNELS, SIDE = 2, 8, 6


def _layer(draw, pool, number):
    """One more node over what there is: (batch, channels, side, side) each."""
    x, y = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
    name = f"n{number}"
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return mx.sym.Convolution(x, num_filter=CHANNELS, kernel=(3, 3), pad=(1, 1), name=name)
    if kind == 1:
        return mx.sym.BatchNorm(x, fix_gamma=False, name=name)
    if kind == 2:
        return mx.sym.Activation(x, act_type=draw(st.sampled_from(["relu", "tanh"])), name=name)
    if kind == 3:
        return mx.sym.Dropout(x, p=0.5, name=name)
    if kind == 4:
        whole = mx.sym.Concat(x, y, name=name)
        return mx.sym.slice_axis(whole, axis=1, begin=3, end=3 + CHANNELS, name=f"{name}_slice")
    if kind == 5:
        return mx.sym.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type="max", name=name)
    if kind == 6:
        return mx.sym.broadcast_mul(x, mx.sym.mean(y, axis=(2, 3), keepdims=True), name=name)
    return mx.sym.elemwise_add(x, y, name=name)


@st.composite
def networks(draw):
    """A network with a loss or two, and a context for each of its nodes and variables."""
    pool = [mx.sym.Variable("data"), mx.sym.Variable("other")]
    for number in range(draw(st.integers(1, 10))):
        pool.append(_layer(draw, pool, number))
    flat = mx.sym.FullyConnected(pool[-1], num_hidden=3, name="last")
    heads = [mx.sym.SoftmaxOutput(flat, name="softmax")]
    if draw(st.booleans()):
        heads.append(mx.sym.MakeLoss(mx.sym.sum(draw(st.sampled_from(pool[2:]))), name="extra"))
    symbol = mx.sym.Group(heads)
    contexts = [mx.cpu(k) for k in range(draw(st.integers(1, 4)))]
    names = [n.name for n in symbol.graph().nodes()]
    chosen = {n: draw(st.sampled_from(contexts)) for n in names}
    return symbol, contexts[0], chosen


def _run(symbol, ctx, requests, separate, **kwargs):
    """Outputs, gradients and states after two training steps and one prediction."""
    shape = (BATCH, CHANNELS, SIDE, SIDE)
    shapes = {"data": shape, "other": shape, "softmax_label": (BATCH,)}
    used = set(symbol.list_arguments())
    shapes = {n: s for n, s in shapes.items() if n in used}
    executor = symbol.simple_bind(ctx, grad_req=requests, **kwargs, **shapes)
    rng = np.random.default_rng(0)
    for name, array in sorted(executor.arg_dict.items()):
        array[:] = rng.uniform(-0.5, 0.5, array.shape) if "label" not in name else 1
    for name, array in sorted(executor.aux_dict.items()):
        array[:] = 1.0 if name.endswith("var") else 0.0
    mx.random.seed(3)
    for _ in range(2):
        if separate:
            executor.forward(is_train=True)
            executor.backward()
        else:
            executor._forward_backward(None)
    made = {f"out{k}": o.asnumpy() for k, o in enumerate(executor.outputs)}
    made |= {f"d {n}": g.asnumpy() for n, g in executor.grad_dict.items() if g is not None}
    made |= {n: a.asnumpy() for n, a in executor.aux_dict.items()}
    made |= {f"test{k}": o.asnumpy() for k, o in enumerate(executor.forward())}
    return made, executor


@settings(max_examples=40, deadline=None)
@given(
    case=networks(),
    request=st.sampled_from(["write", "add"]),
    separate=st.booleans(),
)
def test_random_placements(case, request, separate):
    symbol, ctx, chosen = case
    want, _ = _run(symbol, ctx, request, separate)
    found, executor = _run(symbol, ctx, request, separate, placement=chosen)
    assert {n: a.context for n, a in executor.arg_dict.items()} == {
        n: chosen[n] for n in symbol.list_arguments()
    }
    assert sorted(found) == sorted(want)
    for name, value in want.items():
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5 * scale, err_msg=name)


@pytest.mark.parametrize("kind", ["serial", "threaded"])
def test_on_both_engines(kind):
    data = mx.sym.Variable("data")
    left = mx.sym.tanh(data, name="left")
    right = mx.sym.exp(data, name="right")
    both = mx.sym.elemwise_mul(left, right, name="both")
    old = mx._rt.core.engine_kind()
    mx._rt.core.set_engine(kind)
    try:
        executor = both.simple_bind(mx.cpu(0), data=(3,), placement={"right": mx.cpu(1)})
        executor.arg_dict["data"][:] = [0.0, 1.0, 2.0]
        executor.forward(is_train=True)
        executor.backward()
        x = np.array([0.0, 1.0, 2.0])
        np.testing.assert_allclose(executor.outputs[0].asnumpy(), np.tanh(x) * np.exp(x), 1e-5)
        slope = (1 - np.tanh(x) ** 2 + np.tanh(x)) * np.exp(x)
        np.testing.assert_allclose(executor.grad_dict["data"].asnumpy(), slope, 1e-5)
    finally:
        mx._rt.core.set_engine(old)
