"""Imports third-party packages on first use, with an error that names the extra to install."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import MixflowError

_EXTRAS = {
    "matplotlib": "viz",
    "graphviz": "viz",
    "ray": "dist",
    "zmq": "dist",
    "psutil": "dist",
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
