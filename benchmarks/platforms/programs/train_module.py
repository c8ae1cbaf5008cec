"""A worker of a job: `Module` with the job's store. Arguments: cell, folder, package.

The package is mixflow or mxnet, whose interfaces are the same here. With MXNet it is a server or
the scheduler as well, as DMLC_ROLE says: those stay in the import until the job ends.
"""

import importlib
import sys

import numpy as np
from tasks import HIDDEN, Cell, Watch, first_values, part_of

mx = importlib.import_module(sys.argv[3])
STORES = {"sync": "dist_sync", "async": "dist_async", "staleness 3": "dist_ssp"}


def network(cell):
    net = mx.sym.Variable("data")
    for number, units in enumerate((*HIDDEN[cell.model], cell.outputs), 1):
        net = mx.sym.FullyConnected(net, num_hidden=units, name=f"fc{number}")
        if number <= len(HIDDEN[cell.model]):
            net = mx.sym.Activation(net, act_type="relu")
    output = mx.sym.LogisticRegressionOutput if cell.outputs == 1 else mx.sym.SoftmaxOutput
    return output(net, name="softmax")


def batches(cell, rank):
    """All batches of a pass: slices of the worker's rows, without copies."""
    rows, labels = (mx.nd.array(np.ascontiguousarray(a)) for a in part_of(cell, rank))
    if cell.outputs == 1:
        labels = labels.reshape((-1, 1))
    places = [cell.batch_rows(step) for step in range(cell.steps_per_pass)]
    return [mx.io.DataBatch([rows[p]], [labels[p]]) for p in places]


def main():
    cell, out = Cell.from_json(sys.argv[1]), sys.argv[2]
    store = mx.kv.create(STORES[cell.mode])
    made = batches(cell, store.rank)
    module = mx.mod.Module(network(cell))
    module.bind([("data", made[0].data[0].shape)], [("softmax_label", made[0].label[0].shape)])
    names = [n for n in module.symbol.list_arguments() if n.startswith("fc")]
    values = dict(zip(names, first_values(cell), strict=True))
    module.init_params(arg_params={k: mx.nd.array(v) for k, v in values.items()})
    scale = 1.0 / (cell.size * (cell.workers if cell.mode == "sync" else 1))
    settings = {"learning_rate": cell.rate, "rescale_grad": scale}
    module.init_optimizer(store, "sgd", settings)

    def train(first, count):
        for step in range(first, first + count):
            module.forward_backward(made[step % len(made)])
            module.update()
        mx.nd.waitall()

    watch, done = Watch(out, store.rank), cell.warm
    train(0, done)
    while watch.begin():
        train(done, cell.steps)
        watch.end()
        done += cell.steps
    store._barrier()
    if store.rank == 0:
        arguments = module.get_params()[0]
        watch.write([arguments[n].asnumpy() for n in names])


if __name__ == "__main__":
    main()
