"""Ray Data as a source of batches: a cluster decodes and augments, this process trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .. import ndarray as nd
from ..errors import ParamError
from ..ndarray import NDArray


def ray_batches(
    dataset: Any,
    batch_size: int,
    data: str = "data",
    label: str = "label",
    transform: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    prefetch_batches: int = 2,
    drop_last: bool = True,
) -> Iterator[tuple[NDArray, NDArray]]:
    """Batches of a `ray.data.Dataset`, or of one shard of its `streaming_split`.

    Ray Data keeps its own order and bounds its own memory. A position in its stream cannot be
    saved: for exact resuming read files with the sources of `mx.pipeline`.

    Args:
        dataset: anything with Ray Data's `iter_batches`.
        batch_size: rows per batch.
        data, label: names of the columns.
        transform: called with each batch (column name -> array) before it becomes arrays.
        prefetch_batches: batches that Ray fetches ahead.
        drop_last: whether a smaller rest is dropped.

    Returns:
        An iterator of (data, labels), float32 or the column's integer type.

    Raises:
        ParamError: no data set of Ray's, or a missing column.
    """
    if not hasattr(dataset, "iter_batches"):
        raise ParamError(f"[ray_batches] expected a ray.data.Dataset, got {type(dataset).__name__}")
    for batch in dataset.iter_batches(
        batch_size=batch_size,
        batch_format="numpy",
        prefetch_batches=prefetch_batches,
        drop_last=drop_last,
    ):
        columns = batch if transform is None else transform(batch)
        for name in (data, label):
            if name not in columns:
                known = ", ".join(sorted(columns))
                raise ParamError(f"[ray_batches] expected a column '{name}', got {known}")
        pair = [np.asarray(columns[name]) for name in (data, label)]
        yield nd.array(pair[0], dtype=pair[0].dtype), nd.array(pair[1], dtype=pair[1].dtype)
