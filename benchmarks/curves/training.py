"""One training run, written once for both packages: the programming interface is the same.

A task is a folder that run.py fills: `symbol.json`, `arrays.npz` (images, labels), and for each
seed `seed-N.npz` (initial values and the order of the training images).
"""

import json
import sys
from pathlib import Path

import numpy as np


def batches(images, labels, order, size):
    for first in range(0, len(order) - size + 1, size):
        rows = order[first : first + size]
        yield images[rows], labels[rows]


def loss_of(scores, labels):
    picked = scores[np.arange(len(labels)), labels.astype(int)].astype(np.float64)
    return float(-np.log(np.maximum(picked, 1e-30)).mean())


def accuracy(mx, module, images, labels, size):
    right = 0
    everything = np.arange(len(labels))
    for data, label in batches(images, labels, everything, size):
        batch = mx.io.DataBatch(data=[mx.nd.array(data)], label=[mx.nd.array(label)])
        module.forward(batch, is_train=False)
        right += int((module.get_outputs()[0].asnumpy().argmax(axis=1) == label).sum())
    return right / (len(labels) // size * size)


def values_of(mx, start, kind):
    found = {n: v for n, v in start.items() if n.startswith(kind)}
    return {n[len(kind) :]: mx.nd.array(v) for n, v in found.items()}


def train(mx, folder, settings, seed):
    """Losses of all steps and test accuracies of all epochs."""
    arrays = np.load(folder / "arrays.npz")
    start = dict(np.load(folder / f"seed-{seed}.npz"))
    size = settings["batch_size"]
    images, labels = arrays["train_images"], arrays["train_labels"]
    module = mx.mod.Module(mx.sym.load(str(folder / "symbol.json")), context=mx.cpu())
    module.bind([("data", (size, *images.shape[1:]))], [("softmax_label", (size,))])
    module.set_params(values_of(mx, start, "arg:"), values_of(mx, start, "aux:"))
    rates = {k: settings[k] for k in ("learning_rate", "momentum", "wd")}
    module.init_optimizer(
        kvstore=None, optimizer="sgd", optimizer_params={**rates, "rescale_grad": 1 / size}
    )
    losses, accuracies = [], []
    for order in start["order"]:
        for data, label in batches(images, labels, order, size):
            batch = mx.io.DataBatch(data=[mx.nd.array(data)], label=[mx.nd.array(label)])
            module.forward(batch, is_train=True)
            losses.append(round(loss_of(module.get_outputs()[0].asnumpy(), label), 7))
            module.backward()
            module.update()
        tests = arrays["test_images"], arrays["test_labels"]
        accuracies.append(accuracy(mx, module, *tests, size))
    return {"losses": losses, "accuracies": accuracies}


def main(mx):
    """Command line of a rival: task folder, file for the results."""
    folder, target = map(Path, sys.argv[1:3])
    settings = json.loads((folder / "settings.json").read_text())
    runs = {str(seed): train(mx, folder, settings, seed) for seed in settings["seeds"]}
    target.write_text(json.dumps({"version": mx.__version__, "runs": runs}))
