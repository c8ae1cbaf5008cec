"""Metrics of numbers: errors, correlation, losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import Array, EvalMetric, alias, as_list, check_label_shapes, host, register


class _ErrorMetric(EvalMetric):
    """Mean over batches of an error of predictions against labels."""

    def update(self, labels: Any, preds: Any) -> None:
        """Adds a batch."""
        labels, preds = as_list(labels), as_list(preds)
        check_label_shapes(labels, preds)
        for label, pred in zip(labels, preds, strict=True):
            y, p = host(label), host(pred)
            y = y.reshape(-1, 1) if y.ndim == 1 else y
            p = p.reshape(-1, 1) if p.ndim == 1 else p
            self._add(self.error(y, p), 1)

    def error(self, label: Array, pred: Array) -> float:
        """Error of one batch."""
        raise NotImplementedError


class _NamedError(_ErrorMetric):
    """An error metric that stands under its class's name in lower case."""

    def __init__(
        self,
        name: str | None = None,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name or type(self).__name__.lower(), output_names, label_names)


@register
class MAE(_NamedError):
    """Mean absolute error."""

    def error(self, label: Array, pred: Array) -> float:
        """Mean of |label - pred|."""
        return float(np.abs(label - pred).mean())


@register
class MSE(_NamedError):
    """Mean squared error."""

    def error(self, label: Array, pred: Array) -> float:
        """Mean of (label - pred)^2."""
        return float(((label - pred) ** 2).mean())


@register
class RMSE(_NamedError):
    """Root of the mean squared error."""

    def error(self, label: Array, pred: Array) -> float:
        """Root of the mean of (label - pred)^2."""
        return float(np.sqrt(((label - pred) ** 2).mean()))


@alias("pearsonr")
class PearsonCorrelation(EvalMetric):
    """Correlation of labels and predictions: mean over batches, or over all with 'micro'."""

    def __init__(
        self,
        name: str = "pearsonr",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        self.average = average
        super().__init__(name, output_names, label_names, average=average)

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._seen: list[tuple[Array, Array]] = []

    def update(self, labels: Any, preds: Any) -> None:
        """Adds a batch of equal shapes."""
        for label, pred in zip(as_list(labels), as_list(preds), strict=True):
            y, p = host(label).ravel(), host(pred).ravel()
            check_label_shapes(y, p, shape=True)
            if self.average == "macro":
                self._add(float(np.corrcoef(p, y)[0, 1]), 1)
            else:
                self._seen.append((y, p))
                self.num_inst = self.global_num_inst = 1

    def get(self) -> tuple[str, float]:
        """(name, correlation)."""
        if self.average == "macro" or not self._seen:
            return super().get()
        y, p = (np.concatenate(part) for part in zip(*self._seen, strict=True))
        return self.name, float(np.corrcoef(p, y)[0, 1])


@register
class Loss(EvalMetric):
    """Mean of the outputs themselves."""

    def __init__(
        self,
        name: str = "loss",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names, label_names)

    def update(self, _: Any, preds: Any) -> None:
        """Adds a batch of losses."""
        for pred in as_list(preds):
            values = host(pred)
            self._add(float(values.sum()), values.size)
