"""The image pipeline (``mx.pipeline``): source, order, decode, augment, batch, threads.

Small pieces that `ImageRecordIter` is composed of, for other compositions. See
docs/design/pipeline.md.
"""

from importlib import import_module
from typing import Any

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
    "ray_batches",
    "shard",
]


def __getattr__(name: str) -> Any:
    """`partitions` on first use; see `mx.io`."""
    if name == "partitions":
        return import_module(f"{__name__}.partitions")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
