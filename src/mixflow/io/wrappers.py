"""Iterators around iterators: another length, or batches fetched ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

from ..errors import MixflowError
from .base import DataBatch, DataDesc, DataIter


class ResizeIter(DataIter):
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
        self.current_batch: DataBatch | None = None
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


class PrefetchingIter(DataIter):
    """Fetches batches of one or several iterators on a thread, `depth` ahead.

    An error of an inner iterator is raised by the `next` that would have given its batch. The
    thread ends at `close`, at `reset`, and with the object.

    Args:
        iters: iterator or list of iterators, whose batches are joined.
        rename_data, rename_label: per iterator a dict old name -> new name.
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
        self._queue: queue.Queue[Any] = queue.Queue(self._depth)
        self._stop = threading.Event()
        self._ended: BaseException | None = None
        self._thread = threading.Thread(
            target=_fetch, args=(self.iters, self._queue, self._stop), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; the iterator can be used again after `reset`."""
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)
        self._queue = queue.Queue(self._depth)  # a batch may have come in meanwhile

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self._stop.set()

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
        """
        if self._ended is None:
            item = self._wait()
            if isinstance(item, list):
                return _join(item)
            self._ended = item
        raise self._ended

    def _wait(self) -> Any:
        """What the thread gives next; an error where the thread has ended without a word."""
        while True:
            try:
                return self._queue.get(timeout=0.1)
            except queue.Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    raise MixflowError(
                        "[PrefetchingIter] expected a running iterator, got one that was closed; "
                        "call reset"
                    ) from None


def _fetch(iters: list[DataIter], batches: queue.Queue[Any], stop: threading.Event) -> None:
    """Thread body: knows no PrefetchingIter, so that one can be collected while it runs."""
    while not stop.is_set():
        try:
            item: Any = [inner.next() for inner in iters]
        except BaseException as error:
            item = error
        while not stop.is_set():
            try:
                batches.put(item, timeout=0.1)
                break
            except queue.Full:
                continue
        if isinstance(item, BaseException):
            return


def _join(parts: list[DataBatch]) -> DataBatch:
    first = parts[0]
    data = [array for part in parts for array in part.data]
    label = [array for part in parts for array in (part.label or ())]
    return DataBatch(data, label, first.pad, first.index, first.bucket_key)
