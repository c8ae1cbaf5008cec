"""Operators written in Python: values, gradients, states, training, and no deadlock anywhere."""

import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt, autograd, nd
from mixflow.errors import (
    FormatError,
    GraphError,
    MXNetError,
    ParamError,
    ShapeError,
    UnknownNameError,
)


class Scaled(mx.operator.CustomOp):
    """y = factor * x, with waits in both directions."""

    def __init__(self, factor):
        self.factor = factor
        self.seen = None

    def forward(self, is_train, req, in_data, out_data, aux):
        self.seen = in_data[0].asnumpy()  # waits
        self.assign(out_data[0], req[0], nd.array(self.seen * self.factor))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        assert (in_data[0].asnumpy() == self.seen).all()
        self.assign(in_grad[0], req[0], out_grad[0] * self.factor)


@mx.operator.register("test_scaled")
class ScaledProp(mx.operator.CustomOpProp):
    def __init__(self, factor="2"):
        super().__init__(need_top_grad=True)
        self.factor = float(factor)

    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Scaled(self.factor)


class Softmax(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        x = in_data[0].asnumpy()
        y = np.exp(x - x.max(axis=1, keepdims=True))
        self.assign(out_data[0], req[0], nd.array(y / y.sum(axis=1, keepdims=True)))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        label = in_data[1].asnumpy().ravel().astype(int)
        y = out_data[0].asnumpy()
        y[np.arange(len(label)), label] -= 1.0
        self.assign(in_grad[0], req[0], nd.array(y))


@mx.operator.register("test_softmax")
class SoftmaxProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=False)

    def list_arguments(self):
        return ["data", "label"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (in_shape[0][0],)], [in_shape[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return Softmax()


class Counted(mx.operator.CustomOp):
    """Two outputs, and a state that counts training calls."""

    def forward(self, is_train, req, in_data, out_data, aux):
        if is_train:
            aux[0][:] = aux[0] + 1
        self.assign(out_data[0], req[0], in_data[0] + aux[0])
        self.assign(out_data[1], req[1], in_data[0] * in_data[1])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] + out_grad[1] * in_data[1])
        self.assign(in_grad[1], req[1], out_grad[1] * in_data[0])


@mx.operator.register("test_counted")
class CountedProp(mx.operator.CustomOpProp):
    def list_arguments(self):
        return ["left", "right"]

    def list_outputs(self):
        return ["sum", "product"]

    def list_auxiliary_states(self):
        return ["count"]

    def infer_shape(self, in_shape):
        return [in_shape[0], in_shape[0]], [in_shape[0]] * 2, [(1,)]

    def create_operator(self, ctx, shapes, dtypes):
        return Counted()


class Nested(mx.operator.CustomOp):
    """Calls another custom operator, and records inside of itself."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], nd.Custom(in_data[0], op_type="test_scaled", factor=3) + 1)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        x = in_data[0].copy()
        x.attach_grad()
        with autograd.record():
            y = nd.Custom(x, op_type="test_scaled", factor=3) + 1
        y.backward(out_grad[0])
        self.assign(in_grad[0], req[0], x.grad)


@mx.operator.register("test_nested")
class NestedProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Nested()


class Failing(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        raise ValueError("no such luck")


@mx.operator.register("test_failing")
class FailingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Failing()


@pytest.fixture(params=["threaded", "serial"], autouse=True)
def engine(request):
    before = _rt.core.engine_kind()
    _rt.core.set_engine(request.param)
    yield request.param
    mx.waitall()
    _rt.core.set_engine(before)


# -- imperative


def test_array_call_and_its_gradient():
    x = nd.array([[1.0, -2.0, 3.0]])
    x.attach_grad()
    with autograd.record():
        y = nd.Custom(x * 2, op_type="test_scaled", factor=5)
        loss = (y * y).sum()
    loss.backward()
    np.testing.assert_allclose(y.asnumpy(), [[10.0, -20.0, 30.0]])
    np.testing.assert_allclose(x.grad.asnumpy(), [[200.0, -400.0, 600.0]])


def test_each_array_call_has_an_operator_of_its_own():
    x = nd.array([1.0])
    x.attach_grad()
    with autograd.record():
        y = nd.Custom(x, op_type="test_scaled")
        z = nd.Custom(y, op_type="test_scaled")  # Scaled.backward checks what its own forward saw
        loss = y * z
    loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [16.0])


def test_several_outputs_and_states_of_arrays():
    left, right, count = nd.array([1.0, 2.0]), nd.array([3.0, 4.0]), nd.zeros(1)
    for a in (left, right):
        a.attach_grad()
    nd.Custom(left, right, count, op_type="test_counted")
    np.testing.assert_array_equal(count.asnumpy(), [0])
    with autograd.record():
        total, product = nd.Custom(left, right=right, count=count, op_type="test_counted")
        loss = (total * 10 + product).sum()
    loss.backward()
    np.testing.assert_array_equal(count.asnumpy(), [1])
    np.testing.assert_allclose(total.asnumpy(), [2, 3])
    np.testing.assert_allclose(left.grad.asnumpy(), [13, 14])
    np.testing.assert_allclose(right.grad.asnumpy(), [1, 2])


def test_written_outputs():
    x, y = nd.array([1.0, 2.0]), nd.zeros(2)
    assert nd.Custom(x, op_type="test_scaled", out=y) is y
    np.testing.assert_array_equal(y.asnumpy(), [2, 4])
    with pytest.raises(ShapeError, match="out="):
        nd.Custom(x, op_type="test_scaled", out=nd.zeros(3))


def test_second_gradient_is_refused():
    x = nd.array([1.0])
    x.attach_grad()
    with autograd.record():
        y = nd.Custom(x, op_type="test_scaled")
        with pytest.raises(MXNetError, match="whose gradient is Python code"):
            autograd.grad(y, x, create_graph=True)


def test_another_context():
    x = nd.array([1.0, 2.0], ctx=mx.cpu(1))
    x.attach_grad()
    with autograd.record():
        y = nd.Custom(x, op_type="test_nested")
    y.backward()
    assert y.context == mx.cpu(1)
    np.testing.assert_allclose(y.asnumpy(), [4, 7])
    np.testing.assert_allclose(x.grad.asnumpy(), [3, 3])


# -- graphs


def test_symbol_call_names_shapes_and_gradients():
    net = mx.sym.Custom(left=mx.sym.Variable("a"), op_type="test_counted", name="c")
    assert net.list_arguments() == ["a", "c_right"]
    assert net.list_auxiliary_states() == ["c_count"]
    assert net.list_outputs() == ["c_sum", "c_product"]
    args, outs, auxs = net.infer_shape(a=(2, 3))
    assert (args, outs, auxs) == ([(2, 3)] * 2, [(2, 3)] * 2, [(1,)])
    executor = net.simple_bind(mx.cpu(), a=(1, 2))
    executor.arg_dict["a"][:] = [[1.0, 2.0]]
    executor.arg_dict["c_right"][:] = [[3.0, 4.0]]
    executor.forward(is_train=False)
    np.testing.assert_array_equal(executor.aux_dict["c_count"].asnumpy(), [0])
    for step in (1, 2):
        total, product = executor.forward(is_train=True)
        executor.backward([nd.ones((1, 2)), nd.ones((1, 2)) * 10])
        np.testing.assert_array_equal(executor.aux_dict["c_count"].asnumpy(), [step])
        np.testing.assert_allclose(total.asnumpy(), [[1 + step, 2 + step]])
        np.testing.assert_allclose(product.asnumpy(), [[3, 8]])
        np.testing.assert_allclose(executor.grad_dict["a"].asnumpy(), [[31, 41]])
        np.testing.assert_allclose(executor.grad_dict["c_right"].asnumpy(), [[10, 20]])


def test_host_calls_are_counted_and_survive_json():
    x = mx.sym.Variable("x")
    net = mx.sym.Custom(x * 2, op_type="test_scaled", name="s", factor=5) + 1
    again = mx.sym.load_json(net.tojson())
    assert again.list_arguments() == ["x"]
    executor = again.simple_bind(mx.cpu(), x=(2,))
    executor.arg_dict["x"][:] = [1.0, 2.0]
    np.testing.assert_allclose(executor.forward(is_train=True)[0].asnumpy(), [11, 21])
    executor.backward()
    np.testing.assert_allclose(executor.grad_dict["x"].asnumpy(), [10, 10])
    if _rt.core.name == "native":
        assert executor.plan(True).plan.host_calls == 2
        assert executor.plan(False).plan.host_calls == 1


def test_nested_operators_in_a_graph():
    net = mx.sym.Custom(mx.sym.Variable("x"), op_type="test_nested") * 2
    executor = net.simple_bind(mx.cpu(), x=(3,))
    for _ in range(5):
        executor.arg_dict["x"][:] = [1.0, 2.0, 3.0]
        executor.forward(is_train=True)
        executor.backward()
    np.testing.assert_allclose(executor.outputs[0].asnumpy(), [8, 14, 20])
    np.testing.assert_allclose(executor.grad_dict["x"].asnumpy(), [6, 6, 6])


def mlp(loss):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
    net = mx.sym.Activation(net, act_type="tanh")
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc2")
    label = mx.sym.Variable("softmax_label")
    if loss == "custom":
        return mx.sym.Custom(data=net, label=label, op_type="test_softmax", name="softmax")
    return mx.sym.SoftmaxOutput(net, label, name="softmax")


@pytest.mark.parametrize("contexts", [1, 2])
def test_training_with_a_custom_loss_equals_the_built_in_one(contexts):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(24, 5)).astype(np.float32)
    label = rng.integers(0, 3, 24).astype(np.float32)
    found = []
    for loss in ("custom", "own"):
        module = mx.mod.Module(mlp(loss), context=[mx.cpu(i) for i in range(contexts)])
        mx.random.seed(0)
        iterator = mx.io.NDArrayIter(data, label, batch_size=8)
        start = np.random.default_rng(1)
        shapes = {"fc1_weight": (8, 5), "fc1_bias": (8,), "fc2_weight": (3, 8), "fc2_bias": (3,)}
        args = {n: nd.array(start.normal(size=s) * 0.3) for n, s in shapes.items()}
        module.fit(iterator, num_epoch=2, arg_params=args, optimizer_params={"learning_rate": 0.2})
        found.append({k: v.asnumpy() for k, v in module.get_params()[0].items()})
    for name, wanted in found[1].items():
        np.testing.assert_allclose(found[0][name], wanted, rtol=1e-4, atol=1e-6)


# -- errors


def test_unknown_names_options_and_shapes():
    x = nd.ones((2,))
    with pytest.raises(UnknownNameError, match="did you mean test_scaled"):
        nd.Custom(x, op_type="test_scald")
    with pytest.raises(ParamError, match="options that 'test_scaled' takes"):
        nd.Custom(x, op_type="test_scaled", wrong=3)
    with pytest.raises(ParamError, match="op_type as a string"):
        nd.Custom(x)
    with pytest.raises(ParamError, match="none for 'right'"):
        nd.Custom(x, op_type="test_counted")
    with pytest.raises(ParamError, match="at most 1 inputs"):
        nd.Custom(x, x, op_type="test_scaled")
    with pytest.raises(ShapeError, match="'label' of test_softmax"):
        nd.Custom(nd.ones((2, 3)), nd.ones((3,)), op_type="test_softmax")
    with pytest.raises(ParamError, match="subclass of CustomOpProp"):
        mx.operator.register("x")(int)
    text = mx.sym.Custom(mx.sym.Variable("x"), op_type="test_scaled").tojson()
    with pytest.raises(FormatError, match="test_gone"):
        mx.sym.load_json(text.replace("test_scaled", "test_gone"))
    assert "test_scaled" in mx.operator.get_all_registered_operators()


def test_rule_that_gives_the_wrong_number_of_shapes():
    class WrongProp(mx.operator.CustomOpProp):
        def infer_shape(self, in_shape):
            return in_shape, [], []

    mx.operator.register("test_wrong")(WrongProp)
    with pytest.raises(ShapeError, match="infer_shape of 'test_wrong' to give"):
        nd.Custom(nd.ones((2,)), op_type="test_wrong")


def test_error_inside_is_raised_at_the_next_wait_and_the_process_lives_on():
    y = nd.Custom(nd.ones((2, 3)), op_type="test_failing")
    z = y + 1
    with pytest.raises(MXNetError, match=r"no such luck.*test_failing.*\(2, 3\).*test_operator.py"):
        z.asnumpy()
    net = mx.sym.Custom(mx.sym.Variable("x"), op_type="test_failing", name="bad") * 2
    executor = net.simple_bind(mx.cpu(), x=(4,))
    executor.forward()
    with pytest.raises(MXNetError, match=r"no such luck.*bad"):
        executor.outputs[0].asnumpy()
    np.testing.assert_array_equal((nd.ones(2) + 1).asnumpy(), [2, 2])


def test_missing_backward_is_an_error_at_the_wait():
    class NoBackward(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0])

    class NoBackwardProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return NoBackward()

    mx.operator.register("test_no_backward")(NoBackwardProp)
    x = nd.ones(2)
    x.attach_grad()
    with autograd.record():
        y = nd.Custom(x, op_type="test_no_backward")
    y.backward()
    with pytest.raises(MXNetError, match="NotImplementedError"):
        x.grad.asnumpy()


def test_second_gradient_of_a_graph_is_refused():
    from mixflow.executor import bound_types
    from mixflow.passes.gradient import gradient
    from mixflow.passes.lower import lower

    net = mx.sym.Custom(mx.sym.Variable("x"), op_type="test_scaled")
    graph = net.graph()
    lowered = lower(graph, bound_types(net, {"x": (2,)}, None), train=True)
    (first,) = gradient(lowered.outputs, None, lowered.inputs)
    with pytest.raises(GraphError, match="custom"):
        gradient([first * first], None, lowered.inputs)


# -- no deadlocks


def test_updater_that_waits(engine):
    store = mx.kv.create("local")
    weight = nd.ones(4)
    store.init(0, weight)
    seen = []

    def update(key, grad, stored):
        seen.append(float(grad.asnumpy().sum()))  # waits inside the store's push
        stored -= 0.5 * grad

    store._set_updater(update)
    for _ in range(10):
        store.push(0, nd.ones(4) * 0.1)
        store.pull(0, weight)
    np.testing.assert_allclose(weight.asnumpy(), np.full(4, 0.5), rtol=1e-5)
    assert len(seen) == 10


def test_updater_as_a_task_that_waits_and_calls_custom_operators():
    weight, grad = nd.zeros(4), nd.ones(4)
    inner_weight, inner_grad = (_rt.core.fresh_handle(a) for a in (weight, grad))

    def update():
        step = nd.Custom(inner_grad, op_type="test_nested")
        inner_weight[:] = inner_weight + float(step.asnumpy()[0]) * inner_grad

    for _ in range(8):
        _rt.core.push(update, [grad], [weight], name="updater")
    np.testing.assert_allclose(weight.asnumpy(), np.full(4, 32.0))


def test_a_full_queue_of_waiting_calls():
    _rt.core.set_queue_limits(4, 1 << 30)
    try:
        x = nd.ones(3)
        x.attach_grad("add")
        for _ in range(20):
            with autograd.record():
                y = nd.Custom(x, op_type="test_nested")
                y = nd.Custom(y + 0, op_type="test_scaled")
            y.backward()
        np.testing.assert_allclose(x.grad.asnumpy(), np.full(3, 120.0))
        net = mx.sym.Custom(mx.sym.Variable("x"), op_type="test_nested")
        net = mx.sym.Custom(net, op_type="test_scaled") + mx.sym.Variable("y")
        executor = net.simple_bind(mx.cpu(), x=(3,), y=(3,))
        for _ in range(20):
            executor.forward(is_train=True)
            executor.backward()
            executor.arg_dict["y"] += 1
        np.testing.assert_allclose(executor.forward()[0].asnumpy(), np.full(3, 22.0))
    finally:
        _rt.core.set_queue_limits(1 << 16, 0)
