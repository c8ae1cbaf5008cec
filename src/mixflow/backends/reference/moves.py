"""Kernels that make, move, index and write elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import MXNetError
from .common import Array, kernel

P = Mapping[str, Any]


@kernel("full")
def full(params: P) -> Array:
    """Integers take the truncated value."""
    value, dtype = params["value"], params["dtype"]
    number: Any = np.asarray(value).astype(np.int64) if dtype.kind in "iu" else np.asarray(value)
    return np.full(params["shape"], number.astype(dtype))


@kernel("iota")
def iota(params: P) -> Array:
    """Computed in float64, then stored."""
    position = np.arange(params["shape"][0]) // params["repeat"]
    made: Array = params["start"] + params["step"] * position
    return made.astype(params["dtype"])


@kernel("reshape")
def reshape(x: Array, params: P) -> Array:
    """A view."""
    return x.reshape(params["shape"])


@kernel("permute")
def permute(x: Array, params: P) -> Array:
    """A view."""
    return x.transpose(params["axes"])


@kernel("broadcast")
def broadcast(x: Array, params: P) -> Array:
    """A view."""
    return np.broadcast_to(x, params["shape"])


@kernel("copy")
def copy(x: Array, params: P) -> Array:
    """A copy."""
    return x.copy()


@kernel("reverse")
def reverse(x: Array, params: P) -> Array:
    """A view."""
    return np.flip(x, params["axes"])


def region(params: P) -> tuple[slice, ...]:
    """Slices of begin, end, step; an end of -1 with a negative step is the front."""
    triples = zip(params["begin"], params["end"], params["step"], strict=True)
    return tuple(slice(b, None if e < 0 else e, s) for b, e, s in triples)


@kernel("strided_slice")
def strided_slice(x: Array, params: P) -> Array:
    """A view."""
    return x[region(params)]


@kernel("unslice")
def unslice(x: Array, params: P) -> Array:
    """Zeros around."""
    made = np.zeros(params["shape"], x.dtype)
    made[region(params)] = x
    return made


@kernel("pad")
def pad(x: Array, params: P) -> Array:
    """NumPy's pad; written by hand for constants, since np.pad is slow."""
    widths = list(zip(params["before"], params["after"], strict=True))
    if params["mode"] != "constant":
        return np.asarray(np.pad(x, widths, mode=params["mode"]))
    shape = [d + b + a for d, (b, a) in zip(x.shape, widths, strict=True)]
    value = full({"value": params["value"], "dtype": x.dtype, "shape": ()})
    made = np.full(shape, value)
    made[tuple(slice(b, b + d) for d, (b, _) in zip(x.shape, widths, strict=True))] = x
    return made


@kernel("concatenate")
def concatenate(*args: Any) -> Array:
    """Inputs, then parameters."""
    *xs, params = args
    return np.concatenate(xs, params["axis"])


# -- index


def indices(at: Array, size: int, mode: str, op: str) -> Array:
    """Indices truncated to integers and brought into [0, size).

    Raises:
        MXNetError: mode 'raise' and one lies outside [-size, size).
    """
    at = at.astype(np.int64)
    if mode == "wrap":
        return np.asarray(np.mod(at, size))
    if mode == "clip":
        return np.asarray(np.clip(at, 0, size - 1))
    if at.size and (at.min() < -size or at.max() >= size):
        worst = int(at.max()) if at.max() >= size else int(at.min())
        raise MXNetError(f"[{op}] expected indices in [{-size}, {size}), got {worst}")
    return np.where(at < 0, at + size, at)


def _front(axis: int, at: Array) -> tuple[Any, ...]:
    return (slice(None),) * axis + (at,)


@kernel("gather")
def gather(x: Array, at: Array, params: P) -> Array:
    """NumPy's take."""
    axis = params["axis"] % x.ndim
    return x.take(indices(at, x.shape[axis], params["mode"], "gather"), axis)


@kernel("scatter_add")
def scatter_add(base: Array, at: Array, updates: Array, params: P) -> Array:
    """Duplicates add up."""
    axis = params["axis"] % base.ndim
    made = base.copy()
    np.add.at(
        made, _front(axis, indices(at, base.shape[axis], params["mode"], "scatter_add")), updates
    )
    return made


def _grid(at: Array, axis: int) -> tuple[Array, ...]:
    """Index arrays that select element (.., at[..], ..) for each place of `at`."""
    made = list(np.ogrid[tuple(slice(d) for d in at.shape)])
    made[axis] = at
    return tuple(made)


@kernel("take_along")
def take_along(x: Array, at: Array, params: P) -> Array:
    """NumPy's take_along_axis."""
    axis = params["axis"] % x.ndim
    found = indices(at, x.shape[axis], params["mode"], "take_along")
    return np.take_along_axis(x, found, axis)


@kernel("put_along_add")
def put_along_add(base: Array, at: Array, updates: Array, params: P) -> Array:
    """Duplicates add up."""
    axis = params["axis"] % base.ndim
    made = base.copy()
    found = indices(at, base.shape[axis], params["mode"], "put_along_add")
    np.add.at(made, _grid(found, axis), updates)
    return made


def _places(at: Array, shape: tuple[int, ...], op: str) -> tuple[Array, ...]:
    return tuple(indices(row, shape[i], "raise", op) for i, row in enumerate(at))


@kernel("gather_nd")
def gather_nd(x: Array, at: Array, params: P) -> Array:
    """Rows of the indices are axes of the data."""
    return np.asarray(x[_places(at, x.shape, "gather_nd")])


@kernel("scatter_nd_add")
def scatter_nd_add(base: Array, at: Array, updates: Array, params: P) -> Array:
    """Duplicates add up."""
    made = base.copy()
    np.add.at(made, _places(at, base.shape, "scatter_nd_add"), updates)
    return made


@kernel("one_hot")
def one_hot(at: Array, params: P) -> Array:
    """Nothing is hot where the index is outside."""
    hot = at.astype(np.int64)[..., None] == np.arange(params["depth"])
    on = np.asarray(params["on_value"])
    return np.where(hot, on, params["off_value"]).astype(params["dtype"])


def _order(x: Array, axis: int, ascend: bool) -> Array:
    if ascend:
        return np.argsort(x, axis, kind="stable")
    found = np.argsort(np.flip(x, axis), axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(found, axis))


@kernel("sort")
def sort(x: Array, params: P) -> Array:
    """Stable."""
    axis = params["axis"] % x.ndim
    return np.take_along_axis(x, _order(x, axis, params["is_ascend"]), axis)


@kernel("argsort")
def argsort(x: Array, params: P) -> Array:
    """Stable."""
    return _order(x, params["axis"] % x.ndim, params["is_ascend"])


@kernel("cumsum")
def cumsum(x: Array, params: P) -> Array:
    """Running sum."""
    return np.cumsum(x, params["axis"])


# -- mutation: the result is the next version


@kernel("assign")
def assign(variable: Array, value: Array, params: P) -> Array:
    """The value."""
    return value


@kernel("slice_assign")
def slice_assign(variable: Array, value: Array, params: P) -> Array:
    """A copy with the region replaced; the store writes it back."""
    made = variable.copy()
    made[region(params)] = value
    return made


@kernel("scatter_assign_nd")
def scatter_assign_nd(variable: Array, at: Array, value: Array, params: P) -> Array:
    """Of equal places the last one wins."""
    made = variable.copy()
    made[_places(at, variable.shape, "scatter_assign_nd")] = value
    return made
