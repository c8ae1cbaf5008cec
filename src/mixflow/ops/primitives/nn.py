"""Convolution, pooling, softmax and the norms. Layout is NC + 1 to 3 spatial axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...ir import (
    Bool,
    DType,
    Enum,
    Float,
    Int,
    Node,
    Param,
    Shape,
    TensorType,
    Value,
    constant,
    emit,
    emit_node,
)
from .rules import (
    Types,
    along,
    check_axis,
    computed_dtype,
    define,
    expect,
    forward,
    reshape,
    shape_of,
    typed,
    zeros,
)

Grads = list[Value | None]

# -- convolution

_CONV = (
    Param("stride", Shape),
    Param("dilate", Shape),
    Param("pad", Shape),
    Param("groups", Int, 1),
    Param("dtype", DType, None, nullable=True, doc="of the result; None = that computed in"),
)


def conv_shape(
    op: str, x: tuple[int, ...], w: tuple[int, ...], p: Mapping[str, Any]
) -> tuple[int, ...]:
    """Output shape of a convolution.

    Raises:
        ShapeError: ranks, channels, groups or kernel do not fit.
    """
    n = len(x) - 2
    expect(
        1 <= n <= 3 and len(w) == n + 2,
        op,
        "data (N, C, 1 to 3 axes) and weight alike",
        f"{x}, {w}",
    )
    fits = all(len(p[k]) == n for k in ("stride", "dilate", "pad"))
    got = {k: p[k] for k in ("stride", "dilate", "pad")}
    expect(fits, op, f"stride, dilate and pad of {n} entries", got)
    groups = p["groups"]
    fits = groups > 0 and x[1] == w[1] * groups and w[0] % groups == 0
    expect(fits, op, f"weight (F, {x[1]} / groups, ...) with F divisible by {groups} groups", w)
    out = []
    for size, k, s, d, pad in zip(x[2:], w[2:], p["stride"], p["dilate"], p["pad"], strict=True):
        room = size + 2 * pad - d * (k - 1) - 1
        expect(room >= 0 and s > 0, op, "a kernel inside the padded data", f"{w[2:]} in {x[2:]}")
        out.append(room // s + 1)
    return (x[0], w[0], *out)


def _shapes(ins: Types) -> list[tuple[int, ...]]:
    return [shape_of(t) for t in ins]


def product_type(op: str, params: Mapping[str, Any], ins: Types, shape: Any) -> TensorType:
    """Type of a product's result: the dtype that is asked for, else the one computed in."""
    return typed(ins[0], shape, params.get("dtype") or computed_dtype(op, ins))


def _conv_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    x, w, *bias = _shapes(ins)
    shape = conv_shape("conv", x, w, params)
    expect(not bias or bias[0] == (w[0],), "conv", f"bias of shape {(w[0],)}", bias)
    return [product_type("conv", params, ins, shape)]


def _data_grad_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    dy, w = _shapes(ins)
    shape = conv_shape("conv_data_grad", params["shape"], w, params)
    expect(dy == shape, "conv_data_grad", f"an output gradient of {shape}", dy)
    return [product_type("conv_data_grad", params, ins, params["shape"])]


def _weight_grad_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    dy, x = _shapes(ins)
    shape = conv_shape("conv_weight_grad", x, params["shape"], params)
    expect(dy == shape, "conv_weight_grad", f"an output gradient of {shape}", dy)
    return [product_type("conv_weight_grad", params, ins, params["shape"])]


def _geometry(node: Node) -> dict[str, Any]:
    return {k: node.params[k] for k in ("stride", "dilate", "pad", "groups")}


def _as_inputs(node: Node, grads: list[Value]) -> Grads:
    """Gradients in the dtypes of the inputs, which differ only in mixed precision."""
    return [
        g if g.dtype == v.dtype else emit("cast", g, dtype=v.dtype)
        for g, v in zip(grads, node.inputs, strict=True)
    ]


def _conv_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None] * len(node.inputs)
    x, w = node.inputs[:2]
    how = _geometry(node)
    dx = emit("conv_data_grad", g, w, shape=x.shape, **how)
    dw = emit("conv_weight_grad", g, x, shape=w.shape, **how)
    axes = (0, *range(2, g.ndim))
    bias = [emit("reduce_sum", g, axes=axes, keepdims=False) for _ in node.inputs[2:]]
    return _as_inputs(node, [dx, dw, *bias])


def _data_grad_vjp(node: Node, grads: Grads) -> Grads:
    (h,) = grads
    if h is None:
        return [None, None]
    dy, w = node.inputs
    how = _geometry(node)
    made = [emit("conv", h, w, **how), emit("conv_weight_grad", dy, h, shape=w.shape, **how)]
    return _as_inputs(node, made)


def _weight_grad_vjp(node: Node, grads: Grads) -> Grads:
    (h,) = grads
    if h is None:
        return [None, None]
    dy, x = node.inputs
    how = _geometry(node)
    made = [emit("conv", x, h, **how), emit("conv_data_grad", dy, h, shape=x.shape, **how)]
    return _as_inputs(node, made)


define(
    "conv",
    inputs=("data", "weight", "bias"),
    optional=1,
    params=_CONV,
    infer=forward("conv", _conv_rule, mixed=True),
    vjp=_conv_vjp,
    doc="Cross-correlation of data (N, C, *S) with weight (F, C / groups, *K); bias (F,) optional.",
)
define(
    "conv_data_grad",
    inputs=("dy", "weight"),
    params=(*_CONV, Param("shape", Shape)),
    infer=forward("conv_data_grad", _data_grad_rule, mixed=True),
    vjp=_data_grad_vjp,
    doc="Gradient of conv for data of `shape`; also the transposed convolution.",
)
define(
    "conv_weight_grad",
    inputs=("dy", "data"),
    params=(*_CONV, Param("shape", Shape)),
    infer=forward("conv_weight_grad", _weight_grad_rule, mixed=True),
    vjp=_weight_grad_vjp,
    doc="Gradient of conv for a weight of `shape`.",
)

# -- pooling

_POOL = (
    Param("kernel", Shape),
    Param("stride", Shape),
    Param("pad", Shape),
    Param("pad_after", Shape),
    Param("mode", Enum("max", "avg", "sum", "lp"), "max"),
    Param("count_include_pad", Bool, True),
    Param("p_value", Int, 2),
)


def _pool_shape(op: str, p: dict[str, Any], x: tuple[int, ...]) -> tuple[int, ...]:
    n = len(x) - 2
    fits = 1 <= n <= 3 and all(len(p[k]) == n for k in ("kernel", "stride", "pad", "pad_after"))
    expect(fits, op, "data (N, C, 1 to 3 axes) and a kernel entry for each", f"{x}, {p['kernel']}")
    out = []
    for i, size in enumerate(x[2:]):
        room = size + p["pad"][i] + p["pad_after"][i] - p["kernel"][i]
        ok = room >= 0 and p["stride"][i] > 0 and p["kernel"][i] > 0
        expect(ok, op, "a kernel inside the padded data", f"{p['kernel']} in {x[2:]}")
        out.append(room // p["stride"][i] + 1)
    return (*x[:2], *out)


def _pool_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    return [typed(ins[0], _pool_shape("pool", params, shape_of(ins[0])))]


def _pool_grad_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    expect(params["mode"] != "lp", "pool_grad", "mode max, avg or sum", "lp")
    dy, x, y = _shapes(ins)
    shape = _pool_shape("pool_grad", params, x)
    expect(dy == y == shape, "pool_grad", f"output and gradient of {shape}", f"{y}, {dy}")
    return [typed(ins[0], x)]


def _pool_take_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    expect(params["mode"] == "max", "pool_take", "mode max", params["mode"])
    h, x = _shapes(ins)
    expect(h == x, "pool_take", f"two tensors of shape {x}", h)
    return [typed(ins[0], _pool_shape("pool_take", params, x))]


def _pool_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None]
    x, p = node.inputs[0], dict(node.params)
    if p["mode"] != "lp":
        return [emit("pool_grad", g, x, node[0], **p)]
    power, p["mode"] = p["p_value"], "sum"
    if power == 1:
        return [emit("pool_grad", g, x, node[0], **p)]
    # At a window of zeros the norm has no gradient: 0 there, as MXNet takes it, not 0 / 0.
    no_slope = emit("equal", node[0], constant(0, g.dtype))
    bound = emit("select", no_slope, constant(1, g.dtype), node[0])
    scaled = g / _integer_power(bound, power - 1)
    return [emit("pool_grad", scaled, x, node[0], **p) * _integer_power(x, power - 1)]


def _integer_power(value: Value, n: int) -> Value:
    result = value
    for _ in range(n - 1):
        result = result * value
    return result


def _pool_grad_vjp(node: Node, grads: Grads) -> Grads:
    (h,) = grads
    if h is None:
        return [None, None, None]
    if node.params["mode"] == "max":
        return [emit("pool_take", h, node.inputs[1], **node.params), None, None]
    return [emit("pool", h, **node.params), None, None]


def _pool_take_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None, None]
    x = node.inputs[1]
    y = emit("pool", x, **node.params)
    return [emit("pool_grad", g, x, y, **node.params), None]


define(
    "pool",
    params=_POOL,
    infer=forward("pool", _pool_rule),
    vjp=_pool_vjp,
    doc="Largest, mean, sum or p-norm of each window that fits in the padded data (N, C, *S).",
)
define(
    "pool_grad",
    inputs=("dy", "data", "output"),
    params=_POOL,
    infer=forward("pool_grad", _pool_grad_rule),
    vjp=_pool_grad_vjp,
    nondiff=("data", "output"),
    doc="Gradient of pool for data; of mode max it goes to the first maximum of the window.",
)
define(
    "pool_take",
    inputs=("values", "data"),
    params=_POOL,
    infer=forward("pool_take", _pool_take_rule),
    vjp=_pool_take_vjp,
    nondiff=("data",),
    doc="Element of values at the first maximum of each window of data: the adjoint of pool_grad.",
)

# -- softmax


def _soft_rule(name: str) -> Any:
    def rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
        check_axis(name, params["axis"], len(ins[0].shape or ()))
        return [ins[0]]

    return forward(name, rule)


def _sum_along(value: Value, axis: int) -> Value:
    return emit("reduce_sum", value, axes=(axis % value.ndim,), keepdims=True)


def _softmax_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None]
    y = node[0]
    return [y * (g - _sum_along(g * y, node.params["axis"]))]


def _log_softmax_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None]
    return [g - emit("exp", node[0]) * _sum_along(g, node.params["axis"])]


define(
    "softmax",
    params=(Param("axis", Int, -1),),
    infer=_soft_rule("softmax"),
    vjp=_softmax_vjp,
    reuse=((0, 0),),
    doc="exp(x - max) / sum(exp(x - max)) along an axis.",
)
define(
    "log_softmax",
    params=(Param("axis", Int, -1),),
    infer=_soft_rule("log_softmax"),
    vjp=_log_softmax_vjp,
    reuse=((0, 0),),
    doc="x - max - log(sum(exp(x - max))) along an axis.",
)

# -- batch normalisation (Ioffe and Szegedy, 2015)

_AXIS = Param("axis", Int, 1, doc="the channel axis")


def _channels(op: str, params: dict[str, Any], x: TensorType) -> tuple[int]:
    shape = shape_of(x)
    return (shape[check_axis(op, params["axis"], len(shape))],)


def _vectors(op: str, params: dict[str, Any], x: TensorType, vectors: Types) -> TensorType:
    shape = _channels(op, params, x)
    got = [v.shape for v in vectors]
    expect(all(s == shape for s in got), op, f"per-channel vectors of shape {shape}", got)
    return typed(vectors[0], shape)


def _stats_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    vector = typed(ins[0], _channels("batch_norm_stats", params, ins[0]))
    return [vector, vector]


def _norm_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    _vectors("batch_norm", params, ins[0], ins[1:])
    return [ins[0]]


def _train_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    vector = _vectors("batch_norm_train", params, ins[0], ins[1:])
    return [ins[0], vector, vector]


def _norm_grad_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    vector = _vectors("batch_norm_grad", params, ins[1], ins[2:])
    expect(ins[0].shape == ins[1].shape, "batch_norm_grad", f"dy of {ins[1].shape}", ins[0].shape)
    return [ins[1], vector, vector]


def _channel_sum(value: Value, axis: int) -> Value:
    axes = tuple(i for i in range(value.ndim) if i != axis)
    return emit("reduce_sum", value, axes=axes, keepdims=False)


def _stats_grad(
    x: Value, axis: int, mean: Value, gmean: Value | None, gvar: Value | None
) -> Value | None:
    """What flows to x through its mean and its population variance."""
    count = math.prod(x.shape) // x.shape[axis]
    total: Value | None = None
    if gmean is not None:
        total = along(gmean * (1.0 / count), axis, x.ndim)
    if gvar is not None:
        term = along(gvar * (2.0 / count), axis, x.ndim) * (x - along(mean, axis, x.ndim))
        total = term if total is None else term + total
    return total


def _stats_vjp(node: Node, grads: Grads) -> Grads:
    x = node.inputs[0]
    axis = node.params["axis"] % x.ndim
    total = _stats_grad(x, axis, node[0], *grads)
    if total is not None and total.shape != x.shape:
        total = emit("broadcast", total, shape=x.shape)
    return [total]


def _norm_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    if g is None:
        return [None] * 5
    x, gamma, _, mean, inv_std = node.inputs
    axis, rank = node.params["axis"] % x.ndim, x.ndim
    total = _channel_sum(g, axis)
    moment = _channel_sum(g * (x - along(mean, axis, rank)), axis)
    scale = gamma * inv_std
    return [g * along(scale, axis, rank), moment * inv_std, total, -(total * scale), moment * gamma]


def _train_vjp(node: Node, grads: Grads) -> Grads:
    gy, gmean, gvar = grads
    x, gamma, _ = node.inputs
    axis = node.params["axis"] % x.ndim
    extra = _stats_grad(x, axis, node[1], gmean, gvar)
    if gy is None:
        if extra is not None and extra.shape != x.shape:
            extra = emit("broadcast", extra, shape=x.shape)
        return [extra, None, None]
    inv_std = emit("rsqrt", node[2] + node.params["eps"])
    made = emit_node("batch_norm_grad", gy, x, gamma, node[1], inv_std, axis=axis)
    dx = made[0] if extra is None else made[0] + extra
    return [dx, made[1], made[2]]


def _norm_grad_vjp(node: Node, grads: Grads) -> Grads:
    """With x^ = (x - mean) * inv_std, s = gamma * inv_std and m elements in a channel:

    dx = s * (dy - sum(dy) / m - x^ * sum(dy * x^) / m), dgamma = sum(dy * x^), dbeta = sum(dy).
    """
    dy, x, gamma, mean, inv_std = node.inputs
    axis, rank = node.params["axis"] % x.ndim, x.ndim
    a = zeros(x.shape, x.dtype) if grads[0] is None else grads[0]
    one = constant(1.0, x.dtype, gamma.shape)
    back = emit_node("batch_norm_grad", a, x, one, mean, inv_std, axis=axis)
    share = gamma * inv_std * (1.0 / (math.prod(x.shape) // x.shape[axis]))
    centred = x - along(mean, axis, rank)
    from_dy = -(share * back[1])
    to_dy = back[0] * along(gamma, axis, rank)
    if grads[1] is not None:
        from_dy = from_dy + grads[1]
        to_dy = to_dy + centred * along(grads[1] * inv_std, axis, rank)
    if grads[2] is not None:
        to_dy = to_dy + along(grads[2], axis, rank)
    unit = dy * along(from_dy, axis, rank) - a * along(share * node[1], axis, rank)
    scale = _channel_sum(dy * back[0], axis)
    to_inv = _channel_sum(unit * centred, axis) + scale * gamma / inv_std
    to_mean = -(_channel_sum(unit, axis) * inv_std)
    return [to_dy, unit * along(inv_std, axis, rank), scale, to_mean, to_inv]


_STATS = ("mean", "var")
define(
    "batch_norm_stats",
    params=(_AXIS,),
    outputs=_STATS,
    infer=forward("batch_norm_stats", _stats_rule),
    vjp=_stats_vjp,
    doc="Mean and population variance per channel.",
)
define(
    "batch_norm",
    inputs=("data", "gamma", "beta", "mean", "inv_std"),
    params=(_AXIS,),
    infer=forward("batch_norm", _norm_rule, mixed=True),
    vjp=_norm_vjp,
    reuse=((0, 0),),
    doc="(data - mean) * inv_std * gamma + beta with vectors per channel.",
)
define(
    "batch_norm_train",
    inputs=("data", "gamma", "beta"),
    params=(_AXIS, Param("eps", Float)),
    outputs=("output", *_STATS),
    infer=forward("batch_norm_train", _train_rule, mixed=True),
    vjp=_train_vjp,
    doc="Normalises by the batch's own mean and population variance, which it also returns.",
)
define(
    "batch_norm_grad",
    inputs=("dy", "data", "gamma", "mean", "inv_std"),
    params=(_AXIS,),
    outputs=("dx", "dgamma", "dbeta"),
    infer=forward("batch_norm_grad", _norm_grad_rule, mixed=True),
    vjp=_norm_grad_vjp,
    doc="Gradient of batch_norm_train, where mean and inv_std depend on data.",
)

# -- local response normalisation (Krizhevsky, Sutskever, Hinton, 2012)

_LRN = (
    Param("alpha", Float, 1e-4),
    Param("beta", Float, 0.75),
    Param("knorm", Float, 2.0),
    Param("nsize", Int),
)


def _lrn_rule(op: str) -> Any:
    def rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
        shape = ins[0].shape or ()
        expect(len(shape) >= 2 and params["nsize"] % 2 == 1, op, "(N, C, ...) and odd nsize", shape)
        expect(all(t.shape == shape for t in ins), op, f"tensors of {shape}", _shapes(ins))
        return [ins[0]]

    return forward(op, rule)


def _lrn_vjp(node: Node, grads: Grads) -> Grads:
    (g,) = grads
    return [None if g is None else emit("lrn_grad", g, node.inputs[0], node[0], **node.params)]


def _window_sum(value: Value, size: int) -> Value:
    """Sum over `size` channels around each, as a pooling over the channel axis."""
    flat = (value.shape[0], 1, value.shape[1], math.prod(value.shape[2:]))
    pad = (size // 2, 0)
    how = {"kernel": (size, 1), "stride": (1, 1), "pad": pad, "pad_after": pad, "mode": "sum"}
    return reshape(emit("pool", reshape(value, flat), **how), value.shape)


def _lrn_grad_vjp(node: Node, grads: Grads) -> Grads:
    """lrn_grad = dy * s ** -beta - f * x * W(dy * y / s), where s = knorm + c * W(x * x)."""
    (h,) = grads
    if h is None:
        return [None, None, None]
    dy, x, y = node.inputs
    beta, size = node.params["beta"], node.params["nsize"]
    c = node.params["alpha"] / size
    f = 2.0 * c * beta
    s = _window_sum(x * x, size) * c + node.params["knorm"]
    root = emit("power", s, constant(-beta, s.dtype))
    v = _window_sum(h * x, size) * f / s
    to_s = v * dy * y / s - h * dy * root / s * beta
    around = _window_sum(dy * y / s, size)
    to_x = _window_sum(to_s, size) * x * (2.0 * c) - h * around * f
    return [h * root - v * y, to_x, -(v * dy)]


define(
    "lrn",
    params=_LRN,
    infer=_lrn_rule("lrn"),
    vjp=_lrn_vjp,
    doc="x * (knorm + alpha / nsize * sum of x * x over nsize channels around) ** -beta.",
)
define(
    "lrn_grad",
    inputs=("dy", "data", "output"),
    params=_LRN,
    infer=_lrn_rule("lrn_grad"),
    vjp=_lrn_grad_vjp,
    doc="Gradient of lrn for data.",
)
