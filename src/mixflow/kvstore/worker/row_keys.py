"""Row_sparse keys at a worker: pushes and reads of rows as engine tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from ... import _rt
from ...errors import MixflowError
from ...ndarray import NDArray
from ...ndarray import rows as row_math
from ...ndarray.row_sparse import BaseSparseNDArray, RowSparseNDArray
from ..protocol import row_gradients
from ..protocol.sharding import Entry
from ..transport.zeromq import Call, Link


class RowKey(Protocol):
    """What a worker knows of a row_sparse key."""

    entry: Entry
    shape: tuple[int, ...]
    width: int
    tag: Any


def width_of(value: Any) -> int:
    """Values per row of a row_sparse array; 0 of a dense one."""
    sparse = isinstance(value, RowSparseNDArray) and value.size
    return value.size // value.shape[0] if sparse else 0


def any_sparse(value: Any) -> bool:
    """Whether there is a sparse array in nested lists."""
    return any(isinstance(array, BaseSparseNDArray) for array in _flat(value))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def push_rows(
    link: Link,
    name: str,
    known: RowKey,
    merged: RowSparseNDArray,
    priority: int,
    before: Callable[[], None],
) -> None:
    """A push of rows and their values alone, when they are there.

    Args:
        link: the connection; name: of the task.
        known: the key.
        merged: the gradient.
        priority: larger ones go first.
        before: called in the order of the key's tag before the push is handed on.
    """

    def send() -> None:
        before()
        coded = row_gradients.gradients(known.entry.slices, known.width, merged.cell)
        link.call("push", lambda c, now: c.push(coded, now, priority=priority))

    _rt.core.push(send, [merged.tag], [known.tag], name, priority)


def read_rows(
    link: Link, name: str, known: RowKey, target: RowSparseNDArray, ids: NDArray, priority: int
) -> None:
    """Reads the rows of `ids` into `target`; a row outside is an error of that array."""
    handle, slices = _rt.core.fresh_handle(ids), known.entry.slices

    def start(completion: _rt.Completion) -> None:
        try:
            numbers = row_math.wanted(handle.to_numpy())
            row_math.within(numbers, known.shape, "row_sparse_pull")
            asked = row_gradients.requests(slices, known.width, numbers)
            call = link.call(
                "row_sparse_pull",
                lambda c, now: c.pull(asked, now, priority=priority, rows=asked),
            )
        except MixflowError as error:
            completion.done(str(error))
            return
        build = row_gradients.joined(slices, numbers, known.shape, target.dtype)

        def finish(call: Call) -> None:
            assert call.ticket is not None
            if not call.ticket.error:
                target.set_rows(build(call.ticket.values))
            completion.done(call.ticket.error or None)

        call.then(finish)

    _rt.core.push(start, [ids], [target.tag, known.tag], name, priority, asynchronous=True)


def set_whole(target: RowSparseNDArray, values: Any) -> None:
    """Stores every row of a whole array's values; for a task that holds the target's tag."""
    target.set_rows(row_math.Rows(np.arange(len(values)), values))
