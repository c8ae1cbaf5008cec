"""KVStore (``mx.kvstore``): inside one process, and over the workers of a job."""

from .base import KVStore, KVStoreBase, create
from .dist import DistKVStore
from .local import LocalKVStore
from .table import Table

__all__ = ["DistKVStore", "KVStore", "KVStoreBase", "LocalKVStore", "Table", "create"]
