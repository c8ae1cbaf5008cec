"""Primitives on blocked tensors, made by the layout pass only.

A blocked tensor is (N, C / b, *S, b): plain order of that shape is the memory order nC...{b}c of
oneDNN. So a layout is a shape: elementwise, reducing and moving primitives need to know nothing
of it. What follows needs to know which axes are channels.
"""

from __future__ import annotations

from typing import Any

from ...ir import Bool, Float, Int, Param, Shape, TensorType
from .nn import _CONV, _POOL, _pool_shape, conv_shape, product_type
from .rules import Types, define, expect, forward, shape_of, typed

Dims = tuple[int, ...]


def to_blocks(shape: Dims, size: int) -> Dims:
    """The blocked shape of a plain one, in blocks of `size` channels; 0 = plain."""
    return (shape[0], shape[1] // size, *shape[2:], size) if size else shape


def from_blocks(shape: Dims) -> Dims:
    """The plain shape of a blocked one."""
    return (shape[0], shape[1] * shape[-1], *shape[2:-1])


def plain_shape(shape: Dims, rank: int) -> Dims:
    """The plain shape of a tensor of `rank` axes that may be blocked."""
    return from_blocks(shape) if len(shape) == rank + 1 else shape


def _block_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    x, size = shape_of(ins[0]), params["size"]
    expect(len(x) >= 3 and size > 0 and x[1] % size == 0, "block", f"whole blocks of {size}", x)
    return [typed(ins[0], to_blocks(x, size))]


def _unblock_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    x = shape_of(ins[0])
    expect(len(x) >= 4, "unblock", "a blocked tensor (N, C / b, *S, b)", x)
    return [typed(ins[0], from_blocks(x))]


define(
    "block",
    params=(Param("size", Int),),
    infer=forward("block", _block_rule),
    differentiable="no",
    doc="(N, C, *S) as (N, C / size, *S, size).",
)
define(
    "unblock",
    infer=forward("unblock", _unblock_rule),
    differentiable="no",
    doc="(N, C / b, *S, b) as (N, C, *S).",
)

# -- convolution


def _conv_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    w = shape_of(ins[1])
    x = plain_shape(shape_of(ins[0]), len(w))
    y = to_blocks(conv_shape("blocked_conv", x, w, params), params["y_block"])
    rest = [shape_of(t) for t in ins[2:]]
    if params["bias"]:
        bias = rest.pop(0)
        expect(bias == (w[0],), "blocked_conv", f"bias of shape {(w[0],)}", bias)
    expect(all(r == y for r in rest), "blocked_conv", f"an addend of shape {y}", rest)
    return [product_type("blocked_conv", params, ins, y)]


def _conv_inputs(params: dict[str, Any]) -> tuple[str, ...]:
    return (
        "data",
        "weight",
        *(("bias",) if params["bias"] else ()),
        *(("addend",) if params["add"] else ()),
    )


def _data_grad_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    w, shape = shape_of(ins[1]), params["shape"]
    dy = plain_shape(shape_of(ins[0]), len(w))
    wanted = conv_shape("blocked_conv_data_grad", shape, w, params)
    expect(dy == wanted, "blocked_conv_data_grad", f"an output gradient of {wanted}", dy)
    made = to_blocks(shape, params["x_block"])
    return [product_type("blocked_conv_data_grad", params, ins, made)]


def _weight_grad_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    shape = params["shape"]
    dy, x = (plain_shape(shape_of(t), len(shape)) for t in ins)
    wanted = conv_shape("blocked_conv_weight_grad", x, shape, params)
    expect(dy == wanted, "blocked_conv_weight_grad", f"an output gradient of {wanted}", dy)
    made = [product_type("blocked_conv_weight_grad", params, ins, shape)]
    return [*made, made[0]._replace(shape=shape[:1])] if params["bias"] else made


define(
    "blocked_conv",
    inputs=_conv_inputs,
    params=(
        *_CONV,
        Param("y_block", Int, 0),
        Param("bias", Bool, False),
        Param("add", Bool, False),
        Param("relu", Bool, False),
    ),
    infer=forward("blocked_conv", _conv_rule, mixed=True),
    differentiable="no",
    doc="conv of a plain or blocked tensor, plus bias and addend, then relu.",
)
define(
    "blocked_conv_data_grad",
    inputs=("dy", "weight"),
    params=(*_CONV, Param("shape", Shape), Param("x_block", Int, 0)),
    infer=forward("blocked_conv_data_grad", _data_grad_rule, mixed=True),
    differentiable="no",
    doc="conv_data_grad of a plain or blocked tensor; `shape` is plain.",
)
define(
    "blocked_conv_weight_grad",
    inputs=("dy", "data"),
    outputs=lambda params: ("weight", "bias") if params["bias"] else ("weight",),
    params=(*_CONV, Param("shape", Shape), Param("bias", Bool, False)),
    infer=forward("blocked_conv_weight_grad", _weight_grad_rule, mixed=True),
    differentiable="no",
    doc="conv_weight_grad of plain or blocked tensors, and the sum of dy over all but channels.",
)

# -- pooling


def _blocked_pool_shape(op: str, params: dict[str, Any], x: Dims) -> Dims:
    expect(len(x) >= 4, op, "a blocked tensor (N, C / b, *S, b)", x)
    return (*_pool_shape(op, params, x[:-1]), x[-1])


def _pool_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    expect(params["mode"] != "lp", "blocked_pool", "mode max, avg or sum", "lp")
    return [typed(ins[0], _blocked_pool_shape("blocked_pool", params, shape_of(ins[0])))]


def _pool_grad_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    expect(params["mode"] != "lp", "blocked_pool_grad", "mode max, avg or sum", "lp")
    dy, x, y = (shape_of(t) for t in ins)
    shape = _blocked_pool_shape("blocked_pool_grad", params, x)
    expect(dy == y == shape, "blocked_pool_grad", f"output and gradient of {shape}", f"{y}, {dy}")
    return [typed(ins[0], x)]


define(
    "blocked_pool",
    params=_POOL,
    infer=forward("blocked_pool", _pool_rule),
    differentiable="no",
    doc="pool of a blocked tensor.",
)
define(
    "blocked_pool_grad",
    inputs=("dy", "data", "output"),
    params=_POOL,
    infer=forward("blocked_pool_grad", _pool_grad_rule),
    differentiable="no",
    doc="pool_grad of blocked tensors.",
)

# -- batch normalisation


def _check_vectors(op: str, x: TensorType, vectors: Types) -> Dims:
    shape = shape_of(x)
    expect(len(shape) >= 4, op, "a blocked tensor (N, C / b, *S, b)", shape)
    channels = (shape[1] * shape[-1],)
    got = [shape_of(v) for v in vectors]
    expect(all(g == channels for g in got), op, f"vectors of shape {channels}", got)
    return channels


def _train_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    channels = _check_vectors("blocked_norm_train", ins[0], ins[1:3])
    _check_addend("blocked_norm_train", ins[0], ins[3:])
    return [ins[0], typed(ins[1], channels), typed(ins[1], channels)]


def _norm_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    _check_vectors("blocked_norm", ins[0], ins[1:5])
    _check_addend("blocked_norm", ins[0], ins[5:])
    return [ins[0]]


def _check_addend(op: str, x: TensorType, rest: Types) -> None:
    expect(all(t.shape == x.shape for t in rest), op, f"an addend of {x.shape}", rest)


def _grad_rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
    dy, x = ins[:2]
    expect(dy.shape == x.shape, "blocked_norm_grad", f"a gradient of shape {x.shape}", dy.shape)
    channels = _check_vectors("blocked_norm_grad", x, ins[2:])
    return [x, typed(ins[2], channels), typed(ins[2], channels)]


def _with_addend(*names: str) -> Any:
    return lambda params: (*names, "addend") if params["add"] else names


_ENDS = (Param("add", Bool, False), Param("relu", Bool, False))

define(
    "blocked_norm_train",
    inputs=_with_addend("data", "gamma", "beta"),
    outputs=("output", "mean", "var"),
    params=(Param("eps", Float), *_ENDS),
    infer=forward("blocked_norm_train", _train_rule, mixed=True),
    differentiable="no",
    doc="batch_norm_train of a blocked tensor, plus an addend, then relu.",
)
define(
    "blocked_norm",
    inputs=_with_addend("data", "gamma", "beta", "mean", "inv_std"),
    params=_ENDS,
    infer=forward("blocked_norm", _norm_rule, mixed=True),
    differentiable="no",
    doc="batch_norm of a blocked tensor, plus an addend, then relu.",
)
define(
    "blocked_norm_grad",
    inputs=("dy", "data", "gamma", "beta", "mean", "inv_std"),
    outputs=("data", "gamma", "beta"),
    params=(Param("relu", Bool, False),),
    infer=forward("blocked_norm_grad", _grad_rule, mixed=True),
    differentiable="no",
    doc="batch_norm_grad of blocked tensors; with relu, of relu(batch_norm).",
)

# -- local response normalisation

_LRN = (
    Param("alpha", Float, 1e-4),
    Param("beta", Float, 0.75),
    Param("knorm", Float, 2.0),
    Param("nsize", Int),
)


def _same_rule(op: str) -> Any:
    def rule(params: dict[str, Any], ins: Types) -> list[TensorType]:
        shapes = {t.shape for t in ins}
        expect(len(shapes) == 1, op, "tensors of one shape", shapes)
        return [ins[0]]

    return forward(op, rule)


define(
    "blocked_lrn",
    params=_LRN,
    infer=_same_rule("blocked_lrn"),
    differentiable="no",
    doc="lrn of a blocked tensor.",
)
define(
    "blocked_lrn_grad",
    inputs=("dy", "data", "output"),
    params=_LRN,
    infer=_same_rule("blocked_lrn_grad"),
    differentiable="no",
    doc="lrn_grad of blocked tensors.",
)
