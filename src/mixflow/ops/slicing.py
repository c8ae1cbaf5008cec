"""Cutting and joining: slice, split, concat, stack, pad."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from ..ir import Bool, Enum, Float, Int, Param, Shape, Value, emit, emit_node
from .common import (
    Dims,
    Positive,
    Shapes,
    axis_of,
    broadcast_to,
    concatenated,
    define,
    expand,
    merge,
    need,
    number,
    reshape,
    sliced,
)

# slice --------------------------------------------------------------------------------------


def region(
    shape: tuple[int, ...], begin: tuple[Any, ...], end: tuple[Any, ...], step: tuple[Any, ...]
) -> dict[str, tuple[int, ...]]:
    """Parameters of `strided_slice` for Python slices of the leading axes; never a negative length.

    Raises:
        ShapeError: more entries than axes, lengths that differ, or a step of 0.
    """
    need(len(begin) == len(end), f"expected begin and end of one length, got {begin} and {end}")
    need(len(begin) <= len(shape), f"expected at most {len(shape)} entries, got {begin}")
    steps = [s if s is not None else 1 for s in step] + [1] * (len(begin) - len(step))
    need(0 not in steps, f"expected steps other than 0, got {step}")
    found = [
        slice(b, e, s).indices(d) for b, e, s, d in zip(begin, end, steps, shape, strict=False)
    ]
    found += [(0, d, 1) for d in shape[len(begin) :]]
    ends = [max(b, e) if s > 0 else min(b, e) for b, e, s in found]
    return {
        "begin": tuple(b for b, _, _ in found),
        "end": tuple(ends),
        "step": tuple(s for _, _, s in found),
    }


_REGION = (
    Param("begin", Shape, doc="first index of each axis; None = the end it starts from"),
    Param("end", Shape, doc="index after the last; None = to the end"),
    Param("step", Shape, (), doc="steps; () = all 1"),
)


@define("slice", params=_REGION)
def _slice(data: Value, *, begin: Any, end: Any, step: Any) -> Value:
    """A region, cut as Python's slices cut.

    Args:
        data: (d0, ..., dn).

    Returns:
        ceil((end - begin) / step) along each axis.
    """
    return emit("strided_slice", data, **region(data.shape, begin, end, step))


@define("_slice_assign", inputs=("lhs", "rhs"), params=_REGION)
def _slice_assign(lhs: Value, rhs: Value, *, begin: Any, end: Any, step: Any) -> Value:
    """lhs with a region replaced.

    Args:
        lhs: (d0, ..., dn).
        rhs: broadcasts to the region.

    Returns:
        The shape of lhs.
    """
    place = region(lhs.shape, begin, end, step)
    inside = emit("strided_slice", lhs, **place).shape
    value = broadcast_to(rhs, inside)
    return emit_node("slice_assign", emit("copy", lhs), value, **place).values[-1]


@define(
    "_slice_assign_scalar",
    params=(Param("scalar", Float, 0.0, runtime=True, doc="the number"), *_REGION),
)
def _slice_assign_scalar(data: Value, *, scalar: Any, begin: Any, end: Any, step: Any) -> Value:
    """data with a region filled with a number.

    Args:
        data: (d0, ..., dn).

    Returns:
        The shape of data.
    """
    place = region(data.shape, begin, end, step)
    inside = emit("strided_slice", data, **place).shape
    value = broadcast_to(number(scalar, data.dtype), inside)
    return emit_node("slice_assign", emit("copy", data), value, **place).values[-1]


@define(
    "slice_axis",
    params=(
        Param("axis", Int, doc="axis to cut"),
        Param("begin", Int, doc="first index"),
        Param("end", Int, nullable=True, doc="index after the last; None = to the end"),
    ),
)
def _slice_axis(data: Value, *, axis: int, begin: int, end: int | None) -> Value:
    """A range along one axis.

    Args:
        data: (d0, ..., dn).

    Returns:
        With end - begin at `axis`.
    """
    axis = axis_of(axis, data.ndim)
    dim = data.shape[axis]
    first = begin + dim if begin < 0 else begin
    last = dim if end is None else end + dim if end < 0 else end
    need(0 <= first < last <= dim, f"expected a range within 0 and {dim}, got {begin} to {end}")
    return sliced(data, axis, first, last)


@define(
    "slice_like",
    inputs=("data", "shape_like"),
    params=(Param("axes", Shape, (), doc="axes to cut; () = all"),),
    dtypes="T,~T->T",
    nondiff=("shape_like",),
)
def _slice_like(data: Value, shape_like: Value, *, axes: tuple[int, ...]) -> Value:
    """The leading part, as long as another array along axes.

    Args:
        data: (d0, ..., dn).
        shape_like: only its shape is used.

    Returns:
        With shape_like's sizes along the axes.
    """
    chosen = axes or range(data.ndim)
    for a in chosen:
        axis, other = axis_of(a, data.ndim), axis_of(a, shape_like.ndim)
        length = shape_like.shape[other]
        need(
            length <= data.shape[axis],
            f"expected at most {data.shape[axis]} on axis {a}, got {length}",
        )
        data = sliced(data, axis, 0, length)
    return data


@define(
    "Crop",
    inputs=lambda p: tuple(f"arg{i}" for i in range(p["num_args"])),
    params=(
        Param("num_args", Int, doc="1: to h_w; 2: to the plane of the second input"),
        Param("offset", Shape, (0, 0), doc="first row and column"),
        Param("h_w", Shape, (0, 0), doc="height and width"),
        Param("center_crop", Bool, False, doc="cut the middle"),
    ),
    variadic="num_args",
)
def _crop(*args: Value, num_args: int, offset: Any, h_w: Any, center_crop: bool) -> Value:
    """A part of the plane.

    Args:
        args: data (N, C, H, W), and with num_args 2 an array whose plane gives the size.

    Returns:
        (N, C, h, w).
    """
    data = args[0]
    need(data.ndim == 4, f"expected data (N, C, H, W), got {data.shape}")
    h, w = args[1].shape[2:] if num_args == 2 else h_w
    top, left = offset
    if center_crop:
        top, left = (data.shape[2] - h) // 2, (data.shape[3] - w) // 2
    fits = h + top <= data.shape[2] and w + left <= data.shape[3]
    need(fits, f"expected a part of {data.shape[2:]}, got {(h, w)} at {(top, left)}")
    return sliced(sliced(data, 2, top, top + h), 3, left, left + w)


# Joining ------------------------------------------------------------------------------------


def _numbered(params: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"arg{i}" for i in range(params["num_args"]))


def _concat_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    first = next((s for s in (*ins, *outs) if s is not None), None)
    if first is None:
        return ins, outs
    axis = axis_of(params["dim"], len(first))
    common: Dims = (None,) * len(first)
    for s in (*ins, *outs):
        if s is not None:
            need(len(s) == len(first), f"expected {len(first)} axes, got {s}")
            common = merge(common, (*s[:axis], None, *s[axis + 1 :])) or ()
    sizes = [None if s is None else s[axis] for s in ins]
    total = None if outs[0] is None else outs[0][axis]
    missing = [i for i, d in enumerate(sizes) if d is None]
    known_sum = sum(d for d in sizes if d is not None)
    if not missing:
        total = known_sum
    elif len(missing) == 1 and total is not None:
        sizes[missing[0]] = total - known_sum
    made = [(*common[:axis], d, *common[axis + 1 :]) for d in (*sizes, total)]
    return list(made[:-1]), [made[-1]]


@define(
    "Concat",
    inputs=_numbered,
    params=(Param("num_args", Positive, doc="number of inputs"), Param("dim", Int, 1, doc="axis")),
    shapes=_concat_shapes,
    variadic="num_args",
)
def _concat(*args: Value, num_args: int, dim: int) -> Value:
    """Arrays one after the other along an axis.

    Args:
        args: equal shapes but for axis `dim`.

    Returns:
        With the sum of sizes at `dim`.
    """
    return concatenated(args, axis_of(dim, args[0].ndim))


@define(
    "stack",
    inputs=_numbered,
    params=(
        Param("axis", Int, 0, doc="where the new axis stands"),
        Param("num_args", Positive, doc="number of inputs"),
    ),
    variadic="num_args",
)
def _stack(*args: Value, axis: int, num_args: int) -> Value:
    """Arrays joined along a new axis.

    Args:
        args: one shape.

    Returns:
        With num_args at `axis`.
    """
    merge(args[0].shape, args[-1].shape)
    place = axis_of(axis, args[0].ndim + 1)
    return concatenated([expand(a, place) for a in args], place)


# Splitting ----------------------------------------------------------------------------------


def _names(count: int) -> tuple[str, ...]:
    return ("output",) if count == 1 else tuple(f"output{i}" for i in range(count))


def _parts(data: Value, axis: int, bounds: list[int], squeeze: bool) -> Any:
    made = [sliced(data, axis, a, b) for a, b in pairwise(bounds)]
    if squeeze:
        need(
            all(m.shape[axis] == 1 for m in made),
            "expected parts of size 1 to squeeze, got longer ones",
        )
        made = [reshape(m, (*m.shape[:axis], *m.shape[axis + 1 :])) for m in made]
    return made[0] if len(made) == 1 else tuple(made)


def _split_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, count = ins[0], params["num_outputs"]
    if data is None:
        return ins, outs
    axis = axis_of(params["axis"], len(data))
    dim = data[axis]
    need(
        dim is None or dim % count == 0, f"expected a multiple of {count} on axis {axis}, got {dim}"
    )
    part = None if dim is None else dim // count
    rest = data[axis + 1 :]
    if params["squeeze_axis"]:
        need(part in (None, 1), f"expected parts of size 1 to squeeze, got {part}")
        return ins, [(*data[:axis], *rest)] * count
    return ins, [(*data[:axis], part, *rest)] * count


@define(
    "SliceChannel",
    params=(
        Param("num_outputs", Positive, doc="number of equal parts"),
        Param("axis", Int, 1, doc="axis to split"),
        Param("squeeze_axis", Bool, False, doc="drop the axis of the parts (size 1)"),
    ),
    outputs=lambda p: _names(p["num_outputs"]),
    shapes=_split_shapes,
)
def _slice_channel(data: Value, *, num_outputs: int, axis: int, squeeze_axis: bool) -> Any:
    """Equal parts along an axis.

    Args:
        data: (d0, ..., dn).

    Returns:
        num_outputs arrays with d[axis] / num_outputs at `axis`.
    """
    axis = axis_of(axis, data.ndim)
    part = data.shape[axis] // num_outputs
    bounds = [i * part for i in range(num_outputs + 1)]
    return _parts(data, axis, bounds, squeeze_axis)


def _v2_count(params: dict[str, Any]) -> int:
    return int(params["sections"] or len(params["indices"]))


@define(
    "_split_v2",
    params=(
        Param("indices", Shape, doc="first index of each part, 0 included"),
        Param("axis", Int, 1, doc="axis to split"),
        Param("squeeze_axis", Bool, False, doc="drop the axis of the parts (size 1)"),
        Param("sections", Int, 0, doc="number of equal parts; 0 = use indices"),
    ),
    outputs=lambda p: _names(_v2_count(p)),
)
def _split_v2(data: Value, *, indices: Any, axis: int, squeeze_axis: bool, sections: int) -> Any:
    """Parts along an axis, equal or from given indices.

    Args:
        data: (d0, ..., dn).

    Returns:
        The parts in order.
    """
    axis = axis_of(axis, data.ndim)
    dim = data.shape[axis]
    if sections:
        need(dim % sections == 0, f"expected a multiple of {sections} on axis {axis}, got {dim}")
        bounds = [i * (dim // sections) for i in range(sections + 1)]
    else:
        bounds = [*indices, dim]
        need(bounds == sorted(bounds), f"expected rising indices up to {dim}, got {indices}")
    return _parts(data, axis, bounds, squeeze_axis)


@define(
    "Pad",
    params=(
        Param("mode", Enum("constant", "edge", "reflect"), doc="what stands in the border"),
        Param("pad_width", Shape, doc="before and after of each axis"),
        Param("constant_value", Float, 0.0, doc="border of mode constant"),
    ),
)
def _pad(data: Value, *, mode: str, pad_width: tuple[int, ...], constant_value: float) -> Value:
    """A border around the array.

    Args:
        data: (d0, ..., dn).

    Returns:
        With before + d + after along each axis.
    """
    need(len(pad_width) == 2 * data.ndim, f"expected {2 * data.ndim} widths, got {pad_width}")
    return emit(
        "pad", data, before=pad_width[::2], after=pad_width[1::2], mode=mode, value=constant_value
    )
