"""Which samples an epoch has, in which order, and how batches cut it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..arguments import check_fields, checked, choice, flag, seed, whole
from ..errors import ParamError
from .draws import epoch_generator

Array = np.ndarray[Any, Any]


@checked(count=whole(0), num_parts=whole(1), part_index=whole(0))
def shard(count: int, num_parts: int, part_index: int) -> tuple[int, int]:
    """First and end of the samples of one of `num_parts` workers; parts differ by at most one.

    Raises:
        ParamError: no such part.
    """
    if part_index >= num_parts:
        raise ParamError(
            f"[shard] expected part_index in [0, num_parts), got {part_index} of {num_parts}"
        )
    return count * part_index // num_parts, count * (part_index + 1) // num_parts


def chunks_of(sizes: Sequence[int] | Array, chunk_bytes: int) -> Array:
    """First numbers of runs of samples that have about `chunk_bytes` bytes each.

    Args:
        sizes: (samples,) bytes.
        chunk_bytes: at least 1.

    Returns:
        (chunks,) int64, rising, the first is 0.
    """
    ends = np.cumsum(np.asarray(sizes, np.int64))
    number = (ends - 1) // chunk_bytes
    return np.flatnonzero(np.diff(number, prepend=-1)).astype(np.int64)


@dataclass(frozen=True)
class Order:
    """The samples of each epoch: one worker's share, shuffled or not.

    The same for the same arguments, whatever happened in other epochs.

    Attributes:
        count: samples of the source.
        seed: of the shuffling.
        shuffle: a new order in each epoch.
        num_parts, part_index: this worker's share; shares are cut before they are shuffled.
        chunks: first numbers (within the share) of runs that stay together: their order is
            shuffled by `chunk_seed`, and with `shuffle` the samples inside each too, so that
            reading stays local. None: no runs.
        chunk_seed: of the order of the runs.
    """

    count: int
    seed: int = 0
    shuffle: bool = False
    num_parts: int = 1
    part_index: int = 0
    chunks: Any = None
    chunk_seed: int = 0

    def __post_init__(self) -> None:
        check_fields("Order", self, seed=seed, shuffle=flag, chunk_seed=seed)
        shard(self.count, self.num_parts, self.part_index)

    @property
    def bounds(self) -> tuple[int, int]:
        """First and end of the share."""
        return shard(self.count, self.num_parts, self.part_index)

    def __len__(self) -> int:
        """Samples of an epoch."""
        first, end = self.bounds
        return end - first

    def epoch(self, number: int) -> Array:
        """(samples,) int64: numbers of the samples, in the order of this epoch."""
        first, end = self.bounds
        if self.chunks is not None:
            return first + self._by_chunks(number)
        if not self.shuffle:
            return np.arange(first, end, dtype=np.int64)
        return first + epoch_generator(self.seed, number).permutation(end - first)

    def _by_chunks(self, number: int) -> Array:
        bounds = [*np.asarray(self.chunks).tolist(), len(self)]
        runs = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
        if self.shuffle:
            inside = epoch_generator(self.seed, number)
            runs = [inside.permutation(run) for run in runs]
        among = epoch_generator(self.chunk_seed, number, 1).permutation(len(runs))
        return np.concatenate([runs[i] for i in among] or [np.empty(0, np.int64)])


class BatchPlan(NamedTuple):
    """The samples of one batch.

    Attributes:
        indices: (batch,) numbers of samples.
        epochs: (batch,) the epoch that each is drawn from.
        pad: how many at the end only fill the batch up.
    """

    indices: list[int]
    epochs: list[int]
    pad: int


class Schedule:
    """Cuts epochs into batches.

    Args:
        order: the samples.
        batch_size: at least 1.
        last: what becomes of a rest: 'wrap' (filled up with the first samples of the next epoch,
            which then begins after them), 'pad' (filled up with the rest's last sample), or
            'discard'.

    Raises:
        ParamError: another `last`, a batch size below 1, or no samples.
    """

    @checked(batch_size=whole(1), last=choice("wrap", "pad", "discard"))
    def __init__(self, order: Order, batch_size: int, last: str = "wrap") -> None:
        if len(order) == 0:
            raise ParamError(
                f"[Schedule] expected at least one sample, got none in part {order.part_index} of "
                f"{order.num_parts} ({order.count} samples)"
            )
        self.order, self.batch_size, self.last = order, batch_size, last
        self.start(0, 0)

    def start(self, epoch: int, carried: int) -> None:
        """Begins an epoch whose first `carried` samples the epoch before has given."""
        self.epoch, self.carried = epoch, carried
        self._samples = self.order.epoch(epoch)[carried:]
        self._next: Array | None = None

    def has(self, epoch: int, carried: int, batch: int) -> bool:
        """Whether there is such a place: this many batches behind so many carried samples."""
        if epoch >> 62 or (carried and (not epoch or self.last != "wrap")):
            return False
        if carried >= min(self.batch_size, len(self.order)):
            return False
        whole_batches, rest = divmod(len(self.order) - carried, self.batch_size)
        return batch <= whole_batches + bool(rest and self.last != "discard")

    def batches(self) -> int:
        """Batches of this epoch."""
        whole, rest = divmod(len(self._samples), self.batch_size)
        return whole + bool(rest and self.last != "discard")

    def following(self) -> tuple[int, int]:
        """(epoch, carried) after all batches of this one were given."""
        missing = -len(self._samples) % self.batch_size
        carried = missing % len(self.order) if self.last == "wrap" else 0
        return self.epoch + 1, carried

    def batch(self, number: int) -> BatchPlan:
        """The samples of one batch of this epoch."""
        size = self.batch_size
        chosen = self._samples[number * size : (number + 1) * size].tolist()
        epochs = [self.epoch] * len(chosen)
        pad = size - len(chosen)
        if pad and self.last == "wrap":
            if self._next is None:
                self._next = self.order.epoch(self.epoch + 1)
            chosen += np.resize(self._next, pad).tolist()
            epochs += [self.epoch + 1] * pad
        elif pad:
            chosen += chosen[-1:] * pad
            epochs += epochs[-1:] * pad
        return BatchPlan(chosen, epochs, pad)
