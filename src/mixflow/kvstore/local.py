"""Level 1 inside one process: merge over contexts, update, copy back.

Everything is pushed to the engine: push and pull return at once, and the order per key comes from
the tags of the stored arrays. `priority` is taken for the API's sake: per-key order does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import optimizer as opt
from ..errors import MixflowError, ShapeError
from ..files import write_atomically
from ..ndarray import NDArray
from .base import KVStoreBase, as_arrays, check_new, lookup, pairs


class LocalKVStore(KVStoreBase):
    """Stores one array per key on the context of its first value."""

    def __init__(self, name: str = "local") -> None:
        self._name = name
        self._stored: dict[Any, NDArray] = {}
        self._updater: Callable[[Any, NDArray, NDArray], None] | None = None

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

    def _merge(self, key: Any, values: Any, stored: NDArray) -> NDArray:
        for value in values:
            if value.shape != stored.shape:
                raise ShapeError(
                    f"[kvstore] expected shape {stored.shape} for key {key!r}, got {value.shape}"
                )
        return self.sum([value.as_in_context(stored.context) for value in values])

    @staticmethod
    def sum(values: Sequence[NDArray]) -> NDArray:
        """The sum of arrays, on the context of the first one; one array is returned as it is."""
        merged = values[0]
        for value in values[1:]:
            merged = merged + value.as_in_context(merged.context)
        return merged

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Copies each stored array to every array of `out`."""
        if out is None:
            raise MixflowError("[kvstore] expected 'out' in pull, got None")
        for k, o in pairs(key, out):
            stored = lookup(k, self._stored)
            for target in as_arrays(o):
                stored.copyto(target)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out` (or back into `value`)."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """`init`, then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def set_optimizer(self, optimizer: opt.Optimizer) -> None:
        """Updates run in the store from now on."""
        self._updater = opt.get_updater(optimizer)

    def set_updater(self, updater: Callable[[Any, NDArray, NDArray], None]) -> None:
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
