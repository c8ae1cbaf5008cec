"""Declared and imperative code interleaved on the same arrays, without one explicit wait."""

import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt, autograd, nd

STEPS, RATE = 25, 0.05
RNG = np.random.default_rng(3)
DATA = RNG.normal(size=(STEPS, 8, 6)).astype(np.float32)
LABEL = RNG.integers(0, 4, (STEPS, 8)).astype(np.float32)
START = {
    "fc1_weight": RNG.normal(size=(5, 6)).astype(np.float32) * 0.5,
    "fc1_bias": np.zeros(5, np.float32),
    "fc2_weight": RNG.normal(size=(4, 5)).astype(np.float32) * 0.5,
    "fc2_bias": np.zeros(4, np.float32),
}


@pytest.fixture(params=["threaded", "serial"])
def engine(request):
    before = _rt.core.engine_kind()
    _rt.core.set_engine(request.param)
    yield request.param
    _rt.core.set_engine(before)


def network():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=5, name="fc1")
    net = mx.sym.Activation(net, act_type="tanh", name="tanh")
    net = mx.sym.FullyConnected(net, num_hidden=4, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax", normalization="batch")


def executor(grad_req="write"):
    requests = {n: grad_req for n in START}
    made = network().simple_bind(mx.cpu(), grad_req=requests, data=(8, 6), softmax_label=(8,))
    for name, value in START.items():
        made.arg_dict[name][:] = value
    return made


def numpy_gradients(weights, data, label):
    w = {k: v.astype(np.float64) for k, v in weights.items()}
    hidden = np.tanh(data @ w["fc1_weight"].T + w["fc1_bias"])
    scores = hidden @ w["fc2_weight"].T + w["fc2_bias"]
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    d = (p - np.eye(4)[label.astype(int)]) / len(data)
    back = (d @ w["fc2_weight"]) * (1 - hidden**2)
    return {
        "fc1_weight": back.T @ data,
        "fc1_bias": back.sum(0),
        "fc2_weight": d.T @ hidden,
        "fc2_bias": d.sum(0),
    }


def numpy_training(momentum=0.0):
    weights = {k: v.astype(np.float64) for k, v in START.items()}
    speed = {k: np.zeros_like(v) for k, v in weights.items()}
    for data, label in zip(DATA, LABEL, strict=True):
        for name, grad in numpy_gradients(weights, data.astype(np.float64), label).items():
            speed[name] = momentum * speed[name] + grad
            weights[name] = weights[name] - RATE * speed[name]
    return weights


def assert_weights(got, wanted):
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name].asnumpy(), value, rtol=2e-4, atol=2e-5, err_msg=name)


def test_updates_written_by_hand(engine):
    made = executor()
    for data, label in zip(DATA, LABEL, strict=True):
        made.forward(is_train=True, data=nd.array(data), softmax_label=nd.array(label))
        made.backward()
        for name in START:
            weight, grad = made.arg_dict[name], made.grad_dict[name]
            weight -= RATE * grad
    assert_weights(made.arg_dict, numpy_training())


def test_momentum_in_arrays_of_our_own(engine):
    made = executor()
    speed = {n: nd.zeros(v.shape) for n, v in START.items()}
    for data, label in zip(DATA, LABEL, strict=True):
        made.arg_dict["data"][:] = data
        made.arg_dict["softmax_label"][:] = label
        made.forward(is_train=True)
        made.backward()
        for name, v in speed.items():
            v *= 0.9
            v += made.grad_dict[name]
            made.arg_dict[name][:] = made.arg_dict[name] - RATE * v
    assert_weights(made.arg_dict, numpy_training(0.9))


def test_gradients_added_up_over_two_halves(engine):
    made = executor("add")
    half = made.reshape(data=(4, 6), softmax_label=(4,))
    for data, label in zip(DATA, LABEL, strict=True):
        for grad in (made.grad_dict[n] for n in START):
            grad[:] = 0
        for part in (slice(0, 4), slice(4, 8)):
            half.forward(is_train=True, data=data[part], softmax_label=label[part])
            half.backward()
        for name in START:
            made.arg_dict[name] -= (RATE / 2) * made.grad_dict[name]
    assert_weights(made.arg_dict, numpy_training())


def test_graph_tape_and_optimizer_on_shared_arrays(engine):
    """The graph gives the gradients of its weights; a recorded penalty adds to them."""
    made = executor()
    optimizer = mx.optimizer.SGD(learning_rate=RATE)
    updater = mx.optimizer.get_updater(optimizer)
    decay = 0.01
    for data, label in zip(DATA, LABEL, strict=True):
        made.forward(is_train=True, data=nd.array(data), softmax_label=nd.array(label))
        made.backward()
        for index, name in enumerate(START):
            shadow = made.arg_dict[name].copy()
            shadow.attach_grad()
            with autograd.record():
                penalty = (shadow * shadow).sum() * (decay / 2)
            penalty.backward()
            updater(index, made.grad_dict[name] + shadow.grad, made.arg_dict[name])
    weights = {k: v.astype(np.float64) for k, v in START.items()}
    for data, label in zip(DATA, LABEL, strict=True):
        grads = numpy_gradients(weights, data.astype(np.float64), label)
        weights = {n: w - RATE * (grads[n] + decay * w) for n, w in weights.items()}
    assert_weights(made.arg_dict, weights)


def test_reads_in_between_see_the_values_of_their_time(engine):
    a = nd.zeros((64, 64))
    seen = []
    for k in range(40):
        a += 1
        seen.append(a[k % 64].copy())
        a *= 1
    for k, row in enumerate(seen):
        np.testing.assert_array_equal(row.asnumpy(), np.full(64, k + 1.0))


def test_both_engines_give_the_same_bits():
    before, found = _rt.core.engine_kind(), []
    try:
        for kind in ("threaded", "serial"):
            _rt.core.set_engine(kind)
            made = executor()
            for data, label in zip(DATA[:5], LABEL[:5], strict=True):
                made.forward(is_train=True, data=nd.array(data), softmax_label=nd.array(label))
                made.backward()
                for name in START:
                    made.arg_dict[name] -= RATE * made.grad_dict[name]
            found.append({n: made.arg_dict[n].asnumpy() for n in START})
    finally:
        _rt.core.set_engine(before)
    for name in START:
        np.testing.assert_array_equal(found[0][name], found[1][name])
