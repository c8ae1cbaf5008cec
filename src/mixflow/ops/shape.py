"""Reshaping and moving axes: operators that keep every element."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ParamError
from ..ir import Bool, Int, Param, Shape, Value, emit
from .common import (
    Dims,
    Positive,
    Shapes,
    axes_of,
    axis_of,
    broadcast_to,
    concatenated,
    define,
    expand,
    filled,
    known,
    merge,
    need,
    permute,
    reshape,
    show,
    size,
)

# Reshape ------------------------------------------------------------------------------------


def decode_shape(data: Dims, codes: tuple[int, ...], reverse: bool = False) -> Dims:
    """The shape that MXNet's codes mean for `data`, None where it is not known yet.

    0 copies a dimension, -1 is inferred, -2 copies all that remain, -3 multiplies the next two,
    -4 splits the next one into the two numbers that follow. `reverse` reads from the right.

    Raises:
        ShapeError: the codes do not fit the shape.
    """
    if reverse:
        return decode_shape(data[::-1], codes[::-1])[::-1]
    out: list[int | None] = []
    source, i, hole = 0, 0, -1
    rest = list(codes)
    while i < len(rest):
        code = rest[i]
        need(code >= -4, f"expected shape codes of at least -4, got {codes}")
        if code > 0 or code == -1:
            if code == -1:
                need(hole < 0, f"expected -1 once, got {codes}")
                hole = len(out)
            out.append(None if code == -1 else code)
            source += 1
        elif code == -2:
            out.extend(data[source:])
            source = len(data)
        elif code == -4:
            need(
                i + 2 < len(rest) and source < len(data),
                f"expected two numbers after -4, got {codes}",
            )
            out.extend(_split_dim(data[source], rest[i + 1], rest[i + 2]))
            source, i = source + 1, i + 2
        else:
            count = 1 if code == 0 else 2
            need(source + count <= len(data), f"expected codes for {len(data)} axes, got {codes}")
            out.append(product(data[source : source + count]))
            source += count
        i += 1
    return _fill_hole(data, out, hole)


def product(dims: Dims) -> int | None:
    """Product of the dimensions, None if one is unknown."""
    return None if None in dims else size(d for d in dims if d is not None)


def _split_dim(dim: int | None, a: int, b: int) -> tuple[int | None, int | None]:
    need(not (a == -1 and b == -1), "expected at most one -1 after -4, got two")
    if dim is not None:
        a = dim // b if a == -1 else a
        b = dim // a if b == -1 else b
        need(a * b == dim, f"expected factors of {dim} after -4, got {a} and {b}")
        return a, b
    return (None if a == -1 else a), (None if b == -1 else b)


def _fill_hole(data: Dims, out: list[int | None], hole: int) -> Dims:
    total, rest = product(data), product(tuple(d for i, d in enumerate(out) if i != hole))
    if total is None or rest is None:
        return tuple(out)
    if hole >= 0:
        need(
            rest and total % rest == 0,
            f"expected a shape of {total} elements, got {show(tuple(out))}",
        )
        out[hole] = total // rest
    else:
        need(rest == total, f"expected a shape of {total} elements, got {show(tuple(out))}")
    return tuple(out)


def _legacy_shape(data: Dims, target: tuple[int, ...], keep_highest: bool) -> Dims:
    codes = [(-1 if d == 0 else d) for d in target]
    if keep_highest:
        codes[0] = 0
    return decode_shape(data, tuple(codes))


def _target(data: Dims, params: dict[str, Any]) -> Dims:
    if params["shape"]:
        return decode_shape(data, params["shape"], params["reverse"])
    need(params["target_shape"], "expected 'shape', got none")
    return _legacy_shape(data, params["target_shape"], params["keep_highest"])


def _reshape_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, out = ins[0], outs[0]
    if data is None:
        return ins, outs
    out = merge(_target(data, params), out)
    missing = [i for i, d in enumerate(data) if d is None]
    if known(out) and len(missing) == 1:
        rest = product(tuple(d for d in data if d is not None))
        total = product(out)  # type: ignore[arg-type]
        if rest and total is not None and total % rest == 0:
            data = tuple(total // rest if d is None else d for d in data)
    return [data], [out]


@define(
    "Reshape",
    params=(
        Param("shape", Shape, (), doc="new shape; codes 0, -1, -2, -3, -4 as decode_shape says"),
        Param("reverse", Bool, False, doc="read the codes from the right"),
        Param("target_shape", Shape, (), doc="old form of shape: 0 is inferred"),
        Param("keep_highest", Bool, False, doc="with target_shape: keep the first dimension"),
    ),
    shapes=_reshape_shapes,
    reuse=((0, 0),),
)
def _reshape(data: Value, **params: Any) -> Value:
    """The same elements in another shape.

    Args:
        data: any shape.

    Returns:
        The shape that `shape` means; as many elements as data.
    """
    return reshape(data, _target(data.shape, params))  # type: ignore[arg-type]


def _flatten_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, out = ins[0], outs[0]
    if data is None or not data:
        return ins, outs
    out = merge((data[0], product(data[1:])), out)
    assert out is not None
    return [(data[0] if data[0] is not None else out[0], *data[1:])], [out]


@define("Flatten", shapes=_flatten_shapes, reuse=((0, 0),))
def _flatten(data: Value) -> Value:
    """All axes but the first made one.

    Args:
        data: (N, d1, ...).

    Returns:
        (N, d1 * ...).
    """
    need(data.ndim, "expected at least one axis, got none")
    return reshape(data, (data.shape[0], size(data.shape[1:])))


def _nullable(name: str) -> Param:
    return Param(name, Int, None, nullable=True, doc="axis; None = that end")


@define(
    "reshape_like",
    inputs=("lhs", "rhs"),
    params=tuple(_nullable(n) for n in ("lhs_begin", "lhs_end", "rhs_begin", "rhs_end")),
    dtypes="T,~T->T",
    nondiff=("rhs",),
)
def _reshape_like(
    lhs: Value, rhs: Value, *, lhs_begin: Any, lhs_end: Any, rhs_begin: Any, rhs_end: Any
) -> Value:
    """lhs with its axes [lhs_begin, lhs_end) replaced by rhs's [rhs_begin, rhs_end).

    Args:
        lhs: any shape.
        rhs: only its shape is used.

    Returns:
        As many elements as lhs.
    """
    a, b = slice(lhs_begin, lhs_end).indices(lhs.ndim)[:2]
    c, d = slice(rhs_begin, rhs_end).indices(rhs.ndim)[:2]
    return reshape(lhs, (*lhs.shape[:a], *rhs.shape[c:d], *lhs.shape[b:]))


@define(
    "expand_dims", params=(Param("axis", Int, doc="where the new axis stands"),), reuse=((0, 0),)
)
def _expand_dims(data: Value, *, axis: int) -> Value:
    """One more axis of size 1.

    Args:
        data: (d0, ..., dn).

    Returns:
        With 1 at `axis`.
    """
    return expand(data, axis_of(axis, data.ndim + 1))


@define(
    "squeeze",
    params=(Param("axis", Shape, None, nullable=True, doc="axes of size 1 to drop; None = all"),),
    reuse=((0, 0),),
)
def _squeeze(data: Value, *, axis: Any) -> Value:
    """Without axes of size 1.

    Args:
        data: (d0, ..., dn).

    Returns:
        Without them; (1,) if none is left.
    """
    shape = data.shape
    axes = [i for i, d in enumerate(shape) if d == 1] if axis is None else axes_of(axis, data.ndim)
    need(all(shape[a] == 1 for a in axes), f"expected axes of size 1, got {axis} of {shape}")
    return reshape(data, tuple(d for i, d in enumerate(shape) if i not in axes) or (1,))


# Moving axes --------------------------------------------------------------------------------


def _order(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    if not axes:
        return tuple(range(rank))[::-1]
    order = tuple(axis_of(a, rank) for a in axes)
    need(sorted(order) == list(range(rank)), f"expected an order of {rank} axes, got {axes}")
    return order


def _transpose_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, out = ins[0], outs[0]
    if data is not None:
        order = _order(params["axes"], len(data))
        out = merge(tuple(data[a] for a in order), out)
    if out is not None:
        order = _order(params["axes"], len(out))
        data = merge(data, tuple(out[order.index(i)] for i in range(len(out))))
    return [data], [out]


@define(
    "transpose",
    params=(Param("axes", Shape, (), doc="order of axes; () = reversed"),),
    shapes=_transpose_shapes,
)
def _transpose(data: Value, *, axes: tuple[int, ...]) -> Value:
    """Axes in another order.

    Args:
        data: (d0, ..., dn).

    Returns:
        Axis i is data's axis axes[i].
    """
    return permute(data, _order(axes, data.ndim))


@define(
    "SwapAxis",
    params=(Param("dim1", Int, 0, doc="first axis"), Param("dim2", Int, 0, doc="second axis")),
)
def _swap_axis(data: Value, *, dim1: int, dim2: int) -> Value:
    """Two axes exchanged.

    Args:
        data: (d0, ..., dn).

    Returns:
        With axes dim1 and dim2 exchanged.
    """
    order = list(range(data.ndim))
    a, b = axis_of(dim1, data.ndim), axis_of(dim2, data.ndim)
    order[a], order[b] = order[b], order[a]
    return permute(data, order)


@define("reverse", params=(Param("axis", Shape, doc="axes to reverse"),))
def _reverse(data: Value, *, axis: tuple[int, ...]) -> Value:
    """Elements in the opposite order along axes.

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    return emit("reverse", data, axes=axes_of(axis, data.ndim))


_BLOCK = (Param("block_size", Positive, doc="side of a block"),)


@define("depth_to_space", params=_BLOCK)
def _depth_to_space(data: Value, *, block_size: int) -> Value:
    """Channels moved into blocks of the plane.

    Args:
        data: (N, C * b * b, H, W).

    Returns:
        (N, C, H * b, W * b).
    """
    b = block_size
    need(
        data.ndim == 4 and data.shape[1] % (b * b) == 0,
        f"expected (N, C * {b * b}, H, W), got {data.shape}",
    )
    n, c, h, w = data.shape
    blocks = reshape(data, (n, b, b, c // (b * b), h, w))
    return reshape(permute(blocks, (0, 3, 4, 1, 5, 2)), (n, c // (b * b), h * b, w * b))


@define("space_to_depth", params=_BLOCK)
def _space_to_depth(data: Value, *, block_size: int) -> Value:
    """Blocks of the plane moved into channels.

    Args:
        data: (N, C, H * b, W * b).

    Returns:
        (N, C * b * b, H, W).
    """
    b = block_size
    fits = data.ndim == 4 and data.shape[2] % b == 0 and data.shape[3] % b == 0
    need(fits, f"expected (N, C, H * {b}, W * {b}), got {data.shape}")
    n, c, h, w = data.shape
    blocks = reshape(data, (n, c, h // b, b, w // b, b))
    return reshape(permute(blocks, (0, 3, 5, 1, 2, 4)), (n, c * b * b, h // b, w // b))


# Repeating ----------------------------------------------------------------------------------


def tiled(data: Value, reps: tuple[int, ...]) -> Value:
    """NumPy's tile."""
    rank = max(len(reps), data.ndim)
    shape = (1,) * (rank - data.ndim) + data.shape
    reps = (1,) * (rank - len(reps)) + reps
    pairs = [d for pair in zip((1,) * rank, shape, strict=True) for d in pair]
    wide = [d for pair in zip(reps, shape, strict=True) for d in pair]
    grown = broadcast_to(reshape(data, pairs), tuple(wide))
    return reshape(grown, tuple(r * d for r, d in zip(reps, shape, strict=True)))


def repeated(data: Value, repeats: int, axis: int) -> Value:
    """Every element `repeats` times in a row along `axis`."""
    wide = expand(data, axis + 1)
    wide = broadcast_to(wide, (*wide.shape[: axis + 1], repeats, *wide.shape[axis + 2 :]))
    shape = list(data.shape)
    shape[axis] *= repeats
    return reshape(wide, shape)


@define("tile", params=(Param("reps", Shape, doc="how often along each axis, the last aligned"),))
def _tile(data: Value, *, reps: tuple[int, ...]) -> Value:
    """The whole array repeated along axes.

    Args:
        data: (d0, ..., dn).

    Returns:
        (d0 * reps[0], ...); the shorter of both is filled up with ones in front.
    """
    return tiled(data, reps)


@define(
    "repeat",
    params=(
        Param("repeats", Int, doc="how often each element stands"),
        Param("axis", Int, None, nullable=True, doc="axis; None = the flat array"),
    ),
)
def _repeat(data: Value, *, repeats: int, axis: int | None) -> Value:
    """Every element repeated in place.

    Args:
        data: (d0, ..., dn).

    Returns:
        With d[axis] * repeats; (size * repeats,) if axis is None.
    """
    if repeats < 0:
        raise ParamError(f"[repeat] expected 'repeats' of at least 0, got {repeats}")
    if axis is None:
        data, axis = reshape(data, (size(data.shape),)), 0
    return repeated(data, repeats, axis_of(axis, data.ndim))


@define("broadcast_to", params=(Param("shape", Shape, (), doc="new shape; 0 keeps a dimension"),))
def _broadcast_to(data: Value, *, shape: tuple[int, ...]) -> Value:
    """Axes of size 1 stretched to a shape.

    Args:
        data: (d0, ..., dn).

    Returns:
        `shape`, where 0 stands for data's dimension.
    """
    need(len(shape) >= data.ndim, f"expected a shape of at least {data.ndim} axes, got {shape}")
    own = (1,) * (len(shape) - data.ndim) + data.shape
    return _stretch(data, tuple(o if s == 0 else s for s, o in zip(shape, own, strict=True)))


def _stretch(data: Value, shape: tuple[int, ...]) -> Value:
    own = (1,) * (len(shape) - data.ndim) + data.shape
    fits = all(o in (1, s) for o, s in zip(own, shape, strict=True))
    need(fits, f"expected a shape that {data.shape} broadcasts to, got {shape}")
    return broadcast_to(data, shape)


@define(
    "broadcast_axis",
    params=(
        Param("axis", Shape, (), doc="axes of size 1"),
        Param("size", Shape, (), doc="their new sizes"),
    ),
)
def _broadcast_axis(data: Value, *, axis: tuple[int, ...], size: tuple[int, ...]) -> Value:
    """Axes of size 1 stretched to sizes.

    Args:
        data: (d0, ..., dn).

    Returns:
        With size[i] at axis[i].
    """
    need(len(axis) == len(size), f"expected as many sizes as axes, got {size} for {axis}")
    shape = list(data.shape)
    for a, s in zip(axis, size, strict=True):
        shape[axis_of(a, data.ndim)] = s
    return _stretch(data, tuple(shape))


@define(
    "broadcast_like",
    inputs=("lhs", "rhs"),
    params=(
        Param("lhs_axes", Shape, None, nullable=True, doc="axes to stretch; None = all"),
        Param("rhs_axes", Shape, None, nullable=True, doc="axes of rhs with the new sizes"),
    ),
    dtypes="T,~T->T",
    nondiff=("rhs",),
)
def _broadcast_like(lhs: Value, rhs: Value, *, lhs_axes: Any, rhs_axes: Any) -> Value:
    """Axes of size 1 stretched to the sizes of another array.

    Args:
        lhs: (d0, ..., dn).
        rhs: only its shape is used.

    Returns:
        The shape of rhs, or lhs with the sizes of rhs_axes at lhs_axes.
    """
    if lhs_axes is None or rhs_axes is None:
        return _stretch(lhs, rhs.shape)
    need(
        len(lhs_axes) == len(rhs_axes),
        f"expected as many axes on both sides, got {lhs_axes}, {rhs_axes}",
    )
    shape = list(lhs.shape)
    for a, b in zip(lhs_axes, rhs_axes, strict=True):
        shape[axis_of(a, lhs.ndim)] = rhs.shape[axis_of(b, rhs.ndim)]
    return _stretch(lhs, tuple(shape))


# Shapes as values ---------------------------------------------------------------------------


@define("shape_array", dtypes="*->int64", nondiff=("data",), differentiable="no")
def _shape_array(data: Value) -> Value:
    """The shape as a vector.

    Args:
        data: any shape.

    Returns:
        (ndim,), int64.
    """
    dims = [filled(d, (1,), np.int64) for d in data.shape]
    return concatenated(dims, 0) if dims else filled(0, (0,), np.int64)


@define("size_array", dtypes="*->int64", nondiff=("data",), differentiable="no")
def _size_array(data: Value) -> Value:
    """The number of elements.

    Args:
        data: any shape.

    Returns:
        (1,), int64.
    """
    return filled(size(data.shape), (1,), np.int64)
