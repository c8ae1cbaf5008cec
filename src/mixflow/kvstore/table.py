"""Tables of additive rows with bounded staleness, on a store of one process or of a job.

The hazard: a worker that reads an old copy of the parameters must know how old it can be.
Increments gather at the worker until `clock` sends them as one step; a read at clock c waits until
every worker's steps up to c - s - 1 are in it, and always shows the worker's own increments. Only
reads wait: a worker that never reads can run ahead without bound.

Sources: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server", NIPS 2013; the calls are those of Petuum's Bosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import ndarray as nd
from ..errors import ParamError, ShapeError
from ..ndarray import NDArray
from .dist import DistKVStore
from .local import LocalKVStore
from .protocol.messages import Array
from .protocol.policy import Bounded


class Rows:
    """A worker's copy of a table, and its increments since its last clock. Pure logic.

    `clock` counts the steps that `take` has given out; the copy was read at clock `read_at` (-1:
    never).
    """

    def __init__(self, name: str, shape: tuple[int, int], dtype: Any, clock: int = 0) -> None:
        self.name = name
        self.clock = clock
        self.read_at = -1
        self._copy: Array = np.zeros(shape, dtype)
        self._log: Array = np.zeros(shape, dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        rows, columns = self._log.shape
        return rows, columns

    @property
    def fresh(self) -> bool:
        """Whether the copy was read at the present clock."""
        return self.read_at == self.clock

    def inc(self, row: int, column: int, delta: float) -> None:
        """Adds to one cell."""
        self._check(row, self.shape[0], "row")
        self._check(column, self.shape[1], "column")
        self._log[row, column] += delta

    def batch_inc(self, row: int | None, deltas: Any) -> None:
        """Adds to many cells of a row, or of the whole table (row None)."""
        if row is not None:
            self._check(row, self.shape[0], "row")
        if isinstance(deltas, Mapping):
            self._batch_inc_by_column(row, deltas)
            return
        target = self._log if row is None else self._log[row]
        values = deltas.asnumpy() if isinstance(deltas, NDArray) else np.asarray(deltas)
        if values.shape != target.shape:
            raise ShapeError(
                f"[table {self.name}] expected deltas of shape {target.shape}, got {values.shape}"
            )
        target += values

    def _batch_inc_by_column(self, row: int | None, deltas: Mapping[int, float]) -> None:
        if row is None:
            raise ParamError(f"[table {self.name}] expected a row for deltas by column, got None")
        for column in deltas:
            self._check(column, self.shape[1], "column")
        for column, delta in deltas.items():
            self._log[row, column] += delta

    def _check(self, index: Any, count: int, what: str) -> None:
        whole = isinstance(index, (int, np.integer)) and not isinstance(index, bool)
        if not whole or not 0 <= index < count:
            raise ParamError(
                f"[table {self.name}] expected a {what} of 0 to {count - 1}, got {index!r}"
            )

    def refresh(self, values: Array) -> None:
        """Takes what a read at the present clock gave."""
        self._copy = values.reshape(self.shape)
        self.read_at = self.clock

    def read(self, row: int | None) -> Array:
        """A row (columns,) or the whole table, with the increments that were not sent yet."""
        if row is None:
            return self._copy + self._log
        self._check(row, self.shape[0], "row")
        return np.asarray(self._copy[row] + self._log[row])

    def take(self) -> Array:
        """The increments of the step that ends; counts the clock."""
        taken, self._log = self._log, np.zeros_like(self._log)
        self.clock += 1
        return taken


def _add(key: Any, increments: NDArray, value: NDArray) -> None:
    value += increments


class Table:
    """Rows that all workers of a job read and add to.

    Every worker makes its tables in the same way. All tables of a job are to be clocked in turn
    (once per step each): a worker that is started again goes on at the step that all of them have.
    Not thread-safe: a table belongs to one thread of its worker.

    Args:
        name: of the table; also its key in the store.
        rows, columns: its shape.
        staleness: clocks s by which a read may be behind (0: bulk synchronous).
        dtype: of the cells.
        store: a store of a job under bounded staleness (``kv.create('dist_ssp')``), whose own
            staleness does not matter here; None: one worker, in this process.

    Raises:
        ParamError: a bad shape or staleness, a store under another policy, or workers disagree.
        MixflowError: the name is taken, or the servers do not answer within the deadline.
    """

    def __init__(
        self,
        name: str,
        rows: int,
        columns: int = 1,
        *,
        staleness: int = 0,
        dtype: Any = "float32",
        store: DistKVStore | None = None,
    ) -> None:
        if rows < 1 or columns < 1:
            raise ParamError(f"[table {name}] expected a shape of at least (1, 1), got {rows}, "
                             f"{columns}")  # fmt: skip
        self.staleness = Bounded(staleness).staleness
        self._rows = Rows(name, (rows, columns), np.dtype(dtype), store.first_step if store else 0)
        self._store = _local() if store is None else _checked(name, store)
        if store is not None:
            store.configure(f"table {name}", {"staleness": staleness})
        self._store.init(name, nd.zeros((rows, columns), dtype=dtype))
        self._out = nd.zeros((rows, columns), dtype=dtype)

    @property
    def name(self) -> str:
        """Its name."""
        return self._rows.name

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self._rows.shape

    @property
    def now(self) -> int:
        """This worker's clock: steps that it has sent."""
        return self._rows.clock

    def get(self, row: int | None = None) -> NDArray:
        """A row, shape (columns,), or the whole table, shape (rows, columns): a copy.

        The first read after a clock asks the servers and waits until the bound holds; later ones
        of the same clock show the same copy. Increments that were not sent yet are in it.

        Raises:
            ParamError: no such row.
            MXNetError: the bound did not hold within the job's deadline; names who is missing.
        """
        if not self._rows.fresh:
            self._store.pull(self.name, out=self._out)
            self._rows.refresh(self._out.asnumpy())
        values = self._rows.read(row)
        return nd.array(values, dtype=values.dtype)

    def inc(self, row: int, column: int, delta: float) -> None:
        """Adds `delta` to a cell; this worker sees it at once, the others after its `clock`.

        Raises:
            ParamError: no such row or column.
        """
        self._rows.inc(row, column, delta)

    def batch_inc(self, row: int | None, deltas: Any) -> None:
        """Adds to a row: {column: delta}, or an array of all its columns; with ``row=None`` to the
        whole table: an array of its shape.

        Raises:
            ParamError: no such row or column; nothing is added.
            ShapeError: an array of another shape.
        """
        self._rows.batch_inc(row, deltas)

    def clock(self) -> int:
        """Sends the increments as this worker's next step, and returns how many it has sent.

        Does not wait.
        """
        taken = self._rows.take()
        self._store.push(self.name, nd.array(taken, dtype=taken.dtype))
        return self._rows.clock


def _local() -> LocalKVStore:
    store = LocalKVStore("local")
    store.set_updater(_add)
    return store


def _checked(name: str, store: DistKVStore) -> DistKVStore:
    if not isinstance(store.options.policy, Bounded):
        raise ParamError(
            f"[table {name}] expected a store 'dist_ssp', got '{store.type}'; start the job with "
            "'mixflow launch --consistency dist_ssp'"
        )
    return store
