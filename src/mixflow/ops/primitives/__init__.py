"""Records of the primitives: what backends implement (docs/design/primitives.md)."""

from . import (
    blocked,
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
    "blocked",
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
