"""How a module uses a KVStore: of one process (its updater), of a job (the servers' optimizer)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import kvstore as kvs
from ..files import write_atomically
from ..kvstore import DistKVStore
from ..ndarray import NDArray


def find(kvstore: Any, contexts: int) -> Any:
    """The store of a name, or the store itself; None where one context needs none.

    Raises:
        UnknownNameError: unknown name.
    """
    if not isinstance(kvstore, str):
        return kvstore
    made = kvs.create(kvstore)  # an unknown name is an error in any case
    return made if contexts > 1 or isinstance(made, DistKVStore) else None


def parts_per_update(store: Any) -> int:
    """Batches whose gradients one update sums."""
    return store.parts_per_update if isinstance(store, DistKVStore) else 1


def steps_done(store: Any) -> int:
    """Batches that this worker had trained on before it was started again."""
    return store.first_step if isinstance(store, DistKVStore) else 0


def save_states(store: Any, updater: Any, path: str) -> None:
    """Writes the optimizer's states: those of the servers, where they are the ones that update."""
    if isinstance(store, DistKVStore):
        store.save_optimizer_states(path)
    else:
        write_atomically(path, updater.get_states())


def load_states(store: Any, updater: Any, path: str, allow_pickle: bool) -> None:
    """Reads what `save_states` wrote.

    Raises:
        FormatError: damaged, or one of MXNet's pickles without `allow_pickle`.
    """
    if isinstance(store, DistKVStore):
        store.load_optimizer_states(path)
    else:
        updater.set_states(Path(path).read_bytes(), allow_pickle)


def fill(
    store: Any, weights: Mapping[int, Sequence[NDArray]], optimizer: Any, updater: Any
) -> None:
    """Puts parameters (one array per context) and the way of updating them into a store.

    A job's store gives the values of its first worker back.
    """
    for index, arrays in weights.items():
        store.init(index, arrays[0])
    if not isinstance(store, DistKVStore):
        store._set_updater(updater)
        return
    store.set_optimizer(optimizer)
    for index, arrays in weights.items():
        store.pull(index, arrays, priority=-index)
