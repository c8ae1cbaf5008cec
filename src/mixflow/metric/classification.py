"""Metrics of classes and of probabilities of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ParamError, ShapeError
from .base import Array, EvalMetric, PairMetric, alias, as_list, check_label_shapes, host, register


@alias("acc")
class Accuracy(PairMetric):
    """Share of right classes.

    Args:
        axis: class axis of the predictions, where they have one more than the labels.
    """

    def __init__(
        self,
        axis: int = 1,
        name: str = "accuracy",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names, label_names, axis=axis)
        self.axis = axis

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        """Number of right classes and of labels."""
        if pred.shape != label.shape:
            pred = pred.argmax(axis=self.axis)
        pred, label = pred.astype(np.int32).ravel(), label.astype(np.int32).ravel()
        check_label_shapes(label, pred, shape=True)
        return float((pred == label).sum()), pred.size


@alias("top_k_accuracy", "top_k_acc")
class TopKAccuracy(PairMetric):
    """Share of samples whose class is among the `top_k` largest scores.

    Raises:
        ParamError: `top_k` is 1: `Accuracy` is that.
    """

    def __init__(
        self,
        top_k: int = 1,
        name: str = "top_k_accuracy",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names, label_names, top_k=top_k)
        if top_k <= 1:
            raise ParamError(f"[TopKAccuracy] expected top_k > 1, got {top_k}; use Accuracy for 1")
        self.top_k = top_k
        self.name += f"_{top_k}"

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        """Number of hits and of samples."""
        if pred.ndim == 1:
            return float((pred.astype(np.int32) == label.astype(np.int32)).sum()), pred.size
        order = np.argpartition(pred.astype(np.float32), -self.top_k, axis=-1)[:, -self.top_k :]
        hits = (order == label.astype(np.int32).reshape(-1, 1)).any(axis=1)
        return float(hits.sum()), len(label)


class _Confusion:
    """Counts of a binary classification."""

    def __init__(self) -> None:
        self.tp = self.fp = self.tn = self.fn = 0

    def update(self, label: Array, pred: Array) -> None:
        if pred.ndim > 1:
            pred = pred.argmax(axis=1)
        label = label.astype(np.int32).ravel()
        if np.unique(label).size > 2 or label.max(initial=0) > 1:
            raise ShapeError("[metric] expected binary labels 0 and 1, got more classes")
        yes, truth = pred.ravel() == 1, label == 1
        self.tp += int((yes & truth).sum())
        self.fp += int((yes & ~truth).sum())
        self.fn += int((~yes & truth).sum())
        self.tn += int((~yes & ~truth).sum())

    @property
    def total(self) -> int:
        return self.tp + self.fp + self.tn + self.fn

    def f1(self) -> float:
        precision = self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0
        recall = self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    def mcc(self) -> float:
        terms = [
            self.tp + self.fp,
            self.tp + self.fn,
            self.tn + self.fp,
            self.tn + self.fn,
        ]
        below = math.prod(t for t in terms if t)
        return (self.tp * self.tn - self.fp * self.fn) / math.sqrt(below) if self.total else 0.0


class _BinaryMetric(EvalMetric):
    """F1 and MCC: 'macro' averages over batches, 'micro' counts over all."""

    score = "f1"

    def __init__(
        self,
        name: str,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        self.average = average
        super().__init__(name, output_names, label_names, average=average)

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self.metrics = _Confusion()

    def update(self, labels: Any, preds: Any) -> None:
        """Adds a batch of binary labels (N,) and scores (N, 2)."""
        check_label_shapes(as_list(labels), as_list(preds))
        for label, pred in zip(as_list(labels), as_list(preds), strict=True):
            self.metrics.update(host(label), host(pred))
        value = getattr(self.metrics, self.score)()
        if self.average == "macro":
            self._add(value, 1)
            self.metrics = _Confusion()
        else:
            self.num_inst = self.global_num_inst = self.metrics.total
            self.sum_metric = self.global_sum_metric = value * self.metrics.total


@register
class F1(_BinaryMetric):
    """Harmonic mean of precision and recall of class 1."""

    def __init__(
        self,
        name: str = "f1",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        super().__init__(name, output_names, label_names, average)


@register
class MCC(_BinaryMetric):
    """Matthews correlation coefficient (Matthews, 1975)."""

    score = "mcc"

    def __init__(
        self,
        name: str = "mcc",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        super().__init__(name, output_names, label_names, average)


@register
class Perplexity(PairMetric):
    """exp of the mean negative log-probability of the right class.

    Args:
        ignore_label: label that does not count; None = all count.
        axis: class axis.
    """

    def __init__(
        self,
        ignore_label: int | None = None,
        axis: int = -1,
        name: str = "perplexity",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names, label_names, ignore_label=ignore_label, axis=axis)
        self.ignore_label = ignore_label
        self.axis = axis

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        """Sum of negative log-probabilities and number of counted labels."""
        pred = np.moveaxis(pred, self.axis, -1).reshape(-1, pred.shape[self.axis])
        label = label.astype(np.int64).ravel()
        chosen = pred[np.arange(label.size), label]
        keep = (
            np.ones(label.size, bool) if self.ignore_label is None else label != self.ignore_label
        )
        return float(-np.log(np.maximum(1e-10, chosen[keep])).sum()), int(keep.sum())

    def _finish(self, total: float, count: int) -> float:
        return math.exp(total / count)


class _LogLoss(PairMetric):
    """Negative log-probability of the right class, mean over samples."""

    def __init__(
        self,
        eps: float,
        name: str,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names, label_names, eps=eps)
        self.eps = eps

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        """Sum of negative log-probabilities and number of samples."""
        label = label.ravel().astype(np.int64)
        if label.size != pred.shape[0]:
            raise ShapeError(f"[{self.name}] expected {pred.shape[0]} labels, got {label.size}")
        chosen = pred[np.arange(label.size), label]
        return float(-np.log(chosen + self.eps).sum()), label.size


@alias("ce", "cross-entropy")
class CrossEntropy(_LogLoss):
    """Cross entropy of probabilities (N, classes) with labels (N,)."""

    def __init__(
        self,
        eps: float = 1e-12,
        name: str = "cross-entropy",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(eps, name, output_names, label_names)


@alias("nll_loss")
class NegativeLogLikelihood(_LogLoss):
    """The same number under its other name."""

    def __init__(
        self,
        eps: float = 1e-12,
        name: str = "nll-loss",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(eps, name, output_names, label_names)
