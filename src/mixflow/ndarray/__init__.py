"""mx.nd: arrays and the functions on them. Functions of operators are made on first use."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from .. import _rt, ir
from . import arithmetic, csr, dispatch, random, register, row_sparse, storage
from .arithmetic import (
    add,
    divide,
    equal,
    greater,
    greater_equal,
    lesser,
    lesser_equal,
    logical_and,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    modulo,
    multiply,
    not_equal,
    power,
    subtract,
    true_divide,
)
from .creation import (
    arange,
    array,
    concatenate,
    empty,
    eye,
    from_dlpack,
    from_numpy,
    full,
    histogram,
    imdecode,
    linspace,
    moveaxis,
    onehot_encode,
    ones,
    split_v2,
    to_dlpack_for_read,
    to_dlpack_for_write,
    waitall,
    zeros,
)
from .ndarray import NDArray, install_methods
from .register import full_input_names as full_names
from .save_load import load, load_frombuffer, save
from .storage import cast_storage

if TYPE_CHECKING:
    from ._generated import *  # noqa: F403 - operators: stubs only, made by tools/make_stubs.py

__all__ = [
    "NDArray",
    "add",
    "arange",
    "array",
    "cast_storage",
    "concatenate",
    "divide",
    "empty",
    "equal",
    "eye",
    "from_dlpack",
    "from_numpy",
    "full",
    "greater",
    "greater_equal",
    "histogram",
    "imdecode",
    "install_methods",
    "lesser",
    "lesser_equal",
    "linspace",
    "load",
    "load_frombuffer",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "modulo",
    "moveaxis",
    "multiply",
    "not_equal",
    "onehot_encode",
    "ones",
    "power",
    "random",
    "save",
    "split_v2",
    "subtract",
    "to_dlpack_for_read",
    "to_dlpack_for_write",
    "true_divide",
    "waitall",
    "zeros",
]


class Namespace(types.ModuleType):
    """Functions of operators under one prefix, made when asked for."""

    def __init__(self, name: str, table: dict[str, str]) -> None:
        super().__init__(name, f"Operators of {name}.")
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return _resolve(self.__dict__, name, self.__name__)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._table})


def _resolve(space: dict[str, Any], name: str, where: str) -> Any:
    table = space.get("_table") or {}
    if name not in table:
        raise AttributeError(f"module '{where}' has no attribute '{name}'")
    made = space[name] = register.function(table[name])
    return made


_tables: dict[str, dict[str, str]] = {
    k: {} for k in ("", "random", "linalg", "contrib", "sparse", "image", "_internal")
}
register.populate(_tables)
_table = _tables[""]

linalg = Namespace(f"{__name__}.linalg", _tables["linalg"])
contrib = Namespace(f"{__name__}.contrib", _tables["contrib"])
random._table.update(_tables["random"])
sparse = Namespace(f"{__name__}.sparse", _tables["sparse"])
sparse.__dict__.update(
    BaseSparseNDArray=row_sparse.BaseSparseNDArray,
    CSRNDArray=csr.CSRNDArray,
    RowSparseNDArray=row_sparse.RowSparseNDArray,
    add=add,
    array=storage.array,
    cast_storage=storage.cast_storage,
    csr_matrix=csr.csr_matrix,
    divide=divide,
    empty=storage.empty,
    multiply=multiply,
    retain=row_sparse.retain,
    row_sparse_array=row_sparse.row_sparse_array,
    subtract=subtract,
    zeros=storage.zeros,
)
image = Namespace(f"{__name__}.image", _tables["image"])
_internal = Namespace(f"{__name__}._internal", _tables["_internal"])
op = Namespace(f"{__name__}.op", _tables[""])


def __getattr__(name: str) -> Any:
    return _resolve(globals(), name, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *_table})


def _set_operator_ids() -> None:
    """Tells the core which operators Python's number protocol means."""
    ids = {}
    for key, name in arithmetic.PROTOCOL.items():
        if register.registered(name):
            op = ir.get(name)
            given = {p.name: 0.0 for p in op.params if p.runtime}
            params, _, _ = register.Caller(op).params(given, len(full_names(op)))
            ids[key] = (op.id, params)
    _rt.core.set_operator_ids(ids)


_set_operator_ids()
dispatch.install()
