"""What every platform trains: cells, data, first values, order of the samples, and how the result
is judged. NumPy only: it runs in every rival's environment.

A program gets a cell and its rank, trains `warm` steps and then, as often as its `Watch` says, a
block of `steps` timed ones over its rows in file order; rank 0 leaves the weights at last.
"""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[3] / ".bench" / "platforms"
#: Units of the hidden layers; 'logistic' has one output and two classes, the others ten.
HIDDEN = {"logistic": (), "softmax": (), "one hidden layer": (128,), "two hidden layers": (128, 64)}
ROWS = {"logistic": 10_000}
FASHION_ROWS = 60_000
FEATURES = {"logistic": 10_000}
WORKERS = (1, 3, 6)
BATCHES = (100, 500)
#: A synchronous worker's gradient is a mean over all workers' batches.
RATES = {"logistic": 0.01}
RATE = 0.02
#: Of single samples: their gradients are as much larger as a mean of 100 is smaller.
SINGLE = 0.01
#: Steps of a worker before the timed ones, and in a block of them; batches of single samples; of
#: the whole part. TensorFlow makes 20 steps in a call.
WARM_STEPS, BLOCK_STEPS = 20, 60
SINGLE_WARM, SINGLE_STEPS = 100, 300
WHOLE_WARM, WHOLE_STEPS = 2, 4
#: A lone worker's steps are short: as many times more of them.
ALONE = 4
JUDGED_ROWS = 2_000
WHOLE = 0  #: as a batch: all rows of the worker
GO, STOP = "go\n", "stop\n"


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        model: of `HIDDEN`.
        mode: 'sync', 'async', or 'staleness 3'.
        batch: samples per worker and step; `WHOLE`: its whole part.
        workers: how many.
        times: how many times as long as the others its block is, for pictures of its use over time;
            it has one block only.
    """

    model: str
    mode: str
    batch: int
    workers: int
    times: int = 1

    @property
    def name(self) -> str:
        size = "whole set" if self.batch == WHOLE else f"batch {self.batch}"
        played = " (plays PMLS)" if self.mode.startswith("staleness") else ""
        count = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        longer = f", {self.times} x as long" if self.times > 1 else ""
        return f"{self.model}, {self.mode}{played}, {size}, {count}{longer}"

    @property
    def rows(self) -> int:
        """Of the whole set."""
        return ROWS.get(self.model, FASHION_ROWS)

    @property
    def size(self) -> int:
        """Samples per worker and step."""
        return self.batch or self.rows // self.workers

    @property
    def steps_per_pass(self) -> int:
        return self.rows // self.workers // self.size

    @property
    def steps(self) -> int:
        """Of each worker in one timed block."""
        steps = {1: SINGLE_STEPS, WHOLE: WHOLE_STEPS}.get(self.batch, BLOCK_STEPS)
        alone = ALONE if self.workers == 1 and self.batch != WHOLE else 1
        return steps * alone * self.times

    @property
    def warm(self) -> int:
        """Steps before the timed ones."""
        return {1: SINGLE_WARM, WHOLE: WHOLE_WARM}.get(self.batch, WARM_STEPS)

    @property
    def passes(self) -> float:
        """Over the whole set, in one timed block."""
        return self.steps * self.size * self.workers / self.rows

    @property
    def threads(self) -> int:
        """Of each process: a lone worker may use both cores (its server has next to nothing to
        do); several share them."""
        return 2 if self.workers == 1 else 1

    @property
    def rate(self) -> float:
        """Learning rate for a gradient that is a mean over one push's samples; that of the sum of
        all workers' pushes is the same as in a synchronous step."""
        whole = RATES.get(self.model, RATE) * (SINGLE if self.batch == 1 else 1.0)
        return whole if self.mode == "sync" else whole / self.workers

    @property
    def outputs(self) -> int:
        return 1 if self.model == "logistic" else 10

    @property
    def features(self) -> int:
        return FEATURES.get(self.model, 784)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Cell:
        return Cell(**json.loads(text))

    def batch_rows(self, step: int) -> slice:
        """Of a worker's own rows, those of its step."""
        first = step % self.steps_per_pass * self.size
        return slice(first, first + self.size)


#: Whose use of processor and network over time is kept with the row.
SAMPLED = [
    Cell("two hidden layers", "sync", 100, 3, times=20),
    Cell("logistic", "sync", WHOLE, 3, times=10),
]


def all_cells() -> list[Cell]:
    """Every cell of the comparison."""
    cells = []
    for model in HIDDEN:
        for workers in WORKERS:
            cells += [Cell(model, m, b, workers) for m in ("sync", "async") for b in BATCHES]
            cells.append(Cell(model, "staleness 3", 1, workers))
            cells.append(Cell(model, "sync", WHOLE, workers))
    return cells + SAMPLED


def paths(model: str) -> dict[str, Path]:
    """Files of a model's data."""
    stem = "synthetic" if model == "logistic" else "fashion"
    return {part: FOLDER / f"{stem}-{part}.npy" for part in ("x", "y", "judged-x", "judged-y")}


def part_of(cell: Cell, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A worker's rows, mapped from the file: (rows, features) float32, and labels (rows,) float32.

    They are neighbours in the file, which is in random order.
    """
    files = paths(cell.model)
    rows = cell.rows // cell.workers
    mine = slice(rank * rows, (rank + 1) * rows)
    return np.load(files["x"], mmap_mode="r")[mine], np.load(files["y"])[mine]


def first_values(cell: Cell) -> list[np.ndarray]:
    """Weights (out, in) and biases (out,) of each layer: zeros without hidden layers, else He's."""
    rng = np.random.default_rng(7)
    widths = [cell.features, *HIDDEN[cell.model], cell.outputs]
    found = []
    for fan_in, fan_out in itertools.pairwise(widths):
        spread = np.sqrt(2 / fan_in) if HIDDEN[cell.model] else 0.0
        found.append(rng.normal(0, spread, (fan_out, fan_in)).astype(np.float32))
        found.append(np.zeros(fan_out, np.float32))
    return found


class Watch:
    """A program's timed blocks: a pipe says when one begins, so that those of all platforms can
    take turns; `time.monotonic` is one clock for all processes of a host.

    Args:
        out: folder with the pipes 'said' and 'go-RANK'.
        rank: number of the process among those that are timed.
    """

    def __init__(self, out: str, rank: int) -> None:
        self._out, self._rank = Path(out), rank
        self._words = open(self._out / f"go-{rank}")  # noqa: SIM115 - open until the process ends

    def begin(self) -> bool:
        """Says that the process is ready and waits for its next block; False: there is none."""
        self._say({"ready": True})
        word = self._words.readline()
        self._began = time.monotonic()
        return word == GO

    def end(self, **more: object) -> None:
        """The block has ended; `more` goes into the row's numbers."""
        self._say({"begin": self._began, "end": time.monotonic(), **more})

    def _say(self, what: dict[str, object]) -> None:
        line = json.dumps({"rank": self._rank, **what}) + "\n"
        with open(self._out / "said", "wb", buffering=0) as pipe:
            pipe.write(line.encode())  # short: it arrives as a whole

    def write(self, weights: list[np.ndarray]) -> None:
        """Leaves the weights."""
        np.savez(self._out / "weights.npz", *[np.asarray(w, np.float32) for w in weights])


def judge(cell: Cell, weights: list[np.ndarray]) -> dict[str, float]:
    """Loss and accuracy: of the first training rows of the synthetic set, of Fashion-MNIST's test
    images."""
    files = paths(cell.model)
    value, labels = np.load(files["judged-x"]), np.load(files["judged-y"]).astype(int)
    layers = list(zip(weights[::2], weights[1::2], strict=True))
    for number, (weight, bias) in enumerate(layers):
        value = value @ weight.reshape(-1, value.shape[1]).T + bias
        if number + 1 < len(layers):
            value = np.maximum(value, 0)
    if cell.outputs == 1:
        value = np.concatenate([np.zeros_like(value), value], axis=1)
    value = value - value.max(axis=1, keepdims=True)
    logs = value - np.log(np.exp(value).sum(axis=1, keepdims=True))
    loss = -logs[np.arange(len(labels)), labels].mean()
    return {"loss": float(loss), "accuracy": float((value.argmax(axis=1) == labels).mean())}


def prepare() -> None:
    """Makes the files that are missing: the synthetic set (400 MB) and Fashion-MNIST as rows."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not paths("logistic")["judged-y"].exists():
        _make_synthetic(paths("logistic"))
    if not paths("softmax")["judged-y"].exists():
        from mixflow import datasets

        files, data = paths("softmax"), datasets.load("fashion-mnist")
        np.save(files["x"], data.train_images.reshape(-1, 784))
        np.save(files["y"], data.train_labels)
        np.save(files["judged-x"], data.test_images.reshape(-1, 784))
        np.save(files["judged-y"], data.test_labels)


def _make_synthetic(files: dict[str, Path]) -> None:
    """Normal features; the label is the side of a random plane, with 5 % of them turned."""
    rows, features = ROWS["logistic"], FEATURES["logistic"]
    rng = np.random.default_rng(0)
    plane = rng.standard_normal(features, np.float32)
    x = np.lib.format.open_memmap(files["x"], "w+", np.float32, (rows, features))
    labels = np.empty(rows, np.float32)
    for first in range(0, rows, 1000):
        part = rng.standard_normal((1000, features), np.float32)
        x[first : first + 1000] = part
        turned = rng.random(1000) < 0.05
        labels[first : first + 1000] = (part @ plane > 0) ^ turned
    x.flush()
    np.save(files["y"], labels)
    np.save(files["judged-x"], x[:JUDGED_ROWS])
    np.save(files["judged-y"], labels[:JUDGED_ROWS])
