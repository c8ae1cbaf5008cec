"""Callbacks of `Module.fit`: speed, progress, checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from . import extras
from .checkpoint import save_checkpoint


class BatchEndParam(NamedTuple):
    """What a batch callback receives."""

    epoch: int
    nbatch: int
    eval_metric: Any
    locals: Any


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., None]:
    """An epoch callback that saves ``prefix-symbol.json`` and ``prefix-%04d.params``.

    Args:
        prefix: path without the ending.
        period: epochs between two checkpoints.
    """
    period = max(1, int(period))

    def save(epoch: int, symbol: Any = None, args: Any = None, auxs: Any = None) -> None:
        if (epoch + 1) % period == 0:
            save_checkpoint(prefix, epoch + 1, symbol, args, auxs)

    return save


def module_checkpoint(
    mod: Any, prefix: str, period: int = 1, save_optimizer_states: bool = False
) -> Callable[..., None]:
    """An epoch callback that calls ``mod.save_checkpoint``."""
    period = max(1, int(period))

    def save(epoch: int, symbol: Any = None, args: Any = None, auxs: Any = None) -> None:
        if (epoch + 1) % period == 0:
            mod.save_checkpoint(prefix, epoch + 1, save_optimizer_states)

    return save


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[BatchEndParam], None]:
    """A batch callback that logs the training metric every `period` batches."""

    def log(param: BatchEndParam) -> None:
        if param.nbatch % period == 0 and param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info(
                    "Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value
                )
            if auto_reset:
                param.eval_metric.reset_local()

    return log


class Speedometer:
    """Logs samples per second and the metric every `frequent` batches.

    Args:
        batch_size: samples per batch.
        frequent: batches between two lines.
        auto_reset: reset the metric after each line.
    """

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        self.batch_size = batch_size
        self.frequent = frequent
        self.auto_reset = auto_reset
        self._last = -1  # negative: the clock is not running
        self._since = 0.0

    def __call__(self, param: BatchEndParam) -> None:
        """Called after each batch."""
        count = param.nbatch
        running, self._last = 0 <= self._last <= count, count
        if not running:
            self._since = time.monotonic()
        elif count % self.frequent == 0:
            elapsed = max(1e-9, time.monotonic() - self._since)
            self._log(param, self.frequent * self.batch_size / elapsed)
            self._since = time.monotonic()

    def _log(self, param: BatchEndParam, speed: float) -> None:
        """One line in the form of MXNet."""
        epoch, count, metric = param.epoch, param.nbatch, param.eval_metric
        if metric is None:
            logging.info("Iter[%d] Batch [%d]\tSpeed: %.2f samples/sec", epoch, count, speed)
            return
        shown = "".join(f"\t{name}={value:f}" for name, value in metric.get_name_value())
        first = 0
        if self.auto_reset:
            metric.reset_local()
            first = count - self.frequent
        logging.info(
            "Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec%s", epoch, first, count, speed, shown
        )


class ProgressBar:
    """A tqdm bar over the batches of an epoch.

    Args:
        total: batches per epoch.
        length: columns of the bar.
    """

    def __init__(self, total: int, length: int = 80) -> None:
        self.total = total
        self.bar_len = length
        self._bar: Any = None

    def __call__(self, param: BatchEndParam) -> None:
        """Called after each batch."""
        if self._bar is None or param.nbatch <= self._bar.n - 1:
            self.close()
            tqdm = extras.load("tqdm", "ProgressBar")
            self._bar = tqdm.tqdm(
                total=self.total, ncols=self.bar_len, desc=f"epoch {param.epoch}", leave=False
            )
        self._bar.update(param.nbatch + 1 - self._bar.n)
        if param.nbatch + 1 >= self.total:
            self.close()

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class LogValidationMetricsCallback:
    """Logs the validation metrics at the end of an epoch."""

    def __call__(self, param: BatchEndParam) -> None:
        """Called after the evaluation."""
        if param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info("Epoch[%d] Validation-%s=%f", param.epoch, name, value)
