"""The reference backend: every primitive in NumPy, one small function each.

It is the oracle of the tests (finite differences run here in float64), serves what native kernels
do not, and with `pure` makes the package run on Python and NumPy alone.
"""

from . import blocked, conv, elementwise, moves, nn, random
from .backend import ReferenceBackend, compute, evaluate
from .common import KERNELS

__all__ = [
    "KERNELS", "ReferenceBackend", "blocked", "compute", "conv", "elementwise", "evaluate", "moves",
    "nn", "random",
]  # fmt: skip
