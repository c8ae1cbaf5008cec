"""Level 1 inside one process: merge over contexts, update, copy back.

Values may be row_sparse: their sums and updates touch the rows that are there.

Everything is pushed to the engine: push and pull return at once, and the order per key comes from
the tags of the stored arrays. `priority` is taken for the API's sake: per-key order does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import ndarray as nd
from .. import optimizer as opt
from ..errors import MixflowError, ShapeError
from ..files import write_atomically
from ..ndarray import NDArray
from ..ndarray.row_sparse import BaseSparseNDArray, push, take_rows
from .base import KVStore, KVStoreBase, as_arrays, check_new, lookup, pairs, pulled, row_requests
from .protocol.compression import Compression, decode
from .protocol.messages import Gradient


class LocalKVStore(KVStore):
    """Stores one array per key on the context of its first value."""

    def __init__(self, name: str = "local") -> None:
        self._name = name
        self._stored: dict[Any, Any] = {}
        self._updater: Callable[[Any, Any, Any], None] | None = None
        self._compression: Compression | None = None
        self._residuals: dict[tuple[Any, int], NDArray] = {}

    @property
    def type(self) -> str:
        """Name it was created with."""
        return self._name

    def init(self, key: Any, value: Any) -> None:
        """Sets the first value of each key, once.

        Raises:
            MixflowError: already initialised, or int and str keys mixed.
        """
        for k, v in pairs(key, value):
            check_new(k, self._stored)
            self._stored[k] = as_arrays(v)[0].copy()

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sums the values of each key over contexts and updates (or replaces) the stored array.

        Raises:
            ShapeError: a value's shape is not the stored one.
        """
        for k, v in pairs(key, value):
            stored = lookup(k, self._stored)
            merged = self._merge(k, as_arrays(v), stored)
            if self._updater is None:
                merged.copyto(stored)
            else:
                self._updater(k, merged, stored)

    def _merge(self, key: Any, values: Any, stored: Any) -> Any:
        for value in values:
            if value.shape != stored.shape:
                raise ShapeError(
                    f"[kvstore] expected shape {stored.shape} for key {key!r}, got {value.shape}"
                )
        if self._compression is not None:
            values = [self._coded(key, number, value) for number, value in enumerate(values)]
        return self.sum([value.as_in_context(stored.context) for value in values])

    @staticmethod
    def sum(values: Sequence[Any]) -> Any:
        """The sum of arrays, on the context of the first one; one array is returned as it is.

        Of row_sparse arrays it is row_sparse, of both kinds dense.
        """
        merged = values[0]
        if len(values) > 1 and any(isinstance(v, BaseSparseNDArray) for v in values):
            return nd.add_n(*(v.as_in_context(merged.context) for v in values))
        for value in values[1:]:
            merged = merged + value.as_in_context(merged.context)
        return merged

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Copies each stored array to every array of `out`.

        Row_sparse arrays are left as they are, with a warning, unless `ignore_sparse` is false.
        """
        if out is None:
            raise MixflowError("[kvstore] expected 'out' in pull, got None")
        for k, o in pairs(key, out):
            stored = lookup(k, self._stored)
            for target in pulled(as_arrays(o), ignore_sparse):
                stored.copyto(target)

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Copies rows of each stored array to every row_sparse array of `out`.

        Args:
            key: one key or a list.
            out: row_sparse array of the key's shape, or a list of them.
            priority: kept for MXNet programs.
            row_ids: row numbers of any shape and order, repeated or not: one array for all outs of
                a key, or one per out. Rows that are not stored come as rows of 0.

        Raises:
            MixflowError: no `out` or `row_ids`, or an out that is not row_sparse.
            ShapeError: an out of another shape; or, when it is read, a row outside of the array.
        """
        for k, requests in row_requests(key, out, row_ids):
            stored = lookup(k, self._stored)
            for target, rows in requests:
                take_rows(stored, rows, target)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out` (or back into `value`)."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """`init`, then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def _coded(self, key: Any, number: int, value: Any) -> NDArray:
        """What is left of a gradient by its code; the rest stays for the context's next push."""
        if isinstance(value, BaseSparseNDArray) or value.dtype != np.float32:
            raise MixflowError(
                f"[gradient compression] expected dense float32 gradients of {key!r}, got "
                f"{value.stype} {np.dtype(value.dtype).name}"
            )
        compression = self._compression
        assert compression is not None
        if (key, number) not in self._residuals:
            self._residuals[key, number] = nd.zeros(value.shape, ctx=value.context)
        made = nd.empty(value.shape, ctx=value.context)

        def body(gradient: Any, residual: Any, result: Any) -> None:
            code = compression.encode(gradient.reshape(-1), residual.reshape(-1))
            coded = Gradient((), code, compression.code)
            result[...] = decode(coded, result.size).reshape(result.shape)

        push(body, [value], [self._residuals[key, number], made], f"compress {key}")
        return made

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Codes what each context pushes with 2 bits or 1 bit per value; see `compression`.

        Raises:
            ParamError: bad parameters.
            MixflowError: a store without 'device' in its name, or set before.
        """
        if "device" not in self._name:
            raise MixflowError(
                f"[gradient compression] expected a 'device' or 'dist' store, got '{self._name}'"
            )
        if self._compression is not None:
            raise MixflowError("[kvstore] expected compression to be set once, got a second call")
        self._compression = Compression.from_params(compression_params)

    def set_optimizer(self, optimizer: opt.Optimizer) -> None:
        """Updates run in the store from now on."""
        self._updater = opt.get_updater(optimizer)

    def set_updater(self, updater: Callable[[Any, Any, Any], None]) -> None:
        """Makes a push call ``updater(key, merged gradient, stored value)``."""
        self._updater = updater

    _set_updater = set_updater

    def _states(self) -> opt.Updater:
        if not isinstance(self._updater, opt.Updater):
            raise MixflowError("[kvstore] expected an optimizer, got none; call set_optimizer")
        return self._updater

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Writes the optimizer's states to a file, which appears whole or not at all."""
        write_atomically(fname, self._states().get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        """Reads what `save_optimizer_states` wrote."""
        self._states().set_states(Path(fname).read_bytes())

    def barrier(self) -> None:
        """Waits for all workers: there is one."""

    _barrier = barrier


for _name in (
    "local",
    "local_update_cpu",
    "local_allreduce_cpu",
    "device",
    "local_allreduce_device",
):
    KVStoreBase.kv_registry[_name] = LocalKVStore
