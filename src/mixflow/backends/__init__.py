"""Backends, and the choice of the core: importing this package binds `_rt.core`."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import _rt

if _rt.core is None:
    _chosen = _rt.load_native()
    if _chosen is None:
        from . import pure as _chosen
    _rt.bind_core(_chosen)


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
