"""Attributes of symbols, in scopes."""

from __future__ import annotations

import threading
from typing import Any

from .errors import ParamError

_scope = threading.local()


class AttrScope:
    """Attributes that every symbol made inside the ``with`` block gets.

    Args:
        **attrs: strings, e.g. ``ctx_group='dev1'``.

    Raises:
        ParamError: a value is not a string.
    """

    def __init__(self, **attrs: str) -> None:
        for key, value in attrs.items():
            if not isinstance(value, str):
                raise ParamError(f"[AttrScope] expected strings, got {key}={value!r}")
        self._attr = dict(attrs)
        self._old: AttrScope | None = None

    def get(self, attr: dict[str, str] | None) -> dict[str, str]:
        """The scope's attributes with those of `attr` over them."""
        return {**self._attr, **(attr or {})}

    def __enter__(self) -> AttrScope:
        self._old = current()
        self._attr = {**self._old._attr, **self._attr}
        _scope.value = self
        return self

    def __exit__(self, *_: Any) -> None:
        _scope.value = self._old


def current() -> AttrScope:
    """The innermost scope of this thread."""
    value = getattr(_scope, "value", None)
    if value is None:
        value = _scope.value = AttrScope()
    return value
