"""The methods of MXNet 1.9.1's `mx.kvstore` classes, with their arguments and defaults, on every
store that `create` makes."""

import inspect

import pytest

import mixflow as mx
from mixflow.kvstore.dist import DistKVStore
from mixflow.kvstore.local import LocalKVStore

REQUIRED = inspect.Parameter.empty
#: As `python_api.json` of the compatibility listing has them for mxnet.kvstore.KVStore.
METHODS = {
    "broadcast": {"key": REQUIRED, "value": REQUIRED, "out": REQUIRED, "priority": 0},
    "init": {"key": REQUIRED, "value": REQUIRED},
    "is_capable": {"capability": REQUIRED},
    "load_optimizer_states": {"fname": REQUIRED},
    "pull": {"key": REQUIRED, "out": None, "priority": 0, "ignore_sparse": True},
    "push": {"key": REQUIRED, "value": REQUIRED, "priority": 0},
    "pushpull": {"key": REQUIRED, "value": REQUIRED, "out": None, "priority": 0},
    "row_sparse_pull": {"key": REQUIRED, "out": None, "priority": 0, "row_ids": None},
    "save_optimizer_states": {"fname": REQUIRED, "dump_optimizer": False},
    "set_gradient_compression": {"compression_params": REQUIRED},
    "set_optimizer": {"optimizer": REQUIRED},
}
PROPERTIES = ("num_workers", "rank", "type")
PRIVATE = ("_barrier", "_set_updater")
STORES = (LocalKVStore, DistKVStore)


@pytest.mark.parametrize("store", (*STORES, mx.kvstore.KVStore))
@pytest.mark.parametrize("method", METHODS)
def test_arguments(store, method):
    found = inspect.signature(getattr(store, method)).parameters
    given = {name: p.default for name, p in found.items() if name != "self"}
    assert given == METHODS[method]
    assert inspect.getdoc(getattr(store, method))


@pytest.mark.parametrize("store", STORES)
def test_every_store_has_its_own(store):
    """None of the base's methods is left that only says what it should do."""
    abstract = {m for m in METHODS if getattr(store, m) is getattr(mx.kvstore.KVStore, m)}
    assert abstract <= {"is_capable"}
    assert issubclass(store, mx.kvstore.KVStore)
    assert issubclass(store, mx.kvstore.KVStoreBase)
    for name in PROPERTIES:
        assert isinstance(inspect.getattr_static(store, name), property)
    assert all(hasattr(store, name) for name in PRIVATE)


def test_names():
    assert mx.kv is mx.kvstore
    assert mx.kvstore.KVStoreBase.OPTIMIZER == "optimizer"
    assert isinstance(mx.kv.create("device"), mx.kv.KVStore)
    assert list(inspect.signature(mx.kv.create).parameters) == ["name"]
