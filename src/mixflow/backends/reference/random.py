"""Counter-based draws: Philox4x32-10 as docs/design/primitives.md states them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .common import KERNELS, Array, compute_dtype

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def philox_words(count: int, seed: int, draw: int) -> Array:
    """The first `count` 32-bit words of a draw, as uint32."""
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    low, high = draw & 0xFFFFFFFF, (draw >> 32) & 0xFFFFFFFF
    c0, c1 = blocks & _MASK, blocks >> _SHIFT
    c2, c3 = np.full_like(c0, low), np.full_like(c0, high)
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0 = (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0)
        c2 = (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1)
        c1, c3 = p1 & _MASK, p0 & _MASK
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], 1).reshape(-1)[:count].astype(np.uint32)


def _words(count: int, params: Mapping[str, Any], key: tuple[int, int]) -> Array:
    recorded = params.get("draw")
    return philox_words(count, key[0], key[1] if recorded is None else recorded)


def _bits(ins: Sequence[Array], params: Mapping[str, Any], key: tuple[int, int]) -> list[Array]:
    shape = params["shape"]
    return [_words(prod(shape), params, key).view(np.int32).reshape(shape)]


def _uniform(ins: Sequence[Array], params: Mapping[str, Any], key: tuple[int, int]) -> list[Array]:
    shape = params["shape"]
    dtype = compute_dtype(params["dtype"])
    if dtype == np.float64:
        words = _words(2 * prod(shape), params, key).astype(np.float64).reshape(-1, 2)
        unit = (np.floor(words[:, 0] / 32) * 2.0**26 + np.floor(words[:, 1] / 64)) * 2.0**-53
    else:
        unit = (_words(prod(shape), params, key) >> 8).astype(dtype) * dtype.type(2.0**-24)
    low, width = params["low"], params["high"] - params["low"]
    return [(dtype.type(low) + dtype.type(width) * unit).reshape(shape)]


def _normal(ins: Sequence[Array], params: Mapping[str, Any], key: tuple[int, int]) -> list[Array]:
    shape = params["shape"]
    dtype = compute_dtype(params["dtype"])
    count = prod(shape)
    words = _words(count + count % 2, params, key).reshape(-1, 2) >> 8
    u1 = (words[:, 0] + 1).astype(dtype) * dtype.type(2.0**-24)
    angle = words[:, 1].astype(dtype) * dtype.type(2.0**-24 * 2 * np.pi)
    radius = np.sqrt(-2 * np.log(u1))
    made = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)[:count]
    return [(dtype.type(params["loc"]) + dtype.type(params["scale"]) * made).reshape(shape)]


KERNELS["random_bits"] = _bits
KERNELS["random_uniform"] = _uniform
KERNELS["random_normal"] = _normal
