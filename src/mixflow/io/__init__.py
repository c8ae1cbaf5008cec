"""Data iterators (``mx.io``)."""

from .arrays import MNISTIter, NDArrayIter, read_idx
from .augment import RandomShiftIter, shift_images
from .base import DataBatch, DataDesc, DataIter
from .wrappers import PrefetchingIter, ResizeIter

__all__ = [
    "DataBatch",
    "DataDesc",
    "DataIter",
    "MNISTIter",
    "NDArrayIter",
    "PrefetchingIter",
    "RandomShiftIter",
    "ResizeIter",
    "read_idx",
    "shift_images",
]
