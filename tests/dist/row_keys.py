"""A worker's program: adds 1 to rows of a table, its own and a common one, each step."""

import json
import os
import sys

import gate
import numpy as np

import mixflow as mx

steps, out_folder = int(sys.argv[1]), sys.argv[2]
SHAPE = (2000, 3)
store = mx.kv.create("dist_sync")
store.init("table", mx.nd.sparse.zeros("row_sparse", SHAPE))
store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))
rows = mx.nd.array([store.rank, 1999])
ones = mx.nd.sparse.row_sparse_array((np.ones((2, 3), "float32"), rows), shape=SHAPE)
out = mx.nd.sparse.zeros("row_sparse", SHAPE)
for step in range(store.first_step, steps):
    gate.wait(out_folder, step)
    store.push("table", ones)
    store.row_sparse_pull("table", out=out, row_ids=rows)
    out.wait_to_read()
    with open(os.path.join(out_folder, f"steps{store.rank}"), "a") as file:
        file.write(f"{step}\n")
whole = mx.nd.zeros(SHAPE)
store.pull("table", out=whole)
values = whole.asnumpy()
store.close()
with open(os.path.join(out_folder, f"end{store.rank}"), "w") as file:
    found = {int(row): np.unique(values[row]).tolist() for row in np.flatnonzero(values.any(1))}
    json.dump(found, file)
