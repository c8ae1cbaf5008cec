"""Methods of Symbol that a later layer brings: declared in the class, installed at import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import GraphError

_methods: dict[str, Callable[..., Any]] = {}


def install(name: str, function: Callable[..., Any]) -> None:
    """Makes `function(symbol, ...)` the body of the method `name`."""
    _methods[name] = function


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Runs an installed method.

    Raises:
        GraphError: its layer was not imported.
    """
    if name not in _methods:
        raise GraphError(f"[Symbol] expected the layer of '{name}', got none; import mixflow")
    return _methods[name](*args, **kwargs)
