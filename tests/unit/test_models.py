"""Networks: shapes against those recorded from MXNet's own, small ones run."""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

import mixflow as mx
from mixflow import cli, models, train
from mixflow.errors import ParamError, ShapeError, UnknownNameError

RECORD = Path(__file__).resolve().parents[1] / "oracle" / "data" / "models.json"
RECORDED = json.loads(RECORD.read_text())["networks"]
INPUTS = ("data", "softmax_label")

#: Millions of parameters that papers and MXNet's documents state; AlexNet by its table of layers.
PUBLISHED = {
    "alexnet": 50.84,
    "googlenet": 7.0,
    "inception-bn": 11.3,
    "resnet-20-cifar": 0.27,
    "resnet-32-cifar": 0.464,
    "resnet-56-cifar": 0.853,
    "resnet-110-cifar": 1.73,
    "mobilenet": 4.23,
}


def inferred(name, symbol, batch=2):
    """Shapes of arguments without the inputs, of outputs, of states."""
    args, outputs, states = symbol.infer_shape(**models.input_shapes(name, batch))
    own = [s for n, s in zip(symbol.list_arguments(), args, strict=True) if n not in INPUTS]
    return own, outputs, states


@pytest.mark.parametrize("name", RECORDED)
def test_shapes_equal_those_of_mxnet(name):
    row = RECORDED[name]
    args, outputs, states = inferred(name, models.NETWORKS[name](1000))
    assert list(outputs[0]) == row["output"]
    assert (len(args), len(states)) == (row["arguments"], row["states"])
    assert sum(map(math.prod, args)) == row["numbers"]
    text = json.dumps([[list(s) for s in args], [list(s) for s in states]], separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == row["sha256"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters_is_the_published_one(name):
    args, _, _ = inferred(name, models.NETWORKS[name]())
    assert sum(map(math.prod, args)) / 1e6 == pytest.approx(PUBLISHED[name], rel=0.01)


@pytest.mark.parametrize("name", models.NETWORKS)
def test_every_network_has_the_form_that_programs_expect(name):
    symbol = models.NETWORKS[name](num_classes=7)
    names = symbol.list_arguments()
    assert set(INPUTS) <= set(names)
    assert len(set(names)) == len(names)
    _, outputs, _ = inferred(name, symbol, batch=3)
    rows = 3 * 35 if name == "lstm-lm" else 3
    assert outputs == [(rows, 7)]
    text = symbol.tojson()
    again = mx.sym.load_json(text)
    assert again.tojson() == text
    assert inferred(name, again) == inferred(name, symbol)


def test_maps_have_the_sizes_of_the_papers():
    def map_size(name, output):
        internals = models.NETWORKS[name]().get_internals()
        return internals[output].infer_shape(**models.input_shapes(name, 1))[1][0][1:]

    assert map_size("googlenet", "in3a_concat_output") == (256, 28, 28)
    assert map_size("googlenet", "in5b_concat_output") == (1024, 7, 7)
    assert map_size("inception-bn", "in5b_concat_output") == (1024, 7, 7)
    assert map_size("inception-v3", "c4_concat_output") == (768, 17, 17)
    assert map_size("inception-v3", "e2_concat_output") == (2048, 8, 8)
    assert map_size("resnet-50", "stage4_unit3_relu_output") == (2048, 7, 7)


def bound(symbol, shapes):
    """An executor with drawn values: weights by Xavier, the rest by the usual rules."""
    executor = symbol.simple_bind(ctx=mx.cpu(), **shapes)
    draw, attrs = mx.init.Xavier(magnitude=2), symbol.attr_dict()
    for name, array in {**executor.arg_dict, **executor.aux_dict}.items():
        if name not in INPUTS:
            draw(mx.init.InitDesc(name, attrs.get(name)), array)
    return executor


@pytest.mark.parametrize(
    ("name", "size"),
    [("resnet-20-cifar", 16), ("mobilenet-0.25", 32), ("squeezenet-1.1", 48), ("googlenet", 64)],
)
def test_small_images_run_forward_and_backward(name, size):
    executor = bound(models.NETWORKS[name](5), {"data": (2, 3, size, size)})
    executor.arg_dict["data"][:] = np.random.rand(2, 3, size, size)
    executor.arg_dict["softmax_label"][:] = [1, 4]
    executor.forward(is_train=True)
    scores = executor.outputs[0].asnumpy()
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)
    executor.backward()
    grads = {n: g.asnumpy() for n, g in executor.grad_dict.items() if g is not None}
    assert set(executor.arg_dict) - set(grads) <= set(INPUTS)
    assert all(np.isfinite(g).all() for g in grads.values())
    first = next(n for n in executor.arg_dict if n.endswith("_weight"))
    assert np.abs(grads[first]).max() > 0


# -- the language model


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_reference(values, data, layers, hidden):
    """Softmax of the language model in NumPy: (batch * steps, vocab)."""
    net = values["embed_weight"][data]
    for k in range(layers):
        inner, inner_bias, outer, outer_bias = (
            values[f"lstm_l{k}_{n}"] for n in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")
        )
        h = c = np.zeros((len(data), hidden))
        outputs = []
        for t in range(data.shape[1]):
            gates = net[:, t] @ inner.T + inner_bias + h @ outer.T + outer_bias
            i, f, g, o = np.split(gates, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            outputs.append(h)
        net = np.stack(outputs, axis=1)
    decoder = values.get("decoder_weight", values["embed_weight"])
    scores = net.reshape(-1, hidden) @ decoder.T + values["decoder_bias"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("tied", [False, True])
def test_language_model_equals_numpy(tied):
    symbol = models.lstm_lm(11, 6, 6, 2, 4, tied=tied)
    executor = bound(symbol, {"data": (3, 4), "softmax_label": (3, 4)})
    assert ("decoder_weight" in executor.arg_dict) != tied
    data = np.random.randint(0, 11, (3, 4))
    executor.arg_dict["data"][:] = data
    executor.arg_dict["softmax_label"][:] = np.roll(data, -1, axis=1)
    executor.forward(is_train=True)
    values = {n: a.asnumpy().astype(np.float64) for n, a in executor.arg_dict.items()}
    expected = lstm_reference(values, data, 2, 6)
    np.testing.assert_allclose(executor.outputs[0].asnumpy(), expected, rtol=1e-4, atol=1e-6)
    executor.backward()
    right = expected.copy()
    right[np.arange(12), np.roll(data, -1, axis=1).reshape(-1)] -= 1
    np.testing.assert_allclose(
        executor.grad_dict["decoder_bias"].asnumpy(), right.sum(axis=0), rtol=1e-3, atol=1e-5
    )


def test_carried_state_continues_a_sequence():
    sizes = {"vocab": 7, "embed": 3, "hidden": 5, "layers": 2}
    whole = bound(models.lstm_lm(**sizes, seq_len=4), {"data": (2, 4), "softmax_label": (2, 4)})
    half = models.lstm_lm(**sizes, seq_len=2, carry_state=True)
    assert half.num_outputs == 5
    executor = bound(half, {"data": (2, 2), "softmax_label": (2, 2)})
    data = np.random.randint(0, 7, (2, 4))
    whole.arg_dict["data"][:] = data
    expected = whole.forward(is_train=False)[0].asnumpy().reshape(2, 4, 7)
    states = [f"lstm_l{k}_init_{n}" for k in range(2) for n in "hc"]
    for name, array in executor.arg_dict.items():
        if name in states:
            array[:] = 0
        elif name not in INPUTS:
            array[:] = whole.arg_dict[name]
    for part in (0, 2):
        executor.arg_dict["data"][:] = data[:, part : part + 2]
        scores, *last = [o.asnumpy() for o in executor.forward(is_train=False)]
        np.testing.assert_allclose(
            scores.reshape(2, 2, 7), expected[:, part : part + 2], rtol=1e-4, atol=1e-6
        )
        for name, value in zip(states, last, strict=True):
            executor.arg_dict[name][:] = value


def test_forget_gate_starts_open():
    attrs = models.lstm_lm(11, 6, 6, 1, 2).attr_dict()
    assert "lstmbias" in attrs["lstm_l0_i2h_bias"]["__init__"].lower()
    assert models.lstm_lm(11, 6, 6, 1, 1, dropout=0.5).infer_shape(
        data=(3, 1), softmax_label=(3, 1)
    )[1] == [(3, 11)]


# -- mistakes


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: models.vgg(depth=12), r"\[vgg\] expected a depth of \[11, 13, 16, 19\], got 12"),
        (lambda: models.resnet(depth=19), r"\[resnet\] expected a depth of .*got depth 19"),
        (lambda: models.resnet(version=3), r"\[resnet\] expected .*version 1 or 2.*version 3"),
        (lambda: models.resnet_cifar(depth=21), r"\[resnet_cifar\] expected a depth of 6 n \+ 2"),
        (lambda: models.densenet(depth=1), r"\[densenet\] expected a depth of \[121, .*got 1"),
        (lambda: models.mobilenet(multiplier=0), r"\[mobilenet\] expected a multiplier of"),
        (lambda: models.squeezenet(version="2"), r"\[squeezenet\] expected version '1.0' or '1.1'"),
        (lambda: models.lstm_lm(0), r"\[lstm_lm\] expected sizes of .*got \{'vocab': 0\}"),
        (lambda: models.lstm_lm(9, 3, 4, tied=True), r"\[lstm_lm\] expected embed == hidden"),
    ],
)  # fmt: skip
def test_settings_that_do_not_exist(make, text):
    with pytest.raises(ParamError, match=text):
        make()


def test_samples_that_do_not_suit_a_network():
    symbol = train.network("alexnet")
    train.check_sample("alexnet", symbol, (3, 224, 224))
    text = r"\[network\] expected samples that suit 'alexnet', .*for 3x224x224, got 1x28x28"
    with pytest.raises(ShapeError, match=text):
        train.check_sample("alexnet", symbol, (1, 28, 28))
    with pytest.raises(UnknownNameError, match=r"\[network\] expected .* got 'resnet-51'"):
        train.network("resnet-51")


def test_command_names_the_shape_that_a_network_wants(capsys, tmp_path):
    command = ["train", "--network", "alexnet", "--data", "digits", "--out", str(tmp_path)]
    assert cli.main([*command, "--quiet"]) == 1
    assert "made for 3x224x224, got 1x28x28" in capsys.readouterr().err


def test_summary_uses_the_shape_of_the_paper(capsys):
    assert cli.main(["summary", "--network", "squeezenet-1.1", "--batch-size", "1"]) == 0
    assert "parameters: 1,235,496" in capsys.readouterr().out
    assert cli.main(["summary", "--network", "vgg-11", "--image-shape", "1x28x28"]) == 1
    assert "got 1x28x28" in capsys.readouterr().err


def test_memory_command_writes_figures_and_a_chart(tmp_path, capsys):
    out = str(tmp_path / "m")
    assert cli.main(["memory", "--network", "lenet", "mlp", "--batch-size", "8", "--out", out]) == 0
    figures = json.loads((tmp_path / "m" / "memory-training.json").read_text())
    assert set(figures) == {"lenet", "mlp"}
    assert figures["lenet"]["both"] <= figures["lenet"]["inplace"] < figures["lenet"]["none"]
    assert "lower_bound_unfused" in capsys.readouterr().out
    assert cli.main(["memory", "--network", "lenet", "--predict", "--out", out]) == 0
    assert (tmp_path / "m" / "memory-prediction.json").exists()


def test_memory_command_keeps_a_limit(tmp_path, capsys):
    command = [
        "memory",
        "--network",
        "resnet-20-cifar",
        "--batch-size",
        "8",
        "--out",
        str(tmp_path),
    ]
    assert cli.main([*command, "--limit", "9M"]) == 0
    figures = json.loads((tmp_path / "memory-training.json").read_text())["resnet-20-cifar"]
    assert figures["recomputed"] <= 9 << 20 < figures["arena"]
    shown = capsys.readouterr().out
    assert "recomputed" in shown and "both - lower_bound_unfused" in shown
    assert cli.main([*command, "--limit", "1K"]) == 1
    assert "[memory_limit] expected at least" in capsys.readouterr().err


def test_shared_parameters_count_once():
    symbol = models.lstm_lm(11, 6, 6, 1, 4, tied=True)
    rows = mx.visualization.layer_table(symbol, {"data": (2, 4), "softmax_label": (2, 4)})
    assert sum(r["params"] for r in rows) == 11 * 6 + 11 + 2 * (24 * 6 + 24)


def test_inception_bn_for_small_images_has_all_its_blocks():
    small = models.inception_bn(10, divisor=8, small=True)
    whole = models.inception_bn()
    blocks = [n for n in whole.list_arguments() if n.startswith("in") and n.endswith("weight")]
    assert [n for n in small.list_arguments() if n in set(blocks)] == blocks
    inner = small.get_internals()["in5b_concat_output"]
    assert inner.infer_shape(data=(2, 1, 28, 28))[1] == [(2, 1024 // 8, 4, 4)]
    with pytest.raises(ParamError, match=r"expected a divisor of 1, 2, 4 \.\.\. 32, got 3"):
        models.inception_bn(divisor=3)
