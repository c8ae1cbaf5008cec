"""The registry of metrics, their base classes, and metrics made of others or of a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError, UnknownNameError, describe_unknown
from ..ndarray import NDArray

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
        raise ShapeError(
            f"[metric] expected labels and predictions alike, got {got[0]} and {got[1]}"
        )
    if wrap:
        labels = [labels] if isinstance(labels, NDArray) else labels
        preds = [preds] if isinstance(preds, NDArray) else preds
    return labels, preds


def host(value: Any) -> Array:
    """The values of an array as NumPy; waits for them."""
    return value.asnumpy() if isinstance(value, NDArray) else np.asarray(value)


def as_list(value: Any) -> list[Any]:
    """A list of one thing or of several."""
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
        return list(zip(as_list(name), as_list(value), strict=True))

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """`get_global` as a list of pairs."""
        name, value = self.get_global()
        return list(zip(as_list(name), as_list(value), strict=True))


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


class PairMetric(EvalMetric):
    """Base of metrics that add (sum, count) of each (label, prediction) pair of host arrays."""

    def update(self, labels: Any, preds: Any) -> None:
        """Adds a batch: lists of labels and predictions."""
        labels, preds = as_list(labels), as_list(preds)
        check_label_shapes(labels, preds)
        for label, pred in zip(labels, preds, strict=True):
            self._add(*self.measure(host(label), host(pred)))

    def measure(self, label: Array, pred: Array) -> tuple[float, int]:
        """(sum, count) of one pair."""
        raise NotImplementedError


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
        shown = name or str(getattr(feval, "__name__", "custom"))
        super().__init__(f"custom({shown})" if "<" in shown else shown, output_names, label_names)
        self._feval = feval
        self._allow_extra = allow_extra_outputs

    def update(self, labels: Any, preds: Any) -> None:
        """Adds a batch."""
        labels, preds = as_list(labels), as_list(preds)
        if not self._allow_extra:
            check_label_shapes(labels, preds)
        for label, pred in zip(labels, preds, strict=False):
            value = self._feval(host(label), host(pred))
            total, count = value if isinstance(value, tuple) else (value, 1)
            self._add(total, count)


def np_metric(
    numpy_feval: Callable[[Array, Array], Any],
    name: str | None = None,
    allow_extra_outputs: bool = False,
) -> CustomMetric:
    """A metric from a NumPy function (``mx.metric.np``)."""
    return CustomMetric(numpy_feval, name or numpy_feval.__name__, allow_extra_outputs)
