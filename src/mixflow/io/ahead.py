"""Items of an iterator, made ahead on a thread.

The hazard: a thread that outlives its reader. So the thread knows only a shared state, not the
object that reads; the state says stop when the object is closed or collected, and every wait looks
at it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from ..errors import MixflowError

T = TypeVar("T")
#: How long `close` waits for an item in work.
CLOSE_SECONDS = 60.0
_LOOK_SECONDS = 1.0


class _Shared:
    """What reader and thread share: items, and how the iterator ended."""

    def __init__(self, depth: int) -> None:
        self.changed = threading.Condition()
        self.items: deque[Any] = deque()
        self.depth = depth
        self.stopped = False
        self.ended: BaseException | None = None

    def stop(self) -> None:
        """Tells the thread to end; what it has made is dropped."""
        with self.changed:
            self.stopped = True
            self.items.clear()
            self.changed.notify_all()


class Ahead(Generic[T]):
    """Reads an iterator on a thread of its own, up to `depth` items ahead.

    An error of the iterator is raised where its item would have come, and again by each later read.
    The thread ends with the iterator, at `close`, or when the object is collected; then a generator
    is closed.

    Args:
        source: iterator; only the thread uses it from now on.
        depth: items that may wait, at least 1.
        name: of the thread.
    """

    def __init__(self, source: Iterator[T], depth: int = 2, name: str = "mixflow-ahead") -> None:
        self._shared = _Shared(max(1, depth))
        self._thread = threading.Thread(
            target=_produce, args=(source, self._shared), name=name, daemon=True
        )
        self._collected = weakref.finalize(self, self._shared.stop)
        self._collected.atexit = False
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        shared = self._shared
        with shared.changed:
            while not shared.items:
                if shared.ended is not None and not shared.stopped:
                    # The error that is raised holds this frame: a registry that held the error
                    # would keep the reader, and all that it has, alive for ever.
                    self._collected.detach()
                    if isinstance(shared.ended, StopIteration):
                        raise StopIteration
                    raise shared.ended
                # Closed, or a fork left the thread behind.
                if shared.stopped or not self._thread.is_alive():
                    raise MixflowError(
                        f"[{self._thread.name}] expected a running iterator, got one that was "
                        "closed; call reset"
                    )
                shared.changed.wait(_LOOK_SECONDS)
            item: T = shared.items.popleft()
            shared.changed.notify_all()
            return item

    def close(self) -> None:
        """Ends the thread and waits for it.

        Raises:
            MixflowError: the item in work takes longer than a minute.
        """
        self._shared.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            raise MixflowError(
                f"[{self._thread.name}] expected the thread to end within {CLOSE_SECONDS:g} s, got "
                "one that still waits for its source"
            )


def _produce(source: Iterator[Any], shared: _Shared) -> None:
    """Body of the thread."""
    ended: BaseException = StopIteration()
    try:
        while not shared.stopped:
            item = next(source)
            with shared.changed:
                while len(shared.items) >= shared.depth and not shared.stopped:
                    shared.changed.wait(_LOOK_SECONDS)
                if not shared.stopped:
                    shared.items.append(item)
                    shared.changed.notify_all()
            del item
    except BaseException as error:  # also StopIteration: the reader raises it
        ended = error
    with contextlib.suppress(Exception):
        getattr(source, "close", lambda: None)()
    with shared.changed:
        shared.ended = ended
        shared.changed.notify_all()
