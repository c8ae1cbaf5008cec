"""Contexts: where an array lives and where its operators run."""

from __future__ import annotations

import threading
from typing import Any

from .errors import ParamError

_TYPE_CODES = {"cpu": 1, "gpu": 2, "cpu_pinned": 3, "cpu_shared": 5}
_TYPE_NAMES = {code: name for name, code in _TYPE_CODES.items()}
_scope = threading.local()


class Context:
    """A device: ``mx.cpu(0)``, ``mx.gpu(1)``. Usable in ``with`` as the default device.

    Args:
        device_type: 'cpu', 'gpu', 'cpu_pinned', 'cpu_shared', or a Context to copy.
        device_id: index, at least 0. Several CPU contexts share the process's core budget.
    """

    __slots__ = ("_old", "device_id", "device_typeid")
    device_typeid: int
    device_id: int
    devtype2str = _TYPE_NAMES
    devstr2type = _TYPE_CODES

    def __init__(self, device_type: str | Context, device_id: int = 0) -> None:
        if isinstance(device_type, Context):
            self.device_typeid, self.device_id = device_type.device_typeid, device_type.device_id
        else:
            if device_type not in _TYPE_CODES:
                known = ", ".join(_TYPE_CODES)
                raise ParamError(f"[context] expected one of {known}, got {device_type!r}")
            self.device_typeid = _TYPE_CODES[device_type]
            self.device_id = int(device_id)
            if not 0 <= self.device_id < 2**31:
                raise ParamError(f"[context] expected an index of at least 0, got {device_id}")
        self._old: list[Context] = []

    @property
    def device_type(self) -> str:
        """'cpu' or 'gpu'."""
        return _TYPE_NAMES[self.device_typeid]

    @property
    def key(self) -> tuple[int, int]:
        """(type code, index): what the core and files use."""
        return (self.device_typeid, self.device_id)

    @classmethod
    def from_key(cls, key: tuple[int, int]) -> Context:
        """The context of a (type code, index) pair."""
        return cls(_TYPE_NAMES[key[0]], key[1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"{self.device_type}({self.device_id})"

    def __enter__(self) -> Context:
        self._old.append(current_context())
        _scope.value = self
        return self

    def __exit__(self, *_: Any) -> None:
        _scope.value = self._old.pop()

    def empty_cache(self) -> None:
        """Gives the pool's unused memory of this device back to the system."""
        from . import _rt

        _rt.core.empty_pool()


def cpu(device_id: int = 0) -> Context:
    """CPU context number `device_id`."""
    return Context("cpu", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """Page-locked CPU memory; the same as `cpu` where there is no GPU."""
    return Context("cpu_pinned", device_id)


def gpu(device_id: int = 0) -> Context:
    """GPU context number `device_id` (extra ``cuda``)."""
    return Context("gpu", device_id)


def num_gpus() -> int:
    """Number of usable GPUs."""
    return 0


def current_context() -> Context:
    """The innermost ``with`` context of this thread, else ``cpu(0)``."""
    value = getattr(_scope, "value", None)
    if value is None:
        value = _scope.value = Context("cpu", 0)
    return value
