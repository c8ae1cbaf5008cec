"""The operators. Importing this package fills the registry of `ir`."""

from . import primitives  # noqa: I001 - the primitives stand first in the registry
from . import (
    conv,
    creation,
    custom,
    elementwise,
    image,
    index,
    loss,
    matrix,
    nn,
    norm,
    random,
    reduce,
    shape,
    slicing,
    update,
)

__all__ = [
    "conv",
    "creation",
    "custom",
    "elementwise",
    "image",
    "index",
    "loss",
    "matrix",
    "nn",
    "norm",
    "primitives",
    "random",
    "reduce",
    "shape",
    "slicing",
    "update",
]
