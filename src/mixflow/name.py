"""Automatic names of symbols, in scopes."""

from __future__ import annotations

import threading
from typing import Any

_scope = threading.local()


class NameManager:
    """Gives a name to each symbol made without one: ``convolution0``, ``convolution1``, ...

    Usable in ``with``: symbols made inside count from zero.
    """

    def __init__(self) -> None:
        self._counter: dict[str, int] = {}
        self._old: NameManager | None = None

    def get(self, name: str | None, hint: str) -> str:
        """`name` if given, else the next name of this hint."""
        if name:
            return name
        number = self._counter.get(hint, 0)
        self._counter[hint] = number + 1
        return f"{hint}{number}"

    def __enter__(self) -> NameManager:
        self._old = current()
        _scope.value = self
        return self

    def __exit__(self, *_: Any) -> None:
        _scope.value = self._old


class Prefix(NameManager):
    """Puts a prefix before every name, given ones included."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        """The prefixed name."""
        return self._prefix + super().get(name, hint)


def current() -> NameManager:
    """The innermost manager of this thread."""
    value = getattr(_scope, "value", None)
    if value is None:
        value = _scope.value = NameManager()
    return value
