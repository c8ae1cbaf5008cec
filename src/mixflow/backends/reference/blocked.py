"""Kernels on blocked tensors: through plain order and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import conv as plain
from . import nn
from .common import Array, kernel, kernels, widened

P = Mapping[str, Any]


@kernel("block")
def block(x: Array, params: P) -> Array:
    """Channels split into blocks, positions in a block last."""
    size = params["size"]
    split = x.reshape(x.shape[0], x.shape[1] // size, size, *x.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


@kernel("unblock")
def unblock(x: Array, params: P) -> Array:
    """The inverse of block."""
    moved = np.moveaxis(x, -1, 2)
    return np.ascontiguousarray(moved).reshape(x.shape[0], -1, *x.shape[2:-1])


def _plain(x: Array, rank: int) -> Array:
    return unblock(x, {}) if x.ndim == rank + 1 else x


def _blocked(x: Array, size: int) -> Array:
    return block(x, {"size": size}) if size else x


def _ended(y: Array, rest: list[Array], params: P) -> Array:
    """y plus the addend, then relu, as the parameters ask."""
    if params["add"]:
        y = y + widened(rest[-1])
    return np.maximum(y, 0) if params["relu"] else y


@kernel("blocked_conv")
def blocked_conv(x: Array, w: Array, *rest: Any) -> Array:
    """Bias, addend, then relu."""
    *more, params = rest
    bias = more[:1] if params["bias"] else []
    y = plain.conv(_plain(x, w.ndim), w, *bias, params)
    return _ended(_blocked(y, params["y_block"]), more, params)


@kernel("blocked_conv_data_grad")
def blocked_conv_data_grad(dy: Array, w: Array, params: P) -> Array:
    """As conv_data_grad."""
    return _blocked(plain.conv_data_grad(_plain(dy, w.ndim), w, params), params["x_block"])


@kernels("blocked_conv_weight_grad")
def blocked_conv_weight_grad(dy: Array, x: Array, params: P) -> tuple[Array, ...]:
    """As conv_weight_grad; the bias gradient sums dy."""
    rank = len(params["shape"])
    dy, x = _plain(dy, rank), _plain(x, rank)
    dw = plain.conv_weight_grad(dy, x, params)
    if not params["bias"]:
        return (dw,)
    return dw, widened(dy).sum((0, *range(2, rank)))


@kernel("blocked_pool")
def blocked_pool(x: Array, params: P) -> Array:
    """As pool."""
    return _blocked(plain.pool(unblock(x, {}), params), x.shape[-1])


@kernel("blocked_pool_grad")
def blocked_pool_grad(dy: Array, x: Array, y: Array, params: P) -> Array:
    """As pool_grad."""
    made = plain.pool_grad(*(unblock(v, {}) for v in (dy, x, y)), params)
    return _blocked(made, x.shape[-1])


@kernels("blocked_norm_train")
def blocked_norm_train(x: Array, gamma: Array, beta: Array, *rest: Any) -> tuple[Array, ...]:
    """As batch_norm_train."""
    *more, params = rest
    y, mean, var = nn.batch_norm_train(unblock(x, {}), gamma, beta, {**params, "axis": 1})
    return _ended(_blocked(y, x.shape[-1]), more, params), mean, var


@kernel("blocked_norm")
def blocked_norm(x: Array, gamma: Array, beta: Array, mean: Array, inv: Array, *rest: Any) -> Array:
    """As batch_norm."""
    *more, params = rest
    y = nn.batch_norm(unblock(x, {}), widened(gamma), beta, mean, widened(inv), {"axis": 1})
    return _ended(_blocked(y, x.shape[-1]), more, params)


@kernels("blocked_norm_grad")
def blocked_norm_grad(
    dy: Array, x: Array, gamma: Array, beta: Array, mean: Array, inv: Array, params: P
) -> tuple[Array, ...]:
    """As batch_norm_grad, of what relu lets through."""
    size, how = x.shape[-1], {"axis": 1}
    dy, x = unblock(dy, {}), unblock(x, {})
    if params["relu"]:
        y = nn.batch_norm(x, widened(gamma), beta, mean, widened(inv), how)
        dy = np.where(y > 0, dy, dy.dtype.type(0))
    dx, dgamma, dbeta = nn.batch_norm_grad(dy, x, gamma, mean, inv, how)
    return _blocked(dx, size), dgamma, dbeta


@kernel("blocked_lrn")
def blocked_lrn(x: Array, params: P) -> Array:
    """As lrn."""
    return _blocked(nn.lrn(unblock(x, {}), params), x.shape[-1])


@kernel("blocked_lrn_grad")
def blocked_lrn_grad(dy: Array, x: Array, y: Array, params: P) -> Array:
    """As lrn_grad."""
    made = nn.lrn_grad(*(unblock(v, {}) for v in (dy, x, y)), params)
    return _blocked(made, x.shape[-1])
