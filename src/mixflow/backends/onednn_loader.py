"""Finds oneDNN's shared library, loads it, and registers its kernels with the compiled core.

The wheel puts ``libdnnl.so.3`` beside the environment, not beside the extension, and where exactly
depends on the install layout. So the library is found through the wheel's file list and loaded
first, with its symbols global: the dynamic linker then needs no search path for `_onednn`.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import logging
from functools import cache
from pathlib import Path
from typing import Any

from .. import config

_log = logging.getLogger(__name__)

#: Names a path to a libdnnl 3.x to use instead of the wheel's, or 'none' to do without oneDNN.
LIBRARY_VARIABLE = config.VARIABLES["onednn_library"]
_DISTRIBUTION = "onednn-cpu-gomp"
_SONAME = "libdnnl.so.3"


def library_path() -> str | None:
    """The library to load: the user's choice, the wheel's file, else what the system may have."""
    chosen = config.current().onednn_library
    if chosen.lower() == "none":
        return None
    if chosen:
        return chosen
    try:
        files = importlib.metadata.distribution(_DISTRIBUTION).files or []
    except importlib.metadata.PackageNotFoundError:
        return _SONAME
    for file in files:
        path = Path(str(file.locate()))
        if path.name == _SONAME and path.exists():
            return str(path.resolve())
    return _SONAME


def _extension() -> Any:
    """The extension `_onednn`, with its library loaded first."""
    path = library_path()
    if path is None:
        raise ImportError(f"{LIBRARY_VARIABLE}=none")
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return importlib.import_module("mixflow._onednn")


@cache
def load(core: Any) -> str | None:
    """Registers the oneDNN kernels with `core`, once.

    Returns oneDNN's version, or None without it.
    """
    try:
        extension = _extension()
        extension.register(core.kernel_registry())
    except (ImportError, OSError, AttributeError) as error:
        _log.info("oneDNN is not used (%s); plain native kernels serve instead", error)
        return None
    return str(extension.version())


def has_bfloat16(core: Any) -> bool:
    """Whether oneDNN is there and the processor has instructions for products of bfloat16."""
    return load(core) is not None and bool(_extension().has_bfloat16())


def block_size(core: Any) -> int:
    """Channels of a block of activations that oneDNN's convolutions like; 0 without oneDNN."""
    return int(_extension().block_size()) if load(core) is not None else 0
