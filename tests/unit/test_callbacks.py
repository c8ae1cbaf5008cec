"""Callbacks of `fit`, and the rest of the training parts that no other test calls."""

import logging
import math

import numpy as np
import pytest

import mixflow as mx
from mixflow.callback import BatchEndParam
from mixflow.errors import ParamError


def params(epochs, batches, metric=None):
    return [BatchEndParam(e, n, metric, {}) for e in range(epochs) for n in range(batches)]


def test_progress_bar_starts_again_each_epoch(capsys):
    bar = mx.callback.ProgressBar(total=3)
    for param in params(2, 3):
        bar(param)
        assert (bar._bar is None) == (param.nbatch == 2)
    shown = capsys.readouterr().err
    assert "epoch 0" in shown and "epoch 1" in shown


def test_log_train_metric_and_validation(caplog):
    caplog.set_level(logging.INFO)
    metric = mx.metric.create("acc")
    metric.update([np.array([1])], [np.array([[0.1, 0.9]])])
    for param in params(1, 4, metric):
        mx.callback.log_train_metric(2)(param)
    mx.callback.LogValidationMetricsCallback()(BatchEndParam(7, 0, metric, {}))
    assert caplog.text.count("Train-accuracy=1.0") == 2
    assert "Epoch[7] Validation-accuracy=1.0" in caplog.text


def test_module_checkpoint_every_second_epoch(tmp_path):
    module = mx.mod.Module(mx.models.softmax_regression())
    module.bind([("data", (2, 4))], [("softmax_label", (2,))])
    module.init_params()
    save = mx.callback.module_checkpoint(module, str(tmp_path / "m"), period=2)
    for epoch in range(4):
        save(epoch)
    assert sorted(p.name for p in tmp_path.glob("*.params")) == ["m-0002.params", "m-0004.params"]


def test_store_pushpull_broadcast_and_states(tmp_path):
    store = mx.kvstore.create("local")
    outs = [mx.nd.zeros((2,), ctx=mx.cpu(i)) for i in range(2)]
    store.broadcast("w", mx.nd.ones((2,)), outs)
    assert all((o.asnumpy() == 1).all() for o in outs)
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.9))
    store.pushpull("w", [mx.nd.ones((2,)), mx.nd.ones((2,))], out=outs)
    assert (outs[1].asnumpy() == 0).all()
    store.save_optimizer_states(str(tmp_path / "s"))
    other = mx.kvstore.create("local")
    other.init("w", outs[0])
    other.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.9))
    other.load_optimizer_states(str(tmp_path / "s"))
    for each in (store, other):
        each.push("w", mx.nd.ones((2,)))
        each.pull("w", out=outs[0])
        assert np.allclose(outs[0].asnumpy(), -1.4)
    assert store.is_capable("optimizer") and (store.rank, store.num_workers) == (0, 1)
    with pytest.raises(ParamError, match="capability"):
        store.is_capable("flying")


def test_mcc_and_other_initializers():
    mcc = mx.metric.MCC()
    mcc.update([np.array([1, 1, 0, 0])], [np.array([[0, 1], [1, 0], [1, 0], [1, 0]])])
    assert math.isclose(mcc.get()[1], (1 * 2 - 0 * 1) / math.sqrt(1 * 2 * 2 * 3))
    mx.random.seed(0)
    array = mx.nd.zeros((200, 100))
    mx.init.Normal(0.5)("a_weight", array)
    assert abs(array.asnumpy().std() - 0.5) < 0.01
    mx.init.MSRAPrelu(slope=0)("a_weight", array)
    assert abs(array.asnumpy().std() - math.sqrt(2 / 150)) < 0.003
    kernel = mx.nd.zeros((1, 1, 4, 4))
    mx.init.Bilinear()("up_weight", kernel)
    line = np.array([0.25, 0.75, 0.75, 0.25])
    assert np.allclose(kernel.asnumpy()[0, 0], np.outer(line, line))
