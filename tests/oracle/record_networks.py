"""Writes checkpoints of small networks with MXNet 1.9.1, their inputs, predictions and gradients.

Run with a Python that has ``mxnet==1.9.1 numpy==1.23.5``:

    python tests/oracle/record_networks.py

For each network: ``NAME-symbol.json``, ``NAME-0003.params`` and ``NAME.npz`` (data, label,
prediction, training outputs, gradients, states after one training step) in data/networks.
"""

import sys
from pathlib import Path

import mxnet as mx
import numpy as np

OUT = Path(__file__).parent / "data" / "networks"


def softmax(net):
    return mx.sym.SoftmaxOutput(net, name="softmax")


def mlp():
    net = mx.sym.Flatten(mx.sym.Variable("data"))
    net = mx.sym.FullyConnected(net, name="fc1", num_hidden=12)
    net = mx.sym.Activation(net, name="relu1", act_type="relu")
    net = mx.sym.FullyConnected(net, name="fc2", num_hidden=8)
    net = mx.sym.Activation(net, name="relu2", act_type="relu")
    return softmax(mx.sym.FullyConnected(net, name="fc3", num_hidden=5)), (4, 1, 6, 6)


def lenet():
    net = mx.sym.Variable("data")
    for k, filters in ((1, 4), (2, 6)):
        net = mx.sym.Convolution(net, name=f"conv{k}", kernel=(3, 3), num_filter=filters)
        net = mx.sym.Activation(net, name=f"tanh{k}", act_type="tanh")
        net = mx.sym.Pooling(net, name=f"pool{k}", pool_type="max", kernel=(2, 2), stride=(2, 2))
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), name="fc1", num_hidden=10)
    net = mx.sym.Activation(net, name="tanh3", act_type="tanh")
    return softmax(mx.sym.FullyConnected(net, name="fc2", num_hidden=5)), (3, 1, 16, 16)


def batch_norm_net():
    net = mx.sym.Variable("data")
    for k in (1, 2):
        net = mx.sym.Convolution(
            net, name=f"conv{k}", kernel=(3, 3), pad=(1, 1), num_filter=4 * k, no_bias=True
        )
        net = mx.sym.BatchNorm(net, name=f"bn{k}", fix_gamma=k == 1, momentum=0.8, eps=1e-3)
        net = mx.sym.LeakyReLU(net, name=f"leaky{k}", act_type="leaky", slope=0.1)
    net = mx.sym.Pooling(net, name="pool", kernel=(1, 1), global_pool=True, pool_type="avg")
    net = mx.sym.Dropout(net, name="drop", p=0.0)
    return softmax(mx.sym.FullyConnected(mx.sym.Flatten(net), name="fc", num_hidden=5)), (
        4,
        3,
        6,
        6,
    )


def _unit(data, filters, stride, match, name):
    norm = {"fix_gamma": False, "eps": 2e-5, "momentum": 0.9}
    bn1 = mx.sym.BatchNorm(data, name=name + "_bn1", **norm)
    act1 = mx.sym.Activation(bn1, act_type="relu", name=name + "_relu1")
    conv1 = mx.sym.Convolution(
        act1, num_filter=filters, kernel=(3, 3), stride=stride, pad=(1, 1), no_bias=True,
        workspace=256, name=name + "_conv1",
    )  # fmt: skip
    bn2 = mx.sym.BatchNorm(conv1, name=name + "_bn2", **norm)
    act2 = mx.sym.Activation(bn2, act_type="relu", name=name + "_relu2")
    conv2 = mx.sym.Convolution(
        act2, num_filter=filters, kernel=(3, 3), stride=(1, 1), pad=(1, 1), no_bias=True,
        workspace=256, name=name + "_conv2",
    )  # fmt: skip
    if match:
        return conv2 + data
    shortcut = mx.sym.Convolution(
        act1, num_filter=filters, kernel=(1, 1), stride=stride, no_bias=True, workspace=256,
        name=name + "_sc",
    )  # fmt: skip
    shortcut._set_attr(mirror_stage="True")
    return conv2 + shortcut


def resnet():
    """Residual units before activation, with the layer names of MXNet's example for CIFAR."""
    data = mx.sym.identity(mx.sym.Variable("data"), name="id")
    body = mx.sym.BatchNorm(data, fix_gamma=True, eps=2e-5, momentum=0.9, name="bn_data")
    body = mx.sym.Convolution(
        body, num_filter=4, kernel=(3, 3), stride=(1, 1), pad=(1, 1), no_bias=True, name="conv0",
        workspace=256,
    )  # fmt: skip
    for stage, filters in enumerate((4, 6, 8)):
        stride = (1, 1) if stage == 0 else (2, 2)
        body = _unit(body, filters, stride, False, f"stage{stage + 1}_unit1")
        body = _unit(body, filters, (1, 1), True, f"stage{stage + 1}_unit2")
    body = mx.sym.BatchNorm(body, fix_gamma=False, eps=2e-5, momentum=0.9, name="bn1")
    body = mx.sym.Activation(body, act_type="relu", name="relu1")
    body = mx.sym.Pooling(body, global_pool=True, kernel=(7, 7), pool_type="avg", name="pool1")
    fc1 = mx.sym.FullyConnected(mx.sym.Flatten(body), num_hidden=5, name="fc1")
    return softmax(fc1), (2, 3, 12, 12)


def _conv(data, filters, kernel, pad, name, stride=(1, 1)):
    net = mx.sym.Convolution(
        data, num_filter=filters, kernel=kernel, stride=stride, pad=pad, name=f"conv_{name}"
    )
    net = mx.sym.BatchNorm(net, fix_gamma=False, name=f"bn_{name}")
    return mx.sym.Activation(net, act_type="relu", name=f"relu_{name}")


def inception():
    """Branches that are joined by Concat, with pooling of both conventions."""
    data = mx.sym.Variable("data")
    net = _conv(data, 4, (3, 3), (1, 1), "1", (2, 2))
    net = mx.sym.Pooling(
        net, kernel=(3, 3), stride=(2, 2), pool_type="max", pooling_convention="full", name="pool"
    )
    for k in (1, 2):
        one = _conv(net, 2, (1, 1), (0, 0), f"in{k}_1x1")
        three = _conv(_conv(net, 2, (1, 1), (0, 0), f"in{k}_3x3r"), 3, (3, 3), (1, 1), f"in{k}_3x3")
        pooled = mx.sym.Pooling(
            net, kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type="max" if k == 1 else "avg",
            name=f"pool_in{k}",
        )  # fmt: skip
        pooled = _conv(pooled, 2, (1, 1), (0, 0), f"in{k}_proj")
        net = mx.sym.Concat(one, three, pooled, name=f"concat{k}")
    net = mx.sym.Pooling(net, kernel=(2, 2), global_pool=True, pool_type="avg", name="global")
    return softmax(mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=5, name="fc")), (
        2,
        3,
        18,
        18,
    )


NETWORKS = {
    "mlp": mlp,
    "lenet": lenet,
    "batch_norm": batch_norm_net,
    "resnet": resnet,
    "inception": inception,
}


def record(name):
    net, shape = NETWORKS[name]()
    rng = np.random.RandomState(sum(map(ord, name)))
    executor = net.simple_bind(mx.cpu(), data=shape, softmax_label=(shape[0],))
    for key, array in executor.arg_dict.items():
        value = rng.normal(size=array.shape)
        if key.endswith("gamma"):
            value = 1 + 0.2 * value
        elif key not in ("data", "softmax_label"):
            value *= 1.5 / np.sqrt(max(np.prod(array.shape[1:]), 1))
        array[:] = value
    executor.arg_dict["softmax_label"][:] = rng.randint(0, 5, shape[0])
    for key, array in executor.aux_dict.items():
        array[:] = (
            rng.uniform(0.5, 1.5, array.shape)
            if "var" in key
            else 0.2 * rng.normal(size=array.shape)
        )
    inputs = ("data", "softmax_label")
    args = {k: v for k, v in executor.arg_dict.items() if k not in inputs}
    mx.model.save_checkpoint(str(OUT / name), 3, net, args, executor.aux_dict)
    found = {k: executor.arg_dict[k].asnumpy() for k in inputs}
    found["prediction"] = executor.forward(is_train=False)[0].asnumpy()
    found["trained"] = executor.forward(is_train=True)[0].asnumpy()
    executor.backward()
    found.update(
        {f"grad:{k}": v.asnumpy() for k, v in executor.grad_dict.items() if k != "softmax_label"}
    )
    found.update({f"aux:{k}": v.asnumpy() for k, v in executor.aux_dict.items()})
    np.savez_compressed(OUT / f"{name}.npz", **found)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS:
        record(name)
    versions = f"mxnet {mx.__version__}, numpy {np.__version__}, Python {sys.version.split()[0]}\n"
    (OUT / "VERSIONS").write_text(versions)


if __name__ == "__main__":
    main()
