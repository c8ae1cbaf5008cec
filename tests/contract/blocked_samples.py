"""Sample calls of the primitives on blocked tensors (N, C / b, *S, b)."""

from __future__ import annotations

from typing import Any

import numpy as np


def blocked_samples(Sample: Any, spread: Any) -> dict[str, list[Any]]:
    """Samples by primitive, made with the tools of `samples`."""
    return {**_order(Sample, spread), **_convolutions(Sample, spread), **_rest(Sample, spread)}


def _order(Sample: Any, spread: Any) -> dict[str, list[Any]]:
    return {
        "block": [
            Sample((spread(2, 16, 3, 2),), {"size": 8}, wrong=((2, 12, 3, 2),)),
            Sample((spread(1, 32, 5),), {"size": 16}),
        ],
        "unblock": [
            Sample((spread(2, 2, 3, 2, 8),), wrong=((2, 3),)),
            Sample((spread(1, 2, 5, 16),)),
        ],
    }


def _convolutions(Sample: Any, spread: Any) -> dict[str, list[Any]]:
    how = {"stride": (1, 1), "dilate": (1, 1), "pad": (1, 1), "groups": 1}
    step = {**how, "stride": (2, 1)}
    x, plain = spread(2, 1, 5, 4, 8), spread(2, 3, 5, 4)
    w, first = spread(16, 8, 3, 3), spread(8, 3, 3, 3)
    y, bias = spread(2, 1, 5, 4, 16, seed=2), spread(16, seed=3)
    ends = {**how, "y_block": 16, "bias": True, "add": True, "relu": True}
    return {
        "blocked_conv": [
            Sample((x, w, bias, y), ends, wrong=(x.shape, w.shape, (8,), y.shape)),
            Sample((plain, first), {**step, "y_block": 8, "relu": True}),
            Sample((x, w), how),
        ],
        "blocked_conv_data_grad": [
            Sample(
                (y, w),
                {**how, "shape": (2, 8, 5, 4), "x_block": 8},
                wrong=((2, 1, 5, 5, 16), w.shape),
            ),
            Sample((y, w), {**how, "shape": (2, 8, 5, 4)}),
        ],
        "blocked_conv_weight_grad": [
            Sample((y, x), {**how, "shape": w.shape}, wrong=((2, 1, 5, 5, 16), x.shape)),
            Sample((spread(2, 1, 3, 4, 8), plain), {**step, "shape": first.shape, "bias": True}),
        ],
    }


def _windows() -> list[dict[str, Any]]:
    plain = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0), "pad_after": (0, 0)}
    overlap = {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 0), "pad_after": (1, 1)}
    return [
        {**plain, "mode": "max"},
        {**overlap, "mode": "max"},
        {**overlap, "mode": "avg"},
        {**overlap, "mode": "avg", "count_include_pad": False},
        {**plain, "mode": "sum"},
    ]


def _pools(Sample: Any, spread: Any) -> dict[str, list[Any]]:
    from mixflow.backends.reference import compute

    x, full = spread(1, 2, 5, 4, 8), {"count_include_pad": True, "p_value": 2}
    grads = []
    for how in _windows():
        (y,) = compute("blocked_pool", {**full, **how}, [x])
        dy = spread(*y.shape, seed=3)
        grads.append(Sample((dy, x, np.asarray(y)), how, wrong=((1, 2, 9, 9, 8), x.shape, y.shape)))
    forward = [Sample((x,), how, wrong=((1, 2, 1),)) for how in _windows()]
    return {"blocked_pool": forward, "blocked_pool_grad": grads}


def _rest(Sample: Any, spread: Any) -> dict[str, list[Any]]:
    x, dy, addend = (spread(3, 2, 5, 2, 8, seed=s) for s in range(3))
    gamma, beta, mean, inv = (spread(16, seed=s, signed=s != 3) for s in range(4))
    bad = (x.shape, (8,), (16,))
    lrn = {"alpha": 0.3, "beta": 0.75, "knorm": 1.5, "nsize": 3}
    ends = {"add": True, "relu": True}
    return {
        **_pools(Sample, spread),
        "blocked_norm_train": [
            Sample((x, gamma, beta), {"eps": 1e-3}, wrong=bad),
            Sample((x, gamma, beta), {"eps": 1e-3, "relu": True}),
            Sample((x, gamma, beta, addend), {"eps": 1e-3, **ends}),
        ],
        "blocked_norm": [
            Sample((x, gamma, beta, mean, inv), wrong=(*bad, (16,), (16,))),
            Sample((x, gamma, beta, mean, inv, addend), ends),
        ],
        "blocked_norm_grad": [
            Sample((dy, x, gamma, beta, mean, inv), wrong=((3, 2, 5), *bad, (16,), (16,))),
            Sample((dy, x, gamma, beta, mean, inv), {"relu": True}),
        ],
        "blocked_lrn": [Sample((x,), lrn)],
        "blocked_lrn_grad": [Sample((dy, x + 1, addend), lrn, wrong=(x.shape, x.shape, (2, 2)))],
    }
