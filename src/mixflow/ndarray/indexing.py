"""Reading and writing `a[key]` by NumPy's rules, with MXNet's one exception: no 0-d results.

Hazard: a view must really share memory and everything else must really not. A basic key whose
region is contiguous gives a view; every other key goes through an operator. While autograd records,
reading always goes through operators, so that gradients flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _rt
from ..dtype import from_code
from ..errors import MXNetError
from .register import fill, primitive


@dataclass
class Basic:
    """A key of integers, slices, None and Ellipsis.

    `begin`, `end`, `step` have one entry for each axis (end -1 = past the first element for a
    negative step); `kept` is the shape with dropped axes at length 1, `shape` the result's.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    step: tuple[int, ...]
    kept: tuple[int, ...]
    shape: tuple[int, ...]


def _is_array(item: Any) -> bool:
    return isinstance(item, (np.ndarray, list, range, _rt.core.Array))


def _axes_used(item: Any) -> int:
    """Axes that one item of a key stands for."""
    if item is None:
        return 0
    if isinstance(item, np.ndarray) and item.dtype == np.bool_:
        return item.ndim
    return 1


def expand_key(key: Any, ndim: int) -> list[Any]:
    """The key as a list with one item for each axis and None for each new one.

    Raises:
        IndexError: too many items, two Ellipses, or an item of an unknown kind.
    """
    items = [_normal(i) for i in (key if isinstance(key, tuple) else (key,))]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("[index] expected at most one Ellipsis, got several")
    used = sum(_axes_used(i) for i in items if i is not Ellipsis)
    if used > ndim:
        raise IndexError(f"[index] expected at most {ndim} indices, got {used}")
    fill = [slice(None)] * (ndim - used)
    if dots:
        return [*items[: dots[0]], *fill, *items[dots[0] + 1 :]]
    return [*items, *fill]


def _normal(item: Any) -> Any:
    """Integers as int, sequences as integer or boolean arrays."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, (bool, int, np.integer)):
        return int(item)
    if isinstance(item, _rt.core.Array):
        return item.to_numpy() if item.dtype_code == 7 else item
    if isinstance(item, (np.ndarray, list, range, tuple)):
        found = np.asarray(
            [i.to_numpy() if isinstance(i, _rt.core.Array) else i for i in item]
            if isinstance(item, (list, tuple))
            else item
        )
        if found.dtype == np.bool_:
            return found
        if found.ndim == 0:
            return int(found)
        if found.dtype.kind in "iuf":
            return found.astype(np.int64)
    raise IndexError(
        "[index] expected integers, slices, None, Ellipsis or arrays, got "
        f"{item!r} of type {type(item).__name__}"
    )


def _in_range(index: int, axis: int, size: int) -> int:
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {size}")
    return index + size if index < 0 else index


def basic(items: Sequence[Any], shape: tuple[int, ...]) -> Basic:
    """What a key without arrays means for this shape."""
    begin, end, step, kept, result = [], [], [], [], []
    axis = 0
    for item in items:
        if item is None:
            result.append(1)
            continue
        size = shape[axis]
        if isinstance(item, slice):
            b, e, s = item.indices(size)
            length = len(range(b, e, s))
            result.append(length)
        else:
            b = _in_range(item, axis, size)
            e, s, length = b + 1, 1, 1
        begin.append(b)
        end.append(e if length else b)
        step.append(s)
        kept.append(length)
        axis += 1
    return Basic(tuple(begin), tuple(end), tuple(step), tuple(kept), tuple(result) or (1,))


def contiguous_offset(region: Basic, shape: tuple[int, ...]) -> int | None:
    """Offset in elements of a region that is contiguous in memory, else None."""
    if 0 in region.kept:
        return 0
    seen_partial = False
    offset = 0
    stride = 1
    strides = []
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    for axis, length in enumerate(region.kept):
        offset += region.begin[axis] * strides[-1 - axis]
        if seen_partial and length != shape[axis]:
            return None
        if length > 1:
            if region.step[axis] != 1:
                return None
            seen_partial = True
    return offset


def read(a: Any, key: Any) -> Any:
    """`a[key]`."""
    shape = a.shape
    recording = _rt.core.is_recording()
    if type(key) is int and not recording and shape:
        size = shape[0]
        if not -size <= key < size:
            raise IndexError(f"index {key} is out of bounds for axis 0 with size {size}")
        rest = shape[1:]
        step = a.size // size
        return a.view((key + size if key < 0 else key) * step, rest or (1,))
    if type(key) is slice and not recording and key.step is None and shape:
        size = shape[0]
        begin, end, _ = key.indices(size)
        length = max(end - begin, 0)
        return a.view(begin * (a.size // size) if length else 0, (length, *shape[1:]))
    items = expand_key(key, len(shape))
    if any(_is_array(i) for i in items):
        return _read_advanced(a, items)
    if not shape:
        return a
    region = basic(items, shape)
    if not recording:
        offset = contiguous_offset(region, shape)
        if offset is not None:
            return a.view(offset, region.shape)
    elif region.kept == shape:
        return (
            a
            if region.shape == shape and 1 == max(region.step) == min(region.step)
            else _reshaped(_sliced(a, region), region.shape)
        )
    return _reshaped(_sliced(a, region), region.shape)


def _sliced(a: Any, region: Basic) -> Any:
    return primitive("strided_slice")(a, begin=region.begin, end=region.end, step=region.step)


def _reshaped(a: Any, shape: tuple[int, ...]) -> Any:
    if a.shape == shape:
        return a
    if _rt.core.is_recording():
        return primitive("reshape")(a, shape=shape)
    return a.view(0, shape)


# -- advanced keys


def _read_advanced(a: Any, items: list[Any]) -> Any:
    if None in map(_none_or_one, items):
        a, items = _with_new_axes(a, items)
    arrays = [k for k, i in enumerate(items) if not isinstance(i, slice)]
    full = all(i == slice(None) for i in items if isinstance(i, slice))
    if full and len(arrays) == 1 and isinstance(items[arrays[0]], _rt.core.Array):
        return primitive("gather")(a, items[arrays[0]], axis=arrays[0], mode="wrap")
    places, shape = index_grid(items, a.shape)
    if 0 in shape:
        return a.view(0, shape)
    single = (
        full and len(arrays) == 1 and items[arrays[0]].dtype != np.bool_
        if arrays and isinstance(items[arrays[0]], np.ndarray)
        else False
    )
    if single:
        index = _checked(items[arrays[0]], arrays[0], a.shape[arrays[0]])
        at = _rt.core.from_numpy(index, a.device)
        return primitive("gather")(a, at, axis=arrays[0], mode="clip")
    found = primitive("gather_nd")(a, _rt.core.from_numpy(places, a.device))
    return found if shape else _reshaped(found, (1,))


def _none_or_one(item: Any) -> Any:
    return None if item is None else 1


def _with_new_axes(a: Any, items: list[Any], view: bool = False) -> tuple[Any, list[Any]]:
    """Replaces None in a key by a full slice of an axis that is really there."""
    shape: list[int] = []
    axis = 0
    for item in items:
        count = _axes_used(item)
        shape += a.shape[axis : axis + count] if item is not None else (1,)
        axis += count
    items = [slice(None) if i is None else i for i in items]
    return a.view(0, shape) if view else _reshaped(a, tuple(shape)), items


def _checked(index: np.ndarray[Any, Any], axis: int, size: int) -> np.ndarray[Any, Any]:
    if index.size and (index.min() < -size or index.max() >= size):
        bad = index[(index < -size) | (index >= size)].flat[0]
        raise IndexError(f"index {bad} is out of bounds for axis {axis} with size {size}")
    return np.where(index < 0, index + size, index)


def _split_masks(items: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Boolean masks as one integer array for each of their axes."""
    result: list[Any] = []
    for item in items:
        if isinstance(item, _rt.core.Array):
            item = item.to_numpy().astype(np.int64)
        if isinstance(item, np.ndarray) and item.dtype == np.bool_:
            where = shape[len(result) : len(result) + item.ndim]
            if item.shape != where:
                raise IndexError(
                    f"[index] expected a boolean mask of shape {where}, got {item.shape}"
                )
            result += item.nonzero()
        else:
            result.append(item)
    return result


def index_grid(
    items: list[Any], shape: tuple[int, ...]
) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
    """(places (k, *front), shape of the result): where gather_nd finds the elements of `a[items]`.

    The first k axes are indexed, the others are taken whole; `front` plus them is the result.
    """
    items = _split_masks(items, shape)
    leading = max(k for k, i in enumerate(items) if not _whole(i)) + 1
    chosen = items[:leading]
    advanced = [k for k, i in enumerate(chosen) if not isinstance(i, slice)]
    adjacent = advanced[-1] - advanced[0] + 1 == len(advanced)
    arrays = np.broadcast_arrays(
        *[_checked(np.asarray(chosen[k], np.int64), k, shape[k]) for k in advanced]
    )
    block = arrays[0].shape
    slices = [k for k in range(leading) if k not in advanced]
    before = [k for k in slices if k < advanced[0]] if adjacent else []
    after = [k for k in slices if k not in before]
    ranges = {k: np.arange(*chosen[k].indices(shape[k])) for k in slices}
    front = (*(ranges[k].size for k in before), *block, *(ranges[k].size for k in after))
    places = np.empty((leading, *front), np.int64)
    for position, k in enumerate(before):
        places[k] = _along(ranges[k], position, len(front))
    for k, array in zip(advanced, arrays, strict=True):
        places[k] = array.reshape(*array.shape, *(1,) * len(after))
    for position, k in enumerate(after):
        places[k] = _along(ranges[k], len(before) + len(block) + position, len(front))
    return places, (*front, *shape[leading:])


def _whole(item: Any) -> bool:
    return isinstance(item, slice) and item == slice(None)


def _along(values: np.ndarray[Any, Any], position: int, ndim: int) -> np.ndarray[Any, Any]:
    return values.reshape((1,) * position + (-1,) + (1,) * (ndim - position - 1))


# -- writing


def write(a: Any, key: Any, value: Any) -> None:
    """`a[key] = value`; the value broadcasts to the region and is converted to a's dtype."""
    if a.autograd is not None and _rt.core.is_recording():
        raise MXNetError(
            "[index] expected an array outside of autograd's record, got one that it follows; "
            "in-place operations (+=, -=, x[:] = ...) are not supported while recording"
        )
    shape = a.shape
    if (isinstance(key, slice) and key == slice(None)) or key is Ellipsis:
        _fill(a, value)
        return
    items = expand_key(key, len(shape))
    if any(_is_array(i) for i in items):
        _write_advanced(a, items, value)
        return
    region = basic(items, shape)
    if 0 in region.kept:
        return
    offset = contiguous_offset(region, shape)
    if offset is not None:
        _fill(a.view(offset, region.shape), value)
        return
    source = _apart(a, _stretched(_as_array(a, value), region.shape))
    source = _reshaped(source, region.kept)
    primitive("slice_assign")(a, source, begin=region.begin, end=region.end, step=region.step)


def _write_advanced(a: Any, items: list[Any], value: Any) -> None:
    if None in map(_none_or_one, items):
        a, items = _with_new_axes(a, items, view=True)
    places, shape = index_grid(items, a.shape)
    if 0 in shape:
        return
    source = _apart(a, _stretched(_as_array(a, value), shape))
    primitive("scatter_assign_nd")(a, _rt.core.from_numpy(places, a.device), source)


def _apart(a: Any, value: Any) -> Any:
    """The value, copied where it lies in the array that is written."""
    return primitive("copy")(value) if value.shares_storage(a) else value


def _as_array(a: Any, value: Any) -> Any:
    """The value as an array of a's dtype and device."""
    if isinstance(value, _rt.core.Array):
        if value.device != a.device:
            value = value.copyto(_context(a))
        if value.dtype_code != a.dtype_code:
            value = primitive("cast")(value, dtype=from_code(a.dtype_code))
        return value
    found = np.ascontiguousarray(value, from_code(a.dtype_code)).reshape(np.shape(value))
    return _rt.core.from_numpy(found, a.device)


def _context(a: Any) -> Any:
    from ..context import Context

    return Context(Context.devtype2str[a.device[0]], a.device[1])


def _stretched(value: Any, shape: tuple[int, ...]) -> Any:
    """The value broadcast to `shape`; leading axes of length 1 may be too many."""
    got = value.shape
    if got == shape:
        return value
    while len(got) > len(shape) and got[0] == 1:
        got = got[1:]
    fits = len(got) <= len(shape) and all(
        x in (1, y) for x, y in zip(reversed(got), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"[index] expected a value that broadcasts to shape {shape}, got {value.shape}"
        )
    value = _reshaped(value, got)
    return value if got == shape else primitive("broadcast")(value, shape=shape)


def _fill(target: Any, value: Any) -> None:
    """Overwrites a whole array or view."""
    if isinstance(value, np.ndarray) and value.shape == target.shape:
        found = np.ascontiguousarray(value, from_code(target.dtype_code))
        target.copy_from_numpy(found.reshape(value.shape))
        return
    if target.size == 0:
        return
    if value is target:
        return
    if type(value) in (int, float) and value in (0, 1):
        # Only these: each value of the constant is a kernel of its own.
        dtype = from_code(target.dtype_code)
        fill(float(value), target.shape, dtype, target, target.device)
        return
    source = _as_array(target, value)
    got, shape = source.shape, target.shape
    if got == shape:
        primitive("copy")(source, out=target)
        return
    if source.size == target.size == 1 or (
        got[len(got) - len(shape) :] == shape and source.size == target.size
    ):
        primitive("copy")(source.view(0, shape), out=target)
        return
    _check_fits(got, shape)
    primitive("broadcast")(
        _reshaped(source, got[max(len(got) - len(shape), 0) :]), shape=shape, out=target
    )


def _check_fits(got: tuple[int, ...], shape: tuple[int, ...]) -> None:
    extra = got[: max(len(got) - len(shape), 0)]
    pairs = zip(reversed(got), reversed(shape), strict=False)
    if any(d != 1 for d in extra) or any(x not in (1, y) for x, y in pairs):
        raise ValueError(f"[index] expected a value that broadcasts to shape {shape}, got {got}")
