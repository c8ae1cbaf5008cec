"""Data iterators (``mx.io``)."""

from .arrays import MNISTIter, NDArrayIter, read_idx
from .augment import RandomShiftIter, shift_images
from .base import DataBatch, DataDesc, DataIter
from .image_det_records import ImageDetRecordIter
from .image_records import (
    ImageRecordInt8Iter,
    ImageRecordIter,
    ImageRecordUInt8Iter,
    PictureIter,
)
from .wrappers import PrefetchingIter, ResizeIter

__all__ = [
    "DataBatch",
    "DataDesc",
    "DataIter",
    "ImageDetRecordIter",
    "ImageRecordInt8Iter",
    "ImageRecordIter",
    "ImageRecordUInt8Iter",
    "MNISTIter",
    "NDArrayIter",
    "PictureIter",
    "PrefetchingIter",
    "RandomShiftIter",
    "ResizeIter",
    "read_idx",
    "shift_images",
]
