"""Evaluation metrics: sums over batches on the host, with MXNet's names and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import ParamError, ShapeError, UnknownNameError, describe_unknown
from .ndarray import NDArray

Array = np.ndarray[Any, Any]
_registry: dict[str, type[EvalMetric]] = {}


def register(klass: type[EvalMetric], name: str | None = None) -> type[EvalMetric]:
    """Makes a metric known to `create` under its lower-cased class name (or `name`)."""
    _registry[(name or klass.__name__).lower()] = klass
    return klass


def alias(*aliases: str) -> Callable[[type[EvalMetric]], type[EvalMetric]]:
    """Registers a metric under more names."""

    def add(klass: type[EvalMetric]) -> type[EvalMetric]:
        for name in aliases:
            _registry[name.lower()] = klass
        return register(klass)

    return add


def create(metric: Any, *args: Any, **kwargs: Any) -> EvalMetric:
    """A metric from its name, a function of (label, prediction), a metric, or a list of those.

    Raises:
        UnknownNameError: no metric of this name.
    """
    if isinstance(metric, EvalMetric):
        return metric
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric([create(m, *args, **kwargs) for m in metric])
    if callable(metric):
        return CustomMetric(metric, *args, **kwargs)
    found = _registry.get(str(metric).lower())
    if found is None:
        raise UnknownNameError(describe_unknown("metric", str(metric), list(_registry)))
    return found(*args, **kwargs)


def check_label_shapes(
    labels: Any, preds: Any, wrap: bool = False, shape: bool = False
) -> tuple[Any, Any]:
    """Compares the number (or, with `shape`, the shapes) of labels and predictions.

    Raises:
        ShapeError: they differ.
    """
    got = (labels.shape, preds.shape) if shape else (len(labels), len(preds))
    if got[0] != got[1]:
        raise ShapeError(f"[metric] expected labels and predictions alike, got {got[0]} and {got[1]}")
    if wrap:
        labels = [labels] if isinstance(labels, NDArray) else labels
        preds = [preds] if isinstance(preds, NDArray) else preds
    return labels, preds


def _host(value: Any) -> Array:
    return value.asnumpy() if isinstance(value, NDArray) else np.asarray(value)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


class EvalMetric:
    """Base: a running sum and a count, since the last reset and since the last local reset.

    Args:
        name: shown name.
        output_names, label_names: which entries `update_dict` takes; None = all, in order.
    """

    def __init__(
        self,
        name: str,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.name = str(name)
        self.output_names = output_names
        self.label_names = label_names
        self._kwargs = kwargs
        self.reset()

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"

    def get_config(self) -> dict[str, Any]:
        """Arguments that make the same metric again, with the key 'metric'."""
        return {
            **self._kwargs,
            "metric": type(self).__name__,
            "name": self.name,
            "output_names": self.output_names,
            "label_names": self.label_names,
        }

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Adds a batch given by name."""
        names = self.output_names
        preds = [pred[n] for n in names] if names is not None else list(pred.values())
        names = self.label_names
        labels = [label[n] for n in names] if names is not None else list(label.values())
        self.update(labels, preds)

    def update(self, labels: Any, preds: Any) -> None:
        """Adds a batch: two lists of arrays of equal length.

        Raises:
            ShapeError: the lists or shapes do not fit.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Forgets everything."""
        self.num_inst = 0
        self.sum_metric = 0.0
        self.global_num_inst = 0
        self.global_sum_metric = 0.0

    def reset_local(self) -> None:
        """Forgets what `get` shows, keeps what `get_global` shows."""
        self.num_inst = 0
        self.sum_metric = 0.0

    def _add(self, total: float, count: int) -> None:
        self.sum_metric += float(total)
        self.global_sum_metric += float(total)
        self.num_inst += int(count)
        self.global_num_inst += int(count)

    def _finish(self, total: float, count: int) -> float:
        return total / count

    def _value(self, total: float, count: int) -> tuple[str, float]:
        return self.name, self._finish(total, count) if count else float("nan")

    def get(self) -> tuple[Any, Any]:
        """(name, value) since the last local reset; nan before the first batch."""
        return self._value(self.sum_metric, self.num_inst)

    def get_global(self) -> tuple[Any, Any]:
        """(name, value) since the last reset."""
        return self._value(self.global_sum_metric, self.global_num_inst)

    def get_name_value(self) -> list[tuple[str, float]]:
        """`get` as a list of pairs."""
        name, value = self.get()
        return list(zip(_as_list(name), _as_list(value), strict=True))

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """`get_global` as a list of pairs."""
        name, value = self.get_global()
        return list(zip(_as_list(name), _as_list(value), strict=True))


@alias("composite")
class CompositeEvalMetric(EvalMetric):
    """Several metrics at once."""

    def __init__(
        self,
        metrics: Sequence[Any] | None = None,
        name: str = "composite",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        self.metrics = [create(m) for m in metrics or []]
        super().__init__(name, output_names, label_names)

    def add(self, metric: Any) -> None:
        """Adds one more."""
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> EvalMetric:
        """The metric at `index`."""
        return self.metrics[index]

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Adds a batch given by name to each."""
        for metric in self.metrics:
            metric.update_dict(label, pred)

    def update(self, labels: Any, preds: Any) -> None:
        """Adds a batch to each."""
        for metric in self.metrics:
            metric.update(labels, preds)

    def reset(self) -> None:
        """Resets each."""
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        """Resets each locally."""
        for metric in self.metrics:
            metric.reset_local()

    def get(self) -> tuple[Any, Any]:
        """(names, values)."""
        pairs = [p for m in self.metrics for p in m.get_name_value()]
        return [n for n, _ in pairs], [v for _, v in pairs]

    def get_global(self) -> tuple[Any, Any]:
        """(names, values) since the last reset."""
        pairs = [p for m in self.metrics for p in m.get_global_name_value()]
        return [n for n, _ in pairs], [v for _, v in pairs]

    def get_config(self) -> dict[str, Any]:
        """Configuration with those of the parts."""
        return {**super().get_config(), "metrics": [m.get_config() for m in self.metrics]}


class _PairMetric(EvalMetric):
    """Base of metrics that add (sum, count) of each (label, prediction) pair of host arrays."""

    def update(self, labels: Any, preds: Any) -> None:
        """Adds a batch: lists of labels and predictions."""
        labels, preds = _as_list(labels), _as_list(preds)
        check_label_shapes(labels, preds)
        for label, pred in zip(labels, preds, strict=True):
            self._add(*self.measure(_host(label), _host(pred)))

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        """(sum, count) of one pair."""
        raise NotImplementedError


@alias("acc")
class Accuracy(_PairMetric):
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
class TopKAccuracy(_PairMetric):
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
        check_label_shapes(_as_list(labels), _as_list(preds))
        for label, pred in zip(_as_list(labels), _as_list(preds), strict=True):
            self.metrics.update(_host(label), _host(pred))
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
class Perplexity(_PairMetric):
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
        keep = np.ones(label.size, bool) if self.ignore_label is None else label != self.ignore_label
        return float(-np.log(np.maximum(1e-10, chosen[keep])).sum()), int(keep.sum())

    def _finish(self, total: float, count: int) -> float:
        return math.exp(total / count)


class _ErrorMetric(EvalMetric):
    """Mean over batches of an error of predictions against labels."""

    def update(self, labels: Any, preds: Any) -> None:
        """Adds a batch."""
        labels, preds = _as_list(labels), _as_list(preds)
        check_label_shapes(labels, preds)
        for label, pred in zip(labels, preds, strict=True):
            y, p = _host(label), _host(pred)
            y = y.reshape(-1, 1) if y.ndim == 1 else y
            p = p.reshape(-1, 1) if p.ndim == 1 else p
            self._add(self.error(y, p), 1)

    def error(self, label: Array, pred: Array) -> float:
        """Error of one batch."""
        raise NotImplementedError


def _named(default: str, base: type[EvalMetric], error: Callable[[Array, Array], float], doc: str) -> Any:
    class Named(base):  # type: ignore[misc,valid-type]
        def __init__(
            self,
            name: str = default,
            output_names: Sequence[str] | None = None,
            label_names: Sequence[str] | None = None,
        ) -> None:
            super().__init__(name, output_names, label_names)

        def error(self, label: Array, pred: Array) -> float:
            return error(label, pred)

    Named.__name__ = Named.__qualname__ = default.upper()
    Named.__doc__ = doc
    return register(Named)


MAE = _named("mae", _ErrorMetric, lambda y, p: float(np.abs(y - p).mean()), "Mean absolute error.")
MSE = _named("mse", _ErrorMetric, lambda y, p: float(((y - p) ** 2).mean()), "Mean squared error.")
RMSE = _named(
    "rmse",
    _ErrorMetric,
    lambda y, p: float(np.sqrt(((y - p) ** 2).mean())),
    "Root of the mean squared error.",
)


class _LogLoss(_PairMetric):
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
        for label, pred in zip(_as_list(labels), _as_list(preds), strict=True):
            y, p = _host(label).ravel(), _host(pred).ravel()
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
        for pred in _as_list(preds):
            values = _host(pred)
            self._add(float(values.sum()), values.size)


class CustomMetric(EvalMetric):
    """A function (label, prediction) -> value or (sum, count) of host arrays."""

    def __init__(
        self,
        feval: Callable[[Array, Array], Any],
        name: str | None = None,
        allow_extra_outputs: bool = False,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        shown = name or getattr(feval, "__name__", "custom")
        super().__init__(f"custom({shown})" if "<" in shown else shown, output_names, label_names)
        self._feval = feval
        self._allow_extra = allow_extra_outputs

    def update(self, labels: Any, preds: Any) -> None:
        """Adds a batch."""
        labels, preds = _as_list(labels), _as_list(preds)
        if not self._allow_extra:
            check_label_shapes(labels, preds)
        for label, pred in zip(labels, preds, strict=False):
            value = self._feval(_host(label), _host(pred))
            total, count = value if isinstance(value, tuple) else (value, 1)
            self._add(total, count)


def np_metric(
    numpy_feval: Callable[[Array, Array], Any],
    name: str | None = None,
    allow_extra_outputs: bool = False,
) -> CustomMetric:
    """A metric from a NumPy function (``mx.metric.np``)."""
    return CustomMetric(numpy_feval, name or numpy_feval.__name__, allow_extra_outputs)
