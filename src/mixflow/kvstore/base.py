"""The interface of every KVStore, and the names that `create` knows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from ..errors import MixflowError, ParamError, UnknownNameError, describe_unknown
from ..ndarray import NDArray

Found = TypeVar("Found")
#: Bytes of small keys that travel together: a message costs about as much as so many bytes.
GROUP_BYTES = 1 << 20


class KVStoreBase:
    """A store of arrays by key.

    Keys are all int or all str. A value may be one array or a list with one array per context.
    """

    OPTIMIZER = "optimizer"
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


def as_arrays(value: Any) -> Sequence[NDArray]:
    """One array or a list of arrays as a list.

    Raises:
        MixflowError: something else.
    """
    found = list(value) if isinstance(value, (list, tuple)) else [value]
    if not found or not all(isinstance(v, NDArray) for v in found):
        raise MixflowError(f"[kvstore] expected an NDArray or a list of them, got {value!r}")
    return found


def in_groups(
    items: Sequence[Found], sizes: Sequence[int], limit: int = GROUP_BYTES
) -> list[list[Found]]:
    """Neighbours together as long as their sizes add up to at most `limit`; each item once.

    Args:
        items: in order.
        sizes: bytes of each.
        limit: bytes; an item that is larger stands alone.
    """
    groups: list[list[Found]] = []
    room = -1
    for item, size in zip(items, sizes, strict=True):
        if size > room:
            groups.append([])
            room = limit
        groups[-1].append(item)
        room -= size
    return groups
