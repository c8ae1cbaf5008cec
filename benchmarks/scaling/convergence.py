"""Convergence by passes over the data with 1 and 10 logical workers, under the real policy code.

    python benchmarks/scaling/convergence.py [--passes 10] [--images 10800] [--case NAME ...]

Logical workers of one process compute real gradients and push them to real shards, with mixflow's
SGD, through the simulator's virtual time. Writes benchmarks/results/scaling/convergence.json after
each pass, and all that the next pass needs to .bench/scaling/convergence: a program that was ended
goes on with the pass after the last one that is whole.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import mixflow as mx  # noqa: E402
import run as benchmarks  # noqa: E402 - facts on the machine
from mixflow import datasets  # noqa: E402
from mixflow.files import write_atomically  # noqa: E402
from mixflow.kvstore.protocol.policy import Bounded, Policy, Sync  # noqa: E402
from mixflow.kvstore.server.appliers import Optimizing  # noqa: E402
from mixflow.kvstore.simulation.simulator import Cluster, Job, Network  # noqa: E402
from mixflow.optimizer.describe import describe  # noqa: E402

TARGET = HERE.parent / "results" / "scaling" / "convergence.json"
BATCH, TEST_IMAGES = 36, 2000
SETTINGS = {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-4}
#: The paper's network with this share of its filters, for images of 28 pixels.
DIVISOR = 8
#: Where a run's last pass is kept.
KEPT = HERE.parents[1] / ".bench" / "scaling" / "convergence"


class Case(NamedTuple):
    """What is trained: so many workers under a policy, at a learning rate."""

    name: str
    workers: int
    policy: Policy
    rate: float


RATE = SETTINGS["learning_rate"]
#: Without rounds each push is an update of its own: ten times as many of a tenth.
CASES = {case.name: case for case in (
    Case("1 worker", 1, Sync(), RATE),
    Case("10 workers, dist_sync", 10, Sync(), RATE),
    Case("10 workers, dist_ssp s=3, rate / 10", 10, Bounded(3), RATE / 10),
)}  # fmt: skip


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
    """Training of some passes with some workers under a policy, one pass after the other.

    A pass is a job of its own that begins with the weights and the optimizer's states of the one
    before. Under rounds nothing else than in one job happens; under bounded staleness all workers
    meet at the end of a pass. After each pass all of it is kept in a file, and taken from there.
    """

    def __init__(self, replica, case: Case, images: int, seed: int, again: bool) -> None:
        self.replica, self.case, self.seed = replica, case, seed
        self.per_pass = images // (BATCH * case.workers)
        self.images = images
        self.file = KEPT / f"{case.name.replace(' ', '_').replace('/', 'by')}-{seed}.npz"
        self.number = 0
        self.rows: list[dict] = []
        self.states: dict = {}
        self.values = replica.initial(np.random.default_rng(seed))
        if self.file.exists() and not again:
            self._take_back()

    def _settings(self) -> dict:
        """What must be the same for a run to be gone on with."""
        return {"images": self.images, **self.case._asdict(), "policy": self.case.policy.name,
                "seed": self.seed, "batch": BATCH, "divisor": DIVISOR, **SETTINGS}  # fmt: skip

    def _take_back(self) -> None:
        """Goes on with what a run before this one kept.

        Raises:
            SystemExit: it had other settings.
        """
        with np.load(self.file) as kept:
            head = json.loads(bytes(kept["head"]))
            if head["settings"] != self._settings():
                raise SystemExit(f"expected {self._settings()} in {self.file}, got "
                                 f"{head['settings']}; --again begins anew")  # fmt: skip
            self.rows = head["rows"]
            self.values = {name: kept[f"value {name}"] for name in self.values}
            for name, array in self.replica.executor.aux_dict.items():
                array[:] = mx.nd.array(kept[f"aux {name}"])
            for text in kept.files:
                if text.startswith("state "):
                    key, number = text.removeprefix("state ").rsplit(" ", 1)
                    self.states.setdefault(key, {})[number] = kept[text]
        self.number = len(self.rows)

    def _keep(self) -> None:
        """Writes all that the next pass needs."""
        head = json.dumps({"settings": self._settings(), "rows": self.rows}).encode()
        content = {"head": np.frombuffer(head, np.uint8)}
        content |= {f"value {name}": value for name, value in self.values.items()}
        aux = self.replica.executor.aux_dict
        content |= {f"aux {name}": array.asnumpy() for name, array in aux.items()}
        for key, states in self.states.items():
            content |= {f"state {key} {number}": state for number, state in states.items()}
        stream = io.BytesIO()
        np.savez(stream, **content)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file, stream.getvalue())

    def one_pass(self) -> None:
        """Trains a pass, and keeps what came of it."""
        begin, spent, workers = time.perf_counter(), time.process_time(), self.case.workers
        count = self.per_pass * BATCH * workers
        chance = np.random.default_rng((self.seed, self.number))
        self.order = chance.permutation(self.images)[:count].reshape(-1, workers, BATCH)
        self.losses: list[float] = []
        job = Job(self.values, self.per_pass, self.gradient,
                  lambda worker, step, chance: chance.lognormvariate(0.0, 0.1))  # fmt: skip
        cluster = Cluster(
            job,
            self.case.policy,
            workers=workers,
            network=Network(latency=1e-3),
            applier=self.applier,
            seed=1000 * self.seed + self.number,
            durable=False,
        )
        cluster.run()
        slots = cluster.servers["server0"].shard.slots
        self.values = {name: slots[name].value.copy() for name in self.values}
        self.states = {name: slots[name].applier.states(name) for name in self.values}
        self.number += 1
        row = {"accuracy": float(self.replica.accuracy(self.values)),
               "loss": float(np.mean(self.losses)),
               "seconds": time.perf_counter() - begin,
               "processor_seconds": time.process_time() - spent}  # fmt: skip
        self.rows.append(row)
        self._keep()
        print(self.case.name, self.number, row, flush=True)

    def applier(self) -> Optimizing:
        """The server's SGD, with the states of the pass before."""
        parts = self.case.workers if self.case.policy.rounds else 1
        settings = {**SETTINGS, "learning_rate": self.case.rate}
        sgd = mx.optimizer.create("sgd", rescale_grad=1 / (BATCH * parts), **settings)
        made = Optimizing(needs_optimizer=True)
        made.configure("optimizer", describe(sgd))
        for key, states in self.states.items():
            made.restore(key, states)
        return made

    def gradient(self, worker, step, values) -> dict:
        """A worker's gradients of its batch of a step."""
        grads, loss = self.replica.gradient(values, self.order[step, worker])
        self.losses.append(loss)
        return grads

    def summary(self) -> dict:
        """What is shown of the run."""
        case = self.case
        return {
            "name": case.name, "workers": case.workers, "policy": case.policy.name,
            "seed": self.seed, "learning_rate": case.rate,
            "accuracy": [row["accuracy"] for row in self.rows],
            "loss": [row["loss"] for row in self.rows],
            "seconds": sum(row["seconds"] for row in self.rows),
            **{k: v for k, v in benchmarks.facts(1).items() if k in ("commit", "date")},
        }  # fmt: skip


def merged(run: Run, replica) -> dict:
    """The results with this run's in the place of an older one of its name and seed."""
    same = {"images": run.images, "batch": BATCH, **SETTINGS, "divisor": DIVISOR}
    found = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    known = found.get("runs", []) if all(found.get(k) == v for k, v in same.items()) else []
    own = run.summary()
    kept = [r for r in known if (r["name"], r["seed"]) != (own["name"], own["seed"])]
    order = list(CASES)
    runs = sorted([*kept, own], key=lambda r: (r["seed"], order.index(r["name"])))
    count = int(sum(replica.executor.arg_dict[n].size for n in replica.names))
    return {"runs": runs, **same, "parameters": count, **benchmarks.facts(1)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--images", type=int, default=10_800)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--case", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--again", action="store_true", help="forget the passes that are kept")
    args = parser.parse_args()
    symbol = mx.models.inception_bn(10, divisor=DIVISOR, small=True)
    data = datasets.load("fashion-mnist")
    for seed, name in itertools.product(range(args.seeds), args.case):
        replica = Replica(symbol, data)
        run = Run(replica, CASES[name], args.images, seed, args.again)
        while run.number < args.passes:
            run.one_pass()
            content = json.dumps(merged(run, replica), indent=1) + "\n"
            write_atomically(TARGET, content.encode())


if __name__ == "__main__":
    main()
