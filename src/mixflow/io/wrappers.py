"""Iterators around iterators: another length, or batches fetched ahead."""

from __future__ import annotations

from collections.abc import Sequence

from .ahead import Ahead
from .base import BatchIter, DataBatch, DataDesc, DataIter


class ResizeIter(BatchIter):
    """An epoch of exactly `size` batches, restarting the inner iterator when it ends.

    Args:
        data_iter: inner iterator.
        size: batches per epoch.
        reset_internal: also reset the inner iterator at each `reset`.
    """

    def __init__(self, data_iter: DataIter, size: int, reset_internal: bool = True) -> None:
        super().__init__(data_iter.batch_size)
        self.data_iter = data_iter
        self.size = size
        self.reset_internal = reset_internal
        self.cur = 0
        self.provide_data = data_iter.provide_data  # type: ignore[misc]
        self.provide_label = data_iter.provide_label  # type: ignore[misc]

    def reset(self) -> None:
        """Next epoch."""
        self.cur = 0
        if self.reset_internal:
            self.data_iter.reset()

    def next(self) -> DataBatch:
        """The next batch.

        Raises:
            StopIteration: `size` batches were given.
        """
        if self.cur == self.size:
            raise StopIteration
        try:
            self.current_batch = self.data_iter.next()
        except StopIteration:
            self.data_iter.reset()
            self.current_batch = self.data_iter.next()
        self.cur += 1
        return self.current_batch


class PrefetchingIter(BatchIter):
    """Fetches batches of one or several iterators on a thread, `depth` ahead.

    An error of an inner iterator is raised by the `next` that would have given its batch. The
    thread ends at `close`, at `reset`, and with the object.

    Args:
        iters: iterator or list of iterators, whose batches are joined.
        rename_data, rename_label: per iterator a dict old name -> new name.
        depth: batches that may wait.
    """

    def __init__(
        self,
        iters: DataIter | Sequence[DataIter],
        rename_data: Sequence[dict[str, str]] | None = None,
        rename_label: Sequence[dict[str, str]] | None = None,
        depth: int = 2,
    ) -> None:
        self.iters: list[DataIter] = [iters] if isinstance(iters, DataIter) else list(iters)
        super().__init__(self.iters[0].batch_size)
        self.rename_data, self.rename_label = rename_data, rename_label
        self._depth = depth
        self._start()

    @property
    def provide_data(self) -> list[DataDesc]:
        """Descriptions of all data arrays, renamed."""
        return self._descriptions("provide_data", self.rename_data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Descriptions of all label arrays, renamed."""
        return self._descriptions("provide_label", self.rename_label)

    def _descriptions(self, kind: str, names: Sequence[dict[str, str]] | None) -> list[DataDesc]:
        found = []
        for i, inner in enumerate(self.iters):
            for d in getattr(inner, kind):
                name = names[i].get(d[0], d[0]) if names else d[0]
                found.append(DataDesc(name, d[1], getattr(d, "dtype", "float32")))
        return found

    def _start(self) -> None:
        self._batches: Ahead[list[DataBatch]] = Ahead(
            _Batches(self.iters), self._depth, "PrefetchingIter"
        )

    def close(self) -> None:
        """Ends the thread; the iterator can be used again after `reset`.

        Raises:
            MixflowError: an inner iterator does not give its batch within a minute.
        """
        self._batches.close()

    def reset(self) -> None:
        """Next epoch of every inner iterator."""
        self.close()
        for inner in self.iters:
            inner.reset()
        self._start()

    def next(self) -> DataBatch:
        """The next joined batch.

        Raises:
            StopIteration: an inner iterator ended.
            MixflowError: after `close`.
        """
        self.current_batch = _join(next(self._batches))
        return self.current_batch


class _Batches:
    """The iterators' batches side by side."""

    def __init__(self, iters: Sequence[DataIter]) -> None:
        self.iters = iters

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> list[DataBatch]:
        return [inner.next() for inner in self.iters]


def _join(parts: list[DataBatch]) -> DataBatch:
    first = parts[0]
    data = [array for part in parts for array in part.data]
    label = [array for part in parts for array in (part.label or ())]
    return DataBatch(data, label, first.pad, first.index, first.bucket_key)
