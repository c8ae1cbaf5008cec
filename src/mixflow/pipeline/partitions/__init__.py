"""Input partitions that can be computed again: lost ones elsewhere, slow ones twice.

A partition is a source, a range and a seed; see docs/design/partitions.md.
"""

from .compute import Computer, compute
from .dealing import Stage, deal, replay, share
from .executors import Result
from .kinds import KINDS, open_source
from .partition import Partition
from .pool import Pool
from .scheduler import Counts, Rules, Scheduler

__all__ = [
    "KINDS",
    "Computer",
    "Counts",
    "Partition",
    "Pool",
    "Result",
    "Rules",
    "Scheduler",
    "Stage",
    "compute",
    "deal",
    "open_source",
    "replay",
    "share",
]
