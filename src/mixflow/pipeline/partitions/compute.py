"""The samples of a partition: the same bits wherever and however often they are computed."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from .kinds import Data, Layout, open_source, order_of
from .partition import Partition

Array = np.ndarray[Any, Any]
#: (name -> shape and dtype) -> arrays of that name, shape and dtype.
Allocate = Callable[[Layout], dict[str, Array]]
_KEPT_ORDERS = 2


def in_memory(layout: Layout) -> dict[str, Array]:
    """New arrays."""
    return {name: np.empty(shape, dtype) for name, (shape, dtype) in layout.items()}


class Computer:
    """Computes partitions, one after the other; keeps the source and the orders of late epochs.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._opened: tuple[str, Data] | None = None
        self._orders: OrderedDict[int, Array] = OrderedDict()  # of the source that is open

    def compute(self, partition: Partition, allocate: Allocate = in_memory) -> dict[str, Array]:
        """The samples of a partition.

        Args:
            partition: which.
            allocate: makes the arrays that are filled and returned.

        Returns:
            'data' and 'label' (samples, ...), as the source's kind lays them out, and 'index'
            (samples,) int64: numbers of the samples in the source.

        Raises:
            MixflowError: a description, file or sample that cannot be used.
        """
        data = self._data(partition)
        indices, epochs = self._samples(partition, len(data))
        shapes = {**data.layout(), "index": ((), np.dtype(np.int64))}
        count = len(partition)
        arrays = allocate({k: ((count, *shape), dtype) for k, (shape, dtype) in shapes.items()})
        arrays["index"][...] = indices
        data.fill(indices, epochs, arrays)
        return arrays

    def describe(self, partition: Partition) -> tuple[int, Layout]:
        """(samples of its source, shape and dtype of the arrays of one sample)."""
        data = self._data(partition)
        return len(data), data.layout()

    def close(self) -> None:
        """Gives files back."""
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None
        self._orders.clear()

    def _data(self, partition: Partition) -> Data:
        key = json.dumps([dict(partition.source), partition.seed], sort_keys=True)
        if self._opened is None or self._opened[0] != key:
            self.close()
            self._opened = key, open_source(partition.source, partition.seed)
        return self._opened[1]

    def _samples(self, partition: Partition, samples: int) -> tuple[list[int], list[int]]:
        indices: list[int] = []
        epochs: list[int] = []
        at = partition.first
        while at < partition.end:
            epoch, offset = divmod(at, samples)
            count = min(samples - offset, partition.end - at)
            indices += self._order(partition, samples, epoch)[offset : offset + count].tolist()
            epochs += [epoch] * count
            at += count
        return indices, epochs

    def _order(self, partition: Partition, samples: int, epoch: int) -> Array:
        if epoch not in self._orders:
            self._orders[epoch] = order_of(partition.source, samples, partition.seed, epoch)
            if len(self._orders) > _KEPT_ORDERS:
                self._orders.popitem(last=False)
        return self._orders[epoch]


def compute(partition: Partition) -> dict[str, Array]:
    """The samples of one partition, in this process; see `Computer.compute`."""
    computer = Computer()
    try:
        return computer.compute(partition)
    finally:
        computer.close()
