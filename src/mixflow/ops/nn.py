"""Dense layers, activations, softmax, dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtype import is_float
from ..errors import DTypeError, ParamError
from ..ir import Bool, DType, Enum, Float, Int, Param, Shape, Value, binary, emit
from .common import (
    Dims,
    Fraction,
    Positive,
    Shapes,
    along,
    axes_of,
    axis_of,
    broadcast_to,
    cast,
    define,
    expand,
    filled,
    first_same,
    iota,
    less,
    merge,
    need,
    reshape,
    same_shape,
    select,
    size,
)
from .random import uniform
from .shape import product

# FullyConnected -----------------------------------------------------------------------------


def weighted(params: dict[str, Any]) -> tuple[str, ...]:
    """Inputs of a layer with an optional bias."""
    return ("data", "weight") if params["no_bias"] else ("data", "weight", "bias")


def _dense_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, out, hidden = ins[0], outs[0], params["num_hidden"]
    weight: Dims = (hidden, None)
    if data is not None:
        need(data, "expected data of at least one axis, got none")
        lead = data[:1] if params["flatten"] else data[:-1]
        inner = product(data[1:]) if params["flatten"] else data[-1]
        weight = (hidden, inner)
        out = merge((*lead, hidden), out)
        assert out is not None
        if data[0] is None and len(out) > 1:
            data = (out[0], *data[1:])
    known_weight = merge(weight, ins[1])
    return [data, known_weight, (hidden,)][: len(ins)], [out]


@define(
    "FullyConnected",
    inputs=weighted,
    params=(
        Param("num_hidden", Positive, doc="outputs"),
        Param("no_bias", Bool, False, doc="without bias"),
        Param("flatten", Bool, True, doc="all axes but the first are inputs; else the last one"),
    ),
    shapes=_dense_shapes,
)
def _fully_connected(data: Value, weight: Value, *bias: Value, flatten: bool, **_: Any) -> Value:
    """data * weight^T + bias.

    Args:
        data: (N, ...), or (..., K) without flatten.
        weight: (num_hidden, K).
        bias: (num_hidden,).

    Returns:
        (N, num_hidden), or (..., num_hidden) without flatten.
    """
    lead = data.shape[:1] if flatten else data.shape[:-1]
    matrix = reshape(data, (size(lead), weight.shape[1]))
    made = emit("matmul", matrix, weight, transpose_a=False, transpose_b=True)
    for b in bias:
        made = made + b
    return reshape(made, (*lead, weight.shape[0]))


# Activations --------------------------------------------------------------------------------


def softrelu(x: Value) -> Value:
    """log(1 + e^x) without overflow."""
    # Not relu and abs: both have slope 0 at 0, where that of softrelu is a half.
    positive = binary("greater_equal", x, 0.0)
    return select(positive, x, 0.0) + emit("log1p", emit("exp", select(positive, -x, x)))


@define(
    "Activation",
    params=(
        Param("act_type", Enum("relu", "sigmoid", "softrelu", "softsign", "tanh"), doc="function"),
    ),
    shapes=same_shape,
    reuse=((0, 0),),
)
def _activation(data: Value, *, act_type: str) -> Value:
    """A function of each element.

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    return softrelu(data) if act_type == "softrelu" else emit(act_type, data)


#: Klambauer, Unterthiner, Mayr, Hochreiter: "Self-normalizing neural networks", 2017.
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def _elu(x: Value, slope: float) -> Value:
    # The exponential sees no large x: where select drops it, its slope would be 0 * inf.
    positive = binary("greater", x, 0.0)
    return select(positive, x, emit("expm1", select(positive, 0.0, x)) * slope)


def _gelu(x: Value) -> Value:
    """Hendrycks, Gimpel: "Gaussian error linear units", 2016; the exact form."""
    return x * 0.5 * (emit("erf", x * math.sqrt(0.5)) + 1.0)


def _leaky(x: Value, slope: Any) -> Value:
    return select(binary("greater", x, 0.0), x, binary("multiply", x, slope))


def _channel_vector(gamma: Value, data: Value) -> Value:
    if gamma.shape == (1,) or data.ndim == 1:
        return gamma
    merge((data.shape[1],), gamma.shape)
    return along(gamma, 1, data.ndim)


def _leaky_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = merge(ins[0], outs[0])
    gamma = ins[1:]
    if gamma and gamma[0] is None and data is not None:
        gamma = [(data[1],) if len(data) > 1 else (1,)]
    return [data, *gamma], [data] * len(outs)


@define(
    "LeakyReLU",
    inputs=lambda p: ("data", "gamma") if p["act_type"] == "prelu" else ("data",),
    params=(
        Param(
            "act_type",
            Enum("elu", "gelu", "leaky", "prelu", "rrelu", "selu"),
            "leaky",
            doc="function",
        ),
        Param("slope", Float, 0.25, doc="slope (leaky) or scale (elu) of the negative side"),
        Param("lower_bound", Float, 0.125, doc="smallest slope of rrelu"),
        Param("upper_bound", Float, 0.334, doc="largest slope of rrelu"),
    ),
    outputs=lambda p: ("output", "mask") if p["act_type"] == "rrelu" else ("output",),
    shapes=_leaky_shapes,
    random=True,
    needs_mode=True,
)
def _leaky_relu(
    data: Value,
    *gamma: Value,
    act_type: str,
    slope: float,
    lower_bound: float,
    upper_bound: float,
    train: bool,
) -> Any:
    """x where it is positive, a smaller function of it where it is negative.

    Args:
        data: (N, C, ...) for prelu, else any shape.
        gamma: (C,) or (1,), the slopes of prelu.

    Returns:
        The shape of data; rrelu also returns the slopes that it used.
    """
    if act_type == "prelu":
        return _leaky(data, _channel_vector(gamma[0], data))
    if act_type == "rrelu":
        middle = (lower_bound + upper_bound) / 2.0
        slopes = filled(middle, data.shape, data.dtype)
        if train:
            slopes = uniform(data.shape, data.dtype) * (upper_bound - lower_bound) + lower_bound
        mask = select(binary("greater", data, 0.0), 1.0, slopes)
        return data * mask, mask
    if act_type == "selu":
        return _elu(data, _SELU_ALPHA) * _SELU_SCALE
    if act_type == "gelu":
        return _gelu(data)
    return _elu(data, slope) if act_type == "elu" else _leaky(data, slope)


@define(
    "Dropout",
    params=(
        Param("p", Fraction, 0.5, doc="fraction that is dropped"),
        Param("mode", Enum("always", "training"), "training", doc="when to drop"),
        Param("axes", Shape, (), doc="axes that share one draw"),
        Param("cudnn_off", Bool, False, nullable=True, doc="no meaning here"),
    ),
    shapes=same_shape,
    random=True,
    needs_mode=True,
)
def _dropout(data: Value, *, p: float, mode: str, axes: Any, cudnn_off: Any, train: bool) -> Value:
    """Elements set to 0 at random, the others divided by 1 - p.

    Srivastava and others: "Dropout", 2014.

    Args:
        data: any shape.

    Returns:
        The shape of data; data itself outside of training unless mode is 'always'.
    """
    if p == 0.0 or (mode == "training" and not train):
        return emit("identity", data)
    shared = axes_of(axes, data.ndim)
    shape = tuple(1 if i in shared else d for i, d in enumerate(data.shape))
    keep = less(uniform(shape, data.dtype), 1.0 - p)
    return data * (keep * (1.0 / (1.0 - p) if p < 1.0 else 0.0))


# Softmax ------------------------------------------------------------------------------------

_SOFT_PARAMS = (
    Param("axis", Int, -1, doc="axis that sums to 1"),
    Param("temperature", Float, None, nullable=True, doc="divides data first; None = 1"),
    Param("dtype", DType, None, nullable=True, doc="dtype of the output; None = that of data"),
    Param("use_length", Bool, False, nullable=True, doc="length is given"),
)


def _soft_data(
    name: str, data: Value, axis: int, temperature: Any, dtype: Any
) -> tuple[Value, int]:
    if not is_float(data.dtype):
        raise DTypeError(f"[{name}] expected a floating dtype, got {data.dtype}")
    if temperature is not None and temperature != 1.0:
        data = data / temperature
    return cast(data, dtype or data.dtype), axis_of(axis, data.ndim)


def _within(data: Value, length: Value, axis: int) -> Value:
    """1 at the positions along `axis` before the length, of data's shape; int32."""
    rest = (*data.shape[:axis], *data.shape[axis + 1 :])
    merge(rest, length.shape)
    ends = expand(cast(length, np.int32), axis)
    time = along(iota(data.shape[axis]), axis, data.ndim)
    return broadcast_to(less(time, ends), data.shape)


def _soft_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    (data, *length), outs = first_same(params, ins, outs)
    if data is not None:
        axis = axis_of(params["axis"], len(data))
        length = [(*data[:axis], *data[axis + 1 :]) for _ in length]
    return [data, *length], outs


@define(
    "softmax",
    inputs=lambda p: ("data", "length") if p["use_length"] else ("data",),
    params=_SOFT_PARAMS,
    shapes=_soft_shapes,
    dtypes="T,*->@dtype",
    nondiff=("length",),
)
def _softmax(
    data: Value, *length: Value, axis: int, temperature: Any, dtype: Any, use_length: Any
) -> Value:
    """exp(x) / sum(exp(x)) along an axis; 0 after each length.

    Args:
        data: (d0, ..., dn).
        length: data's shape without `axis`; how many elements count.

    Returns:
        The shape of data.
    """
    data, axis = _soft_data("softmax", data, axis, temperature, dtype)
    if not length:
        return emit("softmax", data, axis=axis)
    inside = _within(data, length[0], axis)
    lowest = -6e4 if data.dtype.itemsize == 2 else -1e30
    made = emit("softmax", select(inside, data, lowest), axis=axis)
    return select(inside, made, 0.0)


def _define_soft(name: str, primitive: str, sign: float, what: str) -> None:
    def compose(data: Value, *, axis: int, temperature: Any, dtype: Any, use_length: Any) -> Value:
        if use_length:
            raise ParamError(f"[{name}] expected use_length False, got True; softmax has lengths")
        data, axis = _soft_data(name, data, axis, temperature, dtype)
        return emit(primitive, data * sign if sign != 1.0 else data, axis=axis)

    define(
        name,
        params=_SOFT_PARAMS,
        shapes=_soft_shapes,
        dtypes="T->@dtype",
        doc=f"{what} along an axis.\n\nArgs:\n    data: (d0, ..., dn).\n\n"
        "Returns:\n    The shape of data.",
    )(compose)


_define_soft("log_softmax", "log_softmax", 1.0, "x - log(sum(exp(x)))")
_define_soft("softmin", "softmax", -1.0, "exp(-x) / sum(exp(-x))")


@define(
    "SoftmaxActivation",
    params=(Param("mode", Enum("channel", "instance"), "instance", doc="what sums to 1"),),
    shapes=same_shape,
)
def _softmax_activation(data: Value, *, mode: str) -> Value:
    """Softmax over the channels, or over all axes but the first.

    Args:
        data: (N, C, ...).

    Returns:
        The shape of data.
    """
    need(data.ndim >= 2, f"expected at least two axes, got {data.shape}")
    if mode == "channel":
        return emit("softmax", data, axis=1)
    flat = reshape(data, (data.shape[0], size(data.shape[1:])))
    return reshape(emit("softmax", flat, axis=1), data.shape)
