"""Backends, and the choice of the core: importing this package binds `_rt.core`."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import _rt, config


def _apply(old: config.Config | None, new: config.Config) -> None:
    """Tells the core what differs; a new engine starts with limits of its own."""
    core = _rt.core
    engine = old is None or old.engine != new.engine
    if engine and core.engine_kind() != new.engine:
        core.set_engine(new.engine)
    if old is None or old.threads != new.threads:
        _set_threads(new.threads)
    queue = (new.queue_tasks, new.queue_bytes)
    if engine or (old is not None and (old.queue_tasks, old.queue_bytes) != queue):
        core.set_queue_limits(*queue)
    if old is None or old.memory_limit != new.memory_limit:
        core.set_memory_limit(new.memory_limit)
    if old is None or old.deterministic != new.deterministic:
        core.set_deterministic(new.deterministic)
        core.clear_dispatch_cache()


def _set_threads(count: int) -> None:
    """The thread count is part of every prepared kernel, so prepared calls are made anew."""
    if _rt.core.threads() != count:
        _rt.core.wait_all()
        _rt.core.set_threads(count)
        _rt.core.clear_dispatch_cache()


if _rt.core is None:
    _chosen = _rt.load_native()
    if _chosen is None:
        from . import pure as _chosen
    _rt.bind_core(_chosen)
    _apply(None, config.current())
    config.on_change(_apply)


@cache
def default_backend() -> Any:
    """The backend of this process: native kernels first, NumPy for what they do not serve."""
    from .reference import ReferenceBackend

    reference = ReferenceBackend()
    if _rt.core.name == "pure":
        return reference
    from . import native

    native.load()
    return native.NativeBackend(reference)
