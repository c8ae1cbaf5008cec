"""Reductions. Those that leave no axis have shape (1,), as in MXNet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ParamError
from ..ir import Bool, DType, Int, Param, Shape, Value, binary, emit
from .common import Shapes, axes_of, axis_of, cast, define, reduce, reshape, select, size

_AXIS = Param("axis", Shape, None, nullable=True, doc="axes to reduce; None or () = all")
_KEEPDIMS = Param("keepdims", Bool, False, doc="keep reduced axes as ones")
_PARAMS = (_AXIS, _KEEPDIMS, Param("exclude", Bool, False, doc="reduce all axes but these"))

_DOC = """{what}.

Args:
    data: (d0, ..., dn).

Returns:
    Without the reduced axes; (1,) if none is left; ones in their place with keepdims."""


def _axes(axis: tuple[int, ...] | None, exclude: bool, rank: int) -> tuple[int, ...]:
    axes = axes_of(axis or (), rank)
    if not axes:
        return tuple(range(rank))
    return tuple(i for i in range(rank) if i not in axes) if exclude else axes


def _reduced(shape: tuple[Any, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[Any, ...]:
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes) or (1,)


def _shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    if ins[0] is None:
        return ins, outs
    axes = _axes(params["axis"], params.get("exclude", False), len(ins[0]))
    return ins, [_reduced(ins[0], axes, params["keepdims"])] * len(outs)


Formula = Callable[[Value, "tuple[int, ...]"], Value]


def _mean(data: Value, axes: tuple[int, ...]) -> Value:
    """Mean with the reduced axes kept as ones."""
    count = size(data.shape[a] for a in axes)
    return reduce("sum", data, axes, True) / float(count)


def _not_nan(data: Value, instead: float) -> Value:
    return select(binary("equal", data, data), data, instead)


_FORMULAS: dict[str, tuple[Formula, str]] = {
    "sum": (lambda x, a: reduce("sum", x, a, True), "Sum over axes"),
    "mean": (_mean, "Arithmetic mean over axes"),
    "prod": (lambda x, a: reduce("prod", x, a, True), "Product over axes"),
    "max": (lambda x, a: reduce("max", x, a, True), "Largest value over axes"),
    "min": (lambda x, a: reduce("min", x, a, True), "Smallest value over axes"),
    "nansum": (lambda x, a: reduce("sum", _not_nan(x, 0.0), a, True), "Sum over axes, NaN as 0"),
    "nanprod": (
        lambda x, a: reduce("prod", _not_nan(x, 1.0), a, True),
        "Product over axes, NaN as 1",
    ),
}


def _define_reduction(name: str, formula: Formula, what: str) -> None:
    def compose(data: Value, *, axis: Any, keepdims: bool, exclude: bool) -> Value:
        axes = _axes(axis, exclude, data.ndim)
        return reshape(formula(data, axes), _reduced(data.shape, axes, keepdims))

    define(name, params=_PARAMS, shapes=_shapes, doc=_DOC.format(what=what))(compose)


for _name, (_formula, _what) in _FORMULAS.items():
    _define_reduction(_name, _formula, _what)


@define(
    "norm",
    params=(
        Param("ord", Int, 2, doc="1 or 2"),
        _AXIS,
        Param(
            "out_dtype", DType, None, nullable=True, doc="dtype of the output; None = that of data"
        ),
        _KEEPDIMS,
    ),
    shapes=_shapes,
    dtypes="T->@out_dtype",
)
def _norm(data: Value, *, ord: int, axis: Any, out_dtype: Any, keepdims: bool) -> Value:
    """Norm over axes: sum of magnitudes (ord 1) or root of the sum of squares (ord 2).

    Args:
        data: (d0, ..., dn).

    Returns:
        Without the reduced axes; (1,) if none is left; ones in their place with keepdims.
    """
    if ord not in (1, 2):
        raise ParamError(f"[norm] expected 'ord' 1 or 2, got {ord}")
    data = cast(data, out_dtype or data.dtype)
    axes = _axes(axis, False, data.ndim)
    if ord == 1:
        made = reduce("sum", emit("abs", data), axes, True)
    else:
        made = emit("sqrt", reduce("sum", data * data, axes, True))
    return reshape(made, _reduced(data.shape, axes, keepdims))


@define(
    "moments",
    params=(Param("axes", Shape, None, nullable=True, doc="axes to reduce; None = all"), _KEEPDIMS),
    outputs=("output0", "output1"),
)
def _moments(data: Value, *, axes: Any, keepdims: bool) -> tuple[Value, Value]:
    """Mean and population variance over axes.

    Args:
        data: (d0, ..., dn).

    Returns:
        Both without the reduced axes; (1,) if none is left.
    """
    chosen = _axes(axes, False, data.ndim)
    mean = _mean(data, chosen)
    delta = data - mean
    shape = _reduced(data.shape, chosen, keepdims)
    return reshape(mean, shape), reshape(_mean(delta * delta, chosen), shape)


def _arg_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    if ins[0] is None:
        return ins, outs
    axis = params["axis"]
    axes = tuple(range(len(ins[0]))) if axis is None else (axis_of(axis, len(ins[0])),)
    return ins, [_reduced(ins[0], axes, params["keepdims"])]


def _define_arg(name: str, primitive: str, what: str) -> None:
    def compose(data: Value, *, axis: int | None, keepdims: bool) -> Value:
        axes = tuple(range(data.ndim)) if axis is None else (axis_of(axis, data.ndim),)
        shape = _reduced(data.shape, axes, keepdims)
        if axis is None:
            data = reshape(data, (size(data.shape),))
        made = emit(primitive, data, axis=axes[0], keepdims=True, dtype=data.dtype)
        return reshape(made, shape)

    define(
        name,
        params=(
            Param("axis", Int, None, nullable=True, doc="axis to search; None = the flat array"),
            _KEEPDIMS,
        ),
        shapes=_arg_shapes,
        nondiff=("data",),
        differentiable="no",
        doc=f"First position of the {what} value, in the dtype of data.\n\nArgs:\n"
        "    data: (d0, ..., dn).\n\nReturns:\n    Without the axis; (1,) if none is left.",
    )(compose)


_define_arg("argmax", "arg_max", "largest")
_define_arg("argmin", "arg_min", "smallest")


@define("argmax_channel", nondiff=("data",), differentiable="no")
def _argmax_channel(data: Value) -> Value:
    """Position of the largest value along axis 1, in the dtype of data.

    Args:
        data: (d0, d1, ...).

    Returns:
        (d0, ...) without d1.
    """
    return emit("arg_max", data, axis=axis_of(1, data.ndim), keepdims=False, dtype=data.dtype)


@define(
    "_np_cumsum",
    inputs=("a",),
    params=(
        Param("axis", Int, None, nullable=True, doc="axis to run along; None = the flat array"),
        Param("dtype", DType, None, nullable=True, doc="dtype of the output; None = that of a"),
    ),
    dtypes="T->@dtype",
)
def _cumsum(a: Value, *, axis: int | None, dtype: Any) -> Value:
    """Running sum along an axis.

    Args:
        a: any shape.

    Returns:
        The shape of a, or (size,) if axis is None.
    """
    a = cast(a, dtype or a.dtype)
    if axis is None:
        a, axis = reshape(a, (size(a.shape),)), 0
    return emit("cumsum", a, axis=axis_of(axis, a.ndim))


@define(
    "all_finite",
    params=(Param("init_output", Bool, True, doc="kept for MXNet's programs; no meaning here"),),
    dtypes="*->float32",
    nondiff=("data",),
    differentiable="no",
)
def _all_finite(data: Value, *, init_output: bool) -> Value:
    """1 if every element is finite, else 0.

    Args:
        data: any shape.

    Returns:
        (1,), float32.
    """
    delta = data - data
    finite = cast(binary("equal", delta, 0.0), "float32")
    return reshape(reduce("min", finite, range(data.ndim)), (1,))


def root_mean(data: Value, axes: tuple[int, ...], eps: float) -> tuple[Value, Value]:
    """Mean and 1 / sqrt(variance + eps) over axes kept as ones; population variance."""
    mean = _mean(data, axes)
    delta = data - mean
    return mean, emit("rsqrt", _mean(delta * delta, axes) + eps)
