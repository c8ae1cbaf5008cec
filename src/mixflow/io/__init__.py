"""Data iterators (``mx.io``)."""

from .arrays import MNISTIter, NDArrayIter, read_idx
from .base import DataBatch, DataDesc, DataIter
from .wrappers import PrefetchingIter, ResizeIter

__all__ = [
    "DataBatch",
    "DataDesc",
    "DataIter",
    "MNISTIter",
    "NDArrayIter",
    "PrefetchingIter",
    "ResizeIter",
    "read_idx",
]
