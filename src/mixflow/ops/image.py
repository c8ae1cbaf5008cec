"""Operators on images (``mx.nd.image``, ``mx.sym.image``): to tensors, cuts, mirrors, colour."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import Float, Floats, Int, Param, Value, binary, constant, emit
from .common import (
    cast,
    define,
    need,
    permute,
    reduce,
    reshape,
    same_shape,
    select,
    sliced,
)
from .random import uniform

_FLOAT32 = np.dtype(np.float32)
#: Weights of red, green and blue in brightness (ITU-R BT.601).
_LUMA = (0.299, 0.587, 0.114)
#: Principal components of ImageNet's pixels, each times its eigenvalue; one a column.
_LIGHT = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
) * np.array([55.46, 4.794, 1.148])
_DRAW: dict[str, Any] = {"random": True, "differentiable": "no", "shapes": same_shape}


def _image(data: Value, batch: bool = False) -> Value:
    form = "(height, width, channels)" + (" or (N, height, width, channels)" if batch else "")
    ranks = (3, 4) if batch else (3,)
    need(data.ndim in ranks, f"expected an image {form}, got {data.ndim} axes")
    return data


def _exact(data: Value) -> Value:
    """The values as float32, or float64 as they are."""
    return data if data.dtype == np.float64 else cast(data, _FLOAT32)


def _coloured(data: Value) -> Value:
    _image(data)
    need(data.shape[2] in (1, 3), f"expected 1 or 3 channels, got {data.shape[2]}")
    return _exact(data)


def _levels(value: Value, dtype: Any) -> Value:
    """Rounded towards 0 and cut to the range of bytes, where the dtype is that of bytes."""
    if dtype == np.uint8:
        value = binary("minimum", binary("maximum", value, 0.0), 255.0)
    return cast(value, dtype)


def _factor(low: float, high: float, dtype: Any) -> Value:
    """A number of [low, high), of shape (1, 1, 1)."""
    need(low >= 0, f"expected min_factor of at least 0, got {low:g}")
    return cast(uniform((1, 1, 1), _FLOAT32) * float(high - low) + float(low), dtype)


def _grey(image: Value) -> Value:
    """Brightness (height, width, 1) of a float image."""
    if image.shape[2] == 1:
        return image
    parts = [sliced(image, 2, i, i + 1) * weight for i, weight in enumerate(_LUMA)]
    return parts[0] + parts[1] + parts[2]


@define("_image_to_tensor", dtypes="T->float32", namespace="image")
def _to_tensor(data: Value) -> Value:
    """Levels 0 to 255 as planes of 0 to 1.

    Args:
        data: (height, width, channels) or (N, height, width, channels).

    Returns:
        (channels, height, width) or (N, channels, height, width) float32.
    """
    _image(data, batch=True)
    axes = (2, 0, 1) if data.ndim == 3 else (0, 3, 1, 2)
    return permute(cast(data, _FLOAT32) / 255.0, axes)


def _per_channel(given: Any, channels: int, name: str, dtype: Any) -> Value:
    values = tuple(given)
    need(
        len(values) in (1, channels),
        f"expected 1 or {channels} numbers for {name}, got {len(values)}",
    )
    parts = [constant(v, dtype, (1, 1, 1)) for v in values]
    return parts[0] if len(parts) == 1 else emit("concatenate", *parts, axis=0, num_args=len(parts))


@define(
    "_image_normalize",
    params=(
        Param("mean", Floats, (0.0, 0.0, 0.0, 0.0), doc="one number, or one per channel"),
        Param("std", Floats, (1.0, 1.0, 1.0, 1.0), doc="one number, or one per channel"),
    ),
    shapes=same_shape,
    namespace="image",
)
def _normalize(data: Value, *, mean: Any, std: Any) -> Value:
    """(data - mean) / std for each channel. The default leaves the data as they are.

    Args:
        data: (channels, height, width) or (N, channels, height, width).

    Returns:
        Shape and dtype of data.
    """
    need(data.ndim in (3, 4), f"expected (channels, height, width), got {data.ndim} axes")
    channels = data.shape[-3]
    mean = (0.0,) if tuple(mean) == (0.0,) * 4 else mean
    std = (1.0,) if tuple(std) == (1.0,) * 4 else std
    planes = _exact(data)
    centre = _per_channel(mean, channels, "mean", planes.dtype)
    spread = _per_channel(std, channels, "std", planes.dtype)
    return _levels(binary("divide", binary("subtract", planes, centre), spread), data.dtype)


@define(
    "_image_crop",
    params=(
        Param("x", Int, doc="left edge, pixels"),
        Param("y", Int, doc="upper edge, pixels"),
        Param("width", Int, doc="pixels"),
        Param("height", Int, doc="pixels"),
    ),
    namespace="image",
)
def _crop(data: Value, *, x: int, y: int, width: int, height: int) -> Value:
    """A part of an image.

    Args:
        data: (height, width, channels) or (N, height, width, channels).

    Returns:
        The part, same dtype.
    """
    _image(data, batch=True)
    rows, columns = data.shape[-3:-1]
    inside = x >= 0 and y >= 0 and width > 0 and height > 0
    need(
        inside and x + width <= columns and y + height <= rows,
        f"expected a part inside of {rows} x {columns} pixels, got x={x} y={y} width={width} "
        f"height={height}",
    )
    part = sliced(data, data.ndim - 3, y, y + height)
    return sliced(part, data.ndim - 2, x, x + width)


def _define_flips(name: str, axis: int, what: str) -> None:
    def fixed(data: Value) -> Value:
        return emit("reverse", _image(data), axes=(axis,))

    def drawn(data: Value) -> Value:
        flipped = emit("reverse", _image(data), axes=(axis,))
        chosen = cast(binary("less", uniform((1, 1, 1), _FLOAT32), 0.5), data.dtype)
        return select(emit("broadcast_to", chosen, shape=data.shape), flipped, data)

    arguments = (
        "\n\nArgs:\n    data: (height, width, channels).\n\nReturns:\n    Shape and dtype of data."
    )
    fixed.__doc__ = f"Mirrors {what}.{arguments}"
    drawn.__doc__ = f"Mirrors {what} with probability 1/2.{arguments}"
    define(f"_image_flip_{name}", shapes=same_shape, namespace="image")(fixed)
    define(f"_image_random_flip_{name}", namespace="image", **_DRAW)(drawn)


_define_flips("left_right", 1, "left and right")
_define_flips("top_bottom", 0, "top and bottom")

_FACTORS = (
    Param("min_factor", Float, doc="smallest factor, at least 0"),
    Param("max_factor", Float, doc="largest factor"),
)


@define("_image_random_brightness", params=_FACTORS, namespace="image", **_DRAW)
def _random_brightness(data: Value, *, min_factor: float, max_factor: float) -> Value:
    """Multiplies by a random factor.

    Args:
        data: (height, width, channels).

    Returns:
        Shape and dtype of data; bytes are cut to 0 to 255.
    """
    _image(data)
    image = _exact(data)
    factor = _factor(min_factor, max_factor, image.dtype)
    return _levels(binary("multiply", image, factor), data.dtype)


def _blended(image: Value, other: Value, factor: Value) -> Value:
    return binary("multiply", image, factor) + binary("multiply", other, 1.0 - factor)


@define("_image_random_contrast", params=_FACTORS, namespace="image", **_DRAW)
def _random_contrast(data: Value, *, min_factor: float, max_factor: float) -> Value:
    """Moves pixels away from the mean brightness, or towards it, by a random factor.

    Args:
        data: (height, width, 1 or 3).

    Returns:
        Shape and dtype of data; bytes are cut to 0 to 255.
    """
    image = _coloured(data)
    total = reduce("sum", _grey(image), (0, 1, 2), keepdims=True)
    mean = total / float(max(1, data.shape[0] * data.shape[1]))
    factor = _factor(min_factor, max_factor, image.dtype)
    return _levels(_blended(image, mean, factor), data.dtype)


@define("_image_random_saturation", params=_FACTORS, namespace="image", **_DRAW)
def _random_saturation(data: Value, *, min_factor: float, max_factor: float) -> Value:
    """Moves pixels away from their own grey, or towards it, by a random factor.

    Args:
        data: (height, width, 1 or 3).

    Returns:
        Shape and dtype of data; bytes are cut to 0 to 255.
    """
    image = _coloured(data)
    factor = _factor(min_factor, max_factor, image.dtype)
    return _levels(_blended(image, _grey(image), factor), data.dtype)


def _lit(data: Value, alpha: Value) -> Value:
    """Adds the principal components in the proportions `alpha` (3,)."""
    image = _coloured(data)
    if data.shape[2] == 1:
        return emit("identity", data)
    parts = []
    for row in _LIGHT:
        weighted = [sliced(alpha, 0, i, i + 1) * float(w) for i, w in enumerate(row)]
        parts.append(weighted[0] + weighted[1] + weighted[2])
    shift = emit("concatenate", *parts, axis=0, num_args=3)
    shift = cast(reshape(shift, (1, 1, 3)), image.dtype)
    return _levels(binary("add", image, shift), data.dtype)


@define(
    "_image_adjust_lighting",
    params=(Param("alpha", Floats, doc="three factors"),),
    shapes=same_shape,
    namespace="image",
)
def _adjust_lighting(data: Value, *, alpha: Any) -> Value:
    """Adds the principal components of colour in given proportions.

    Args:
        data: (height, width, 1 or 3); one channel stays as it is.

    Returns:
        Shape and dtype of data; bytes are cut to 0 to 255.

    Source: Krizhevsky et al. 2012, ImageNet classification with deep neural networks.
    """
    need(len(tuple(alpha)) == 3, f"expected three numbers for alpha, got {tuple(alpha)}")
    parts = [constant(a, _FLOAT32, (1,)) for a in alpha]
    return _lit(data, emit("concatenate", *parts, axis=0, num_args=3))


@define(
    "_image_random_lighting",
    params=(Param("alpha_std", Float, 0.05, doc="deviation of the three factors"),),
    namespace="image",
    **_DRAW,
)
def _random_lighting(data: Value, *, alpha_std: float) -> Value:
    """Adds the principal components of colour in normally distributed proportions.

    Args:
        data: (height, width, 1 or 3); one channel stays as it is.

    Returns:
        Shape and dtype of data; bytes are cut to 0 to 255.

    Source: Krizhevsky et al. 2012, ImageNet classification with deep neural networks.
    """
    drawn = emit("random_normal", loc=0.0, scale=1.0, shape=(3,), dtype=_FLOAT32)
    return _lit(data, drawn * float(alpha_std))
