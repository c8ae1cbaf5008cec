"""Metrics of a training as TensorBoard scalars."""

from __future__ import annotations

from typing import Any

from ..scalar_log import ScalarLog

__all__ = ["LogMetricsCallback"]


class LogMetricsCallback:
    """A callback of `Module.fit` that writes the metric's values as scalars, by epoch.

    Args:
        logging_dir: folder of the event files.
        prefix: before the names of the metrics, with a '-'.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """

    def __init__(self, logging_dir: str, prefix: str | None = None) -> None:
        self.prefix = prefix
        self.summary_writer = ScalarLog(logging_dir)

    def __call__(self, param: Any) -> None:
        """Writes the values of ``param.eval_metric`` (a `BatchEndParam`), where there is one."""
        if param.eval_metric is None:
            return
        for name, value in param.eval_metric.get_name_value():
            tag = name if self.prefix is None else f"{self.prefix}-{name}"
            self.summary_writer.add("", tag, value, param.epoch)
