"""mx.sym: declared graphs."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .. import ops as _ops  # noqa: F401 - fills the registry
from . import register as _register
from .creation import (
    arange,
    eye,
    full,
    hypot,
    linspace,
    maximum,
    minimum,
    ones,
    pow,
    power,
    zeros,
)
from .register import Variable, var
from .symbol import Group, Symbol, fromjson, load, load_json

if TYPE_CHECKING:
    from ._generated import *  # noqa: F403 - operators: stubs only, made by tools/make_stubs.py

__all__ = [
    "Group", "Symbol", "Variable", "arange", "contrib", "eye", "fromjson", "full", "hypot", "image",
    "linalg", "linspace", "load", "load_json", "maximum", "minimum", "ones", "op", "pow", "power",
    "random", "sparse", "var", "zeros",
]  # fmt: skip

_register.install_methods()


def _module(name: str) -> ModuleType:
    made = ModuleType(f"{__name__}.{name}", f"mx.sym.{name}: generated from the operator records.")
    sys.modules[made.__name__] = made
    return made


random, linalg, contrib, image, sparse, op, _internal = (
    _module(n) for n in ("random", "linalg", "contrib", "image", "sparse", "op", "_internal")
)
_register.populate(
    {
        "": globals(),
        "random": vars(random),
        "linalg": vars(linalg),
        "contrib": vars(contrib),
        "image": vars(image),
        "sparse": vars(sparse),
        "op": vars(op),
        "_internal": vars(_internal),
    }
)


def __getattr__(name: str) -> Any:
    from ..errors import describe_unknown
    from ..ir import names

    raise AttributeError(describe_unknown("mx.sym", name, list(names())))
