"""A worker of PyTorch's DistributedDataParallel on gloo. Arguments: cell, folder, rank, port."""

import os
import sys

import numpy as np
import torch
from tasks import HIDDEN, Cell, Watch, first_values, part_of
from torch import distributed, nn


def network(cell):
    layers, width = [], cell.features
    for units in HIDDEN[cell.model]:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    net = nn.Sequential(*layers, nn.Linear(width, cell.outputs))
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), first_values(cell), strict=True):
            parameter.copy_(torch.from_numpy(value))
    return net


def batches(cell, rank):
    """All batches of a pass: slices of the worker's rows, without copies."""
    rows, labels = (torch.from_numpy(np.array(a)) for a in part_of(cell, rank))
    labels = labels[:, None] if cell.outputs == 1 else labels.long()
    places = [cell.batch_rows(step) for step in range(cell.steps_per_pass)]
    return [(rows[p], labels[p]) for p in places]


def main():
    cell, out, rank = Cell.from_json(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[4])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    distributed.init_process_group("gloo", rank=rank, world_size=cell.workers)
    made, net = batches(cell, rank), network(cell)
    whole = nn.parallel.DistributedDataParallel(
        net, gradient_as_bucket_view=True, static_graph=True
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=cell.rate, fused=True)
    loss_of = nn.BCEWithLogitsLoss() if cell.outputs == 1 else nn.CrossEntropyLoss()

    def train(first, count):
        for step in range(first, first + count):
            x, y = made[step % len(made)]
            optimizer.zero_grad()
            loss_of(whole(x), y).backward()
            optimizer.step()

    watch, done = Watch(out, rank), cell.warm
    train(0, done)
    while watch.begin():
        train(done, cell.steps)
        watch.end()
        done += cell.steps
    distributed.barrier()
    if rank == 0:
        watch.write([p.detach().numpy() for p in net.parameters()])
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
