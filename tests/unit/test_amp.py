"""Mixed precision under MXNet's names, and bfloat16 arrays at the edges."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mixflow as mx
from mixflow import amp, config, models
from mixflow.contrib import amp as contrib_amp
from mixflow.errors import ParamError, UnknownNameError

BF16 = np.dtype(ml_dtypes.bfloat16)
TARGETS = ["bfloat16", "float16"]


def net() -> mx.sym.Symbol:
    """A convolution, a norm, a residual sum with a wide operand, a dense layer, a loss."""
    data = mx.sym.Variable("data")
    x = mx.sym.Convolution(data, num_filter=8, kernel=(3, 3), pad=(1, 1), name="conv")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="norm")
    x = mx.sym.Activation(x, act_type="relu", name="relu")
    x = mx.sym.elemwise_add(x, mx.sym.exp(x, name="exp"), name="sum")
    x = mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=10, name="dense")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def casts(symbol: Any) -> dict[str, str]:
    """Dtype that each operator's data input is cast to, '' where it is not."""
    found = {}
    for node in symbol.nodes():
        if node.op is not None and node.inputs and node.op.name != "amp_cast":
            source = node.inputs[0].node
            cast = source.op is not None and source.op.name == "amp_cast"
            found[node.name] = np.dtype(source.params["dtype"]).name if cast else ""
    return found


def outputs(symbol: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """First output, in float32."""
    executor = symbol.simple_bind(mx.cpu(), data=feeds["data"].shape)
    for name, array in {**executor.arg_dict, **executor.aux_dict}.items():
        array[:] = feeds[name]
    made = executor.forward(is_train=False)[0].asnumpy()
    assert executor.plan().plan.host_calls == 0
    return np.asarray(made, np.float32)


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    executor = net().simple_bind(mx.cpu(), data=(2, 3, 6, 6))
    arrays = {**executor.arg_dict, **executor.aux_dict}
    made = {n: rng.uniform(0.2, 0.6, a.shape).astype(np.float32) for n, a in arrays.items()}
    made["dense_weight"] = rng.normal(0, 0.05, made["dense_weight"].shape).astype(np.float32)
    return made


def test_contrib_has_the_module() -> None:
    assert contrib_amp is amp


@pytest.mark.parametrize("target", TARGETS)
def test_each_operator_is_in_one_list(target: str) -> None:
    lists = [
        amp.list_lp16_ops(target),
        amp.list_fp32_ops(target),
        amp.list_lp16_fp32_ops(target),
        amp.list_widest_type_cast(target),
    ]
    flat = [mx.ir.get(n).name for names in lists for n in names]
    assert len(flat) == len(set(flat))
    assert {"Convolution", "FullyConnected"} <= set(lists[0])
    assert {"exp", "softmax", "mean", "SoftmaxOutput"} <= set(lists[1])
    assert {"BatchNorm", "Pooling", "Dropout"} <= set(lists[2])
    assert {"elemwise_add", "Concat"} <= set(lists[3])
    assert set(amp.list_loss_output_functions(target)) <= set(lists[1])
    assert ("LeakyReLU", "act_type", ["elu", "selu"]) in amp.list_conditional_fp32_ops(target)
    assert "gamma" in amp.list_lp16_use_fp32_params(target)["BatchNorm"]


@pytest.mark.parametrize("target", TARGETS)
def test_casts_stand_where_the_lists_ask_for_them(target: str) -> None:
    found = casts(amp.convert_symbol(net(), target))
    assert found["conv"] == target
    assert found["norm"] == found["relu"] == ""
    assert found["exp"] == "float32"
    assert found["sum"] == "float32"  # the other operand is wide
    assert found["softmax"] == "float32"


@pytest.mark.parametrize(("target", "share"), [("bfloat16", 0.05), ("float16", 0.01)])
@pytest.mark.parametrize("optional", [False, True])
def test_values_are_those_of_float32_up_to_rounding(
    target: str, share: float, optional: bool
) -> None:
    given = feeds()
    want = outputs(net(), given)
    got = outputs(amp.convert_symbol(net(), target, cast_optional_params=optional), given)
    assert 0 < np.abs(got - want).max() < share


def test_lists_of_the_caller() -> None:
    made = casts(amp.convert_symbol(net(), "bfloat16", target_dtype_ops=["FullyConnected"]))
    assert made["conv"] == "" and made["dense"] == "bfloat16"
    made = casts(amp.convert_symbol(net(), "bfloat16", fp32_ops=["Convolution", "SoftmaxOutput"]))
    assert made["conv"] == "" and made["exp"] == "" and made["softmax"] == "float32"
    made = casts(amp.convert_symbol(net(), "bfloat16", excluded_sym_names=["conv"]))
    assert made["conv"] == "" and made["dense"] == "bfloat16"
    relu = [("Activation", "act_type", ["relu"])]
    assert casts(amp.convert_symbol(net(), conditional_fp32_ops=relu))["relu"] == "float32"


def test_parameters_that_only_narrow_operators_read_can_be_stored_narrow() -> None:
    executor = net().simple_bind(mx.cpu(), data=(2, 3, 6, 6))
    args = {n: a for n, a in executor.arg_dict.items() if n not in ("data", "softmax_label")}
    symbol, new, aux = amp.convert_model(
        net(), args, executor.aux_dict, "bfloat16", cast_optional_params=True
    )
    narrow = {n for n, a in new.items() if a.dtype == BF16}
    assert narrow == {"conv_weight", "conv_bias", "dense_weight", "dense_bias"}
    assert {a.dtype for a in aux.values()} == {np.float32}
    bound = symbol.bind(
        mx.cpu(),
        {**new, "data": mx.nd.ones((2, 3, 6, 6)), "softmax_label": mx.nd.zeros((2,))},
        aux_states=aux,
    )
    assert bound.forward()[0].shape == (2, 10)
    _, kept, _ = amp.convert_model(net(), args, executor.aux_dict, "bfloat16")
    assert {a.dtype for a in kept.values()} == {np.float32}


def test_files_hold_the_network_without_casts_unless_asked(tmp_path: Path) -> None:
    made = amp.convert_symbol(net(), "bfloat16")
    assert "amp_cast" not in made.tojson()
    assert mx.sym.load_json(made.tojson()).list_arguments() == net().list_arguments()
    assert "amp_cast" in made.tojson(remove_amp_cast=False)
    made.save(str(tmp_path / "net.json"), remove_amp_cast=False)
    assert "amp_cast" in (tmp_path / "net.json").read_text()
    assert "amp_cast" in copy.deepcopy(made).tojson(False)
    assert "amp_cast" in pickle.loads(pickle.dumps(made)).tojson(False)


def test_init_sets_the_configuration() -> None:
    old = config.current().precision
    try:
        amp.init("bfloat16")
        assert config.current().precision == "bfloat16"
    finally:
        config.update(precision=old)
    with pytest.raises(ParamError, match=r"^\[amp.init\] expected no lists of operators, got some"):
        amp.init("bfloat16", fp32_ops=["exp"])


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(ParamError, match=r"^\[amp\] expected target_dtype among .+, got 'int8'"):
        amp.convert_symbol(net(), "int8")
    with pytest.raises(UnknownNameError, match=r"no_such_op"):
        amp.convert_symbol(net(), "bfloat16", target_dtype_ops=["no_such_op"])
    with pytest.raises(UnknownNameError, match=r"no_node"):
        amp.convert_symbol(net(), "bfloat16", excluded_sym_names=["no_node"])
    with pytest.raises(ParamError, match=r"^\[amp\] expected each operator in one list, got"):
        amp.convert_symbol(net(), target_dtype_ops=["exp"], fp32_ops=["exp"])


# -- arrays of bfloat16


def test_arrays_of_bfloat16_are_made_cast_computed_and_saved(tmp_path: Path) -> None:
    wide = mx.nd.array([1.5, -2.25, 3.14159])
    narrow = mx.nd.cast(wide, dtype="bfloat16")
    assert narrow.dtype == BF16
    np.testing.assert_array_equal(narrow.asnumpy(), wide.asnumpy().astype(BF16))
    assert mx.nd.zeros((2,), dtype="bfloat16").dtype == BF16
    np.testing.assert_array_equal(
        narrow.astype("float32").asnumpy(), narrow.asnumpy().astype(np.float32)
    )
    assert ((narrow * narrow + 1.0).dtype, narrow.sum().dtype) == (BF16, BF16)
    path = str(tmp_path / "arrays.params")
    mx.nd.save(path, {"narrow": narrow, "wide": wide})
    loaded = mx.nd.load(path)
    assert loaded["narrow"].dtype == BF16
    np.testing.assert_array_equal(loaded["narrow"].asnumpy(), narrow.asnumpy())


def test_gradients_and_updates_of_bfloat16_parameters_keep_float32_masters() -> None:
    weight = mx.nd.array([1.0, 2.0], dtype="bfloat16")
    weight.attach_grad()
    with mx.autograd.record():
        loss = (weight * weight).sum()
    loss.backward()
    assert weight.grad.dtype == BF16
    optimizer = mx.optimizer.SGD(learning_rate=2.0**-10, multi_precision=True)
    updater = mx.optimizer.get_updater(optimizer)
    for _ in range(8):  # each step is far below a unit in the last place of bfloat16
        updater(0, mx.nd.ones((2,), dtype="bfloat16"), weight)
    want = np.array([1 - 8 * 2.0**-10, 2 - 8 * 2.0**-10]).astype(BF16)
    np.testing.assert_array_equal(weight.asnumpy(), want)
    assert want[0] != 1


# -- training


@pytest.mark.skipif(not amp.is_supported("bfloat16"), reason="no instructions for bfloat16")
def test_lenet_learns_as_well_in_mixed_precision() -> None:
    from mixflow import datasets

    images = datasets.digits()
    results = {}
    with config.override(deterministic=True):
        for precision in ("float32", "bfloat16"):
            mx.random.seed(5)
            np.random.seed(5)
            module = mx.mod.Module(models.NETWORKS["lenet"](), precision=precision)
            data = mx.io.NDArrayIter(images.train_images, images.train_labels, 64, shuffle=True)
            test = mx.io.NDArrayIter(images.test_images, images.test_labels, 64)
            module.fit(
                data,
                num_epoch=3,
                optimizer_params={"learning_rate": 0.05, "momentum": 0.9},
                initializer=mx.init.Xavier(magnitude=2.34),
            )
            found = dict(module.score(test, [mx.metric.Accuracy(), mx.metric.CrossEntropy()]))
            results[precision] = (found["accuracy"], found["cross-entropy"])
    wide, narrow = results["float32"], results["bfloat16"]
    assert narrow[0] > 0.9
    assert abs(narrow[0] - wide[0]) < 0.01
    assert narrow[1] == pytest.approx(wide[1], rel=0.05)
    assert narrow[1] != wide[1]
