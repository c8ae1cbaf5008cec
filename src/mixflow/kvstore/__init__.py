"""KVStore (``mx.kvstore``): inside one process, and over the workers of a job."""

from .base import KVStoreBase, create
from .dist import DistKVStore
from .local import LocalKVStore
from .table import Table

KVStore = LocalKVStore

__all__ = ["DistKVStore", "KVStore", "KVStoreBase", "LocalKVStore", "Table", "create"]
