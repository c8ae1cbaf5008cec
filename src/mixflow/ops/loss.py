"""Outputs that carry their own gradient, and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir import Bool, Enum, Float, Node, Param, Value, binary, emit
from .common import (
    Shapes,
    cast,
    define,
    expand,
    filled,
    merge,
    need,
    reduce,
    reshape,
    same_shape,
    size,
)
from .shape import product

Grads = list["Value | None"]

_SCALE = Param("grad_scale", Float, 1.0, doc="factor of the gradient")
_NORMALIZATION = Param(
    "normalization",
    Enum("batch", "null", "valid"),
    "null",
    doc="divides the gradient by the batch size, or by the number of valid elements",
)

# SoftmaxOutput ------------------------------------------------------------------------------


def _label_shape(params: dict[str, Any], data: tuple[Any, ...]) -> tuple[Any, ...]:
    if params["multi_output"]:
        rest = data[2:]
        return (data[0], None if None in rest else size(rest))
    return data[:-1] if params["preserve_shape"] or len(data) > 2 else data[:1]


def _softmax_output_shapes(
    params: dict[str, Any], ins: Shapes, outs: Shapes
) -> tuple[Shapes, Shapes]:
    data, label = merge(ins[0], outs[0]), ins[1]
    if data is None:
        return ins, outs
    need(len(data) >= 2, f"expected data of at least two axes, got {len(data)}")
    if label is None:
        label = _label_shape(params, data)
    elif None not in data and None not in label:
        rest = (data[0], *data[2:]) if params["multi_output"] else data[:-1]
        counts = {product(data), product(rest), data[0]}
        need(product(label) in counts, f"expected a label for each row of {data}, got {label}")
    return [data, label], [data]


def _softmax_axis(params: Any, data: Value) -> tuple[Value, int]:
    """Data in the form that softmax runs over, and its axis."""
    if params["multi_output"]:
        return data, 1
    if params["preserve_shape"]:
        return data, data.ndim - 1
    return reshape(data, (data.shape[0], size(data.shape[1:]))), 1


def _one_hot(params: Any, label: Value, like: Value, axis: int) -> tuple[Value, Value]:
    """Target distribution of `like`'s shape (smoothed), and the label with a 1 at `axis`."""
    classes = like.shape[axis]
    kept = (*like.shape[:axis], 1, *like.shape[axis + 1 :])
    place = reshape(label, kept)
    hot = emit(
        "one_hot",
        reshape(label, (*like.shape[:axis], *like.shape[axis + 1 :])),
        depth=classes,
        on_value=1.0 - params["smooth_alpha"],
        off_value=params["smooth_alpha"] / max(1, classes - 1),
        dtype=like.dtype,
    )
    last = like.ndim - 1
    order = tuple(i if i < axis else last if i == axis else i - 1 for i in range(like.ndim))
    return (hot if axis == last else emit("permute", hot, axes=order)), place


def _normalizer(params: Any, label: Value, like: Value, axis: int) -> tuple[float, Value | None]:
    """(number, count): the gradient is multiplied by the number and divided by the count."""
    scale = params["grad_scale"]
    if params["multi_output"] and params["normalization"] != "valid":
        scale /= size(like.shape[2:])
    if params["normalization"] == "batch":
        rows = size(like.shape) // like.shape[axis]
        scale /= like.shape[0] if params["multi_output"] else rows
    if params["normalization"] != "valid":
        return scale, None
    flat = reshape(label, (size(label.shape),))
    valid = binary("not_equal", flat, float(int(params["ignore_label"])))
    count = reduce("sum", cast(valid, like.dtype), (0,))
    return scale, binary("maximum", count, 1.0)


def _softmax_output_vjp(node: Node, grads: Grads) -> Grads:
    data, label = node.inputs
    params = node.params
    probability, axis = _softmax_axis(params, node[0])
    if label.shape == data.shape:
        delta = (node[0] - cast(label, data.dtype)) * params["grad_scale"]
    else:
        hot, place = _one_hot(params, label, probability, axis)
        delta = probability - hot
        if params["use_ignore"]:
            keep = binary("not_equal", place, float(int(params["ignore_label"])))
            delta = delta * cast(keep, delta.dtype)
        scale, count = _normalizer(params, label, probability, axis)
        delta = delta * scale if count is None else delta * (scale / count)
        delta = reshape(delta, data.shape)
    if params["out_grad"] and grads[0] is not None:
        delta = delta * grads[0]
    return [delta, None]


@define(
    "SoftmaxOutput",
    inputs=("data", "label"),
    params=(
        _SCALE,
        Param("ignore_label", Float, -1.0, doc="label without gradient, with use_ignore"),
        Param("multi_output", Bool, False, doc="classes on axis 1, a label for each place"),
        Param("use_ignore", Bool, False, doc="no gradient where the label is ignore_label"),
        Param("preserve_shape", Bool, False, doc="softmax along the last axis"),
        _NORMALIZATION,
        Param("out_grad", Bool, False, doc="multiply by the incoming gradient"),
        Param(
            "smooth_alpha", Float, 0.0, doc="weight taken from the label and given to the others"
        ),
    ),
    shapes=_softmax_output_shapes,
    dtypes="T,~T->T",
    vjp=_softmax_output_vjp,
    nondiff=("label",),
)
def _softmax_output(data: Value, label: Value, **params: Any) -> Value:
    """Softmax; its gradient is that of the cross-entropy with the label.

    The incoming gradient is ignored unless out_grad.

    Args:
        data: (N, C), (N, C, ...) with multi_output, (..., C) with preserve_shape.
        label: class numbers (N,), (N, ...) or (...); or probabilities of data's shape.

    Returns:
        The shape of data.
    """
    x, axis = _softmax_axis(params, data)
    return reshape(emit("softmax", x, axis=axis), data.shape)


# Regression outputs -------------------------------------------------------------------------


def _regression_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, label = merge(ins[0], outs[0]), ins[1]
    if data is None:
        return ins, outs
    if label is None:
        label = data[:1] if len(data) == 2 and data[1] == 1 else data
    elif None not in data and None not in label:
        need(product(label) == product(data), f"expected a label of shape {data}, got {label}")
    return [data, label], [data]


def _define_regression(name: str, forward: Any, slope: Callable[[Value], Value], what: str) -> None:
    def vjp(node: Node, grads: Grads) -> Grads:
        data, label = node.inputs
        aligned = cast(reshape(label, data.shape), data.dtype)
        outputs = size(data.shape) // data.shape[0]
        return [slope(node[0] - aligned) * (node.params["grad_scale"] / outputs), None]

    define(
        name,
        inputs=("data", "label"),
        params=(_SCALE,),
        shapes=_regression_shapes,
        dtypes="T,~T->T",
        vjp=vjp,
        nondiff=("label",),
        doc=f"{what}\n\nThe gradient is divided by the outputs of one sample; the incoming one is "
        "ignored.\n\nArgs:\n    data: (N, ...).\n    label: as many elements.\n\nReturns:\n"
        "    The shape of data.",
    )(lambda data, label, *, grad_scale: emit(forward, data))


_define_regression(
    "LinearRegressionOutput",
    "identity",
    lambda d: d,
    "data; its gradient is that of 0.5 (data - label)^2.",
)
_define_regression(
    "LogisticRegressionOutput",
    "sigmoid",
    lambda d: d,
    "sigmoid(data); its gradient is that of the cross-entropy with the label.",
)
_define_regression(
    "MAERegressionOutput",
    "identity",
    lambda d: emit("sign", d),
    "data; its gradient is that of abs(data - label).",
)


def _svm_vjp(node: Node, grads: Grads) -> Grads:
    data, label = node.inputs
    p = node.params
    hot = emit(
        "one_hot", label, depth=data.shape[1], on_value=1.0, off_value=-1.0, dtype=data.dtype
    )
    short = p["margin"] - hot * data
    if p["use_linear"]:
        slope = cast(binary("greater", short, 0.0), data.dtype)
    else:
        slope = emit("relu", short) * 2.0
    return [-(hot * slope) * p["regularization_coefficient"], None]


def _svm_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = merge(ins[0], outs[0])
    return [data, ins[1] if data is None else data[:1]], [data]


@define(
    "SVMOutput",
    inputs=("data", "label"),
    params=(
        Param("margin", Float, 1.0, doc="wanted distance"),
        Param("regularization_coefficient", Float, 1.0, doc="factor of the gradient"),
        Param("use_linear", Bool, False, doc="linear instead of squared hinge"),
    ),
    shapes=_svm_shapes,
    dtypes="T,~T->T",
    vjp=_svm_vjp,
    nondiff=("label",),
)
def _svm_output(data: Value, label: Value, **_: Any) -> Value:
    """data; its gradient is that of the hinge loss. The incoming gradient is ignored.

    Args:
        data: (N, C).
        label: (N,), class numbers.

    Returns:
        The shape of data.
    """
    return emit("identity", data)


# Losses -------------------------------------------------------------------------------------


def _make_loss_vjp(node: Node, grads: Grads) -> Grads:
    data, p = node.inputs[0], node.params
    ones = filled(p.get("grad_scale", 1.0), data.shape, data.dtype)
    kind = p.get("normalization", "null")
    if kind == "batch":
        return [ones * (1.0 / data.shape[0])]
    if kind == "valid":
        valid = binary("greater", data, p["valid_thresh"])
        return [ones / binary("maximum", reduce("sum", valid, range(data.ndim)), 1.0)]
    return [ones]


@define(
    "MakeLoss",
    params=(
        _SCALE,
        Param("valid_thresh", Float, 0.0, doc="larger elements are valid"),
        _NORMALIZATION,
    ),
    shapes=same_shape,
    vjp=_make_loss_vjp,
)
def _make_loss(data: Value, **_: Any) -> Value:
    """data as a loss: its gradient is grad_scale. The incoming gradient is ignored.

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    return emit("identity", data)


@define("make_loss", outputs=("loss",), shapes=same_shape, vjp=_make_loss_vjp)
def _make_loss_plain(data: Value) -> Value:
    """data as a loss: its gradient is 1. The incoming gradient is ignored.

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    return emit("identity", data)


@define("softmax_cross_entropy", inputs=("data", "label"), dtypes="T,~T->T", nondiff=("label",))
def _softmax_cross_entropy(data: Value, label: Value) -> Value:
    """Sum over the rows of -log(softmax(data)[label]).

    Args:
        data: (N, C).
        label: (N,), class numbers.

    Returns:
        (1,).
    """
    need(data.ndim == 2, f"expected data (N, C), got {data.shape}")
    merge(data.shape[:1], label.shape)
    logs = emit("log_softmax", data, axis=1)
    chosen = emit("take_along", logs, expand(label, 1), axis=1, mode="clip")
    return reshape(-reduce("sum", chosen, (0, 1)), (1,))
