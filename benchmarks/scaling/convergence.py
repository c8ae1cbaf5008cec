"""Convergence by passes over the data with 1 and 10 logical workers, under the real policy code.

    python benchmarks/scaling/convergence.py [--passes 8] [--images 20000]

Logical workers of one process compute real gradients and push them to real shards, with mixflow's
SGD, through the simulator's virtual time. Writes benchmarks/results/scaling/convergence.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import mixflow as mx  # noqa: E402
import run as benchmarks  # noqa: E402 - facts on the machine
from mixflow import datasets  # noqa: E402
from mixflow.files import write_atomically  # noqa: E402
from mixflow.kvstore.appliers import Optimizing  # noqa: E402
from mixflow.kvstore.policy import Bounded, Sync  # noqa: E402
from mixflow.kvstore.simulator import Cluster, Job, Network  # noqa: E402
from mixflow.optimizer.describe import describe  # noqa: E402

TARGET = HERE.parent / "results" / "scaling" / "convergence.json"
BATCH, TEST_IMAGES = 36, 2000
SETTINGS = {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-4}
#: The paper's network with this share of its filters, for images of 28 pixels.
DIVISOR = 8


class Replica:
    """The network in this process: gradients and scores for given weights."""

    def __init__(self, symbol, data) -> None:
        self.data = data
        self.names = [n for n in symbol.list_arguments() if n not in ("data", "softmax_label")]
        self.executor = symbol.simple_bind(mx.cpu(), data=(BATCH, 1, 28, 28))
        self._scorer = symbol.simple_bind(mx.cpu(), grad_req="null", data=(500, 1, 28, 28))

    def initial(self, rng) -> dict:
        """He's initial values by name."""
        found = {}
        for name in self.names:
            shape = self.executor.arg_dict[name].shape
            if name.endswith("_weight"):
                found[name] = rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
            else:
                found[name] = np.full(shape, name.endswith("_gamma"))
        for name, array in self.executor.aux_dict.items():
            array[:] = float(name.endswith("_var"))
        return {name: value.astype("float32").reshape(-1) for name, value in found.items()}

    def _set(self, executor, values) -> None:
        for name in self.names:
            target = executor.arg_dict[name]
            target[:] = mx.nd.array(values[name].reshape(target.shape))

    def gradient(self, values, rows) -> tuple[dict, float]:
        """(gradients by name, mean loss) of a batch."""
        self._set(self.executor, values)
        labels = self.data.train_labels[rows]
        scores = self.executor.forward(
            is_train=True,
            data=mx.nd.array(self.data.train_images[rows] - 0.5),
            softmax_label=mx.nd.array(labels),
        )[0]
        self.executor.backward()
        chosen = scores.asnumpy()[np.arange(len(rows)), labels.astype(int)]
        loss = float(-np.log(np.maximum(chosen, 1e-12)).mean())
        grads = {n: self.executor.grad_dict[n].asnumpy().reshape(-1) for n in self.names}
        return grads, loss

    def accuracy(self, values) -> float:
        """Share of test images that are told right."""
        self._set(self._scorer, values)
        for name, array in self.executor.aux_dict.items():
            self._scorer.aux_dict[name][:] = array
        right = 0
        for begin in range(0, TEST_IMAGES, 500):
            images = self.data.test_images[begin : begin + 500] - 0.5
            scores = self._scorer.forward(is_train=False, data=mx.nd.array(images))[0].asnumpy()
            right += (scores.argmax(axis=1) == self.data.test_labels[begin : begin + 500]).sum()
        return right / TEST_IMAGES


class Run:
    """Training of some passes with some workers under a policy."""

    def __init__(self, replica, images, passes, workers, policy, rate, seed) -> None:
        rng = np.random.default_rng(seed)
        self.replica, self.workers = replica, workers
        self.per_pass = images // (BATCH * workers)
        count = self.per_pass * BATCH * workers
        self.order = [rng.permutation(images)[:count].reshape(-1, workers, BATCH)
                      for _ in range(passes)]  # fmt: skip
        self.losses: dict[int, list[float]] = {}
        self.accuracies: dict[int, float] = {}
        parts = workers if policy.rounds else 1
        settings = {**SETTINGS, "learning_rate": rate, "rescale_grad": 1 / (BATCH * parts)}
        sgd = mx.optimizer.create("sgd", **settings)
        job = Job(
            replica.initial(rng),
            passes * self.per_pass,
            self.gradient,
            lambda worker, step, chance: chance.lognormvariate(0.0, 0.1),
            self.on_read,
        )
        self.cluster = Cluster(
            job,
            policy,
            workers=workers,
            network=Network(latency=1e-3),
            applier=lambda: self.applier(sgd),
            seed=seed,
            durable=False,
        )
        self.cluster.run()

    @staticmethod
    def applier(sgd) -> Optimizing:
        made = Optimizing(needs_optimizer=True)
        made.configure("optimizer", describe(sgd))
        return made

    def gradient(self, worker, step, values) -> dict:
        number, place = divmod(step, self.per_pass)
        grads, loss = self.replica.gradient(values, self.order[number][place, worker])
        self.losses.setdefault(number + 1, []).append(loss)
        return grads

    def on_read(self, worker, clock, values) -> None:
        """After each pass of the first worker."""
        number, rest = divmod(clock, self.per_pass)
        if worker == 0 and rest == 0 and number and number not in self.accuracies:
            self.accuracies[number] = self.replica.accuracy(values)
            print(self.workers, number, self.accuracies[number],
                  np.mean(self.losses[number]), flush=True)  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    symbol = mx.models.inception_bn(10, divisor=DIVISOR, small=True)
    replica = Replica(symbol, datasets.load("fashion-mnist"))
    rate = SETTINGS["learning_rate"]
    # Without rounds each push is an update of its own: ten times as many of a tenth.
    cases = {"1 worker": (1, Sync(), rate), "10 workers, dist_sync": (10, Sync(), rate),
             "10 workers, dist_ssp s=3, rate / 10": (10, Bounded(3), rate / 10)}  # fmt: skip
    runs = []
    for seed in range(args.seeds):
        for name, (workers, policy, rate) in cases.items():
            begin = time.perf_counter()
            run = Run(replica, args.images, args.passes, workers, policy, rate, seed)
            runs.append(
                {
                    "name": name, "workers": workers, "policy": policy.name, "seed": seed,
                    "learning_rate": rate,
                    "accuracy": [run.accuracies[p] for p in sorted(run.accuracies)],
                    "loss": [float(np.mean(run.losses[p])) for p in sorted(run.losses)],
                    "seconds": time.perf_counter() - begin,
                }
            )  # fmt: skip
            content = {
                "runs": runs, "images": args.images, "batch": BATCH, **SETTINGS, "divisor": DIVISOR,
                "parameters": int(sum(replica.executor.arg_dict[n].size for n in replica.names)),
                **benchmarks.facts(1),
            }  # fmt: skip
            write_atomically(TARGET, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
