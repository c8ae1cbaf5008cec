"""Iterators around iterators: another length, or batches fetched ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..arguments import checked, flag, having, whole
from ..errors import MixflowError, ParamError, ShapeError
from .ahead import Ahead
from .base import BatchIter, DataBatch, DataDesc, DataIter


class ResizeIter(BatchIter):
    """An epoch of exactly `size` batches, restarting the inner iterator when it ends.

    Args:
        data_iter: inner iterator.
        size: batches per epoch.
        reset_internal: also reset the inner iterator at each `reset`.

    Raises:
        ParamError: no iterator, or a size that is no number of batches.
    """

    @checked(data_iter=having("next", "reset", "batch_size"), size=whole(1), reset_internal=flag)
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
            MixflowError: the inner iterator has no batch at all.
        """
        if self.cur == self.size:
            raise StopIteration
        try:
            self.current_batch = self.data_iter.next()
        except StopIteration:
            self.data_iter.reset()
            self.current_batch = self._first()
        self.cur += 1
        return self.current_batch

    def _first(self) -> DataBatch:
        try:
            return self.data_iter.next()
        except StopIteration:
            raise MixflowError(
                f"[ResizeIter] expected {self.size} batches of {type(self.data_iter).__name__}, "
                "got an iterator without any after its reset"
            ) from None


class PrefetchingIter(BatchIter):
    """Fetches batches of one or several iterators on a thread, `depth` ahead.

    An error of an inner iterator is raised by the `next` that would have given its batch. The
    thread ends at `close`, at `reset`, and with the object.

    Args:
        iters: iterator or list of iterators, whose batches are joined; all must have the same
            number of batches with the same padding.
        rename_data, rename_label: per iterator a dict old name -> new name.
        depth: batches that may wait.

    Raises:
        ParamError: no iterators, of different batch sizes, or names that are no dicts of them.
    """

    @checked(depth=whole(1))
    def __init__(
        self,
        iters: DataIter | Sequence[DataIter],
        rename_data: Sequence[dict[str, str]] | None = None,
        rename_label: Sequence[dict[str, str]] | None = None,
        depth: int = 2,
    ) -> None:
        self.iters: list[DataIter] = _iterators(iters)
        super().__init__(self.iters[0].batch_size)
        for names in (rename_data, rename_label):
            _check_names(names, len(self.iters))
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
            StopIteration: the inner iterators ended.
            ShapeError: one ended before the others, or its batch has other padding.
            MixflowError: after `close`, or in a forked process before `reset`.
        """
        self.current_batch = _join(next(self._batches))
        return self.current_batch


def _iterators(given: DataIter | Sequence[DataIter]) -> list[DataIter]:
    """The iterators, checked."""
    one = hasattr(given, "next") and hasattr(given, "reset")
    found: list[Any] = [given] if one else []
    if isinstance(given, (list, tuple)):
        found = list(given)
    if not found or not all(hasattr(i, "next") and hasattr(i, "batch_size") for i in found):
        raise ParamError(
            f"[PrefetchingIter] expected an iterator or a list of some, got {given!r:.200}"
        )
    sizes = [i.batch_size for i in found]
    if len(set(sizes)) > 1:
        raise ParamError(
            f"[PrefetchingIter] expected iterators of one batch size, got {sizes}; their batches "
            "are joined"
        )
    return found


def _check_names(names: Sequence[dict[str, str]] | None, count: int) -> None:
    good = isinstance(names, (list, tuple)) and all(isinstance(n, dict) for n in names)
    if names is not None and not (good and len(names) == count):
        raise ParamError(
            f"[PrefetchingIter] expected a dict of names for each of {count} iterators, got "
            f"{names!r:.200}"
        )


class _Batches:
    """The iterators' batches side by side."""

    def __init__(self, iters: Sequence[DataIter]) -> None:
        self.iters = iters

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> list[DataBatch]:
        found = [self._next(inner) for inner in self.iters]
        batches = [batch for batch in found if batch is not None]
        if not batches:
            raise StopIteration
        pads = ["the end" if batch is None else batch.pad for batch in found]
        if len(batches) < len(found) or len({batch.pad or 0 for batch in batches}) > 1:
            raise ShapeError(
                "[PrefetchingIter] expected iterators with the same number of batches and the same "
                f"padding, got padding {pads} at once; make them of equally many samples"
            )
        return batches

    @staticmethod
    def _next(inner: DataIter) -> DataBatch | None:
        try:
            return inner.next()
        except StopIteration:
            return None


def _join(parts: list[DataBatch]) -> DataBatch:
    first = parts[0]
    data = [array for part in parts for array in part.data]
    label = [array for part in parts for array in (part.label or ())]
    return DataBatch(data, label, first.pad, first.index, first.bucket_key)
