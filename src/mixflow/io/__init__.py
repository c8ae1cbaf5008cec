"""Data iterators (``mx.io``)."""

from typing import TYPE_CHECKING

from ..extras import late
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
from .wrappers import PrefetchingIter, ResizeIter

if TYPE_CHECKING:
    from .partitioned import PartitionedIter
else:
    __getattr__ = late(__name__, {"PartitionedIter": ".partitioned"})

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
