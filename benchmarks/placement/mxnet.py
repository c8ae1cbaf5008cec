"""The same steps on MXNet 1.9.1, placed by groups: it has no placement by cost.

Its two workers take operators of either context, so that they overlap on one context too.
"""

import os
import sys

os.environ["MXNET_CPU_WORKER_NTHREADS"] = "2"  # else both contexts wait for one thread
here = sys.path.pop(0)
import mxnet as mx  # noqa: E402 - this file's own folder must not shadow the package

import timed  # noqa: E402 - beside this folder

sys.path.insert(0, here)
VERSION = f"mxnet {mx.__version__}"
WARM_UP = 4
sym = mx.sym
GROUPS = {"a": mx.cpu(0), "b": mx.cpu(1)}


def dense(data, name):
    return sym.FullyConnected(data, num_hidden=512, name=name)


def conv(data, name):
    return sym.Convolution(data, num_filter=32, kernel=(3, 3), pad=(1, 1), name=name)


def towers(layer):
    ends = []
    first = sym.Variable("data", attr={"ctx_group": "a"})
    for name in "ab":
        with mx.AttrScope(ctx_group=name):
            data = first
            for k in range(4):
                data = sym.Activation(layer(data, f"{name}{k}"), act_type="relu")
            ends.append(data)
    return ends


def network(layer):
    left, right = towers(layer)
    with mx.AttrScope(ctx_group="a"):
        last = sym.FullyConnected(left + right, num_hidden=10, name="last")
        return sym.SoftmaxOutput(last, name="softmax")


NETS = {
    "dense towers": (lambda: network(dense), {"data": (256, 512)}),
    "conv towers": (lambda: network(conv), {"data": (8, 32, 32, 32)}),
}


def case(name, groups):
    def build():
        make, shapes = NETS[name]
        symbol = make()
        requests = {n: "null" if n in shapes else "write" for n in symbol.list_arguments()}
        requests["softmax_label"] = "null"
        shapes = {**shapes, "softmax_label": shapes["data"][:1]}
        executor = symbol.simple_bind(mx.cpu(0), grad_req=requests, group2ctx=groups, **shapes)
        for key, array in executor.arg_dict.items():
            array[:] = mx.nd.random.uniform(-0.05, 0.05, array.shape) if "label" not in key else 1

        return timed.steps(mx, executor)

    return build


# OpenMP's threads are those of an operator: one for each of two contexts is OMP_NUM_THREADS=1.
CASES = (
    {
        f"{name}, {label}": case(name, groups)
        for name in NETS
        for label, groups in (("one context", None), ("two contexts", GROUPS))
    }
    if os.environ.get("OMP_NUM_THREADS") == "1"
    else {}
)
