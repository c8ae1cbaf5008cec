"""The operators. Importing this package fills the registry of `ir`."""

from . import primitives  # noqa: I001 - the primitives stand first in the registry
from . import creation, elementwise, index, matrix, random, reduce, shape, slicing

__all__ = [
    "creation", "elementwise", "index", "matrix", "primitives", "random", "reduce", "shape", "slicing",
]
