"""The interface of every KVStore, and the names that `create` knows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from ..errors import MixflowError, ParamError, UnknownNameError, describe_unknown
from ..ndarray import NDArray, array
from ..ndarray.row_sparse import BaseSparseNDArray, RowSparseNDArray

Found = TypeVar("Found")
#: Bytes of small keys that travel together: a message costs about as much as so many bytes.
GROUP_BYTES = 1 << 20
#: The same where a slow link may lie between: of the first group, whose transfer nothing hides, and
#: of the others.
FIRST_BYTES, FAR_BYTES = 16 << 10, 512 << 10
#: How much larger each group is than the one before, until they are as large as they may be.
GROWTH = 4


class KVStoreBase:
    """A store of arrays by key.

    Keys are all int or all str. A value may be one array or a list with one array per context.
    """

    OPTIMIZER = "optimizer"
    #: Whether the servers of a job hold the values and update them (`DistKVStore`).
    of_a_job: ClassVar[bool] = False
    kv_registry: ClassVar[dict[str, Callable[[str], KVStoreBase]]] = {}

    @staticmethod
    def register(klass: type[KVStoreBase]) -> type[KVStoreBase]:
        """Makes a class known to `create` under its lower-cased name."""
        KVStoreBase.kv_registry[klass.__name__.lower()] = klass
        return klass

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Initialises `key` with `value` and copies it to every array of `out`."""
        raise NotImplementedError

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull` into `out` (or back into `value`)."""
        raise NotImplementedError

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether the store can do 'optimizer' (run updates itself).

        Raises:
            ParamError: unknown capability.
        """
        if capability.lower() != KVStoreBase.OPTIMIZER:
            raise ParamError(f"[kvstore] expected the capability 'optimizer', got {capability!r}")
        return True

    @property
    def type(self) -> str:
        """Name it was created with."""
        raise NotImplementedError

    @property
    def rank(self) -> int:
        """Number of this worker."""
        return 0

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return 1

    @property
    def part_index(self) -> int:
        """Which of `num_workers` parts of the data this worker trains on."""
        return self.rank


class KVStore(KVStoreBase):
    """What every store has that `create` makes; each call stands for all of its keys.

    `key` is one key or a list; then `value`, `out` and `row_ids` are lists of the same length. The
    value of one key is an array or a list with one array per context.
    """

    def init(self, key: Any, value: Any) -> None:
        """Sets the first value of each key, once."""
        raise NotImplementedError

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sums the values of each key and updates (or replaces) what is stored."""
        raise NotImplementedError

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Copies what is stored to every array of `out`, row_sparse ones left out if so asked."""
        raise NotImplementedError

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Copies the rows of `row_ids` to the row_sparse arrays of `out`."""
        raise NotImplementedError

    def set_optimizer(self, optimizer: Any) -> None:
        """Updates run in the store from now on."""
        raise NotImplementedError

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """Codes pushed gradients with 2 bits or 1 bit per value."""
        raise NotImplementedError

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Writes the optimizer's states to a file."""
        raise NotImplementedError

    def load_optimizer_states(self, fname: str) -> None:
        """Reads what `save_optimizer_states` wrote."""
        raise NotImplementedError


def create(name: str = "local") -> KVStoreBase:
    """A store of one process ('local', 'device') or of a job's workers ('dist_sync',
    'dist_async', ...; inside a program that `mixflow launch` has started).

    Raises:
        ParamError: the name is not a string.
        UnknownNameError: unknown name; the text lists the known ones.
    """
    if not isinstance(name, str):
        raise ParamError(f"[kvstore] expected a name as a string, got {type(name).__name__}")
    lowered = name.lower()
    if lowered not in KVStoreBase.kv_registry:
        raise UnknownNameError(describe_unknown("kvstore", lowered, list(KVStoreBase.kv_registry)))
    return KVStoreBase.kv_registry[lowered](lowered)


def check_key(key: Any, known: Collection[Any]) -> None:
    """Keys of a store are all int or all str.

    Raises:
        MixflowError: another type, or not that of the keys that are known.
    """
    if not isinstance(key, (int, str)) or isinstance(key, bool):
        raise MixflowError(f"[kvstore] expected an int or str key, got {key!r}")
    if known and type(key) is not type(next(iter(known))):
        raise MixflowError(f"[kvstore] Mixed key types are not allowed: got {key!r}")


def lookup(key: Any, known: Mapping[Any, Found]) -> Found:
    """What a store knows of a key.

    Raises:
        MixflowError: a key of the wrong type, or not initialised.
    """
    check_key(key, known)
    if key not in known:
        raise MixflowError(f"[kvstore] expected key {key!r} to be initialised, got none; call init")
    return known[key]


def check_new(key: Any, known: Collection[Any]) -> None:
    """A key is initialised once.

    Raises:
        MixflowError: a key of the wrong type, or known already.
    """
    check_key(key, known)
    if key in known:
        raise MixflowError(f"[kvstore] expected a new key, got {key!r} a second time")


def pairs(key: Any, value: Any) -> list[tuple[Any, Any]]:
    """(key, value) pairs of a call with one key or a list of keys.

    Raises:
        ParamError: lists of different length.
    """
    if not isinstance(key, (list, tuple)):
        return [(key, value)]
    if len(key) != len(value):
        raise ParamError(f"[kvstore] expected one value per key, got {len(key)} and {len(value)}")
    return list(zip(key, value, strict=True))


def repeats(key: Any) -> bool:
    """Whether a key stands in a list of keys more than once."""
    return isinstance(key, (list, tuple)) and len(set(map(str, key))) < len(key)


def as_arrays(value: Any) -> Sequence[Any]:
    """One array, dense or sparse, or a list of arrays as a list.

    Raises:
        MixflowError: something else.
    """
    found = list(value) if isinstance(value, (list, tuple)) else [value]
    if not found or not all(isinstance(v, (NDArray, BaseSparseNDArray)) for v in found):
        raise MixflowError(f"[kvstore] expected an NDArray or a list of them, got {value!r}")
    return found


def in_groups(
    items: Sequence[Found],
    sizes: Sequence[int],
    limit: int = GROUP_BYTES,
    first: int | None = None,
) -> list[list[Found]]:
    """Neighbours together as long as their sizes add up to at most `limit`; each item once.

    With `first`, the first group has at most so many bytes and each next one `GROWTH` times as
    many, up to `limit`: the gradients of the first layers come last, and the fewer bytes wait for
    them, the more of a slow link's time passes while the backward pass still goes on.

    Args:
        items: in order.
        sizes: bytes of each.
        limit, first: bytes; an item that is larger stands alone.
    """
    groups: list[list[Found]] = []
    room, most = -1, limit if first is None else min(first, limit)
    for item, size in zip(items, sizes, strict=True):
        if size > room:
            groups.append([])
            room, most = most, min(GROWTH * most, limit)
        groups[-1].append(item)
        room -= size
    return groups


_warned: set[str] = set()


def pulled(targets: Sequence[Any], ignore_sparse: bool) -> Sequence[Any]:
    """The arrays that a pull fills: row_sparse ones only if they are not to be ignored."""
    kept = [t for t in targets if not (ignore_sparse and isinstance(t, BaseSparseNDArray))]
    if len(kept) < len(targets) and "pull" not in _warned:
        _warned.add("pull")
        warnings.warn(
            "[kvstore] pull leaves row_sparse arrays as they are; use row_sparse_pull, or "
            "ignore_sparse=False",
            stacklevel=3,
        )
    return kept


def row_requests(key: Any, out: Any, row_ids: Any) -> list[tuple[Any, list[tuple[Any, Any]]]]:
    """(key, [(row_sparse array, row numbers)]) of a `row_sparse_pull`.

    Row numbers of one key are an array for all of its outs, or a list with one array per out.

    Raises:
        MixflowError: `out` or `row_ids` is missing, or an out is not row_sparse.
        ParamError: as many row numbers as outs are expected.
    """
    if out is None or row_ids is None:
        missing = "out" if out is None else "row_ids"
        raise MixflowError(f"[kvstore] expected '{missing}' in row_sparse_pull, got None")
    if isinstance(key, (list, tuple)) and not isinstance(row_ids, (list, tuple)):
        raise ParamError("[kvstore] expected a list of row_ids, one per key, got one array")
    keyed = zip(pairs(key, out), pairs(key, row_ids), strict=True)
    return [(k, _row_pairs(k, as_arrays(o), ids)) for (k, o), (_, ids) in keyed]


def _row_pairs(key: Any, outs: Sequence[Any], ids: Any) -> list[tuple[Any, Any]]:
    for target in outs:
        if not isinstance(target, RowSparseNDArray):
            raise MixflowError(
                f"[kvstore] expected row_sparse arrays in row_sparse_pull of {key!r}, got one of "
                f"storage '{target.stype}'"
            )
    wanted = list(ids) if isinstance(ids, (list, tuple)) else [ids]
    if wanted and not isinstance(wanted[0], NDArray):
        wanted = [array(ids, dtype="int64")]
    wanted = wanted * len(outs) if len(wanted) == 1 else wanted
    if len(wanted) != len(outs):
        raise ParamError(
            f"[kvstore] expected row_ids for each of {len(outs)} arrays of {key!r}, got "
            f"{len(wanted)}"
        )
    return list(zip(outs, wanted, strict=True))
