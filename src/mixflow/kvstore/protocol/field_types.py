"""Whether the fields of a decoded message have the types that `messages` declares.

The hazard: a message that is whole as JSON but not one of ours (another version's, or a
stranger's) must end as an error where it is read, and not as a wrong value or a `TypeError` in the
middle of a shard's work. Checks are made of the annotations, once.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from ...errors import FormatError
from .messages import Gradient, Message

Check = Callable[[Any], bool]
_MOST = 1 << 63


def checks_of(kind: type[Message]) -> dict[str, Check]:
    """By field, what tells whether a value has its type."""
    hints = get_type_hints(kind)
    return {field.name: _check(hints[field.name]) for field in fields(kind)}


def check(kind: type[Message], checks: dict[str, Check], values: dict[str, Any]) -> None:
    """Checks all fields of a message.

    Raises:
        FormatError: a value of another type; the text names the field.
    """
    for name, fits in checks.items():
        if not fits(values[name]):
            raise FormatError(
                f"[kvstore wire] expected another type in '{name}' of {kind.__name__}, got "
                f"{values[name]!r:.80}"
            )


def _check(hint: Any) -> Check:
    """The check of a type."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        options = [_check(one) for one in inner]
        return lambda value: any(fits(value) for fits in options)
    if origin is dict:
        return _of_dict(_check(inner[1]))
    if origin is list or (origin is tuple and inner[-1] is ...):
        return _of_items(_check(inner[0]))
    if origin is tuple:
        return _of_row([_check(one) for one in inner])
    return lambda value: isinstance(value, origin or hint)


def _of_dict(fits: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _of_items(fits: Check) -> Check:
    return lambda value: isinstance(value, (list, tuple)) and all(map(fits, value))


def _of_row(checks: list[Check]) -> Check:
    def fits(value: Any) -> bool:
        whole = isinstance(value, (list, tuple)) and len(value) == len(checks)
        return whole and all(one(cell) for one, cell in zip(checks, value, strict=True))

    return fits


def _is_int(value: Any) -> bool:
    return type(value) is int and -_MOST <= value < _MOST  # no bool


def _is_text(value: Any) -> bool:
    """A text that has a form as bytes: a lone half of a pair has none."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_PLAIN: dict[Any, Check] = {
    Any: lambda value: True,
    int: _is_int,
    bool: lambda value: isinstance(value, bool),
    str: _is_text,
    type(None): lambda value: value is None,
    np.ndarray[Any, Any]: lambda value: isinstance(value, np.ndarray),
    Gradient: lambda value: isinstance(value, Gradient) and isinstance(value.code, str),
}
