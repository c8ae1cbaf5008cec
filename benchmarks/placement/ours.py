"""One training step on one context and on two, one thread each: what placement by cost gains.

    python benchmarks/run.py placement

`estimate` is what the placement says of the step before it has run: the makespan of its timeline.
The LSTM is placed by groups, a layer each, as in MXNet's example of model parallelism.
"""

import numpy as np

import mixflow as mx
import timed

VERSION = f"mixflow {mx.__version__}"
CONTEXTS = (mx.cpu(0), mx.cpu(1))
WARM_UP = 4
sym = mx.sym


def dense_tower(data, name):
    for k in range(4):
        data = sym.FullyConnected(data, num_hidden=512, name=f"{name}{k}")
        data = sym.Activation(data, act_type="relu", name=f"{name}{k}_relu")
    return data


def conv_tower(data, name):
    for k in range(4):
        data = sym.Convolution(data, num_filter=32, kernel=(3, 3), pad=(1, 1), name=f"{name}{k}")
        data = sym.Activation(data, act_type="relu", name=f"{name}{k}_relu")
    return data


def towers(tower):
    data = sym.Variable("data")
    both = tower(data, "a") + tower(data, "b")
    return sym.SoftmaxOutput(sym.FullyConnected(both, num_hidden=10, name="last"), name="softmax")


def lstm(steps=16, hidden=256, layers=2):
    inputs = list(
        sym.SliceChannel(sym.Variable("data"), num_outputs=steps, axis=1, squeeze_axis=True)
    )
    for layer in range(layers):
        with mx.AttrScope(ctx_group=f"layer{layer}"):
            names = ("x_weight", "x_bias", "h_weight", "h_bias")
            xw, xb, hw, hb = (sym.Variable(f"l{layer}_{n}") for n in names)
            state, cell = (sym.Variable(f"l{layer}_init_{n}") for n in "hc")
            for t in range(steps):
                gates = sym.FullyConnected(inputs[t], xw, xb, num_hidden=4 * hidden)
                gates = gates + sym.FullyConnected(state, hw, hb, num_hidden=4 * hidden)
                i, f, o, g = sym.SliceChannel(gates, num_outputs=4)
                cell = sym.sigmoid(f) * cell + sym.sigmoid(i) * sym.tanh(g)
                inputs[t] = state = sym.sigmoid(o) * sym.tanh(cell)
    with mx.AttrScope(ctx_group=f"layer{layers - 1}"):
        last = sym.FullyConnected(sym.Concat(*inputs, dim=0), num_hidden=10, name="last")
    return sym.SoftmaxOutput(last, name="softmax")


GROUPS = {"layer0": CONTEXTS[0], "layer1": CONTEXTS[1]}
STATES = {f"l{k}_init_{n}": (64, 256) for k in (0, 1) for n in "hc"}
#: Network, shapes, how it is placed on two contexts.
NETS = {
    "dense towers": (
        lambda: towers(dense_tower),
        {"data": (256, 512)},
        {"ctx": CONTEXTS, "placement": "auto"},
    ),
    "conv towers": (
        lambda: towers(conv_tower),
        {"data": (8, 32, 32, 32)},
        {"ctx": CONTEXTS, "placement": "auto"},
    ),
    "lstm": (
        lstm,
        {"data": (64, 16, 256), "softmax_label": (64 * 16,), **STATES},
        {"ctx": CONTEXTS[0], "group2ctx": GROUPS},
    ),
}


def bound(name, contexts):
    make, shapes, spread = NETS[name]
    symbol = make()
    mx._rt.core.set_threads(contexts)
    requests = {n: "null" if n in shapes else "write" for n in symbol.list_arguments()}
    requests["softmax_label"] = "null"
    how = spread if contexts == 2 else {"ctx": CONTEXTS[0]}
    executor = symbol.simple_bind(grad_req=requests, **how, **shapes)
    draw = np.random.default_rng(0)
    for key, array in executor.arg_dict.items():
        array[:] = draw.uniform(-0.05, 0.05, array.shape) if "label" not in key else 1
    return executor


def case(name, contexts):
    def build():
        executor = bound(name, contexts)

        return timed.steps(mx, executor)

    return build


def estimate(name):
    def build():
        report = bound(name, 2).placement
        return lambda: report.makespan

    return build


CASES = {
    f"{name}, {label}": build(name)
    for name in NETS
    for label, build in (
        ("one context", lambda n: case(n, 1)),
        ("two contexts", lambda n: case(n, 2)),
        ("two contexts, estimate", estimate),
    )
}
