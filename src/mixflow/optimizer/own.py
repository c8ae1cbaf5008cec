"""Optimizers and schedules that a program defines itself: how they are told apart and copied.

The hazard: what the library knows of them is little. They may keep anything in their attributes, so
only plain values are compared and kept (`changed_attributes`); arrays belong into their states.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ndarray import NDArray
from .optimizer import Optimizer

_PACKAGE = __name__.partition(".")[0]
#: Attributes that are no part of an optimizer's own state: counts have a place of their own, the
#: rest is set from outside.
_OUTSIDE = frozenset(
    ("_counts", "num_update", "lr_scheduler", "param_dict", "idx2name", "lr_mult", "wd_mult")
)


def is_own(optimizer: Optimizer) -> bool:
    """Whether the program has defined the optimizer's class or its schedule: other processes do
    not have it."""
    schedule = optimizer.lr_scheduler
    return _is_own(type(optimizer)) or (schedule is not None and _is_own(type(schedule)))


def _is_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] != _PACKAGE


def lone(optimizer: Optimizer) -> Optimizer:
    """A copy that may go elsewhere: multipliers of a `param_dict` stand in it by index."""
    made = copy.copy(optimizer)
    for table in ("lr_mult", "wd_mult"):
        found = {i: float(getattr(p, table)) for i, p in optimizer.param_dict.items()}
        setattr(made, table, {**getattr(optimizer, table), **found})
    made.param_dict = {}
    return made


def fresh(optimizer: Optimizer) -> Optimizer:
    """A copy that has not counted anything."""
    made = copy.deepcopy(lone(optimizer))
    made._counts, made.num_update = {}, made.begin_num_update
    return made


def outline(optimizer: Optimizer) -> dict[str, Any]:
    """What tells an optimizer from another of its kind, as JSON values: names of the class and of
    the schedule's, and their attributes; of arrays a digest, of other things the type."""
    text = {"name": type(optimizer).__name__, "state": _outlined(lone(optimizer))}
    schedule = optimizer.lr_scheduler
    if schedule is not None:
        name = getattr(schedule, "__qualname__", type(schedule).__qualname__)
        text["schedule"] = {"name": name, "state": _outlined(schedule)}
    return text


def _outlined(thing: Any) -> dict[str, Any]:
    found = getattr(thing, "__dict__", {})
    return {name: _outline(value) for name, value in found.items() if name != "lr_scheduler"}


def _outline(value: Any) -> Any:
    text = _plain(value)
    if text is not None:
        return text
    if isinstance(value, (np.ndarray, NDArray)):
        array = np.ascontiguousarray(value.asnumpy() if isinstance(value, NDArray) else value)
        digest = hashlib.sha256(array.view(np.uint8).data).hexdigest()
        return {"array": [array.dtype.str, list(array.shape), digest]}
    return {"type": type(value).__qualname__}


def changed_attributes(thing: Any, before: Any) -> dict[str, Any]:
    """The plain attributes of an optimizer or schedule that are others than those of `before`, of
    which it is a copy, as JSON values; without those that are set from outside."""
    old, found = getattr(before, "__dict__", {}), {}
    for name, value in getattr(thing, "__dict__", {}).items():
        # Copies of numbers and texts are the same objects.
        if name in _OUTSIDE or (name in old and old[name] is value):
            continue
        text = _plain(value)
        if text is not None and (name not in old or text != _plain(old[name])):
            found[name] = text
    return found


def set_attributes(thing: Any, changed: Mapping[str, Any]) -> None:
    """Sets what `changed_attributes` gave."""
    for name, text in changed.items():
        setattr(thing, name, _value(text))


def _plain(value: Any) -> list[Any] | None:
    """[kind, content] of a plain value, None of anything else: what was a tuple becomes one again,
    and keys of a dict may be numbers."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["", value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, (list, tuple)):
        parts = [_plain(one) for one in value]
        return None if None in parts else ["tuple" if isinstance(value, tuple) else "list", parts]
    if type(value) is dict:
        parts = [_plain(pair) for pair in value.items()]
        return None if None in parts else ["dict", parts]
    return None


def _value(text: list[Any]) -> Any:
    kind, content = text
    if not kind:
        return content
    parts = [_value(one) for one in content]
    return {"list": list, "tuple": tuple, "dict": dict}[kind](parts)
