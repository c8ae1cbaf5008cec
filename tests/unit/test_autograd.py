"""autograd: gradients against finite differences and NumPy, and every rule of the tape."""

import gc
import importlib

import numpy as np
import pytest

import mixflow as mx
from mixflow import autograd, nd
from mixflow.errors import MixflowError, MXNetError, ParamError, ShapeError

engine = importlib.import_module("mixflow.autograd.backward")


def leaf(values, grad_req="write", dtype="float64", ctx=None):
    array = nd.array(values, dtype=dtype, ctx=ctx)
    array.attach_grad(grad_req)
    return array


def numeric(function, arrays, step=1e-6):
    """Central differences of the scalar function of float64 arrays."""
    grads = []
    for k, x in enumerate(arrays):
        grad = np.zeros_like(x)
        for at in np.ndindex(*x.shape):
            sides = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[k][at] += sign * step
                sides.append(function(*[nd.array(a, dtype="float64") for a in moved]).asscalar())
            grad[at] = (sides[0] - sides[1]) / (2 * step)
        grads.append(grad)
    return grads


def check(function, *arrays):
    leaves = [leaf(a) for a in arrays]
    with autograd.record():
        loss = function(*leaves)
    loss.backward()
    wanted = numeric(function, [np.asarray(a, np.float64) for a in arrays])
    for x, expected in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(x.grad.asnumpy(), expected, rtol=1e-5, atol=1e-7)


RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(3, 4)), RNG.normal(size=(4, 2))
ROW = RNG.normal(size=(1, 4))


@pytest.mark.parametrize(
    ("function", "arrays"),
    [
        pytest.param(lambda a: (a * a * a).sum(), [A], id="powers"),
        pytest.param(lambda a, b: nd.dot(a, b).tanh().sum(), [A, B], id="dot"),
        pytest.param(
            lambda a, b: (nd.broadcast_mul(a, b) + b).sigmoid().sum(), [A, ROW], id="broadcast"
        ),
        pytest.param(lambda a: (a[1:3, ::2] * a[0, 1]).sum(), [A], id="index"),
        pytest.param(lambda a: (3.0 / (a * a + 2.0) - 1.5 * a).sum(), [A], id="scalars"),
        pytest.param(lambda a: nd.concat(a, a * 2, dim=1).square().mean(), [A], id="concat"),
        pytest.param(lambda a: a.reshape((2, 6)).transpose()[1].exp().sum(), [A], id="reshape"),
        pytest.param(lambda a: nd.log_softmax(a)[:, 0].sum(), [A], id="log_softmax"),
        pytest.param(
            lambda a: nd.take(a, nd.array([2, 0, 2], dtype="int32")).square().sum(), [A], id="take"
        ),
        pytest.param(lambda a: nd.where(a > 0, a * a, -a).sum(), [A], id="where"),
        pytest.param(lambda a: (a.max(axis=1) * a.min(axis=1)).sum(), [A], id="extrema"),
    ],
)
def test_gradients_against_finite_differences(function, arrays):
    check(function, *arrays)


def test_layers_against_finite_differences():
    x, w = RNG.normal(size=(2, 2, 5, 5)), RNG.normal(size=(3, 2, 3, 3))

    def net(x, w):
        y = nd.Convolution(x, w, kernel=(3, 3), num_filter=3, pad=(1, 1), no_bias=True)
        y = nd.Pooling(
            nd.Activation(y, act_type="tanh"), kernel=(2, 2), stride=(2, 2), pool_type="avg"
        )
        return (y * y).sum()

    check(net, x, w)


def test_batch_norm_in_training_mode():
    shape = (4, 3)
    mean, var = nd.zeros(3, dtype="float64"), nd.ones(3, dtype="float64")

    def net(x, gamma, beta):
        with autograd.train_mode():
            y = nd.BatchNorm(x, gamma, beta, mean.copy(), var.copy(), fix_gamma=False, eps=1e-3)
        return (y * y * y).sum()

    check(net, RNG.normal(size=shape), RNG.normal(size=3), RNG.normal(size=3))


# -- scopes


def test_scopes_nest_and_are_restored():
    assert not autograd.is_recording() and not autograd.is_training()
    with autograd.record():
        assert autograd.is_recording() and autograd.is_training()
        with autograd.pause():
            assert not autograd.is_recording() and not autograd.is_training()
        with autograd.predict_mode():
            assert autograd.is_recording() and not autograd.is_training()
    with autograd.record(train_mode=False), autograd.train_mode():
        assert autograd.is_recording() and autograd.is_training()
    with pytest.raises(RuntimeError), autograd.record():
        raise RuntimeError
    assert not autograd.is_recording() and not autograd.is_training()
    assert autograd.set_recording(True) is False
    assert autograd.set_recording(False) is True


def test_paused_calls_are_constants():
    x = leaf([2.0])
    with autograd.record():
        y = x * x
        with autograd.pause():
            factor = x * 10
        z = y * factor
    z.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [80.0])


# -- leaves


def test_grad_req_write_add_null():
    x, y, z = leaf([1.0, 2.0]), leaf([3.0, 4.0], "add"), leaf([5.0, 6.0], "null")
    for _ in range(3):
        with autograd.record():
            loss = (x * y * z).sum()
        loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [15, 24])
    np.testing.assert_allclose(y.grad.asnumpy(), [15, 36])
    np.testing.assert_allclose(z.grad.asnumpy(), [0, 0])
    with pytest.raises(ParamError, match="write, add or null"):
        x.attach_grad("sum")


def test_leaf_used_many_times_and_aliased_gradient():
    x = leaf([1.0, 2.0])
    with autograd.record():
        y = x
        for _ in range(6):
            y = y * x + x
        loss = y.sum()
    loss.backward()
    v = np.array([1.0, 2.0])
    wanted = sum((k + 1) * v**k for k in range(7))
    np.testing.assert_allclose(x.grad.asnumpy(), wanted)
    with autograd.record():
        again = (x * x.grad).sum()  # the gradient's own array is an input of its computation
    again.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), wanted)


def test_mark_variables():
    x, grad = nd.array([1.0, 2.0]), nd.array([9.0, 9.0])
    autograd.mark_variables([x], [grad], "write")
    with autograd.record():
        (x * 5).backward()
    assert x.grad is grad
    np.testing.assert_allclose(grad.asnumpy(), [5, 5])


def test_detach_and_stop_gradient():
    x = leaf([3.0])
    with autograd.record():
        loss = x * (x * 2).detach() + nd.BlockGrad(x) * x
    loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [9.0])
    assert x.detach().grad is None


# -- heads


def test_head_gradients_and_several_heads():
    x = leaf([[1.0, 2.0]])
    with autograd.record():
        y, z = x * 2, x * x
    autograd.backward([y, z], [nd.array([[1.0, 10.0]], dtype="float64"), None])
    np.testing.assert_allclose(x.grad.asnumpy(), [[4.0, 24.0]])
    with autograd.record():
        y = x * 2
    with pytest.raises(ShapeError, match="head gradient of shape"):
        y.backward(nd.ones((2, 2)))
    with pytest.raises(ParamError, match="one head gradient per head"):
        autograd.backward([y], [None, None])
    with pytest.raises(MixflowError, match=r"computed under autograd.record"):
        nd.ones((1,)).backward()
    x.backward(nd.array([[7.0, 8.0]], dtype="float64"))  # a leaf is its own head
    np.testing.assert_allclose(x.grad.asnumpy(), [[7.0, 8.0]])


def test_a_head_that_feeds_another_head():
    x = leaf([1.0, 2.0])
    with autograd.record():
        y = x * x
        z = y * 3
    autograd.backward([y, z])
    np.testing.assert_allclose(x.grad.asnumpy(), [8.0, 16.0])


def test_outputs_of_one_call_and_unused_ones():
    x = leaf(np.arange(6.0).reshape(2, 3))
    with autograd.record():
        parts = nd.split(x, num_outputs=3, axis=1)
        loss = (parts[2] * parts[2]).sum()
    loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [[0, 0, 4], [0, 0, 10]])


# -- grad()


def test_grad_returns_arrays_and_leaves_the_leaf_alone():
    x, y = leaf([2.0]), leaf([3.0])
    with autograd.record():
        z = x * y * y
    gx, gy = autograd.grad(z, [x, y], retain_graph=True)
    np.testing.assert_allclose([gx.asscalar(), gy.asscalar()], [9, 12])
    np.testing.assert_allclose(x.grad.asnumpy(), [0])
    scaled = autograd.grad([z], x, head_grads=[nd.array([2.0], dtype="float64")])
    np.testing.assert_allclose(scaled.asnumpy(), [18])


def test_grad_with_respect_to_an_intermediate():
    x = leaf([2.0])
    with autograd.record():
        y = x * x
        z = y * y
        (found,) = autograd.grad([z], [y])
    np.testing.assert_allclose(found.asnumpy(), [8.0])


def test_grad_errors():
    x, other = leaf([2.0]), leaf([1.0])
    with autograd.record():
        y = x * x
    with pytest.raises(MixflowError, match="depend on every variable"):
        autograd.grad(y, other, retain_graph=True)
    with pytest.raises(MixflowError, match="on the tape"):
        autograd.grad(y, nd.ones((1,)))


def test_second_and_third_order():
    x = leaf([1.0, 2.0, 0.5])
    with autograd.record():
        y = (x * x * x * x).sum()
        first = autograd.grad(y, x, create_graph=True)
        second = autograd.grad(first.sum(), x, create_graph=True)
        loss = (second * second).sum()
    loss.backward()
    v = np.array([1.0, 2.0, 0.5])
    np.testing.assert_allclose(first.asnumpy(), 4 * v**3)
    np.testing.assert_allclose(second.asnumpy(), 12 * v**2)
    np.testing.assert_allclose(x.grad.asnumpy(), 4 * 144 * v**3)


def test_gradient_penalty_against_finite_differences():
    def penalty(w, x):
        x = x.copy()
        x.attach_grad()
        with autograd.record():
            y = nd.dot(x, w).tanh().sum()
            slope = autograd.grad(y, x, create_graph=True)
            return (slope * slope).sum()

    w, x = leaf(B), nd.array(A, dtype="float64")
    with autograd.record():
        loss = penalty(w, x)
    loss.backward()
    (wanted,) = numeric(lambda value: penalty(_followed(value), x), [B])
    np.testing.assert_allclose(w.grad.asnumpy(), wanted, rtol=1e-5, atol=1e-7)


def _followed(value):
    value.attach_grad()
    return value


def test_second_gradient_of_batch_norm_against_finite_differences():
    factor = nd.array(RNG.normal(size=(4, 2)), dtype="float64")

    def slope_sum(x):
        ones, zeros = nd.ones(2, dtype="float64"), nd.zeros(2, dtype="float64")
        with autograd.record():
            y = nd.BatchNorm(x, ones, zeros, zeros.copy(), ones.copy(), eps=1e-3)
            slope = autograd.grad((y * y * factor).sum(), x, create_graph=True)
            return (slope * factor).sum()

    values = RNG.normal(size=(4, 2))
    x = leaf(values)
    slope_sum(x).backward()
    (wanted,) = numeric(lambda v: slope_sum(_followed(v)), [values])
    np.testing.assert_allclose(x.grad.asnumpy(), wanted, rtol=1e-5, atol=1e-7)


# -- the tape's life


def test_retain_graph_and_released_tapes():
    x = leaf([2.0], "add")
    with autograd.record():
        y = x * x
        z = y * 3
    z.backward(retain_graph=True)
    z.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [24.0])
    with pytest.raises(MixflowError, match="retain_graph=True"):
        z.backward()
    with autograd.record():
        w = y * 2
    with pytest.raises(MixflowError, match="released by an earlier backward"):
        w.backward()


def test_overwritten_saved_value_is_an_error_with_the_line():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    with autograd.record():
        loss = (x * w).sum()
    w[:] = 0.0
    text = (
        r"saved array .* \(test_autograd.py:\d+\) unchanged, got .* since at test_autograd.py:\d+"
    )
    with pytest.raises(MixflowError, match=text):
        loss.backward()
    with autograd.record():
        loss = (x + w).sum()
    w[:] = 1.0  # the sum's gradient reads nothing
    loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [1, 1])


def test_optimizer_step_after_backward_is_fine():
    x = leaf([1.0, 2.0])
    for _ in range(3):
        with autograd.record():
            loss = (x * x).sum()
        loss.backward()
        x -= 0.25 * x.grad
    np.testing.assert_allclose(x.asnumpy(), [0.125, 0.25])


def test_tapes_do_not_leak():
    x = leaf(np.zeros(1000))
    gc.collect()

    def live():
        mx.waitall()
        return mx._rt.core.storage_statistics()["live_bytes"]

    def step():
        with autograd.record():
            y = x
            for _ in range(5):
                y = (y + 1).tanh()
        return y  # never differentiated

    step()
    before = live()
    for _ in range(20):
        step()
    gc.collect()
    assert live() <= before + 20_000


# -- in place, out=


def test_in_place_on_an_intermediate():
    x = leaf([1.0, 2.0])
    with autograd.record():
        y = x * 2
        y += 1  # the product's gradient does not read y
        loss = (y * y).sum()
    loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [12.0, 20.0])
    with autograd.record():
        y = x * 2
        z = y * y
        y += 1
    with pytest.raises(MixflowError, match="overwritten since"):
        z.backward()


def test_in_place_on_a_leaf_is_refused_while_recording():
    x = leaf([1.0, 2.0])
    with autograd.record():
        with pytest.raises(MixflowError, match="in-place operations"):
            x += 1
        with pytest.raises(MXNetError, match="in-place operations"):
            x[:] = 1
        with pytest.raises(MixflowError, match="in-place operations"):
            nd.relu(x * 2, out=x)
    assert x.grad is not None


def test_out_takes_the_written_array_off_the_old_tape():
    x, z = leaf([1.0, 2.0]), nd.array([-1.0, 3.0], dtype="float64")
    with autograd.record():
        y = x * 2
        nd.relu(z, out=y)  # y holds nothing of x any more
        loss = (y * x).sum()
    loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [0.0, 3.0])
    with autograd.record():
        target = nd.zeros(2, dtype="float64")
        nd.tanh(x, out=target)
        loss = target.sum()
    loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), 1 - np.tanh([1.0, 2.0]) ** 2)


# -- random, integers, scalars


def test_dropout_uses_one_mask():
    x = leaf(np.ones((40, 40)))
    with autograd.record():
        y = nd.Dropout(x, p=0.5)
    y.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), y.asnumpy())
    assert 0.3 < (y.asnumpy() == 0).mean() < 0.7
    with autograd.record(train_mode=False):
        np.testing.assert_array_equal(nd.Dropout(x, p=0.5).asnumpy(), np.ones((40, 40)))


def test_two_dropouts_draw_different_masks_and_keep_them_when_the_plan_is_reused():
    x = leaf(np.ones((30, 30)))
    for _ in range(3):
        with autograd.record():
            a = nd.Dropout(x, p=0.5)
            b = nd.Dropout(x, p=0.5)
            loss = (a * 2 + b).sum()
        loss.backward()
        assert (a.asnumpy() != b.asnumpy()).any()
        np.testing.assert_array_equal(x.grad.asnumpy(), 2 * a.asnumpy() + b.asnumpy())


def test_labels_of_integer_dtype():
    x = leaf([[1.0, 2.0], [3.0, 1.0]], dtype="float32")
    label = nd.array([1, 0], dtype="int32")
    label.attach_grad()
    with autograd.record():
        loss = nd.pick(nd.log_softmax(x), label).sum()
    loss.backward()
    p = np.exp(x.asnumpy()) / np.exp(x.asnumpy()).sum(1, keepdims=True)
    np.testing.assert_allclose(x.grad.asnumpy(), np.eye(2)[[1, 0]] - p, rtol=1e-5)
    np.testing.assert_array_equal(label.grad.asnumpy(), [0, 0])


def test_runtime_scalars_of_reused_plans():
    x = leaf([1.0, 2.0])
    for factor in (2.0, 3.0, 5.0):
        with autograd.record():
            loss = (x * factor + factor).sum()
        loss.backward()
        np.testing.assert_allclose(x.grad.asnumpy(), [factor, factor])


def test_equal_tapes_share_one_plan():
    engine._programs.clear()  # other tests may have filled it to its bound
    x, w = leaf([[1.0, 2.0]]), leaf([[3.0, 4.0]])

    def step(scale):
        with autograd.record():
            loss = ((x * w * scale).tanh() * 2).sum()
        loss.backward()

    engine._programs.clear()  # other tests may have filled it up to its bound
    step(1.0)
    count, misses = len(engine._programs), mx._rt.core.dispatch_misses()
    for k in range(5):
        step(1.0 + k)
    assert len(engine._programs) == count
    assert mx._rt.core.dispatch_misses() == misses
    with autograd.record():
        loss = ((x * w).tanh() * 2).sum()
    loss.backward()
    assert len(engine._programs) == count + 1


# -- contexts


@pytest.mark.parametrize("index", [0, 1])
def test_the_same_tape_on_another_context(index):
    x = leaf([1.0, 2.0], ctx=mx.cpu(index))
    with autograd.record():
        loss = (x * x * x).sum()
    loss.backward()
    assert x.grad.context == mx.cpu(index)
    np.testing.assert_allclose(x.grad.asnumpy(), [3.0, 12.0])


def test_gradient_through_copies_between_contexts():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0], ctx=mx.cpu(1))
    with autograd.record():
        far = x.as_in_context(mx.cpu(1)) * w
        near = (x * 3).tanh()  # stands between calls of the other context on the tape
        more = far.square()
        loss = (near + more.copyto(mx.cpu(0))).sum()
    loss.backward()
    v, u = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    np.testing.assert_allclose(x.grad.asnumpy(), 3 * (1 - np.tanh(3 * v) ** 2) + 2 * v * u * u)
    np.testing.assert_allclose(w.grad.asnumpy(), 2 * v * v * u)
    assert w.grad.context == mx.cpu(1)


def test_copy_between_contexts_into_an_array_and_second_order():
    x = leaf([1.0, 2.0])
    target = nd.zeros(2, dtype="float64", ctx=mx.cpu(1))
    with autograd.record():
        (x * x).copyto(target)
        y = target * target
        first = autograd.grad(y, x, create_graph=True)
        loss = first.sum()
    loss.backward()
    np.testing.assert_allclose(first.asnumpy(), [4.0, 32.0])
    np.testing.assert_allclose(x.grad.asnumpy(), [12.0, 48.0])
    with autograd.record():
        nd.ones(2, dtype="float64").copyto(target)
    with pytest.raises(MixflowError, match="was not"):
        target.backward()


# -- Function


class Cube(autograd.Function):
    def forward(self, x):
        self.save_for_backward(x)
        return x * x * x

    def backward(self, dy):
        (x,) = self.saved_tensors
        return 3 * x * x * dy


class Pair(autograd.Function):
    def forward(self, x, y):
        return x + y, x.asnumpy().sum() * y

    def backward(self, da, db):
        return da, da


def test_function_in_the_middle_of_a_tape():
    x = leaf([1.0, 2.0])
    with autograd.record():
        y = x * 2
        z = Cube()(y)
        loss = (z * x).sum()
    loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), 32 * np.array([1.0, 2.0]) ** 3)


def test_function_with_several_outputs_and_a_branch_around_it():
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    with autograd.record():
        a, _ = Pair()(x, y * 2)
        loss = (a * x).sum() + (y * y).sum()
    loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [8.0, 12.0])
    np.testing.assert_allclose(y.grad.asnumpy(), [2 + 6, 4 + 8])


def test_function_outside_of_record_and_second_order():
    x = leaf([2.0])
    np.testing.assert_allclose(Cube()(x).asnumpy(), [8.0])
    with autograd.record():
        y = Cube()(x)
        with pytest.raises(MixflowError, match="whose gradient is Python code"):
            autograd.grad(y, x, create_graph=True)


def test_function_whose_saved_array_was_overwritten():
    x = leaf([2.0])
    with autograd.record():
        y = x * 2
        z = Cube()(y)
        y += 1
    with pytest.raises(MixflowError, match="overwritten since"):
        z.backward()


def test_function_errors_name_what_is_wrong():
    class Wrong(autograd.Function):
        def forward(self, x):
            return x * 2

        def backward(self, dy):
            return dy, dy

    x = leaf([2.0])
    with autograd.record():
        y = Wrong()(x)
    text = r"1 gradients from Wrong \(test_autograd.py:\d+\), one for each input, got 2"
    with pytest.raises(MixflowError, match=text):
        y.backward()


def test_many_calls_in_a_deep_tape():
    x = leaf([0.5])
    with autograd.record():
        y = x
        for _ in range(1500):
            y = y + x
    y.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [1501.0])


def test_programs_of_tapes_that_never_repeat_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(engine, "_LIMIT", 4)
    x = leaf([1.0])
    for length in range(1, 9):
        with autograd.record():
            y = x
            for _ in range(length):
                y = y * 1.5
        y.backward()
        np.testing.assert_allclose(x.grad.asnumpy(), [1.5**length])
    assert len(engine._programs) <= 4
