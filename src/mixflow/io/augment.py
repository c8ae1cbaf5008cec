"""Random changes of training images, as iterators around iterators."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ndarray as nd
from .. import random as _random
from ..arguments import checked, having, whole
from .base import DataBatch, DataDesc, DataIter

Array = np.ndarray[Any, Any]


def shift_images(images: Array, rows: Array, columns: Array) -> Array:
    """Moves each image by whole pixels; what comes in is 0.

    Args:
        images: (N, C, H, W).
        rows, columns: (N,) whole pixels, down and right; at most H and W.

    Returns:
        (N, C, H, W), same dtype.
    """
    height, width = images.shape[2:]
    reach = int(max(np.abs(rows).max(initial=0), np.abs(columns).max(initial=0)))
    padded = np.pad(images, ((0, 0), (0, 0), (reach, reach), (reach, reach)))
    down = (np.arange(height) + reach) - rows[:, None]
    right = (np.arange(width) + reach) - columns[:, None]
    sample = np.arange(len(images))[:, None, None]
    # The channel axis comes last out of mixed indexing; put it back.
    moved = padded[sample, :, down[:, :, None], right[:, None, :]]
    return np.ascontiguousarray(moved.transpose(0, 3, 1, 2))


class RandomShiftIter(DataIter):
    """Moves each image of the first data array by up to `pixels` in both directions.

    Draws from `mx.random`'s host generator, so that a seed repeats the run.

    Args:
        data_iter: inner iterator of images (N, C, H, W).
        pixels: largest shift, at least 0.

    Raises:
        ParamError: a negative shift, or no iterator.
    """

    @checked(data_iter=having("next", "reset", "batch_size"), pixels=whole(0, 1 << 20))
    def __init__(self, data_iter: DataIter, pixels: int) -> None:
        super().__init__(data_iter.batch_size)
        self.data_iter = data_iter
        self.pixels = pixels

    @property
    def provide_data(self) -> list[DataDesc]:
        """As the inner iterator's."""
        found: list[DataDesc] = self.data_iter.provide_data
        return found

    @property
    def provide_label(self) -> list[DataDesc]:
        """As the inner iterator's."""
        found: list[DataDesc] = self.data_iter.provide_label
        return found

    def reset(self) -> None:
        """Next epoch."""
        self.data_iter.reset()

    def next(self) -> DataBatch:
        """The next batch with its images moved.

        Raises:
            StopIteration: the inner iterator ended.
        """
        batch = self.data_iter.next()
        images = batch.data[0].asnumpy()
        draw = _random.host_generator().integers
        rows, columns = draw(-self.pixels, self.pixels + 1, (2, len(images)))
        moved = nd.array(shift_images(images, rows, columns), dtype=images.dtype)
        batch.data = [moved, *batch.data[1:]]
        return batch
