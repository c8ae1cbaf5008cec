"""Errors: asynchronous ones with name, shapes and line; bad input; nothing half-written."""

import gc
import json

import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt, autograd, nd
from mixflow.errors import (
    DTypeError,
    FormatError,
    GraphError,
    MXNetError,
    ParamError,
    ShapeError,
    UnknownNameError,
)


@pytest.fixture(params=["threaded", "serial"])
def engine(request):
    before = _rt.core.engine_kind()
    _rt.core.set_engine(request.param)
    yield request.param
    drain()
    _rt.core.set_engine(before)


def drain():
    """Waits until no error of a test is left to be raised."""
    for _ in range(100):
        try:
            return nd.waitall()
        except MXNetError:
            continue
    raise AssertionError("waitall raises for ever")


def bad_pick():
    """An operator that fails when it runs: gather_nd outside of its data."""
    return nd.gather_nd(nd.ones((2, 3)), nd.array([[5.0], [0.0]]))


HERE = r"created at test_errors.py:\d+"


# -- asynchronous errors


def test_async_error_names_operator_shapes_and_line(engine):
    y = bad_pick()  # returns at once
    with pytest.raises(MXNetError) as caught:
        y.asnumpy()
    text = str(caught.value)
    assert "gather_nd" in text and "2x3" in text.replace(", ", "x")
    assert "created at test_errors.py:" in text


@pytest.mark.parametrize(
    "wait",
    [
        lambda y: y.asnumpy(),
        lambda y: y.wait_to_read(),
        lambda y: y.asscalar() if y.size == 1 else y.asnumpy(),
        lambda y: repr(y),
        lambda y: y.sum().asscalar(),
        lambda y: mx.waitall(),
        lambda y: nd.concat(y, nd.ones((1,)), dim=0).asnumpy(),
        lambda y: y.copyto(mx.cpu(1)).asnumpy(),
    ],
)
def test_every_wait_raises_it(engine, wait):
    y = bad_pick()
    with pytest.raises(MXNetError, match=r"gather_nd"):
        wait(y)


def test_each_wait_raises_again_and_a_write_heals(engine):
    y = bad_pick()
    for _ in range(3):
        with pytest.raises(MXNetError, match=HERE):
            y.asnumpy()
    y[:] = 3.0
    np.testing.assert_array_equal(y.asnumpy(), np.full(y.shape, 3.0))
    nd.waitall()


def test_dependants_inherit_and_others_live_on(engine):
    good = nd.ones((2, 2))
    y = bad_pick()
    z = (y * 2 + 1).exp()
    w = good * 3
    for array in (z, y):
        with pytest.raises(MXNetError, match="gather_nd"):
            array.asnumpy()
    np.testing.assert_array_equal(w.asnumpy(), np.full((2, 2), 3.0))
    target = nd.zeros((1,))
    with pytest.raises(MXNetError, match="gather_nd"):
        nd.elemwise_add(y, y, out=target)
        target.asnumpy()
    x = nd.ones((64, 64))
    for _ in range(20):
        x = nd.dot(x, x) * 0.01
    assert np.isfinite(x.asnumpy()).all()


def test_waitall_raises_the_oldest_and_then_nothing(engine):
    first, second = bad_pick(), nd.gather_nd(nd.ones((7, 7)), nd.array([[9.0], [0.0]]))
    with pytest.raises(MXNetError, match=r"gather_nd"):
        nd.waitall()
    with pytest.raises(MXNetError):
        nd.waitall()
    nd.waitall()
    del first, second


def test_a_dropped_error_does_not_end_the_process(engine):
    for _ in range(10):
        bad_pick()
    gc.collect()
    np.testing.assert_array_equal((nd.ones(3) + 1).asnumpy(), [2, 2, 2])
    drain()
    nd.waitall()


def test_error_inside_an_executor(engine):
    data, index = mx.sym.Variable("data"), mx.sym.Variable("index")
    net = mx.sym.gather_nd(data * 2, index, name="chosen") + 1
    executor = net.bind(mx.cpu(), {"data": nd.ones((2, 3)), "index": nd.array([[7.0], [0.0]])})
    executor.forward()
    with pytest.raises(MXNetError, match=r"chosen.*created at test_errors.py:\d+"):
        executor.outputs[0].asnumpy()
    executor.arg_dict["index"][:] = nd.array([[1.0], [2.0]])
    np.testing.assert_array_equal(executor.forward()[0].asnumpy(), [3.0])


def test_error_inside_a_backward(engine):
    class Bad(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0])

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            raise RuntimeError("cannot go back")

    class BadProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Bad()

    mx.operator.register("test_errors_bad")(BadProp)
    x = nd.ones((2, 3))
    x.attach_grad()
    with autograd.record():
        y = nd.Custom(x * 2, op_type="test_errors_bad")
    y.backward()
    with pytest.raises(MXNetError, match=r"cannot go back.*test_errors_bad.*\(2, 3\)"):
        x.grad.asnumpy()
    with autograd.record():
        z = x * 3
    z.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), np.full((2, 3), 3.0))


def test_callback_error_reaches_what_it_writes(engine):
    target = nd.ones(3)

    def body():
        raise KeyError("lost")

    _rt.core.push(body, [], [target], name="my task")
    with pytest.raises(MXNetError, match=r"KeyError.*lost.*my task"):
        (target + 1).asnumpy()


# -- synchronous mistakes of calls


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: nd.dot(nd.ones((2, 3)), nd.ones((2, 3))), ShapeError, r"\[dot\] expected"),
        (lambda: nd.ones((2, 3)) + nd.ones((4, 5)), ShapeError, r"expected .* got"),
        (lambda: nd.concat(nd.ones((2, 2)), nd.ones((3, 3)), dim=1), ShapeError, "oncat"),
        (lambda: nd.ones((2,)) + nd.ones((2,), dtype="int32"), DTypeError, "int32"),
        (lambda: nd.ones((2,)).astype("float31"), DTypeError, "float31"),
        (lambda: nd.Activation(nd.ones(2), act_type="rel"), ParamError, "relu"),
        (lambda: nd.relu(nd.ones(2), slop=1), ParamError, "slop"),
        (lambda: nd.FullyConnected(nd.ones((2, 2)), nd.ones((2, 2))), ParamError, "num_hidden"),
        (lambda: nd.relu("x"), TypeError, "NDArray"),
        (lambda: nd.relu(), TypeError, "expected 1 inputs"),
        (lambda: nd.ones((2,)).reshape((3,)), ShapeError, "reshape"),
        (
            lambda: nd.ones((2,), ctx=mx.cpu(0)) + nd.ones((2,), ctx=mx.cpu(1)),
            MXNetError,
            "context",
        ),
        (lambda: nd.relu(nd.ones(2), out=nd.ones(3)), MXNetError, "out"),
        (lambda: nd.ones((-1,)), MXNetError, "-1"),
    ],
)
def test_calls_refuse_at_once(call, error, text):
    with pytest.raises(error, match=text):
        call()
    np.testing.assert_array_equal((nd.ones(2) * 2).asnumpy(), [2, 2])


def test_unknown_operators():
    with pytest.raises(AttributeError):
        nd.reluu(nd.ones(2))
    with pytest.raises(AttributeError, match="did you mean relu"):
        mx.sym.reluu(mx.sym.Variable("x"))
    with pytest.raises(UnknownNameError, match="sgd"):
        mx.optimizer.create("sgdd")
    with pytest.raises(UnknownNameError):
        mx.init.create("xaviar")
    with pytest.raises(UnknownNameError):
        mx.metric.create("accuracyy")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_rates_that_are_no_rates(value):
    for name in ("sgd", "nag", "adam", "rmsprop", "adagrad"):
        with pytest.raises(ParamError, match="finite learning_rate"):
            mx.optimizer.create(name, learning_rate=value)
    with pytest.raises(ParamError, match="finite"):
        mx.optimizer.create("sgd").set_learning_rate(value)
    with pytest.raises(ParamError, match="finite"):
        mx.optimizer.create("sgd", wd=value)


# -- symbols


def mlp():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc1")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def test_mistakes_at_bind():
    net = mlp()
    with pytest.raises(ShapeError, match=r"fc1.*\(5, 7\)|fc1"):
        net.simple_bind(mx.cpu(), data=(5, 6), fc1_weight=(4, 7))
    with pytest.raises(ShapeError):
        net.infer_shape(data=(5, 6), fc1_weight=(9, 9))
    with pytest.raises(UnknownNameError, match="did you mean data"):
        net.simple_bind(mx.cpu(), dta=(5, 6))
    with pytest.raises(ParamError, match="grad_req among"):
        net.simple_bind(mx.cpu(), grad_req="writes", data=(5, 6))
    with pytest.raises(ShapeError, match="fc1"):
        net.bind(
            mx.cpu(),
            {
                "data": nd.ones((5, 6)),
                "fc1_weight": nd.ones((4, 7)),
                "fc1_bias": nd.ones(4),
                "softmax_label": nd.ones(5),
            },
        )


def test_duplicate_names():
    a, b = mx.sym.Variable("x"), mx.sym.Variable("x")
    with pytest.raises(GraphError, match="'x' twice"):
        (a + b).simple_bind(mx.cpu(), x=(2,))
    net = mx.sym.FullyConnected(a, num_hidden=2, name="fc")
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc")
    with pytest.raises(GraphError, match="'fc_weight' twice"):
        net.simple_bind(mx.cpu(), x=(2, 2))


def test_module_with_duplicate_names_is_refused():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=3, name="fc"), name="softmax")
    module = mx.mod.Module(net)
    with pytest.raises(GraphError, match="'fc_weight' twice"):
        module.bind([("data", (2, 2))], [("softmax_label", (2,))])
    assert not module.binded


# -- files


@pytest.fixture
def files(tmp_path):
    prefix = str(tmp_path / "net")
    module = mx.mod.Module(mlp())
    module.bind([("data", (5, 6))], [("softmax_label", (5,))])
    module.init_params(mx.init.Xavier())
    module.save_checkpoint(prefix, 1)
    return tmp_path, prefix


def test_every_truncation_of_a_params_file_is_a_format_error(files):
    folder, prefix = files
    path = folder / "net-0001.params"
    whole = path.read_bytes()
    for size in sorted({*range(0, len(whole), 7), len(whole) - 1}):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            mx.model.load_checkpoint(prefix, 1)
    path.write_bytes(whole + b"more")
    with pytest.raises(FormatError):
        mx.model.load_checkpoint(prefix, 1)


def test_damaged_bytes_of_a_params_file_never_crash(files):
    folder, prefix = files
    path = folder / "net-0001.params"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(0, len(whole))] = rng.integers(0, 256)
        path.write_bytes(bytes(damaged))
        try:
            args, _ = mx.model.load_params(prefix, 1)
            assert all(isinstance(k, str) for k in args)
        except FormatError:
            continue


def test_every_truncation_of_a_symbol_file_is_a_format_error(files):
    folder, prefix = files
    path = folder / "net-symbol.json"
    whole = path.read_text()
    for size in range(0, len(whole.rstrip()), 11):
        path.write_text(whole[:size])
        with pytest.raises(FormatError, match=r"net-symbol\.json|symbol file"):
            mx.model.load_checkpoint(prefix, 1)


def _without(key):
    return lambda data: data.pop(key)


@pytest.mark.parametrize(
    "damage",
    [
        _without("nodes"),
        _without("heads"),
        lambda d: d["nodes"].clear(),
        lambda d: d["nodes"][0].pop("op"),
        lambda d: d["nodes"][0].pop("name"),
        lambda d: d["nodes"][3].update(op="FullyConnectedd"),
        lambda d: d["nodes"][3].update(inputs=[[99, 0, 0]]),
        lambda d: d["nodes"][3].update(inputs=[[3, 0, 0], [1, 0, 0], [2, 0, 0]]),
        lambda d: d["nodes"][3].update(inputs="x"),
        lambda d: d["nodes"][3].update(attrs={"num_hidden": "many"}),
        lambda d: d["nodes"][3].update(attrs={}),
        lambda d: d["nodes"][3].update(attrs=[1]),
        lambda d: d["nodes"][3].update(inputs=d["nodes"][3]["inputs"] * 2),
        lambda d: d.update(heads=[[0, 7, 0]]),
        lambda d: d.update(heads=[[-1, 0, 0]]),
        lambda d: d.update(nodes=3),
    ],
)
def test_damaged_symbol_files(files, damage):
    folder, prefix = files
    path = folder / "net-symbol.json"
    data = json.loads(path.read_text())
    damage(data)
    path.write_text(json.dumps(data))
    with pytest.raises(FormatError):
        mx.model.load_checkpoint(prefix, 1)


def test_files_of_another_kind(files):
    folder, prefix = files
    (folder / "net-0001.params").write_bytes(b"\x89PNG\r\n" * 20)
    with pytest.raises(FormatError):
        mx.model.load_checkpoint(prefix, 1)
    nd.save(str(folder / "net-0001.params"), [nd.ones(2)])
    with pytest.raises(FormatError, match="named arrays"):
        mx.model.load_checkpoint(prefix, 1)
    nd.save(str(folder / "net-0001.params"), {"weight": nd.ones(2)})
    with pytest.raises(FormatError, match="'arg:' or 'aux:'"):
        mx.model.load_checkpoint(prefix, 1)


def test_a_file_is_written_whole_or_not_at_all(files):
    folder, prefix = files
    before = (folder / "net-0001.params").read_bytes()
    symbol, args, auxs = mx.model.load_checkpoint(prefix, 1)
    args = {**args, "broken": bad_pick()}
    with pytest.raises(MXNetError, match="gather_nd"):
        mx.model.save_checkpoint(prefix, 1, symbol, args, auxs)
    assert (folder / "net-0001.params").read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == ["net-0001.params", "net-symbol.json"]
    with pytest.raises((OSError, MXNetError)):
        nd.save(str(folder / "missing" / "a.params"), [nd.ones(2)])


def test_a_checkpoint_of_another_network(files):
    _, prefix = files
    _, args, auxs = mx.model.load_checkpoint(prefix, 1)
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=9, name="fc1")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.bind([("data", (5, 6))], [("softmax_label", (5,))])
    with pytest.raises(ShapeError, match="fc1_weight"):
        module.set_params(args, auxs)
    executor = mx.sym.SoftmaxOutput(net, name="softmax").simple_bind(mx.cpu(), data=(5, 6))
    kept = {k: v.asnumpy() for k, v in executor.arg_dict.items()}
    given = {"fc1_bias": nd.ones(9), **args}
    given = {**given, "fc1_bias": nd.ones(9), "fc1_weight": args["fc1_weight"]}
    with pytest.raises(ShapeError, match="fc1_weight"):
        executor.copy_params_from(dict(sorted(given.items())))
    for name, value in kept.items():
        np.testing.assert_array_equal(executor.arg_dict[name].asnumpy(), value)
