"""One training run, as the command line does it: data, network, loop, figures, files."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import datasets, io, metric, models, visualization
from . import initializer as init
from . import random as _random
from .checkpoint import save_checkpoint
from .context import cpu
from .errors import MixflowError, ParamError, ShapeError, UnknownNameError, describe_unknown
from .files import write_atomically
from .lr_scheduler import CosineScheduler
from .module import Module

Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run.

    Attributes:
        network: name in `models.NETWORKS`.
        data: 'digits', 'fashion-mnist' or a folder of idx files.
        epochs, batch_size: as usual.
        optimizer: name.
        lr: learning rate at the start; it falls by half a cosine to a hundredth.
        wd: weight decay.
        momentum: for sgd and nag.
        seed: of initial values and of the order of samples.
        shift: training images are moved by up to so many pixels, anew each epoch.
        contexts: number of CPU contexts among which a batch is split.
        out: folder for the results.
    """

    network: str = "lenet"
    data: str = "digits"
    epochs: int = 10
    batch_size: int = 64
    optimizer: str = "sgd"
    lr: float = 0.1
    wd: float = 1e-4
    momentum: float = 0.9
    seed: int = 0
    shift: int = 0
    contexts: int = 1
    out: str = "out"


@dataclass
class TrainResult:
    """Figures of a run; `history` has one row per epoch."""

    config: TrainConfig
    test_accuracy: float = math.nan
    test_loss: float = math.nan
    seconds: float = 0.0
    parameters: int = 0
    train_samples: int = 0
    test_samples: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def network(name: str, num_classes: int | None = None) -> Any:
    """The symbol of a named network.

    Args:
        name: in `models.NETWORKS`.
        num_classes: size of the output; None = that of its paper.

    Raises:
        UnknownNameError: no such network.
    """
    if name not in models.NETWORKS:
        raise UnknownNameError(describe_unknown("network", name, list(models.NETWORKS)))
    make = models.NETWORKS[name]
    return make() if num_classes is None else make(num_classes)


def check_sample(name: str, symbol: Any, sample: tuple[int, ...]) -> None:
    """Checks that a named network can take samples of a shape.

    Args:
        name: in `models.NETWORKS`.
        symbol: its symbol.
        sample: shape of one sample of ``data``.

    Raises:
        ShapeError: some layer cannot; the text names it and the shape the network is made for.
    """
    cause: Exception | str = "the shapes of some layers stay open"
    try:
        if symbol.infer_shape(**models.input_shapes(name, 1, sample))[1] is not None:
            return
    except ShapeError as error:
        cause = error
    expected, got = ("x".join(map(str, s)) for s in (models.DEFAULT_SHAPES[name], sample))
    raise ShapeError(
        f"[network] expected samples that suit '{name}', which is made for {expected}, got {got}; "
        f"choose another network or other data ({cause})"
    )


def optimizer_params(config: TrainConfig, steps: int) -> dict[str, Any]:
    """Parameters of the optimizer for a run of `steps` updates."""
    params: dict[str, Any] = {
        "learning_rate": config.lr,
        "wd": config.wd,
        "lr_scheduler": CosineScheduler(max(1, steps), base_lr=config.lr, final_lr=config.lr / 100),
    }
    if config.optimizer in ("sgd", "nag"):
        params["momentum"] = config.momentum
    return params


def train(config: TrainConfig, progress: Progress | None = None) -> TrainResult:
    """Trains and writes checkpoint, pictures and figures to ``config.out``.

    The test set is measured after each epoch for the picture; nothing is chosen by it.

    Args:
        config: settings.
        progress: called (epoch, batch, batches) after each batch.

    Raises:
        MixflowError: unknown names, missing data, a loss that is not finite.
    """
    if config.epochs < 1 or config.batch_size < 1:
        raise ParamError(
            f"[train] expected epochs and batch size of at least 1, got {config.epochs} and "
            f"{config.batch_size}"
        )
    images = datasets.load(config.data)
    symbol = network(config.network, len(images.classes))
    check_sample(config.network, symbol, images.train_images.shape[1:])
    Path(config.out).mkdir(parents=True, exist_ok=True)
    _random.seed(config.seed)
    train_iter, test_iter = _iterators(images, config)
    module = Module(symbol, context=[cpu(i) for i in range(config.contexts)])
    module.bind(train_iter.provide_data, train_iter.provide_label)
    module.init_params(init.Xavier(magnitude=2.34))
    batches = math.ceil(len(images.train_labels) / config.batch_size)
    module.init_optimizer(
        "local", config.optimizer, optimizer_params(config, batches * config.epochs)
    )
    result = TrainResult(config, train_samples=len(images.train_labels))
    result.test_samples = len(images.test_labels)
    began = time.monotonic()
    for epoch in range(config.epochs):
        row = _epoch(module, train_iter, test_iter, epoch, batches, progress)
        result.history.append(row)
        logging.getLogger(__name__).info("epoch %d: %s", epoch, row)
    result.seconds = time.monotonic() - began
    result.test_accuracy = result.history[-1]["test_accuracy"]
    result.test_loss = result.history[-1]["test_loss"]
    _write(module, result)
    return result


def _iterators(images: datasets.ImageSet, config: TrainConfig) -> tuple[io.DataIter, io.DataIter]:
    size = min(config.batch_size, len(images.train_labels))
    train_iter: io.DataIter = io.NDArrayIter(
        images.train_images, images.train_labels, size, shuffle=True
    )
    if config.shift:
        train_iter = io.RandomShiftIter(train_iter, config.shift)
    return train_iter, io.NDArrayIter(images.test_images, images.test_labels, size)


def _metrics() -> metric.CompositeEvalMetric:
    return metric.CompositeEvalMetric([metric.Accuracy(), metric.CrossEntropy()])


def _epoch(
    module: Module,
    train_iter: io.DataIter,
    test_iter: io.DataIter,
    epoch: int,
    batches: int,
    progress: Progress | None,
) -> dict[str, float]:
    began = time.monotonic()
    seen = _metrics()
    train_iter.reset()
    for number, batch in enumerate(train_iter):
        module.forward_backward(batch)
        module.update()
        module.update_metric_unpadded(seen, batch)
        if progress is not None:
            progress(epoch, number, batches)
    trained = dict(seen.get_name_value())
    if not math.isfinite(trained["cross-entropy"]):
        raise MixflowError(
            f"[train] expected a finite loss, got {trained['cross-entropy']} in epoch {epoch}; "
            "lower --lr"
        )
    elapsed = time.monotonic() - began
    tested = dict(module.score(test_iter, _metrics()))
    return {
        "epoch": epoch + 1,
        "train_loss": trained["cross-entropy"],
        "train_accuracy": trained["accuracy"],
        "test_loss": tested["cross-entropy"],
        "test_accuracy": tested["accuracy"],
        "seconds": elapsed,
    }


def _write(module: Module, result: TrainResult) -> None:
    """Checkpoint, pictures and JSON."""
    config = result.config
    out = Path(config.out)
    prefix = out / config.network
    args, auxs = module.get_params()
    result.parameters = sum(a.size for a in args.values())
    save_checkpoint(str(prefix), config.epochs, module.symbol, args, auxs)
    title = (
        f"{config.network} on {config.data}: {100 * result.test_accuracy:.2f} % on "
        f"{result.test_samples} test images"
    )
    shapes = {d.name: (1, *d.shape[1:]) for d in module.data_shapes}
    result.files = {
        "symbol": f"{prefix}-symbol.json",
        "params": f"{prefix}-{config.epochs:04d}.params",
        "figures": str(out / "figures.json"),
    }
    if visualization.can_draw():
        visualization.plot_history(result.history, out / "history.png", title)
        drawn = visualization.draw_network(module.symbol, shapes, out / "network")
        result.files.update(history=str(out / "history.png"), network=str(drawn))
    write_atomically(out / "figures.json", json.dumps(asdict(result), indent=1).encode())
