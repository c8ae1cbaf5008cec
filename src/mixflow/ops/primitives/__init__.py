"""Records of the primitives: what backends implement (docs/design/primitives.md)."""

from . import creation, elementwise, index, matmul, mutation, random, reduce, rules, shape

__all__ = [
    "creation", "elementwise", "index", "matmul", "mutation", "random", "reduce", "rules", "shape",
]
