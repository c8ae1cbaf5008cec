"""Programs on sparse arrays that run on MXNet 1.9.1 and on mixflow; the module is an argument."""

from types import SimpleNamespace

import numpy as np

ROWS, WIDTH = 12, 5

OPERATIONS = {
    "a + b": lambda v: v.a + v.b,
    "a - b": lambda v: v.a - v.b,
    "a * b": lambda v: v.a * v.b,
    "a + a": lambda v: v.a + v.a,
    "a * 2": lambda v: v.a * 2,
    "3 * a": lambda v: 3 * v.a,
    "a / 4": lambda v: v.a / 4,
    "-a": lambda v: -v.a,
    "abs(a)": lambda v: abs(v.a),
    "a + 1": lambda v: v.a + 1,
    "1 - a": lambda v: 1 - v.a,
    "a + d": lambda v: v.a + v.d,
    "d - a": lambda v: v.d - v.a,
    "a * d": lambda v: v.a * v.d,
    "d * a": lambda v: v.d * v.a,
    "a ** 2": lambda v: v.a**2,
    "a == b": lambda v: v.a == v.b,
    "elemwise_add": lambda v: v.sparse.elemwise_add(v.a, v.b),
    "elemwise_sub": lambda v: v.sparse.elemwise_sub(v.a, v.b),
    "elemwise_mul": lambda v: v.sparse.elemwise_mul(v.a, v.b),
    "add_n": lambda v: v.sparse.add_n(v.a, v.b, v.a),
    "add_n mixed": lambda v: v.nd.add_n(v.a, v.d),
    "sparse.add": lambda v: v.sparse.add(v.a, v.b),
    "sparse.multiply": lambda v: v.sparse.multiply(v.a, 3),
    "clip": lambda v: v.a.clip(-0.5, 0.5),
    "sum": lambda v: v.a.sum(),
    "sum axis": lambda v: v.a.sum(axis=0),
    "norm": lambda v: v.a.norm(),
    "exp": lambda v: v.a.exp(),
    "zeros_like": lambda v: v.a.zeros_like(),
    "transpose": lambda v: v.a.T,
    "retain": lambda v: v.sparse.retain(v.a, v.nd.array([0, 2, 3, 7])),
    "astype": lambda v: v.a.astype("float64"),
    "copy": lambda v: v.a.copy(),
    "copyto": lambda v: v.a.copyto(v.sparse.zeros("row_sparse", v.a.shape)),
    "copyto dense": lambda v: v.a.copyto(v.nd.ones(v.a.shape)),
    "dense copyto": lambda v: v.d.copyto(v.sparse.zeros("row_sparse", v.a.shape)),
    "cast_storage": lambda v: v.nd.cast_storage(v.a, "default"),
    "to row_sparse": lambda v: v.a.tostype("default").tostype("row_sparse"),
    "to csr": lambda v: v.d.tostype("csr"),
    "zeros": lambda v: v.nd.zeros((3, 2), stype="row_sparse"),
    "c + e": lambda v: v.c + v.e,
    "c - e": lambda v: v.c - v.e,
    "c * e": lambda v: v.c * v.e,
    "c * 2": lambda v: v.c * 2,
    "c / 2": lambda v: v.c / 2,
    "-c": lambda v: -v.c,
    "c + 1": lambda v: v.c + 1,
    "c * dense": lambda v: v.c * v.full,
    "c * row": lambda v: v.c * v.full[0:1],
    "c / column": lambda v: v.c / (v.full[:, 0:1] + 9),
    "c[2:7]": lambda v: v.c[2:7],
    "c[3]": lambda v: v.c[3],
    "c.astype": lambda v: v.c.astype("float64"),
    "c sum": lambda v: v.c.sum(axis=1),
    "dot(c, w)": lambda v: v.nd.dot(v.c, v.w),
    "dot(c.T, d)": lambda v: v.nd.dot(v.c, v.d, transpose_a=True),
    "dot(c.T, d) dense": lambda v: v.sparse.dot(
        v.c, v.d, transpose_a=True, forward_stype="default"
    ),
    "dot(c, w) sparse": lambda v: v.sparse.dot(v.c, v.w, forward_stype="row_sparse"),
    "dot(a, e)": lambda v: v.nd.dot(v.a, v.small),
    **{
        f"{name}": lambda v, name=name: getattr(v.a, name)()
        for name in (
            *("sign", "rint", "ceil", "floor", "trunc", "fix", "square", "cbrt", "sin", "tan"),
            *(
                "sinh",
                "tanh",
                "arcsinh",
                "arctan",
                "expm1",
                "degrees",
                "radians",
                "relu",
                "sigmoid",
            ),
        )
    },
}

#: name, arguments beside the common ones; 'ftrl' on dense weights updates every row.
OPTIMIZERS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "lazy_update": False}),
    ("adam", {}),
    ("adam", {"lazy_update": False}),
    ("adagrad", {"wd": 0.0}),
    ("ftrl", {}),
    ("rmsprop", {}),
    ("signum", {}),
]


def sparse_values(draw, shape, rows):
    """Dense values of which only some rows are not 0."""
    values = np.zeros(shape, "float32")
    values[rows] = draw.normal(size=(len(rows), *shape[1:]))
    return values


def operands(mx):
    """Arrays by the names that `OPERATIONS` uses."""
    draw = np.random.RandomState(5)
    shape = (ROWS, WIDTH)
    make = mx.nd.sparse.row_sparse_array
    a, b = sparse_values(draw, shape, [0, 3, 7]), sparse_values(draw, shape, [3, 4, 11])
    wide = (ROWS, 8)
    c = draw.normal(size=wide) * (draw.uniform(size=wide) < 0.3)
    e = draw.normal(size=wide) * (draw.uniform(size=wide) < 0.3)
    return SimpleNamespace(
        nd=mx.nd,
        sparse=mx.nd.sparse,
        a=make((a[[0, 3, 7]], [0, 3, 7]), shape=shape),
        b=make(b),
        d=mx.nd.array(draw.normal(size=shape)),
        c=mx.nd.sparse.csr_matrix(c.astype("float32")),
        e=mx.nd.sparse.csr_matrix(e.astype("float32")),
        full=mx.nd.array(draw.normal(size=wide)),
        w=mx.nd.array(draw.normal(size=(8, 3))),
        small=mx.nd.array(draw.normal(size=(WIDTH, 2))),
    )


def described(value):
    """Storage, stored rows (of row_sparse arrays) and dense values of a result."""
    rows = value.indices.asnumpy() if value.stype == "row_sparse" else np.zeros(0, "int64")
    return value.stype, rows, value.asnumpy()


def updates(mx, name, extra, stype):
    """A weight after some updates by row_sparse gradients."""
    draw = np.random.RandomState(6)
    weight = mx.nd.array(draw.normal(size=(6, 3))).tostype(stype)
    options = {"wd": 0.1, "clip_gradient": 0.8, "rescale_grad": 0.5, "learning_rate": 0.1}
    updater = mx.optimizer.get_updater(mx.optimizer.create(name, **{**options, **extra}))
    for rows in ([1, 3], [0, 3], [], [5], [1, 2, 4]):
        gradient = mx.nd.array(sparse_values(draw, (6, 3), rows)).tostype("row_sparse")
        updater(0, gradient, weight)
    return weight.asnumpy()


def store(mx):
    """Results of a local store's row_sparse calls, by name."""
    sparse, nd = mx.nd.sparse, mx.nd
    shape = (6, 2)

    def rows(numbers, value=1.0):
        return sparse.row_sparse_array(
            (np.full((len(numbers), 2), value, "float32"), numbers), shape=shape
        )

    def pulled(kv, key, ids, count=1):
        outs = [sparse.zeros("row_sparse", shape) for _ in range(count)]
        kv.row_sparse_pull(key, out=outs if count > 1 else outs[0], row_ids=ids)
        return outs if count > 1 else outs[0]

    found = {}
    kv = mx.kv.create("local")
    kv.init("a", rows([0, 2, 4], 3.0))
    found["repeated"] = pulled(kv, "a", nd.array([2, 1, 2]))
    found["two axes"] = pulled(kv, "a", nd.array([[2, 1], [4, 4]]))
    found["one for two"] = pulled(kv, "a", nd.array([0, 2]), 2)[1]
    found["one each"] = pulled(kv, "a", [nd.array([0]), nd.array([4, 2])], 2)[1]
    found["nothing"] = pulled(kv, "a", nd.array([]))
    kv.push("a", [rows([1, 2]), rows([2, 5])])
    found["pushed"] = pulled(kv, "a", nd.array(range(6)))
    whole = sparse.zeros("row_sparse", shape)
    kv.pull("a", out=whole, ignore_sparse=False)
    found["pull"] = whole
    kv.init("d", nd.zeros(shape))
    kv.push("d", rows([1, 3]))
    found["dense"] = nd.ones(shape)
    kv.pull("d", out=found["dense"])
    other = mx.kv.create("local")
    other.init(3, rows(range(6)))
    other.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9, wd=0.1))
    for numbers in ([1], [2, 4], [1, 2]):
        other.push(3, [rows(numbers, 0.5), rows(numbers, 2.0)])
    found["updated"] = pulled(other, 3, nd.array(range(6)))
    device = mx.kv.create("device")
    device.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    device.init("x", nd.zeros((4,)))
    device.push("x", nd.array([0.6, 0.4, -0.6, 2.0]))
    found["compressed"] = nd.zeros((4,))
    device.pull("x", out=found["compressed"])
    return found


def everything(mx):
    """(name, storage, rows, values) of every case."""
    v = operands(mx)
    for name, call in OPERATIONS.items():
        yield (name, *described(call(v)))
    for number, (name, extra) in enumerate(OPTIMIZERS):
        for stype in ("default", "row_sparse"):
            values = updates(mx, name, extra, stype)
            yield f"{name} {number} {stype}", "default", np.zeros(0, "int64"), values
    for name, value in store(mx).items():
        yield (f"store {name}", *described(value))
