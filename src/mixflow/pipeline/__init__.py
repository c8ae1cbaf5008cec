"""The image pipeline (``mx.pipeline``): source, order, decode, augment, batch, threads.

Small pieces that `ImageRecordIter` is composed of, for other compositions. See
docs/design/pipeline.md.
"""

from typing import TYPE_CHECKING

from ..extras import late
from .colours import ColourJitter
from .decode import Decoder
from .detection import CropSampler, DetectionPictures, DetectionRecipe
from .draws import Draws
from .images import Normalise, Pictures
from .loader import Loader
from .order import BatchPlan, Order, Schedule, chunks_of, shard
from .ray_data import ray_batches
from .recipe import DefaultRecipe, View
from .sources import FileSource, FolderSource, RecordSource, Sample, Source
from .tar import TarSource
from .workers import Job, Workers

if TYPE_CHECKING:
    from . import partitions
else:
    __getattr__ = late(__name__, {"partitions": ".partitions"})

__all__ = [
    "BatchPlan",
    "ColourJitter",
    "CropSampler",
    "Decoder",
    "DefaultRecipe",
    "DetectionPictures",
    "DetectionRecipe",
    "Draws",
    "FileSource",
    "FolderSource",
    "Job",
    "Loader",
    "Normalise",
    "Order",
    "Pictures",
    "RecordSource",
    "Sample",
    "Schedule",
    "Source",
    "TarSource",
    "View",
    "Workers",
    "chunks_of",
    "partitions",
    "ray_batches",
    "shard",
]
