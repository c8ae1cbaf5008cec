"""Updates by row-sparse gradients that touch the rows of the gradient alone.

The hazard: a table of a million rows of which a batch touches a hundred must not cost a pass over
the million. So weight decay and momentum of the other rows wait until a gradient names them
(MXNet's `lazy_update`): not the same as a dense update, by intention. On the rows that are touched
the values are those of the dense operators (`ops/update.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError
from . import rows as _rows
from .row_sparse import RowSparseNDArray, push
from .rows import Array, Rows

#: weight, gradient, states, parameters -> new weight, new states
Formula = Callable[..., tuple[Array, ...]]
UPDATES: dict[str, Formula] = {}


def _update(name: str) -> Callable[[Formula], Formula]:
    def enter(formula: Formula) -> Formula:
        UPDATES[name] = formula
        return formula

    return enter


def _clipped(value: Array, p: dict[str, Any]) -> Array:
    bound = p["clip_gradient"]
    return value if bound < 0 else np.clip(value, -bound, bound)


def _gradient(grad: Array, p: dict[str, Any]) -> Array:
    return _clipped(grad * p["rescale_grad"], p)


@_update("sgd_update")
def _sgd(weight: Array, grad: Array, p: dict[str, Any]) -> tuple[Array, ...]:
    return (weight * (1 - p["lr"] * p["wd"]) - _gradient(grad, p) * p["lr"],)


@_update("sgd_mom_update")
def _sgd_mom(weight: Array, grad: Array, mom: Array, p: dict[str, Any]) -> tuple[Array, ...]:
    new = mom * p["momentum"] - weight * (p["lr"] * p["wd"]) - _gradient(grad, p) * p["lr"]
    return weight + new, new


@_update("adam_update")
def _adam(
    weight: Array, grad: Array, mean: Array, var: Array, p: dict[str, Any]
) -> tuple[Array, ...]:
    g = _clipped(grad * p["rescale_grad"] + weight * p["wd"], p)
    m = mean * p["beta1"] + g * (1 - p["beta1"])
    v = var * p["beta2"] + g * g * (1 - p["beta2"])
    return weight - m * p["lr"] / (np.sqrt(v) + p["epsilon"]), m, v


@_update("ftrl_update")
def _ftrl(weight: Array, grad: Array, z: Array, n: Array, p: dict[str, Any]) -> tuple[Array, ...]:
    g = _gradient(grad, p)
    square = n + g * g
    root = np.sqrt(square)
    new = z + g - (root - np.sqrt(n)) * weight / p["lr"]
    made = (np.sign(new) * p["lamda1"] - new) / ((root + p["beta"]) / p["lr"] + p["wd"])
    return np.where(np.abs(new) > p["lamda1"], made, np.zeros_like(made)), new, square


@_update("_sparse_adagrad_update")
def _adagrad(weight: Array, grad: Array, history: Array, p: dict[str, Any]) -> tuple[Array, ...]:
    g = _gradient(grad, p)
    new = history + g * g
    return weight - (g / np.sqrt(new + p["epsilon"]) + weight * p["wd"]) * p["lr"], new


def applies(name: str, weight: Any, grad: Any, params: dict[str, Any]) -> bool:
    """Whether an update touches the gradient's rows alone, by MXNet's rules.

    'ftrl_update' does for row-sparse weights only.
    """
    if not isinstance(grad, RowSparseNDArray) or not params.get("lazy_update", True):
        return False
    return name != "ftrl_update" or isinstance(weight, RowSparseNDArray)


def update(name: str, inputs: Sequence[Any], params: dict[str, Any], out: Any) -> Any:
    """The operator `name` of `UPDATES`; None where it has to update every row.

    Args:
        name: the operator.
        inputs: weight, gradient, states; states are changed.
        params: its parameters, numbers included.
        out: for the new weight, normally the weight itself.

    Raises:
        ShapeError: shapes differ.
    """
    weight, grad, *states = inputs
    if not applies(name, weight, grad, params):
        return None
    for array in (grad, *states):
        if array.shape != weight.shape:
            raise ShapeError(f"[{name}] expected shape {weight.shape}, got {array.shape}")
    target = weight
    if out is not weight:
        target = weight.copy() if out is None else weight.copyto(out)

    def body(found: Rows, *places: Any) -> None:
        apply(UPDATES[name], found, places, params)

    push(body, [grad], [target, *states], name)
    return target


def apply(formula: Formula, grad: Rows, places: Sequence[Any], params: dict[str, Any]) -> None:
    """Updates the gradient's rows of a weight and its states in place.

    Args:
        formula: one of `UPDATES`.
        grad: the gradient.
        places: NumPy views, or row-sparse arrays whose tags the running task holds.
        params: parameters of the operator.
    """
    if len(grad.numbers) == 0:
        return
    placed = [_Place(place, grad.numbers) for place in places]
    numbers = {k: v for k, v in params.items() if isinstance(v, (int, float))}
    narrow = [p.array[p.at] for p in placed]
    with np.errstate(invalid="ignore", divide="ignore"):
        made = formula(
            *(v.astype(_rows.wide(v.dtype), copy=False) for v in _weight_first(narrow, grad)),
            numbers,
        )
    for place, values in zip(placed, made, strict=True):
        place.array[place.at] = values


def _weight_first(narrow: Sequence[Array], grad: Rows) -> list[Array]:
    return [narrow[0], grad.values, *narrow[1:]]


class _Place:
    """Where the rows of an update lie: an array, and the rows' numbers in it."""

    def __init__(self, place: Any, numbers: Array) -> None:
        if not isinstance(place, RowSparseNDArray):
            self.array, self.at = place, numbers
            return
        place.cell = _rows.with_rows(place.cell, numbers, place.shape[0])
        self.array = place.cell.values
        self.at = _rows.positions(place.cell, numbers, place.shape[0])
