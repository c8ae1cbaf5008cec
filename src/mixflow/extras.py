"""Imports on first use: third-party packages, with an error that names the extra, and own parts."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from .errors import MixflowError

_EXTRAS = {
    "matplotlib": "viz",
    "graphviz": "viz",
    "ray": "dist",
    "zmq": "dist",
    "psutil": "dist",
    "cloudpickle": "dist",
    "tensorboardX": "tensorboard",
    "cupy": "cuda",
    "cv2": "images",
    "fsspec": "remote",
}


class MissingExtraError(MixflowError, ImportError):
    """A package that this feature needs is not installed."""


def load(module: str, feature: str) -> Any:
    """The module of this dotted name.

    Args:
        module: e.g. 'matplotlib.pyplot'.
        feature: what needs it, for the error.

    Raises:
        MissingExtraError: not installed; the text names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        extra = _EXTRAS.get(package)
        command = f"mixflow[{extra}]" if extra else package
        raise MissingExtraError(
            f"[{feature}] expected the package '{package}', got {error}; pip install '{command}'"
            + (f" (in a clone: pip install '.[{extra}]')" if extra else "")
        ) from None


def late(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """`__getattr__` of a package: names whose modules are imported when somebody asks for them.

    Args:
        package: its `__name__`.
        homes: module, as ``'.module'``, by name; a name that the module lacks is the module.

    Raises:
        AttributeError: another name.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name], package)
        return getattr(module, name, module)

    return find
