"""How far one step whose update was made in some slices and not in others moves a loss curve.

A worker that is lost in such a moment computes the step again from the weights that are there. Here
the same happens on purpose in one process, with nothing else that could go wrong: what is left is
the sensitivity of the training. It is the yardstick for the curves of `run.py`.

    python benchmarks/failures/mixed_step.py    # writes results/failures/mixed_step/rows.json
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "src"))

from program import HALVED_EVERY, MOMENTUM, RATE  # noqa: E402

from mixflow import datasets  # noqa: E402
from mixflow.files import write_atomically  # noqa: E402

OUT = HERE.parent / "results" / "failures" / "mixed_step" / "rows.json"
STEPS, BATCH, HIDDEN, CLASSES = 110, 64, 64, 10
MOMENTS = (5, 10, 14, 20, 30, 40, 60, 80)
DRAWS = 6


class Training:
    """The network of `program.py` with SGD, momentum and the halved rate, in float64."""

    def __init__(self, seed: int) -> None:
        digits = datasets.load("digits")
        self.images = digits.train_images.reshape(len(digits.train_labels), -1).astype(float)
        self.labels = digits.train_labels.astype(int)
        draw = np.random.default_rng(seed)
        shapes = [(HIDDEN, self.images.shape[1]), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]
        self.values = [self._xavier(draw, shape) for shape in shapes]
        self.momenta = [np.zeros(shape) for shape in shapes]
        order = np.random.default_rng(seed + 1000)
        epochs = [order.permutation(len(self.labels)) for _ in range(6)]
        whole = len(self.labels) // BATCH * BATCH
        self.batches = [b for epoch in epochs for b in epoch[:whole].reshape(-1, BATCH)]

    @staticmethod
    def _xavier(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return np.zeros(shape)
        bound = np.sqrt(3 / (sum(shape) / 2))
        return draw.uniform(-bound, bound, shape)

    def gradient(self, step: int) -> tuple[float, list[np.ndarray]]:
        """Mean loss of the step's batch, and the gradient of each array."""
        picked = self.batches[step]
        x, rows, labels = self.images[picked], np.arange(BATCH), self.labels[picked]
        hidden = np.maximum(x @ self.values[0].T + self.values[1], 0)
        scores = hidden @ self.values[2].T + self.values[3]
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        loss = -np.log(scores[rows, labels]).mean()
        scores[rows, labels] -= 1
        scores /= BATCH
        back = scores @ self.values[2] * (hidden > 0)
        return loss, [back.T @ x, back.sum(0), scores.T @ hidden, scores.sum(0)]

    def update(self, step: int, gradient: list[np.ndarray], where: list[np.ndarray]) -> None:
        """The step of SGD in some cells."""
        rate = RATE * 0.5 ** (step // HALVED_EVERY)
        for value, momentum, part, cells in zip(
            self.values, self.momenta, gradient, where, strict=True
        ):
            momentum[cells] = MOMENTUM * momentum[cells] - rate * part[cells]
            value[cells] += momentum[cells]


def cells_of_a_server(training: Training, draw: np.random.Generator) -> list[np.ndarray]:
    """Half of the first layer, which is cut over two servers, and whole arrays by chance."""
    where = [np.full(value.shape, draw.random() < 0.5) for value in training.values]
    half = slice(0, HIDDEN // 2) if draw.random() < 0.5 else slice(HIDDEN // 2, None)
    where[0][...] = False
    where[0][half] = True
    return where


def curve(seed: int, mixed: range = range(0), draw: np.random.Generator | None = None) -> list:
    """Losses of a run; the steps of `mixed` are made in one server's cells first, then computed
    again for the others."""
    training, losses = Training(seed), [0.0] * STEPS
    everywhere = [np.ones(value.shape, bool) for value in training.values]
    early = cells_of_a_server(training, draw) if draw else everywhere
    for step in range(STEPS):
        losses[step], gradient = training.gradient(step)
        training.update(step, gradient, early if step in mixed else everywhere)
        if mixed and step == mixed[-1]:
            for again in mixed:
                losses[again], gradient = training.gradient(again)
                training.update(again, gradient, [~cells for cells in early])
    return losses


def apart(one: list[float], other: list[float]) -> float:
    """Mean distance over all steps."""
    return float(np.abs(np.array(one) - np.array(other)).mean())


def main() -> None:
    usual = curve(1)
    seeds = [curve(seed) for seed in range(1, 6)]
    pairs = [apart(a, b) for n, a in enumerate(seeds) for b in seeds[:n]]
    rows = [{"what": "two seeds", "median": statistics.median(pairs), "worst": max(pairs)}]
    for steps in (1, 2):
        found = [
            apart(usual, curve(1, range(at, at + steps), np.random.default_rng(100 * at + n)))
            for at in MOMENTS
            for n in range(DRAWS)
        ]
        row = {"what": f"{steps} mixed", "moments": len(found)}
        rows.append({**row, "median": statistics.median(found), "worst": max(found)})
    for row in rows:
        print(row)
    OUT.parent.mkdir(exist_ok=True)
    write_atomically(OUT, json.dumps(rows, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
