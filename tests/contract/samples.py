"""Sample calls of every primitive: the contract tests have nothing to say about one without.

Values keep away from kinks and ties, so that finite differences mean something; float inputs are
float64 here and are cast to the dtype under test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from blocked_samples import blocked_samples

F64 = np.dtype(np.float64)
I32 = np.dtype(np.int32)


@dataclass(frozen=True)
class Sample:
    """One call.

    Attributes:
        inputs: arrays; integer ones are indices and keep their dtype.
        params: parameters; a 'dtype' of float64 follows the dtype under test.
        integers: also runs with int32 inputs.
        wrong: input shapes that the rule must refuse.
    """

    inputs: tuple[np.ndarray, ...]
    params: dict[str, Any] = field(default_factory=dict)
    integers: bool = False
    wrong: tuple[tuple[int, ...], ...] | None = None


def spread(
    *shape: int, low: float = 0.3, high: float = 0.9, signed: bool = True, seed: int = 0
) -> Any:
    """Distinct values with magnitudes in [low, high], in random order and with random signs."""
    rng = np.random.default_rng([seed, *shape])
    count = int(np.prod(shape))
    values = low + (high - low) * (np.arange(count) + rng.uniform(0.2, 0.8, count)) / max(count, 1)
    values = rng.permutation(values)
    if signed:
        values *= rng.choice([-1.0, 1.0], count)
    return values.reshape(shape)


def at(*values: Any) -> np.ndarray:
    """Indices."""
    return np.asarray(values, np.int32)


def _unary() -> dict[str, list[Sample]]:
    anywhere = (
        "negative abs square cbrt rcbrt exp expm1 sin cos tan arcsin arccos arctan sinh cosh tanh "
        "arcsinh arctanh reciprocal relu sigmoid softsign erf erfinv degrees radians sign round "
        "rint ceil floor trunc fix logical_not identity"
    )
    whole = "negative abs square relu sign round rint ceil floor trunc fix logical_not identity"
    result = {
        name: [Sample((spread(3, 4),), integers=name in whole.split()), Sample((spread(),))]
        for name in anywhere.split()
    }
    for name in ["sqrt", "rsqrt", "log", "log2", "log10", "log1p", "gamma", "gammaln"]:
        result[name] = [Sample((spread(3, 4, low=1.1, high=3.0, signed=False),))]
    result["arccosh"] = [Sample((spread(3, 4, low=1.5, high=3.0, signed=False),))]
    result["polygamma"] = [
        Sample((spread(2, 3, low=0.6, high=3, signed=False),), {"n": n}) for n in (0, 1, 2)
    ] + [Sample((spread(5, low=1.2, high=1.8),), {"n": 0})]
    return result


def _binary() -> dict[str, list[Sample]]:
    names = (
        "add subtract multiply divide mod power maximum minimum hypot arctan2 equal not_equal less "
        "less_equal greater greater_equal logical_and logical_or logical_xor"
    )
    result = {}
    for name in names.split():
        signed = name != "power"
        whole = name not in ("hypot", "arctan2", "power")
        low = {"low": 1.2, "high": 1.9} if name == "mod" else {}
        a = [spread(2, 3, signed=signed, seed=1), spread(1, 3, signed=signed, seed=2)]
        b = [spread(2, 3, seed=3, **low), spread(2, 1, seed=4, **low), spread(seed=5, **low)]
        result[name] = [
            Sample((a[0], b[0]), integers=whole, wrong=((2, 3), (2, 4))),
            Sample((a[1], b[1]), integers=whole),
            Sample((a[0], b[2])),
            Sample((b[2] if signed else np.abs(b[2]), a[0])),
        ]
    return result


_CONDITION = np.array([[1, 0, 2], [0, 0, 1]], np.float32)
_PROGRAM = (
    "t0 = multiply i0 i1; t1 = subtract t0 2.5; t2 = select i2 t1 i0; t3 = tanh t2; "
    "t4 = add t3 i2; out t2 t4"
)


def _constants() -> dict[str, list[Sample]]:
    shape = {"shape": (2, 3), "dtype": F64}
    return {
        "select": [
            Sample((_CONDITION, spread(2, 3), spread(1, 3)), wrong=((2, 3), (2, 3), (2, 4))),
            Sample((_CONDITION, spread(seed=2), spread(2, 1))),
        ],
        "cast": [
            Sample((spread(2, 3, low=1, high=4),), {"dtype": d}) for d in (F64, I32, np.bool_)
        ],
        "fused": [
            Sample(
                (spread(2, 3), spread(3), spread(2, 1)),
                {"program": _PROGRAM},
                wrong=((2,), (3,), ()),
            ),
            Sample(
                (spread(4, low=1, high=5),), {"program": "t0 = cast:4 i0; t1 = add t0 1; out t1"}
            ),
        ],
        "full": [
            Sample((), {"value": 2.5, **shape}),
            Sample((), {"value": 1.0, "shape": (), "dtype": F64}),
        ],
        "iota": [
            Sample((), {"start": 1.5, "step": 0.5, "repeat": 2, "shape": (7,), "dtype": F64}),
            Sample((), {"start": 3.0, "step": -1.0, "shape": (4,), "dtype": I32}),
        ],
        "random_bits": [Sample((), {"shape": (3, 5)}), Sample((), {"shape": (2,), "draw": 9})],
        "random_uniform": [Sample((), {"low": -1.0, "high": 2.0, "shape": (3, 5), "dtype": F64})],
        "random_normal": [Sample((), {"loc": 1.0, "scale": 0.5, "shape": (3, 5), "dtype": F64})],
    }


def _cut(begin: Any, end: Any, step: Any, **more: Any) -> dict[str, Any]:
    return {"begin": begin, "end": end, "step": step, **more}


def _pad(mode: str, before: Any = (1, 2), **more: Any) -> dict[str, Any]:
    return {"before": before, "after": (2, 0), "mode": mode, **more}


def _shape() -> dict[str, list[Sample]]:
    forward, back = _cut((1, 0), (4, 3), (1, 1)), _cut((3, 2), (-1, 0), (-2, -1))
    return {
        "reshape": [Sample((spread(2, 6),), {"shape": (3, 4)}, True, ((2, 5),))],
        "permute": [Sample((spread(2, 3, 4),), {"axes": (2, 0, 1)}, True, ((2, 3),))],
        "broadcast": [
            Sample((spread(3, 1),), {"shape": (2, 3, 4)}, True, ((3, 2),)),
            Sample((spread(),), {"shape": (2, 2)}),
        ],
        "strided_slice": [
            Sample((spread(4, 3),), forward, True, ((2, 3),)),
            Sample((spread(4, 3),), back, True),
            Sample((spread(4, 3),), _cut((2, 0), (2, 3), (1, 2)), True),
        ],
        "unslice": [Sample((spread(2, 2),), {**back, "shape": (4, 3)}, True, ((2, 3),))],
        "pad": [
            Sample((spread(2, 3),), _pad("constant", (0, 1), value=0.5),
                   wrong=((2, 3, 1),)),
            Sample((spread(3, 3),), _pad("edge")),
            Sample((spread(3, 4),), _pad("reflect"), True, ((3, 2),)),
        ],
        "concatenate": [
            Sample((spread(2, 3), spread(2, 1), spread(2, 2)), {"axis": 1, "num_args": 3}, True,
                   ((2, 3), (1, 3), (2, 3))),
            Sample((spread(1, 3), spread(2, 3)), {"axis": 0, "num_args": 2}, True),
        ],
        "reverse": [Sample((spread(2, 3, 2),), {"axes": (0, 2)}, True, ((2, 3),))],
        "copy": [Sample((spread(2, 3),), {}, True)],
        "assign": [Sample((spread(2, 3), spread(2, 3, seed=1)), {}, True, ((2, 3), (3, 2)))],
        "slice_assign": [
            Sample((spread(4, 3), spread(3, 3)), forward, True, ((4, 3), (3, 2))),
            Sample((spread(4, 3), spread(2, 2)), back, True),
        ],
        "scatter_assign_nd": [
            Sample((spread(3, 2), at([0, 2], [1, 0]), spread(2)), {}, wrong=((3, 2), (2, 2), (3,))),
        ],
        "reduce_sum": _reductions(), "reduce_prod": _reductions(), "reduce_max": _reductions(),
        "reduce_min": _reductions(),
        "arg_max": _positions(), "arg_min": _positions(),
        "sort": [
            Sample((spread(3, 4),), {"axis": 1, "is_ascend": True}, True, ((3,),)),
            Sample((spread(3, 4),), {"axis": 1, "is_ascend": False}, True),
        ],
        "argsort": [
            Sample((spread(3, 4),), {"axis": 0, "is_ascend": a, "dtype": I32}, True, ((),))
            for a in (True, False)
        ],
        "cumsum": [
            Sample((spread(3, 4),), {"axis": 0}, True, ((),)),
            Sample((spread(3, 4),), {"axis": -1}, True),
        ],
    }  # fmt: skip


def _reductions() -> list[Sample]:
    x = spread(2, 3, 4)
    return [
        Sample((x,), {"axes": (1,), "keepdims": False}, True, ((2,),)),
        Sample((x,), {"axes": (0, 2), "keepdims": True}, True),
        Sample((x,), {"axes": (0, 1, 2), "keepdims": False}),
        Sample((x,), {"axes": (), "keepdims": False}),
    ]


def _positions() -> list[Sample]:
    x = spread(3, 4)
    return [
        Sample((x,), {"axis": 0, "keepdims": False, "dtype": F64}, True, ((),)),
        Sample((x,), {"axis": -1, "keepdims": True, "dtype": I32}),
    ]


def _index() -> dict[str, list[Sample]]:
    clip, x = {"axis": 1, "mode": "clip"}, spread(2, 4)
    where = at([0, 3, 1], [5, 1, -1])
    along = at([0, 1, 1], [3, 0, 2])
    nd = at([0, 1, 0], [2, 0, 2])
    return {
        "gather": [
            Sample((x, where), clip, wrong=((4,), (3,))),
            Sample((x, where), {"axis": 1, "mode": "wrap"}),
            Sample((x, at(1, -1)), {"axis": 0, "mode": "raise"}),
        ],
        "scatter_add": [
            Sample((x, where, spread(2, 2, 3)), clip, wrong=((2, 4), (2, 3), (2, 3))),
            Sample((x, at(1, 1, 0), spread(3, 4)), {"axis": 0, "mode": "wrap"}),
        ],
        "take_along": [Sample((x, along), clip, wrong=((2, 4), (3, 4)))],
        "put_along_add": [Sample((x, along, spread(2, 3)), clip, wrong=((2, 4), (2, 3), (2, 4)))],
        "gather_nd": [
            Sample((spread(2, 3, 2), nd), {}, wrong=((2,), (2, 3))),
            Sample((spread(2, 3), at([1, 0])), {}),
        ],
        "scatter_nd_add": [
            Sample((spread(2, 3, 2), nd, spread(3, 2)), {}, wrong=((2, 3), (2, 2), (3,))),
        ],
        "one_hot": [
            Sample(
                (at(0, 2, -1, 5),), {"depth": 3, "on_value": 2.0, "off_value": -1.0, "dtype": F64}
            ),
        ],
        "matmul": [
            Sample((spread(2, 3), spread(3, 4)), {}, wrong=((2, 3), (2, 4))),
            Sample((spread(3, 2), spread(4, 3)), {"transpose_a": True, "transpose_b": True}),
            Sample(
                (spread(5, 2, 3), spread(5, 4, 3)),
                {"transpose_b": True},
                wrong=((5, 2, 3), (4, 4, 3)),
            ),
            Sample((spread(5, 3, 2), spread(5, 3, 4)), {"transpose_a": True}),
            Sample((spread(2, 2, 2, 3), spread(3, 4)), {}),
            Sample((spread(2, 2, 3), spread(4, 3)), {"transpose_b": True}),
            Sample((spread(2, 3, 2), spread(3, 4)), {"transpose_a": True}),
            Sample((spread(2, 3), spread(2, 3, 4)), {}),
        ],
    }


def _how(rank: int = 2, **more: Any) -> dict[str, Any]:
    base = {"stride": (1,) * rank, "dilate": (1,) * rank, "pad": (0,) * rank, "groups": 1}
    return {**base, **more}


def _convolutions() -> dict[str, list[Sample]]:
    wide = _how(stride=(2, 1), dilate=(1, 2), pad=(1, 2))
    split = _how(groups=2, pad=(1, 0))
    x, w = spread(2, 4, 5, 6), spread(4, 2, 2, 3)
    x2, w2 = spread(2, 2, 6, 5), spread(3, 2, 3, 2)
    line, weight = spread(2, 2, 7), spread(3, 2, 3)
    deep = spread(1, 2, 4, 3, 3), spread(2, 2, 2, 2, 2)
    slow = _how(3, stride=(2, 1, 1))
    bad = ((2, 4, 5, 6), (4, 4, 2, 3))
    return {
        "conv": [
            Sample((x2, w2, spread(3)), wide, wrong=((2, 2, 6, 5), (3, 2, 3, 2), (4,))),
            Sample((x, w), split, wrong=bad),
            Sample((line, weight), _how(1, stride=(2,), pad=(1,)), wrong=((2, 2), (3, 2))),
            Sample(deep, slow),
        ],
        "conv_data_grad": [
            Sample(
                (spread(2, 3, 3, 7), w2),
                {**wide, "shape": x2.shape},
                wrong=((2, 3, 3, 3), w2.shape),
            ),
            Sample((spread(2, 4, 6, 4), w), {**split, "shape": x.shape}),
            Sample((spread(1, 2, 2, 2, 2), deep[1]), {**slow, "shape": deep[0].shape}),
        ],
        "conv_weight_grad": [
            Sample(
                (spread(2, 3, 3, 7), x2),
                {**wide, "shape": w2.shape},
                wrong=((2, 3, 3, 3), x2.shape),
            ),
            Sample((spread(2, 4, 6, 4), x), {**split, "shape": w.shape}),
        ],
    }


def _pools() -> dict[str, list[Sample]]:
    x = spread(1, 2, 5, 4)
    plain = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0), "pad_after": (0, 0)}
    overlap = {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 0), "pad_after": (1, 1)}
    line = {"kernel": (3,), "stride": (2,), "pad": (1,), "pad_after": (2,)}
    hows = [
        {**plain, "mode": "max"}, {**overlap, "mode": "max"},
        {**plain, "mode": "avg"}, {**overlap, "mode": "avg"},
        {**overlap, "mode": "avg", "count_include_pad": False}, {**overlap, "mode": "sum"},
    ]  # fmt: skip
    shapes = [(1, 2, 2, 2), (1, 2, 3, 4), (1, 2, 2, 2), (1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)]
    positive = spread(1, 2, 5, 4, signed=False)
    cubes = [Sample((positive,), {**plain, "mode": "lp", "p_value": p}) for p in (1, 2, 3)]
    linear = [Sample((spread(2, 2, 6),), {**line, "mode": m}) for m in ("max", "avg")]
    wrong = ((1, 2, 1, 1),)
    grads = [
        Sample((spread(*s, seed=3), x, spread(*s, seed=4)), h, wrong=((1, 2, 9, 9), x.shape, s))
        for s, h in zip(shapes, hows, strict=True)
    ]
    return {
        "pool": [Sample((x,), h, wrong=wrong if h["kernel"] == (2, 2) else None) for h in hows]
        + cubes
        + linear,
        "pool_grad": grads,
        "pool_take": [
            Sample((spread(1, 2, 5, 4, seed=7), x), h, wrong=((1, 2, 5, 3), x.shape))
            for h in hows[:2]
        ],
    }


def _norms() -> dict[str, list[Sample]]:
    x, vectors = spread(3, 2, 4), [spread(2, seed=s, signed=s != 3) for s in range(4)]
    gamma, beta, mean, inv = vectors
    wrong = ((3, 2, 4), (3,), (2,))
    lrn = {"alpha": 0.3, "beta": 0.75, "knorm": 1.5, "nsize": 3}
    y = spread(2, 4, 3, seed=5)
    soft = [
        Sample((spread(3, 4, low=0.5, high=3),), {"axis": -1}, wrong=((),)),
        Sample((spread(2, 3, 2),), {"axis": 1}),
    ]
    return {
        "softmax": soft,
        "log_softmax": soft,
        "batch_norm_stats": [
            Sample((x,), {"axis": 1}, wrong=((3,),)),
            Sample((spread(4, 3),), {"axis": -1}),
        ],
        "batch_norm": [
            Sample((x, gamma, beta, mean, inv), {"axis": 1}, wrong=(*wrong, (2,), (2,))),
        ],
        "batch_norm_train": [
            Sample((x, gamma, beta), {"axis": 1, "eps": 1e-3}, wrong=wrong),
            Sample((spread(5, 2), gamma, beta), {"axis": -1, "eps": 1e-3}),
        ],
        "batch_norm_grad": [
            Sample((spread(3, 2, 4, seed=9), x, gamma, mean, inv), {"axis": 1},
                   wrong=((3, 2, 3), (3, 2, 4), (2,), (2,), (2,))),
        ],
        "lrn": [Sample((spread(2, 4, 3),), lrn, wrong=((4,),))],
        "lrn_grad": [
            Sample((spread(2, 4, 3, seed=6), y + 1, y), lrn, wrong=((2,), y.shape, y.shape)),
        ],
    }  # fmt: skip


SAMPLES: dict[str, list[Sample]] = {
    **_unary(), **_binary(), **_constants(), **_shape(), **_index(), **_convolutions(), **_pools(),
    **_norms(), **blocked_samples(Sample, spread),
}  # fmt: skip
