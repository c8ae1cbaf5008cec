"""Module: binding, parameters, training, files, contexts, shapes, callbacks, mistakes."""

import base64
import logging

import numpy as np
import pytest

import mixflow as mx
from mixflow import nd
from mixflow.errors import FormatError, MixflowError, ParamError, ShapeError, UnknownNameError

RNG = np.random.default_rng(7)
DATA = RNG.normal(size=(44, 6)).astype(np.float32)
LABEL = (DATA[:, :3].argmax(1)).astype(np.float32)


def network(dropout=0.0, norm=False):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
    if norm:
        net = mx.sym.BatchNorm(net, name="bn", fix_gamma=False)
    net = mx.sym.Activation(net, act_type="relu", name="relu")
    if dropout:
        net = mx.sym.Dropout(net, p=dropout)
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def batches(size=8, **options):
    return mx.io.NDArrayIter(DATA, LABEL, batch_size=size, **options)


def start():
    rng = np.random.default_rng(11)
    shapes = {"fc1_weight": (8, 6), "fc1_bias": (8,), "fc2_weight": (3, 8), "fc2_bias": (3,)}
    return {n: nd.array(rng.normal(size=s) * 0.4) for n, s in shapes.items()}


def ready(symbol=None, iterator=None, contexts=None, grad_req="write", **options):
    module = mx.mod.Module(network() if symbol is None else symbol, context=contexts or mx.cpu())
    iterator = batches() if iterator is None else iterator
    module.bind(iterator.provide_data, iterator.provide_label, grad_req=grad_req, **options)
    module.init_params(mx.init.Xavier(), arg_params=start(), allow_missing=True)
    return module


def values(module):
    args, auxs = module.get_params()
    return {k: v.asnumpy() for k, v in {**args, **auxs}.items()}


def assert_same(a, b, **tolerance):
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], err_msg=name, **(tolerance or {"rtol": 0}))


# -- states


def test_everything_wants_its_turn():
    module = mx.mod.Module(network())
    with pytest.raises(MixflowError, match=r"bind\(\) to be called first"):
        module.init_params()
    with pytest.raises(MixflowError, match=r"bind\(\) to be called first"):
        module.get_params()
    module.bind([("data", (4, 6))], [("softmax_label", (4,))])
    with pytest.raises(MixflowError, match=r"init_params\(\) to be called first"):
        module.forward(mx.io.DataBatch([nd.ones((4, 6))], [nd.zeros(4)]))
    module.init_params()
    with pytest.raises(MixflowError, match=r"init_optimizer\(\) to be called first"):
        module.update()


def test_facts():
    module = ready()
    assert module.data_names == ["data"]
    assert module.label_names == ["softmax_label"]
    assert module.output_names == ["softmax_output"]
    assert module.data_shapes[0].shape == (8, 6)
    assert module.label_shapes[0].shape == (8,)
    assert module.output_shapes == [("softmax_output", (8, 3))]


def test_one_step_is_the_formula():
    module = ready()
    before = values(module)
    batch = next(iter(batches()))
    module.init_optimizer(optimizer_params={"learning_rate": 0.5})
    module.forward_backward(batch)
    module.update()
    data, label = DATA[:8], LABEL[:8].astype(int)
    hidden = np.maximum(data @ before["fc1_weight"].T + before["fc1_bias"], 0)
    scores = hidden @ before["fc2_weight"].T + before["fc2_bias"]
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    np.testing.assert_allclose(module.get_outputs()[0].asnumpy(), p, rtol=1e-5, atol=1e-6)
    d = (p - np.eye(3)[label]) / 8
    back = (d @ before["fc2_weight"]) * (hidden > 0)
    grads = {
        "fc1_weight": back.T @ data,
        "fc1_bias": back.sum(0),
        "fc2_weight": d.T @ hidden,
        "fc2_bias": d.sum(0),
    }
    wanted = {n: before[n] - 0.5 * g for n, g in grads.items()}
    assert_same(values(module), wanted, rtol=1e-4, atol=1e-6)


def test_fit_score_and_metrics():
    mx.random.seed(0)
    module = mx.mod.Module(network())
    module.fit(
        batches(shuffle=True),
        eval_data=batches(),
        num_epoch=12,
        optimizer="adam",
        optimizer_params={"learning_rate": 0.03},
        initializer=mx.init.Xavier(),
        eval_metric=["acc", "ce"],
    )
    found = dict(module.score(batches(), ["acc", "ce"]))
    assert found["accuracy"] > 0.9 and found["cross-entropy"] < 0.4
    (pair,) = module.score(batches(), mx.metric.Accuracy(), num_batch=2)
    assert pair[0] == "accuracy" and 0.5 < pair[1] <= 1.0


def test_score_leaves_padding_out():
    module = ready(iterator=batches(16))
    predicted = module.predict(batches(16)).asnumpy()
    wanted = (predicted.argmax(1) == LABEL).mean()
    ((_, accuracy),) = module.score(batches(16), "acc")
    assert accuracy == pytest.approx(wanted)


# -- predict


def test_predict_cuts_padding_and_joins_batches():
    module = ready(iterator=batches(16))
    whole = module.predict(batches(16))
    assert whole.shape == (44, 3)
    parts = module.predict(batches(16), merge_batches=False)
    assert [p[0].shape[0] for p in parts] == [16, 16, 12]
    np.testing.assert_array_equal(np.concatenate([p[0].asnumpy() for p in parts]), whole.asnumpy())
    assert module.predict(batches(16), num_batch=1).shape == (16, 3)
    assert isinstance(module.predict(batches(16), always_output_list=True), list)
    seen = [(n, len(o[0]), b.pad) for o, n, b in module.iter_predict(batches(16))]
    assert seen == [(0, 16, 0), (1, 16, 0), (2, 12, 4)]
    np.testing.assert_allclose(
        module.predict(nd.array(DATA[:16])).asnumpy(), whole.asnumpy()[:16], rtol=1e-6
    )


def test_prediction_uses_moving_statistics_and_no_dropout():
    module = ready(network(dropout=0.5, norm=True))
    first = module.predict(batches()).asnumpy()
    np.testing.assert_array_equal(first, module.predict(batches()).asnumpy())
    small = module.predict(batches(4)).asnumpy()
    np.testing.assert_allclose(first, small, rtol=1e-5, atol=1e-6)


# -- parameters


def test_get_params_are_copies_and_set_params_sets():
    module = ready()
    args, _ = module.get_params()
    args["fc1_bias"][:] = 9
    assert not (values(module)["fc1_bias"] == 9).any()
    module.set_params(args, {})
    assert (values(module)["fc1_bias"] == 9).all()
    module.set_params({"fc1_bias": nd.ones(8)}, None, allow_missing=True)
    assert (values(module)["fc1_bias"] == 1).all()


def test_mistakes_with_parameters():
    module = ready()
    args, auxs = module.get_params()
    with pytest.raises(ParamError, match="value for 'fc2_bias', got none"):
        module.set_params({k: v for k, v in args.items() if k != "fc2_bias"}, auxs)
    with pytest.raises(ParamError, match="got 'nothing'"):
        module.set_params({**args, "nothing": nd.ones(1)}, auxs)
    module.set_params({**args, "nothing": nd.ones(1)}, auxs, allow_extra=True)
    before = values(module)
    with pytest.raises(ShapeError, match=r"expected shape \(8,\) for 'fc1_bias', got \(3,\)"):
        module.set_params(
            {**args, "fc1_weight": args["fc1_weight"] + 1, "fc1_bias": nd.ones(3)}, auxs
        )
    assert_same(values(module), before)  # nothing half-written
    with pytest.raises(ParamError, match="data names among the arguments"):
        mx.mod.Module(network(), data_names=["date"])
    with pytest.raises(ShapeError, match=r"expected shapes for \['data'\]"):
        mx.mod.Module(network()).bind([("other", (8, 6))], [("softmax_label", (8,))])
    with pytest.raises(UnknownNameError, match="optimizer"):
        module.init_optimizer(optimizer="sgdd")


def test_initializer_of_a_variable_and_by_name():
    class Sevens(mx.init.Initializer):
        def _init_weight(self, desc, arr):
            arr[:] = 7.0

    mx.init.register(Sevens)
    data = mx.sym.Variable("data")
    weight = mx.sym.Variable("fc_weight", init=Sevens())
    net = mx.sym.FullyConnected(data, weight, num_hidden=3, name="fc")
    net = mx.sym.BatchNorm(net, name="bn", fix_gamma=False)
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.bind([("data", (2, 6))], [("softmax_label", (2,))])
    module.init_params(mx.init.Zero())
    found = values(module)
    assert (found["fc_weight"] == 7).all() and (found["fc_bias"] == 0).all()
    assert (found["bn_gamma"] == 1).all() and (found["bn_moving_var"] == 1).all()


def test_fixed_parameters_stay():
    module = mx.mod.Module(network(), fixed_param_names=["fc1_weight", "fc1_bias"])
    module.fit(batches(), num_epoch=2, arg_params=start(), optimizer_params={"learning_rate": 0.5})
    found, begun = values(module), {k: v.asnumpy() for k, v in start().items()}
    np.testing.assert_array_equal(found["fc1_weight"], begun["fc1_weight"])
    assert (found["fc2_weight"] != begun["fc2_weight"]).any()
    with pytest.raises(ParamError, match="fixed_param names"):
        mx.mod.Module(network(), fixed_param_names=["fc9_weight"])


def test_binding_again_keeps_parameters():
    module = ready()
    before = values(module)
    module.bind([("data", (3, 6))], [("softmax_label", (3,))], force_rebind=True)
    assert_same(values(module), before)
    module.bind([("data", (5, 6))], [("softmax_label", (5,))])  # bound already: nothing happens
    assert module.data_shapes[0].shape == (3, 6)


# -- contexts


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_two_contexts_give_the_weights_of_one(optimizer, norm):
    found = []
    for contexts in ([mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]):
        module = mx.mod.Module(network(), context=contexts)
        module.fit(
            batches(),
            num_epoch=3,
            arg_params=start(),
            optimizer=optimizer,
            optimizer_params={"learning_rate": 0.05, "wd": 0.01},
            kvstore="device" if norm else "local",
        )
        found.append(values(module))
        assert module.predict(batches()).shape == (44, 3)
    assert_same(*found, rtol=1e-4, atol=1e-5)


def test_uneven_split_and_outputs_per_context():
    module = ready(contexts=[mx.cpu(0), mx.cpu(1), mx.cpu(2)])
    one = ready()
    batch = next(iter(batches()))
    for m in (module, one):
        m.forward(batch)
    parts = module.get_outputs(merge_multi_context=False)[0]
    assert [p.shape[0] for p in parts] == [2, 3, 3]
    assert [p.context for p in parts] == [mx.cpu(0), mx.cpu(1), mx.cpu(2)]
    whole = one.get_outputs()[0].asnumpy()
    np.testing.assert_allclose(module.get_outputs()[0].asnumpy(), whole, rtol=1e-6)
    with pytest.raises(ShapeError, match="at least 3 samples for 3 contexts"):
        ready(iterator=batches(2), contexts=[mx.cpu(0), mx.cpu(1), mx.cpu(2)])


def test_several_contexts_need_a_store():
    module = ready(contexts=[mx.cpu(0), mx.cpu(1)])
    module.init_optimizer(kvstore=None)
    module.forward_backward(next(iter(batches())))
    with pytest.raises(MixflowError, match="kvstore for several contexts"):
        module.update()


def test_store_object_and_unknown_store():
    results = []
    for store in (mx.kv.create("local"), "local", None):
        module = mx.mod.Module(network())
        module.fit(batches(), num_epoch=2, arg_params=start(), kvstore=store)
        results.append(values(module))
    assert_same(results[0], results[1], rtol=1e-5, atol=1e-7)
    assert_same(results[1], results[2])
    with pytest.raises(UnknownNameError, match="kvstore"):
        ready().init_optimizer(kvstore="locale")


# -- shapes


def test_another_batch_size_on_the_fly():
    module = ready()
    module.init_optimizer(optimizer_params={"learning_rate": 0.1})
    for size in (8, 3, 8, 12):
        batch = mx.io.DataBatch([nd.array(DATA[:size])], [nd.array(LABEL[:size])])
        module.forward_backward(batch)
        module.update()
        assert module.get_outputs()[0].shape == (size, 3)
    trained = values(module)
    module.reshape([("data", (2, 6))], [("softmax_label", (2,))])
    assert_same(values(module), trained)
    module.forward(mx.io.DataBatch([nd.array(DATA[:5])]), is_train=False)
    assert module.get_outputs()[0].shape == (5, 3)


def test_executors_of_earlier_shapes_are_kept():
    module = ready(network(norm=True))
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    twin = ready(network(norm=True))
    twin.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    groups = []
    for size in (8, 3, 8, 3, 5, 8):
        batch = mx.io.DataBatch([nd.array(DATA[:size])], [nd.array(LABEL[:size])])
        for m in (module, twin):
            m.forward_backward(batch)
            m.update()
        groups.append(module._group)
        twin._groups.clear()  # always binds anew
    assert groups[0] is groups[2] is groups[5] and groups[1] is groups[3]
    assert_same(values(module), values(twin))


def test_shared_module_uses_the_same_memory():
    first = ready()
    second = mx.mod.Module(network())
    second.bind([("data", (4, 6))], [("softmax_label", (4,))], shared_module=first)
    second.init_optimizer(optimizer_params={"learning_rate": 0.5})
    second.forward_backward(mx.io.DataBatch([nd.array(DATA[:4])], [nd.array(LABEL[:4])]))
    second.update()
    assert_same(values(first), values(second))


def test_wrong_batches():
    module = ready()
    with pytest.raises(ShapeError):
        module.forward(mx.io.DataBatch([nd.ones((8, 7))], [nd.zeros(8)]))
    with pytest.raises(ShapeError, match=r"expected shape \(8,\) for 'softmax_label'"):
        module.forward(mx.io.DataBatch([nd.ones((8, 6))], [nd.zeros(7)]))
    module.forward(mx.io.DataBatch([nd.ones((8, 6))], [nd.zeros(8)]))


# -- gradients


def test_inputs_need_grad():
    module = ready(inputs_need_grad=True)
    module.forward_backward(next(iter(batches())))
    (grad,) = module.get_input_grads()
    assert grad.shape == (8, 6) and np.abs(grad.asnumpy()).sum() > 0
    with pytest.raises(MixflowError, match="inputs_need_grad=True"):
        ready().get_input_grads()


def test_grad_req_add():
    module = ready(grad_req="add")
    batch = next(iter(batches()))
    module.forward_backward(batch)
    once = {
        n: g.asnumpy() for n, g in module._executors.executors[0].grad_dict.items() if g is not None
    }
    module.forward_backward(batch)
    for name, grad in once.items():
        twice = module._executors.executors[0].grad_dict[name].asnumpy()
        np.testing.assert_allclose(twice, 2 * grad, rtol=1e-5, atol=1e-7)


def test_head_gradients():
    data = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(data, num_hidden=2, no_bias=True, name="fc")
    module = mx.mod.Module(net, label_names=None, context=[mx.cpu(0), mx.cpu(1)])
    module.bind([("data", (4, 3))], inputs_need_grad=True)
    module.init_params(mx.init.One())
    x = RNG.normal(size=(4, 3)).astype(np.float32)
    heads = RNG.normal(size=(4, 2)).astype(np.float32)
    module.forward(mx.io.DataBatch([nd.array(x)]), is_train=True)
    module.backward([nd.array(heads)])
    np.testing.assert_allclose(
        module.get_input_grads()[0].asnumpy(), heads @ np.ones((2, 3)), rtol=1e-5
    )


# -- files


@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("adam", {"learning_rate": 0.02}),
        ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3}),
        ("rmsprop", {"learning_rate": 0.01}),
    ],
)
def test_resuming_is_exact(tmp_path, optimizer, options, contexts):
    prefix = str(tmp_path / "net")

    def schedule():
        return {**options, "lr_scheduler": mx.lr_scheduler.FactorScheduler(step=4, factor=0.7)}

    def train(module, begin, end, **more):
        module.fit(
            batches(),
            num_epoch=end,
            begin_epoch=begin,
            optimizer=optimizer,
            optimizer_params=schedule(),
            **more,
        )

    where = [mx.cpu(i) for i in range(contexts)]
    straight = mx.mod.Module(network(norm=True), context=where)
    train(straight, 0, 4, arg_params=start(), initializer=mx.init.One(), allow_missing=True)
    half = mx.mod.Module(network(norm=True), context=where)
    train(half, 0, 2, arg_params=start(), initializer=mx.init.One(), allow_missing=True)
    half.save_checkpoint(prefix, 2, save_optimizer_states=True)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["net-0002.params", "net-0002.states", "net-symbol.json"]
    resumed = mx.mod.Module.load(prefix, 2, load_optimizer_states=True, context=where)
    train(resumed, 2, 4)
    if contexts == 1:
        assert_same(values(resumed), values(straight))
    else:  # moving statistics are averaged over the contexts when they are saved
        args = {k: v for k, v in values(straight).items() if "moving" not in k}
        assert_same({k: values(resumed)[k] for k in args}, args, rtol=1e-5, atol=1e-6)


def test_missing_and_damaged_checkpoints(tmp_path):
    prefix = str(tmp_path / "net")
    ready().save_checkpoint(prefix, 1)
    with pytest.raises(FormatError, match=r"expected the file .*net-0002\.params"):
        mx.mod.Module.load(prefix, 2)
    with pytest.raises(FormatError, match=r"other-symbol\.json"):
        mx.mod.Module.load(str(tmp_path / "other"), 1)
    (tmp_path / "net-0001.states").write_bytes(b"not an archive")
    module = mx.mod.Module.load(prefix, 1, load_optimizer_states=True)
    module.bind(batches().provide_data, batches().provide_label)
    module.init_params()
    with pytest.raises(FormatError):
        module.init_optimizer()


def test_labels_are_ignored_when_none_are_bound():
    module = mx.mod.Module(network())
    module.bind([("data", (8, 6))], None, for_training=False)
    module.set_params(start(), {})
    bound = ready()
    np.testing.assert_array_equal(
        module.predict(batches()).asnumpy(), bound.predict(batches()).asnumpy()
    )
    assert module.score(batches(), "acc") == bound.score(batches(), "acc")


def test_bind_installs_the_parameters_of_load(tmp_path):
    prefix, first = str(tmp_path / "net"), ready()
    first.save_checkpoint(prefix, 3)
    loaded = mx.mod.Module.load(prefix, 3)
    assert_same(values(loaded), values(first))
    loaded.bind(batches().provide_data, batches().provide_label)
    assert_same(values(loaded), values(first))
    assert loaded.score(batches(), "acc") == first.score(batches(), "acc")
    loaded.init_optimizer()
    loaded.init_params(mx.init.Zero(), force_init=True)
    assert not values(loaded)["fc1_weight"].any()


def test_incomplete_loaded_parameters_are_no_silent_zeros(tmp_path):
    prefix = str(tmp_path / "net")
    args = {n: v for n, v in start().items() if n != "fc2_weight"}
    mx.model.save_checkpoint(prefix, 0, network(), args, {})
    loaded = mx.mod.Module.load(prefix, 0)
    loaded.bind(batches().provide_data, batches().provide_label)
    with pytest.raises(MixflowError, match="init_params"):
        loaded.predict(batches())
    loaded.init_params(mx.init.One(), allow_missing=True)
    np.testing.assert_array_equal(values(loaded)["fc2_weight"], np.ones((3, 8)))
    np.testing.assert_array_equal(values(loaded)["fc1_bias"], start()["fc1_bias"].asnumpy())


#: What MXNet 1.9.1 wrote: momentum of a weight (3, 2) and of a bias (3,).
MXNET_STATES = (
    "gASV4AAAAAAAAAB9lChLAIwVbXhuZXQubmRhcnJheS5uZGFycmF5lIwHTkRBcnJheZSTlE6FlFKUfZSMBmhh"
    "bmRsZZSMCGJ1aWx0aW5zlIwJYnl0ZWFycmF5lJOUQ0DJ+pP5AAAAAAIAAAADAAAAAAAAAAIAAAAAAAAAAQAA"
    "AAAAAAAAAAAAAAAAAAAAgD8AAABAAABAQAAAgEAAAKBAlIWUUpRzYksBaANoBFKUfZRoB2gKQyzJ+pP5AAAA"
    "AAEAAAADAAAAAAAAAAEAAAAAAAAAAAAAAAAA4EAAAABBAAAQQZSFlFKUc2J1Lg=="
)


def test_mxnet_optimizer_states(tmp_path):
    prefix = str(tmp_path / "net")
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    weights = {"fc_weight": nd.ones((3, 2)), "fc_bias": nd.ones((3,))}
    mx.model.save_checkpoint(prefix, 1, net, weights, {})
    (tmp_path / "net-0001.states").write_bytes(base64.b64decode(MXNET_STATES))

    def resumed(**options):
        module = mx.mod.Module.load(prefix, 1, load_optimizer_states=True, **options)
        module.bind([("data", (4, 2))])
        module.init_optimizer(
            optimizer_params={"learning_rate": 0.1, "momentum": 0.5, "rescale_grad": 0.0}
        )
        return module

    with pytest.raises(FormatError, match="allow_pickle"):
        resumed()
    module = resumed(allow_pickle=True)
    module.forward_backward(mx.io.DataBatch([nd.ones((4, 2))]))
    module.update()
    moved = values(module)
    np.testing.assert_allclose(moved["fc_weight"], 1 + 0.5 * np.arange(6).reshape(3, 2))
    np.testing.assert_allclose(moved["fc_bias"], 1 + 0.5 * np.array([7, 8, 9]))
    (tmp_path / "net-0001.states").write_bytes(base64.b64decode(MXNET_STATES)[:-9])
    with pytest.raises(FormatError, match="pickle"):
        resumed(allow_pickle=True)


def test_save_and_load_params(tmp_path):
    path = str(tmp_path / "only.params")
    first, second = ready(), ready()
    first.set_params({n: v + 1 for n, v in first.get_params()[0].items()}, {})
    first.save_params(path)
    second.load_params(path)
    assert_same(values(first), values(second))


# -- the loop


def test_callbacks_are_called_with_what_they_need(tmp_path, caplog):
    seen = {"batch": [], "epoch": [], "eval": [], "end": []}
    prefix = str(tmp_path / "each")
    module = mx.mod.Module(network())
    with caplog.at_level(logging.INFO):
        module.fit(
            batches(22),
            eval_data=batches(22),
            num_epoch=2,
            batch_end_callback=[
                lambda p: seen["batch"].append((p.epoch, p.nbatch, p.eval_metric.get()[0])),
                mx.callback.Speedometer(22, 1),
            ],
            epoch_end_callback=[
                lambda e, s, a, x: seen["epoch"].append((e, sorted(a), x)),
                mx.callback.do_checkpoint(prefix),
            ],
            eval_batch_end_callback=lambda p: seen["eval"].append(p.nbatch),
            eval_end_callback=lambda p: seen["end"].append(p.nbatch),
        )
    assert seen["batch"] == [(e, b, "accuracy") for e in (0, 1) for b in (0, 1)]
    assert [e for e, _, _ in seen["epoch"]] == [0, 1]
    assert seen["epoch"][0][1:] == (["fc1_bias", "fc1_weight", "fc2_bias", "fc2_weight"], {})
    assert seen["eval"] == [0, 1, 0, 1] and seen["end"] == [2, 2]
    assert (tmp_path / "each-0001.params").exists() and (tmp_path / "each-0002.params").exists()
    text = caplog.text
    for wanted in ("Epoch[1] Train-accuracy=", "Epoch[0] Time cost=", "Validation-accuracy="):
        assert wanted in text
    assert "Speed:" in text


def test_learning_rate_schedule_reaches_the_update():
    scheduler = mx.lr_scheduler.MultiFactorScheduler(step=[3], factor=0.0)
    module = ready()
    module.init_optimizer(optimizer_params={"learning_rate": 0.5, "lr_scheduler": scheduler})
    batch, moved = next(iter(batches())), []
    for _ in range(5):
        before = values(module)["fc1_weight"]
        module.forward_backward(batch)
        module.update()
        moved.append(bool((values(module)["fc1_weight"] != before).any()))
    assert moved == [True, True, True, False, False]


def test_multipliers_of_variables():
    data = mx.sym.Variable("data")
    weight = mx.sym.Variable("fc_weight", lr_mult=0.0)
    net = mx.sym.FullyConnected(data, weight, num_hidden=3, name="fc")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.fit(batches(), num_epoch=1, initializer=mx.init.One())
    found = values(module)
    assert (found["fc_weight"] == 1).all() and (found["fc_bias"] != 0).any()


def test_fit_needs_epochs_and_finite_rates():
    with pytest.raises(ParamError, match="num_epoch"):
        mx.mod.Module(network()).fit(batches())
    for rate in (float("nan"), float("inf"), -0.1):
        with pytest.raises(ParamError, match="finite learning_rate"):
            ready().init_optimizer(optimizer_params={"learning_rate": rate})
    with pytest.raises(ParamError, match="learning_rat"):
        ready().init_optimizer(optimizer_params={"learning_rat": 0.1})


def test_fit_goes_on_where_the_iterator_stands_and_resets_it_after_each_epoch():
    data = mx.io.NDArrayIter(np.ones((12, 3), "float32"), np.zeros(12, "float32"), batch_size=2)
    module = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.Variable("data"), name="softmax"))
    next(data)
    next(data)
    seen = []
    module.fit(data, num_epoch=2, batch_end_callback=lambda p: seen.append((p.epoch, p.nbatch)))
    assert seen == [(0, n) for n in range(4)] + [(1, n) for n in range(6)]
    assert len(list(data)) == 6
    seen.clear()  # used up now: reset first
    module.fit(data, num_epoch=1, batch_end_callback=lambda p: seen.append((p.epoch, p.nbatch)))
    assert len(seen) == 6
