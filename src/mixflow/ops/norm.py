"""Normalisation."""

from __future__ import annotations

from typing import Any

from ..ir import Bool, Enum, Float, Int, Param, Value, emit, emit_node
from .common import (
    Dims,
    Shapes,
    along,
    axis_of,
    cast,
    define,
    filled,
    merge,
    need,
    reduce,
    reshape,
    same_shape,
    size,
)
from .reduce import root_mean

# BatchNorm ----------------------------------------------------------------------------------

_VISIBLE = Param("output_mean_var", Bool, False, doc="also show mean and deviation")


def _shown(params: dict[str, Any]) -> int:
    return 3 if params["output_mean_var"] else 1


def _batch_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = merge(ins[0], outs[0])
    if data is None:
        return ins, outs
    channels = (data[axis_of(params["axis"], len(data))],)
    return [data, *[channels] * 4], [data, channels, channels]


@define(
    "BatchNorm",
    inputs=("data", "gamma", "beta", "moving_mean", "moving_var"),
    params=(
        Param("eps", Float, 0.0010000000474974513, doc="added to the variance"),
        Param("momentum", Float, 0.9, doc="weight of the old moving statistics"),
        Param("fix_gamma", Bool, True, doc="take gamma as 1"),
        Param("use_global_stats", Bool, False, doc="use the moving statistics in training too"),
        _VISIBLE,
        Param("axis", Int, 1, doc="channel axis"),
        Param("cudnn_off", Bool, False, doc="no meaning here"),
        Param("min_calib_range", Float, None, nullable=True, doc="no meaning here"),
        Param("max_calib_range", Float, None, nullable=True, doc="no meaning here"),
    ),
    outputs=("output", "mean", "var"),
    visible=_shown,
    shapes=_batch_shapes,
    dtypes="T,?T,?T,?T,?T->T,?T,?T",
    mutates=("moving_mean", "moving_var"),
    aux=("moving_mean", "moving_var"),
    needs_mode=True,
    differentiable="once",
)
def _batch_norm(
    data: Value,
    gamma: Value,
    beta: Value,
    moving_mean: Value,
    moving_var: Value,
    *,
    train: bool,
    **p: Any,
) -> tuple[Value, ...]:
    """(x - mean) / sqrt(var + eps) * gamma + beta per channel.

    Ioffe, Szegedy: "Batch normalization", 2015. In training mean and population variance are
    those of the batch, and the moving ones follow them; else the moving ones are used.

    Args:
        data: (N, C, ...), channels on `axis`.
        gamma, beta, moving_mean, moving_var: (C,).

    Returns:
        The shape of data; mean (C,); 1 / sqrt(var + eps) (C,).
    """
    axis, dtype = axis_of(p["axis"], data.ndim), data.dtype
    x = cast(data, gamma.dtype)
    scale = filled(1.0, gamma.shape, gamma.dtype) if p["fix_gamma"] else gamma
    if not train or p["use_global_stats"]:
        inverse = emit("rsqrt", moving_var + p["eps"])
        made = emit("batch_norm", x, scale, beta, moving_mean, inverse, axis=axis)
        mean = emit("identity", moving_mean)
        return cast(made, dtype), mean, inverse, moving_mean, moving_var
    node = emit_node("batch_norm_train", x, scale, beta, axis=axis, eps=p["eps"])
    made, mean, var = node[0], node[1], node[2]
    keep = p["momentum"]
    return (
        cast(made, dtype),
        mean,
        emit("rsqrt", var + p["eps"]),
        emit_node("assign", moving_mean, moving_mean * keep + mean * (1.0 - keep)).values[-1],
        emit_node("assign", moving_var, moving_var * keep + var * (1.0 - keep)).values[-1],
    )


# Norms of each sample -----------------------------------------------------------------------


def _layer_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = merge(ins[0], outs[0])
    if data is None:
        return ins, outs
    axis = axis_of(params["axis"], len(data))
    kept: Dims = (*data[:axis], 1, *data[axis + 1 :])
    return [data, (data[axis],), (data[axis],)], [data, kept, kept]


@define(
    "LayerNorm",
    inputs=("data", "gamma", "beta"),
    params=(
        Param("axis", Int, -1, doc="axis to normalise"),
        Param("eps", Float, 1e-05, doc="added to the variance"),
        _VISIBLE,
    ),
    outputs=("output", "mean", "std"),
    visible=_shown,
    shapes=_layer_shapes,
)
def _layer_norm(data: Value, gamma: Value, beta: Value, *, axis: int, eps: float, **_: Any) -> Any:
    """(x - mean) / sqrt(var + eps) * gamma + beta along an axis.

    Ba, Kiros, Hinton: "Layer normalization", 2016.

    Args:
        data: (d0, ..., dn).
        gamma, beta: (d[axis],).

    Returns:
        The shape of data; mean and sqrt(var + eps), with 1 at `axis`.
    """
    axis = axis_of(axis, data.ndim)
    mean, inverse = root_mean(data, (axis,), eps)
    scaled = (data - mean) * inverse * along(gamma, axis, data.ndim)
    return scaled + along(beta, axis, data.ndim), mean, emit("reciprocal", inverse)


def _group_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, groups = merge(ins[0], outs[0]), params["num_groups"]
    vector: Dims = (groups,)
    if data is None:
        return [None, vector, vector], outs
    need(len(data) >= 3, f"expected data (N, C, ...) of at least 3 axes, got {len(data)}")
    need(
        data[1] is None or data[1] % groups == 0,
        f"expected channels divisible by {groups}, got {data[1]}",
    )
    return [data, vector, vector], [data, (data[0], groups), (data[0], groups)]


@define(
    "GroupNorm",
    inputs=("data", "gamma", "beta"),
    params=(
        Param("num_groups", Int, 1, doc="groups of channels"),
        Param("eps", Float, 1e-05, doc="added to the variance"),
        _VISIBLE,
    ),
    outputs=("output", "mean", "std"),
    visible=_shown,
    shapes=_group_shapes,
)
def _group_norm(
    data: Value, gamma: Value, beta: Value, *, num_groups: int, eps: float, **_: Any
) -> Any:
    """(x - mean) / sqrt(var + eps) * gamma + beta over groups of channels of each sample.

    Wu, He: "Group normalization", 2018.

    Args:
        data: (N, C, ...).
        gamma, beta: (num_groups,), one number per group as in MXNet 1.9.1.

    Returns:
        The shape of data; mean (N, num_groups); sqrt(var + eps) (N, num_groups).
    """
    n, g = data.shape[0], num_groups
    x = reshape(data, (n, g, size(data.shape[1:]) // g))
    mean, inverse = root_mean(x, (2,), eps)
    made = (x - mean) * inverse * along(gamma, 1, 3) + along(beta, 1, 3)
    std = emit("reciprocal", inverse)
    return reshape(made, data.shape), reshape(mean, (n, g)), reshape(std, (n, g))


def _instance_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = merge(ins[0], outs[0])
    if data is None:
        return ins, outs
    need(len(data) >= 3, f"expected data (N, C, ...) of at least 3 axes, got {len(data)}")
    return [data, (data[1],), (data[1],)], [data]


@define(
    "InstanceNorm",
    inputs=("data", "gamma", "beta"),
    params=(Param("eps", Float, 0.001, doc="added to the variance"),),
    shapes=_instance_shapes,
)
def _instance_norm(data: Value, gamma: Value, beta: Value, *, eps: float) -> Value:
    """(x - mean) / sqrt(var + eps) * gamma + beta over the plane of each channel and sample.

    Ulyanov, Vedaldi, Lempitsky: "Instance normalization", 2016.

    Args:
        data: (N, C, ...).
        gamma, beta: (C,).

    Returns:
        The shape of data.
    """
    mean, inverse = root_mean(data, tuple(range(2, data.ndim)), eps)
    return (data - mean) * inverse * along(gamma, 1, data.ndim) + along(beta, 1, data.ndim)


@define(
    "L2Normalization",
    params=(
        Param("eps", Float, 1e-10, doc="added to the sum of squares"),
        Param("mode", Enum("channel", "instance", "spatial"), "instance", doc="axes of one norm"),
    ),
    shapes=same_shape,
)
def _l2_normalization(data: Value, *, eps: float, mode: str) -> Value:
    """x / sqrt(sum(x^2) + eps), the sum over a sample, the channels or the plane.

    Args:
        data: (N, C, ...).

    Returns:
        The shape of data.
    """
    need(data.ndim >= 2 + (mode == "spatial"), f"expected data (N, C, ...), got {data.shape}")
    first = {"channel": (1,), "instance": range(1, data.ndim), "spatial": range(2, data.ndim)}[mode]
    return data * emit("rsqrt", reduce("sum", data * data, first, True) + eps)


@define(
    "LRN",
    params=(
        Param("alpha", Float, 1e-4, doc="weight of the sum of squares"),
        Param("beta", Float, 0.75, doc="power"),
        Param("knorm", Float, 2.0, doc="constant"),
        Param("nsize", Int, doc="width of the window of channels; odd"),
    ),
    shapes=same_shape,
)
def _lrn(data: Value, **params: Any) -> Value:
    """x / (knorm + alpha / nsize * sum of squares of near channels)^beta.

    Krizhevsky, Sutskever, Hinton: "ImageNet classification", 2012.

    Args:
        data: (N, C, H, W).

    Returns:
        The shape of data.
    """
    return emit("lrn", data, **params)
