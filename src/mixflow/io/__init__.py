"""Data iterators (``mx.io``)."""

from .ahead import Ahead
from .arrays import NDArrayIter
from .augment import RandomShiftIter, shift_images
from .base import DataBatch, DataDesc, DataIter
from .files import CSVIter, LibSVMIter
from .image_det_records import ImageDetRecordIter
from .image_records import (
    ImageRecordInt8Iter,
    ImageRecordIter,
    ImageRecordUInt8Iter,
    PictureIter,
)
from .mnist import MNISTIter, mersenne_order, read_idx
from .partitioned import PartitionedIter
from .wrappers import PrefetchingIter, ResizeIter

__all__ = [
    "Ahead",
    "CSVIter",
    "DataBatch",
    "DataDesc",
    "DataIter",
    "ImageDetRecordIter",
    "ImageRecordInt8Iter",
    "ImageRecordIter",
    "ImageRecordUInt8Iter",
    "LibSVMIter",
    "MNISTIter",
    "NDArrayIter",
    "PartitionedIter",
    "PictureIter",
    "PrefetchingIter",
    "RandomShiftIter",
    "ResizeIter",
    "mersenne_order",
    "read_idx",
    "shift_images",
]
