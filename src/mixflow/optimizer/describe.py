"""Optimizers as plain values, so that they can travel to servers and into snapshots.

An optimizer is its registered name and its attributes; a schedule is its class's name and its
attributes. Only plain values pass: nothing that could run code is written or read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import FormatError, ParamError, UnknownNameError, describe_unknown
from ..lr_scheduler import LRScheduler
from .optimizer import Optimizer, _registry

_SCHEDULE = "lr_scheduler"
_PARAMETERS = "param_dict"


def describe(optimizer: Optimizer) -> dict[str, Any]:
    """Name and attributes of an optimizer as JSON values.

    Multipliers of a `param_dict` are written as multipliers by index.

    Raises:
        ParamError: the optimizer's class is not registered, or an attribute is no plain value.
    """
    name = type(optimizer).__name__.lower()
    if _registry.get(name) is not type(optimizer):
        raise ParamError(
            f"[optimizer] expected a registered class (mx.optimizer.register), got {name}: "
            "servers know optimizers by name"
        )
    state = dict(vars(optimizer))
    parameters = state.pop(_PARAMETERS)
    for table in ("lr_mult", "wd_mult"):
        found = {index: float(getattr(p, table)) for index, p in parameters.items()}
        state[table] = state[table] | found
    schedule = state.pop(_SCHEDULE)
    text: dict[str, Any] = {"name": name, "state": _plain(name, state)}
    if schedule is not None:
        kind = type(schedule).__name__
        text["schedule"] = {"name": kind, "state": _plain(kind, vars(schedule))}
    return text


def rebuild(text: Mapping[str, Any]) -> Optimizer:
    """The optimizer that `describe` wrote.

    Raises:
        UnknownNameError: a class that this process does not know.
        FormatError: not such a description.
    """
    try:
        name, state = str(text["name"]), _values(text["state"])
        schedule = _schedule(text["schedule"]) if "schedule" in text else None
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"[optimizer] expected a description, got {error!r}") from None
    if name not in _registry:
        raise UnknownNameError(describe_unknown("optimizer", name, list(_registry)))
    made = _registry[name].__new__(_registry[name])
    vars(made).update(state, lr_scheduler=schedule, param_dict={})
    return made


def _schedule(text: Mapping[str, Any]) -> LRScheduler:
    known = {kind.__name__: kind for kind in _kinds(LRScheduler)}
    name = str(text["name"])
    if name not in known:
        raise UnknownNameError(describe_unknown("lr_scheduler", name, list(known)))
    made = known[name].__new__(known[name])
    vars(made).update(_values(text["state"]))
    return made


def _kinds(base: type[LRScheduler]) -> list[type[LRScheduler]]:
    return [base] + [kind for child in base.__subclasses__() for kind in _kinds(child)]


def _plain(owner: str, value: Any) -> Any:
    """JSON values; a dict stands as pairs, since its keys may be numbers."""
    if isinstance(value, dict):
        return {"pairs": [[_plain(owner, k), _plain(owner, v)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_plain(owner, one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise ParamError(
        f"[{owner}] expected plain attributes (numbers, texts, lists, dicts), got {value!r}: it "
        "can't travel to a server"
    )


def _values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_values(k): _values(v) for k, v in value["pairs"]}
    return [_values(one) for one in value] if isinstance(value, list) else value
