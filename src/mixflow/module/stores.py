"""How a module uses a KVStore: of one process (its updater), of a job (the servers' optimizer)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from .. import kvstore as kvs
from .. import ndarray as nd
from .. import random
from ..files import write_atomically
from ..io import DataIter
from ..ndarray import NDArray

if TYPE_CHECKING:
    from ..kvstore import DistKVStore
    from .executor_group import ExecutorGroup


def _of_a_job(store: Any) -> TypeGuard[DistKVStore]:
    """Whether a store is that of several workers, whose servers update."""
    return isinstance(store, kvs.KVStoreBase) and store.of_a_job


def find(kvstore: Any, contexts: int) -> Any:
    """The store of a name, or the store itself; None where one context needs none.

    Raises:
        UnknownNameError: unknown name.
    """
    if not isinstance(kvstore, str):
        return kvstore
    made = kvs.create(kvstore)  # an unknown name is an error in any case
    return made if contexts > 1 or _of_a_job(made) else None


def parts_per_update(store: Any) -> int:
    """Batches whose gradients one update sums."""
    return store.parts_per_update if _of_a_job(store) else 1


def go_on(
    store: Any, module: Any, data: DataIter, begin_epoch: int, num_epoch: int
) -> tuple[int, int | None]:
    """Brings the data to where this worker was before it was started again, and takes back what it
    had saved in the job's snapshot.

    Returns:
        The epoch to begin with, and its batches that are done; None: it was not under way.
    """
    if not _of_a_job(store) or not store.steps_to_skip:
        return begin_epoch, None
    place, saved = (begin_epoch, 0), store.restored
    if saved is None and getattr(data, "follows", False):  # it is where the store is
        store.steps_to_skip = 0
        return begin_epoch + int(data.epoch), int(data.batches_done)  # type: ignore[attr-defined]
    if saved is not None and "epoch" in saved:
        store.restored = None  # for this call of `fit` only
        # Without rounds slices are copied when they hear of it: pushes under way may be missing.
        ahead = int(saved["step"]) > store.steps_to_skip
        if saved["data"] is not None and not ahead:
            data.load_state_dict(saved["data"])  # type: ignore[attr-defined]  # as it was saved
            place = int(saved["epoch"]), int(saved["batch"])
            store.steps_to_skip -= int(saved["step"])
        elif not ahead:  # else its batches come again, from the first one that they lack
            left = store.steps_to_skip - int(saved["step"])
            store.steps_to_skip = int(saved["step"])
            place = _skip(store, data, place, num_epoch)
            store.steps_to_skip += left
        if saved["arrays"]:
            module.set_params(module.get_params()[0], saved["arrays"])
        random.set_state(saved["random"])
    return _skip(store, data, place, num_epoch)


def _skip(
    store: DistKVStore, data: DataIter, place: tuple[int, int], num_epoch: int
) -> tuple[int, int]:
    """Lets data go by, as it did before: the batches that the store has to skip, up to the end of
    this call of `fit`.

    Args:
        place: epoch and batches of it that are done.

    Returns:
        The place that it comes to.
    """
    epoch, done = place
    while store.steps_to_skip > 0 and epoch < num_epoch:
        try:
            next(data)
            store.steps_to_skip -= 1
            done += 1
        except StopIteration:
            data.reset()
            epoch, done = epoch + 1, 0
    return epoch, done


def step_done(store: Any, module: Any, data: DataIter, epoch: int, batches: int) -> bool:
    """Tells a job's store that a step is done; it asks for the worker's state where a snapshot is
    due. False: this worker shall leave."""
    if not _of_a_job(store):
        return True

    def state() -> dict[str, Any]:
        nd.waitall()  # draws that a pending plan has yet to make
        return {
            "epoch": epoch,
            "batch": batches,
            "step": store.step,
            "data": data.state_dict() if hasattr(data, "state_dict") else None,
            "random": random.get_state(),
            "arrays": module.get_params()[1],
        }

    return store.step_done(state)


def save_states(store: Any, updater: Any, path: str) -> None:
    """Writes the optimizer's states: those of the servers, where they are the ones that update."""
    if _of_a_job(store):
        store.save_optimizer_states(path)
    else:
        write_atomically(path, updater.get_states())


def load_states(store: Any, updater: Any, path: str, allow_pickle: bool) -> None:
    """Reads what `save_states` wrote.

    Raises:
        FormatError: damaged, or one of MXNet's pickles without `allow_pickle`.
    """
    if _of_a_job(store):
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
    if not _of_a_job(store):
        store._set_updater(updater)
        return
    store.set_optimizer(optimizer)
    for index, arrays in weights.items():
        store.pull(index, arrays, priority=-index)


class Updates:
    """The updates of a module by its store: where a job's lone worker holds the state they are
    made in this process.

    Args:
        store: of the module.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._own: Callable[[], bool] | None = None

    def run(self, group: ExecutorGroup, names: Callable[[], Sequence[str]]) -> None:
        """One update of the parameters of a group of executors."""
        if self._own is not None and self._own():
            return
        trained = names()
        grads = [group.arrays("grad", name) for name in trained]
        args = [group.arrays("arg", name) for name in trained]
        if self._own is None:
            self._own = self._lent(grads, args)
            if self._own():
                return
        update(self._store, grads, args)

    def _lent(self, grads: Sequence[Any], args: Sequence[Any]) -> Callable[[], bool]:
        """What makes an update while the state is held; it gives False where the store has to."""
        if not _of_a_job(self._store) or any(len(some) > 1 for some in args):
            return _no
        firsts = ([some[0] for some in found] for found in (grads, args))
        return self._store.lend(list(range(len(grads))), *firsts) or _no


def _no() -> bool:
    return False


def update(store: Any, grads: Sequence[Any], args: Sequence[Any]) -> None:
    """Sends the gradients of all parameters and gets their new values, first layers first.

    A job's store gets all of them in one call, so that small ones can travel together.
    """
    if _of_a_job(store):
        return store.pushpull(list(range(len(grads))), grads, args)
    for index, (sent, received) in enumerate(zip(grads, args, strict=True)):
        store.pushpull(index, sent, received, priority=-index)
