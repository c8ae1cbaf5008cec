"""KVStore (``mx.kvstore``): inside one process, and over the workers of a job."""

from typing import TYPE_CHECKING

from ..extras import late
from .base import KVStore, KVStoreBase, create
from .local import LocalKVStore
from .options import NAMES

if TYPE_CHECKING:
    from .dist import DistKVStore
    from .table import Table
else:
    __getattr__ = late(__name__, {"DistKVStore": ".dist", "Table": ".table"})

__all__ = ["DistKVStore", "KVStore", "KVStoreBase", "LocalKVStore", "Table", "create"]


def _of_a_job(name: str) -> KVStoreBase:
    """The store of a job's worker: programs of one process never import its modules."""
    from .dist import DistKVStore

    return DistKVStore.from_environment(name)


KVStoreBase.kv_registry.update(dict.fromkeys(NAMES, _of_a_job))
