"""What operators make of sparse arrays.

A call of `mx.nd` with a sparse array comes here after the core has refused it, so that dense calls
pay nothing. An operator with a rule below works on the stored parts; every other one gets dense
copies, and so does every call that autograd records: gradients through sparse arrays are dense.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _rt, ir
from .. import dtype as dtypes
from ..errors import MixflowError, ParamError, ShapeError
from . import lazy, register
from . import rows as _rows
from .creation import empty as _dense_empty
from .creation import zeros as _dense_zeros
from .csr import CSRNDArray, csr_matrix
from .ndarray import NDArray, install_methods
from .register import function
from .row_sparse import RECORDED, BaseSparseNDArray, RowSparseNDArray, push
from .rows import Array, Rows

#: Elements of dense products that are held at a time.
_BLOCK = 1 << 20

Rule = Callable[[Sequence[Any], dict[str, Any]], Any]
RULES: dict[str, Rule] = {}


def is_sparse(value: Any) -> bool:
    """Whether a value is a sparse array."""
    return isinstance(value, BaseSparseNDArray)


def dense(value: Any) -> Any:
    """A dense array of the same values; other values as they are."""
    return value.tostype("default") if is_sparse(value) else value


def call(op: ir.Operator, inputs: Sequence[Any], params: dict[str, Any], out: Any) -> Any:
    """An operator on arrays of which some are sparse, or into a sparse `out`.

    Raises:
        MixflowError: what the operator says of the dense values.
    """
    if op.name in lazy.UPDATES and not _rt.core.is_recording():
        done = lazy.update(op.name, inputs, params, out)
        if done is not None:
            return done
    made = NotImplemented
    recording = _rt.core.is_recording()
    ruled = op.name in RULES and any(map(is_sparse, inputs))
    if ruled and (not recording or op.name in RECORDED):
        made = RULES[op.name](inputs, params)
    if made is NotImplemented:
        made = _fall_back(op, inputs, params)
    elif recording:
        RECORDED[op.name](inputs, made)
    return made if out is None else _into(out, made)


def _fall_back(op: ir.Operator, inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    """The operator on dense copies; states that it changed are written back."""
    copies = [dense(a) for a in inputs]
    made = function(op.name)(*copies, **params)
    for number in op.mutated_indices(params) if op.mutates else ():
        if is_sparse(inputs[number]):
            inputs[number].set_dense(copies[number], every_row=True)
    return made


def _into(out: Any, made: Any) -> Any:
    if isinstance(out, (list, tuple)):
        for target, one in zip(out, made, strict=True):
            _into(target, one)
    elif isinstance(out, RowSparseNDArray) and isinstance(made, NDArray):
        out.set_dense(made, every_row=True)
    elif isinstance(out, CSRNDArray):
        raise MixflowError("[out] expected a dense or row_sparse array, got a csr one")
    else:
        made.copyto(out)
    return out


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers what operators do with sparse inputs; NotImplemented: take dense copies."""

    def enter(given: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, given))
        return given

    return enter


# -- elementwise

#: Functions that keep 0, and so the stored places.
UNARY: dict[str, Callable[[Array], Array]] = {
    **{n: getattr(np, n) for n in ("abs", "sign", "rint", "ceil", "floor", "trunc", "square")},
    **{n: getattr(np, n) for n in ("sqrt", "cbrt", "sin", "tan", "arcsin", "arctan", "sinh")},
    **{n: getattr(np, n) for n in ("tanh", "arcsinh", "arctanh", "expm1", "log1p", "negative")},
    "fix": np.trunc,
    "degrees": np.degrees,
    "radians": np.radians,
    "relu": lambda x: np.maximum(x, 0),
    "_copy": np.copy,
    "BlockGrad": np.copy,
}


def _mapped(array: Any, of: Callable[[Array], Array]) -> Any:
    """A function of the stored values, in 32 bits where they have 16."""

    def apply(values: Array) -> Array:
        with np.errstate(all="ignore"):
            return of(values.astype(_rows.wide(values.dtype))).astype(values.dtype, copy=False)

    if isinstance(array, CSRNDArray):
        return array.with_data(apply(array.parts[0]))
    return array.like().fill(lambda r: Rows(r.numbers, apply(r.values)), array)


def _unary_rule(of: Callable[[Array], Array]) -> Rule:
    return lambda inputs, params: _mapped(inputs[0], of)


RULES.update({name: _unary_rule(of) for name, of in UNARY.items()})


@rule("_mul_scalar")
def _times(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    return _mapped(inputs[0], lambda x: x * x.dtype.type(params["scalar"]))


@rule("_div_scalar")
def _over(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    if params["scalar"] == 0:
        return NotImplemented
    return _mapped(inputs[0], lambda x: x / x.dtype.type(params["scalar"]))


@rule("clip")
def _clip(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    low, high = params["a_min"], params["a_max"]
    if low is None or high is None or not low <= 0 <= high:
        return NotImplemented
    return _mapped(inputs[0], lambda x: np.clip(x, low, high))


@rule("Cast")
def _cast(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    return inputs[0].astype(params["dtype"])


@rule("zeros_like")
def _zeros_like(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    source = inputs[0]
    return zeros(source.stype, source.shape, source.context, source.dtype)


def _alike(inputs: Sequence[Any], kind: type[BaseSparseNDArray]) -> bool:
    first: Any = inputs[0]
    return all(
        isinstance(a, kind) and a.shape == first.shape and a.dtype == first.dtype for a in inputs
    )


def _sum(inputs: Sequence[Any], signs: Sequence[int]) -> Any:
    if _alike(inputs, RowSparseNDArray):
        return inputs[0].like().fill(lambda *parts: _rows.add(parts, signs), *inputs, name="add")
    if _alike(inputs, CSRNDArray):
        return inputs[0].from_keyed(_rows.add([m.keyed() for m in inputs], signs))
    return NotImplemented


@rule("elemwise_add", "broadcast_add")
def _add(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    return _sum(inputs, (1, 1))


@rule("elemwise_sub", "broadcast_sub")
def _subtract(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    return _sum(inputs, (1, -1))


@rule("add_n")
def _add_n(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    return _sum(inputs, (1,) * len(inputs))


@rule("elemwise_mul", "broadcast_mul")
def _multiply(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    left, right = inputs
    if _alike(inputs, RowSparseNDArray):
        return left.like().fill(_rows.multiply, left, right, name="multiply")
    if _alike(inputs, CSRNDArray):
        return left.from_keyed(_rows.multiply(left.keyed(), right.keyed()))
    if isinstance(left, CSRNDArray):
        return _scaled(left, right, np.multiply)
    fits = isinstance(left, RowSparseNDArray) and isinstance(right, NDArray)
    if not fits or left.shape != right.shape or left.dtype != right.dtype:
        return NotImplemented
    return left.like().fill(
        lambda found, other: Rows(found.numbers, found.values * other[found.numbers]),
        *inputs,
        name="multiply",
    )


@rule("broadcast_div")
def _divide(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    """A matrix over a dense one: what is not stored stays 0, over 0 too, as in MXNet."""
    left, right = inputs
    return _scaled(left, right, np.divide) if isinstance(left, CSRNDArray) else NotImplemented


def _scaled(left: CSRNDArray, right: Any, of: Callable[[Array, Array], Array]) -> Any:
    """The stored elements with those of a dense array that stretches to the same shape. Waits."""
    fits = isinstance(right, NDArray) and right.dtype == left.dtype and len(right.shape) == 2
    if not fits or any(r not in (1, n) for r, n in zip(right.shape, left.shape, strict=True)):
        return NotImplemented
    with np.errstate(all="ignore"):
        other = np.broadcast_to(right.asnumpy(), left.shape)[left.places()]
        return left.with_data(of(left.parts[0], other))


# -- products


@rule("dot")
def _dot(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    """csr x dense, and its transpose, which is row-sparse unless `forward_stype` says otherwise."""
    left, right = inputs
    if not isinstance(left, CSRNDArray) or len(right.shape) != 2 or params.get("transpose_b"):
        return NotImplemented
    right = dense(right)
    turned = bool(params.get("transpose_a"))
    shape = (left.shape[1] if turned else left.shape[0], right.shape[1])
    if right.shape[0] != (left.shape[0] if turned else left.shape[1]):
        raise ShapeError(
            f"[dot] expected matrices that fit, got {left.shape}{'.T' if turned else ''} and "
            f"{right.shape}"
        )
    if left.dtype != right.dtype:
        return NotImplemented
    stype = params.get("forward_stype") or ("row_sparse" if turned else "default")
    if stype not in ("default", "row_sparse"):
        return NotImplemented
    lines = left.columns() if turned else left.lines()
    made = RowSparseNDArray(shape, left.dtype, right.context)
    made.fill(lambda values: lines.times(values), right, name="dot")
    return made if stype == "row_sparse" else made.tostype("default")


@rule("Embedding")
def _embedding(inputs: Sequence[Any], params: dict[str, Any]) -> Any:
    """Rows of a row-sparse table; those that are not stored are rows of 0."""
    data, table = inputs
    shape = (params["input_dim"], params["output_dim"])
    if not isinstance(table, RowSparseNDArray) or not isinstance(data, NDArray):
        return NotImplemented
    if table.shape != shape:
        raise ShapeError(f"[Embedding] expected a weight of shape {shape}, got {table.shape}")
    made = _dense_empty((*data.shape, shape[1]), data.context, table.dtype)

    def look_up(ids: Array, found: Rows, out: Array) -> None:
        held = np.clip(ids.astype(np.int64), 0, shape[0] - 1)
        out[...] = _rows.take(found, held.reshape(-1), shape[0]).reshape(out.shape)

    push(look_up, [data, table], [made], "Embedding")
    return made


# -- making


def cast_storage(data: Any, stype: str, out: Any = None) -> Any:
    """The same values in another storage: 'default', 'row_sparse' or 'csr'.

    Raises:
        ParamError: unknown storage.
        DTypeError: from one sparse storage to the other.
    """
    made = data.tostype(stype)
    return made if out is None else _into(out, made)


def _tostype(self: NDArray, stype: str) -> Any:
    """The same values in another storage: 'default' is the array itself.

    Raises:
        ParamError: unknown storage.
        ShapeError: 'csr' of an array that is no matrix.
    """
    if stype == "default":
        return self
    if stype == "csr":
        return csr_matrix(self, dtype=self.dtype, ctx=self.context)
    made = _empty(stype, self.shape, self.context, self.dtype)
    made.set_dense(self)
    return made


def _empty(stype: str, shape: Any, ctx: Any, dtype: Any) -> Any:
    if stype == "row_sparse":
        return RowSparseNDArray(shape, dtype, ctx)
    raise ParamError(f"[storage] expected 'default', 'row_sparse' or 'csr', got {stype!r}")


def zeros(stype: str, shape: Any, ctx: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
    """An array of zeros: nothing is stored.

    Args:
        stype: 'default', 'row_sparse' or 'csr'.
        shape: its shape.
        ctx: where its dense copies go.
        dtype: default float32.

    Raises:
        ParamError: unknown storage.
    """
    if stype == "default":
        return _dense_zeros(shape, ctx, dtype)
    if stype == "csr":
        nothing = (np.empty(0), np.empty(0), np.zeros(int(shape[0]) + 1))
        return csr_matrix(nothing, shape, ctx, dtypes.canonical(dtype))
    return _empty(stype, shape, ctx, dtype)


def empty(stype: str, shape: Any, ctx: Any = None, dtype: Any = None) -> Any:
    """The same as `zeros`: a sparse array without contents is one of zeros."""
    return zeros(stype, shape, ctx, dtype)


def array(source_array: Any, ctx: Any = None, dtype: Any = None) -> Any:
    """A copy of a sparse array or of a SciPy sparse matrix.

    Raises:
        ParamError: a dense source.
    """
    if isinstance(source_array, RowSparseNDArray):
        made = RowSparseNDArray(source_array.shape, dtype or source_array.dtype, ctx)
        return source_array.copyto(made)
    if isinstance(source_array, CSRNDArray) or hasattr(source_array, "tocsr"):
        return csr_matrix(source_array, ctx=ctx, dtype=dtype)
    raise ParamError(
        f"[array] expected a sparse array, got {type(source_array).__name__}; use mx.nd.array"
    )


install_methods(tostype=_tostype)
register.set_sparse(is_sparse, call)
