"""KVStore (``mx.kvstore``): level 1 inside one process."""

from .base import KVStoreBase, create
from .local import LocalKVStore

KVStore = LocalKVStore

__all__ = ["KVStore", "KVStoreBase", "LocalKVStore", "create"]
