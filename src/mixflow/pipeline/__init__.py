"""The image pipeline (``mx.pipeline``): source, order, decode, augment, batch, threads.

Small pieces that `ImageRecordIter` is composed of, for other compositions. See
docs/design/pipeline.md.
"""

from .colours import ColourJitter
from .decode import Decoder
from .draws import Draws
from .images import Normalise, Pictures
from .loader import Loader
from .order import BatchPlan, Order, Schedule, chunks_of, shard
from .recipe import DefaultRecipe, View
from .sources import FileSource, FolderSource, RecordSource, Sample, Source
from .workers import Job, Workers

__all__ = [
    "BatchPlan",
    "ColourJitter",
    "Decoder",
    "DefaultRecipe",
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
    "View",
    "Workers",
    "chunks_of",
    "shard",
]
