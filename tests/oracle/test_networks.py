"""Networks of MXNet 1.9.1: its checkpoints give its predictions and gradients here, and ours there.

The recorded files come from record_networks.py. The test marked `oracle` runs MXNet itself in the
environment whose Python MIXFLOW_MXNET_PYTHON names.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import mixflow as mx
from mixflow import nd
from mixflow.passes.manager import verified
from mixflow.passes.memory import check_overlap

DATA = Path(__file__).parent / "data" / "networks"
NETWORKS = sorted(p.name.removesuffix("-symbol.json") for p in DATA.glob("*-symbol.json"))
MXNET = os.environ.get(
    "MIXFLOW_MXNET_PYTHON", str(Path(__file__).resolve().parents[2] / ".bench/mxnet/bin/python")
)


def load(name):
    symbol, args, auxs = mx.model.load_checkpoint(str(DATA / name), 3)
    with np.load(DATA / f"{name}.npz") as archive:
        return symbol, args, auxs, dict(archive)


def test_there_are_networks():
    assert NETWORKS == ["batch_norm", "inception", "lenet", "mlp", "resnet"]


@pytest.mark.parametrize("name", NETWORKS)
def test_recorded_checkpoint_gives_recorded_numbers(name):
    symbol, args, auxs, found = load(name)
    with verified():
        executor = symbol.simple_bind(mx.cpu(), data=found["data"].shape)
        executor.plan(True)
    check_overlap(executor.plan(True))
    check_overlap(executor.plan(False))
    executor.copy_params_from(args, auxs)
    executor.arg_dict["data"][:] = found["data"]
    executor.arg_dict["softmax_label"][:] = found["softmax_label"]
    got = executor.forward(is_train=False)[0].asnumpy()
    np.testing.assert_allclose(got, found["prediction"], rtol=1e-4, atol=1e-5)
    got = executor.forward(is_train=True)[0].asnumpy()
    executor.backward()
    np.testing.assert_allclose(got, found["trained"], rtol=1e-4, atol=1e-5)
    largest = max(np.abs(v).max() for k, v in found.items() if k.startswith("grad:"))
    for key, wanted in found.items():
        kind, _, short = key.partition(":")
        arrays = {"grad": executor.grad_dict, "aux": executor.aux_dict}.get(kind)
        if arrays is not None:
            floor = (
                1e-5 * largest
            )  # biases before a normalisation: their gradient is rounding alone
            got = arrays[short].asnumpy()
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=floor, err_msg=key)


@pytest.mark.parametrize("name", NETWORKS)
def test_module_predicts_and_trains_a_recorded_checkpoint(name):
    _, _, _, found = load(name)
    module = mx.mod.Module.load(str(DATA / name), 3)
    iterator = mx.io.NDArrayIter(
        found["data"], found["softmax_label"], batch_size=len(found["data"])
    )
    module.bind(iterator.provide_data, iterator.provide_label)
    module.init_params()
    got = module.predict(iterator).asnumpy()
    np.testing.assert_allclose(got, found["prediction"], rtol=1e-4, atol=1e-5)
    module.init_optimizer(optimizer_params={"learning_rate": 0.01})
    for batch in iterator:
        module.forward_backward(batch)
        module.update()
    assert np.isfinite(module.predict(iterator).asnumpy()).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_symbol_survives_our_json(name):
    symbol, args, auxs, found = load(name)
    again = mx.sym.load_json(symbol.tojson())
    assert again.list_arguments() == symbol.list_arguments()
    assert again.list_auxiliary_states() == symbol.list_auxiliary_states()
    assert again.attr_dict() == symbol.attr_dict()
    given = {**args, **auxs, "data": nd.array(found["data"])}
    given["softmax_label"] = nd.array(found["softmax_label"])
    got = again.eval(mx.cpu(), **given)[0].asnumpy()
    np.testing.assert_allclose(got, found["prediction"], rtol=1e-4, atol=1e-5)


_PREDICT = """
import sys
import mxnet as mx, numpy as np
prefix, data, out = sys.argv[1:]
data = np.load(data)
symbol, args, auxs = mx.model.load_checkpoint(prefix, 3)
executor = symbol.simple_bind(mx.cpu(), data=data.shape, grad_req="null")
executor.copy_params_from(args, auxs)
executor.arg_dict["data"][:] = data
np.save(out, executor.forward(is_train=False)[0].asnumpy())
"""


def ours():
    """Networks built and trained for a step here, with attributes on some variables."""
    data = mx.sym.Variable("data")
    weight = mx.sym.Variable("conv_weight", lr_mult=2.0, init=mx.init.Xavier())
    net = mx.sym.Convolution(data, weight, name="conv", kernel=(3, 3), num_filter=4, no_bias=True)
    net = mx.sym.BatchNorm(net, name="bn", fix_gamma=False)
    net = mx.sym.Concat(mx.sym.relu(net), net * 0.5 + 1, dim=1)
    net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), name="fc", num_hidden=5)
    made = {"own": (mx.sym.SoftmaxOutput(net, name="softmax"), (4, 2, 9, 9))}
    for name in NETWORKS:
        symbol, _, _, found = load(name)
        made[name] = (symbol, found["data"].shape)
    return made


@pytest.mark.oracle
@pytest.mark.skipif(not Path(MXNET).exists(), reason="no environment with MXNet 1.9.1")
@pytest.mark.parametrize("name", [*NETWORKS, "own"])
def test_our_checkpoint_in_mxnet(name, tmp_path):
    symbol, shape = ours()[name]
    rng = np.random.default_rng(1)
    data = rng.normal(size=shape).astype(np.float32)
    label = rng.integers(0, 5, shape[0]).astype(np.float32)
    iterator = mx.io.NDArrayIter(data, label, batch_size=shape[0])
    module = mx.mod.Module(symbol)
    module.fit(iterator, num_epoch=1, initializer=mx.init.Xavier())
    module.save_checkpoint(str(tmp_path / "ours"), 3)
    wanted = module.predict(iterator).asnumpy()
    np.save(tmp_path / "data.npy", data)
    (tmp_path / "predict.py").write_text(_PREDICT)
    command = [MXNET, "predict.py", "ours", "data.npy", "out.npy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), wanted, rtol=1e-4, atol=1e-5)
