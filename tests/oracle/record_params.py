"""Writes small `.params` files with MXNet 1.9.1, and beside each what it holds as `.npz`.

Run by `make oracle`, or with a Python that has ``mxnet==1.9.1 numpy==1.23.5``.
"""

import os

import mxnet as mx
import numpy as np

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "params")
DTYPES = ["float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool"]


def record(name, data):
    path = os.path.join(OUT, name + ".params")
    mx.nd.save(path, data)
    items = data.items() if isinstance(data, dict) else ((str(i), a) for i, a in enumerate(data))
    np.savez(path.replace(".params", ".npz"), **{k: a.asnumpy() for k, a in items})


def main():
    os.makedirs(OUT, exist_ok=True)
    rng = np.random.RandomState(0)
    values = rng.normal(size=(2, 3)) * 3
    record("list", [mx.nd.array(values), mx.nd.arange(4), mx.nd.array([])])
    record("dtypes", {d: mx.nd.array(values, dtype=d) for d in DTYPES})
    record("context", [mx.nd.ones((2,), ctx=mx.cpu(1)), mx.nd.ones((1, 1, 1, 1, 1))])
    sparse = np.array([[0, 1, 0], [0, 0, 0], [2, 0, 3.0]], "float32")
    record(
        "sparse",
        {
            "csr": mx.nd.array(sparse).tostype("csr"),
            "row_sparse": mx.nd.array(sparse).tostype("row_sparse"),
            "dense": mx.nd.array(sparse),
        },
    )
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    net = mx.sym.BatchNorm(net, name="bn")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.bind([("data", (2, 4))], [("softmax_label", (2,))])
    mx.random.seed(0)
    module.init_params(mx.init.Xavier())
    args, auxs = module.get_params()
    saved = {f"arg:{k}": v for k, v in args.items()}
    saved.update({f"aux:{k}": v for k, v in auxs.items()})
    record("module", saved)
    with open(os.path.join(OUT, "VERSION"), "w") as handle:
        handle.write(f"mxnet {mx.__version__}, numpy {np.__version__}\n")


if __name__ == "__main__":
    main()
