"""Records of the primitives: what backends implement (docs/design/primitives.md)."""

from . import (
    creation,
    elementwise,
    fused,
    index,
    matmul,
    mutation,
    nn,
    random,
    reduce,
    rules,
    shape,
)

__all__ = [
    "creation",
    "elementwise",
    "fused",
    "index",
    "matmul",
    "mutation",
    "nn",
    "random",
    "reduce",
    "rules",
    "shape",
]
