"""Convolution, its transpose, pooling and upsampling. Inside, data is (N, C, 1 to 3 axes)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import ParamError
from ..ir import Bool, Enum, Int, Param, Shape, Value, binary, emit
from .common import (
    Dims,
    Positive,
    Shapes,
    along,
    concatenated,
    define,
    filled,
    merge,
    need,
    permute,
    reduce,
)
from .nn import weighted
from .shape import repeated

# Layouts and geometry -----------------------------------------------------------------------

_LAYOUTS = ("NCDHW", "NCHW", "NCW", "NDHWC", "NHWC", "NWC")


def _layout(choices: tuple[str, ...]) -> Param:
    return Param("layout", Enum(*choices), None, nullable=True, doc="order of axes; None = NC...")


_TUNING = (
    Param("workspace", Int, 1024, doc="no meaning here"),
    Param("no_bias", Bool, False, doc="without bias"),
    Param(
        "cudnn_tune",
        Enum("fastest", "limited_workspace", "off"),
        None,
        nullable=True,
        doc="no meaning here",
    ),
    Param("cudnn_off", Bool, False, doc="no meaning here"),
    _layout(_LAYOUTS[:5]),
)


def _last(params: dict[str, Any]) -> bool:
    """Whether channels stand last."""
    return bool(params["layout"]) and params["layout"][1] != "C"


def _front(shape: Dims | None, last: bool) -> Dims | None:
    """The shape with channels second."""
    return (shape[0], shape[-1], *shape[1:-1]) if last and shape is not None else shape


def _back(shape: Dims | None, last: bool) -> Dims | None:
    return (shape[0], *shape[2:], shape[1]) if last and shape is not None else shape


def _to_front(value: Value, last: bool) -> Value:
    rank = value.ndim
    return permute(value, (0, rank - 1, *range(1, rank - 1))) if last else value


def _to_back(value: Value, last: bool) -> Value:
    rank = value.ndim
    return permute(value, (0, *range(2, rank), 1)) if last else value


def _geometry(op: str, params: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """kernel, stride, dilate, pad of one length; defaults filled in.

    Raises:
        ParamError: a wrong length or a number that is not allowed.
    """
    n = len(params["kernel"])
    found = {"kernel": params["kernel"]}
    for key, default, lowest in (("stride", 1, 1), ("dilate", 1, 1), ("pad", 0, 0)):
        value = params.get(key) or (default,) * n
        if len(value) != n or min(value, default=0) < lowest:
            raise ParamError(
                f"[{op}] expected '{key}' of {n} numbers of at least {lowest}, got {value}"
            )
        found[key] = value
    if not 1 <= n <= 3 or min(params["kernel"]) < 1:
        raise ParamError(
            f"[{op}] expected 'kernel' of 1 to 3 positive numbers, got {params['kernel']}"
        )
    return found


def _check_groups(op: str, params: dict[str, Any]) -> None:
    if params["num_filter"] % params["num_group"]:
        raise ParamError(
            f"[{op}] expected 'num_filter' divisible by {params['num_group']} groups, "
            f"got {params['num_filter']}"
        )


def _check_rank(data: Dims, n: int) -> None:
    need(len(data) == n + 2, f"expected data of {n + 2} axes for a kernel of {n}, got {len(data)}")


# Convolution --------------------------------------------------------------------------------


def _conv_dim(size: int | None, i: int, how: dict[str, tuple[int, ...]]) -> int | None:
    if size is None:
        return None
    reach = how["dilate"][i] * (how["kernel"][i] - 1) + 1
    room = size + 2 * how["pad"][i] - reach
    need(
        room >= 0,
        f"expected a kernel inside the padded data, got {reach} in {size + 2 * how['pad'][i]}",
    )
    return room // how["stride"][i] + 1


def _conv_back(size: int | None, i: int, how: dict[str, tuple[int, ...]]) -> int | None:
    if size is None or how["stride"][i] != 1:
        return None
    return size - 1 + how["dilate"][i] * (how["kernel"][i] - 1) + 1 - 2 * how["pad"][i]


def _conv_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    how, last = _geometry("Convolution", params), _last(params)
    _check_groups("Convolution", params)
    filters, groups, n = params["num_filter"], params["num_group"], len(how["kernel"])
    data, out = _front(ins[0], last), _front(outs[0], last)
    weight: Dims = (filters, None, *how["kernel"])
    if data is not None:
        _check_rank(data, n)
        need(
            data[1] is None or data[1] % groups == 0,
            f"expected channels divisible by {groups}, got {data[1]}",
        )
        weight = (filters, None if data[1] is None else data[1] // groups, *how["kernel"])
        sizes = tuple(_conv_dim(d, i, how) for i, d in enumerate(data[2:]))
        out = merge((data[0], filters, *sizes), out)
    if out is not None:
        back = tuple(_conv_back(d, i, how) for i, d in enumerate(out[2:]))
        data = merge(data, (out[0], None, *back)) if data is not None else data
    made = [_back(data, last), _back(weight, last), (filters,)]
    return made[: len(ins)], [_back(out, last)]


@define(
    "Convolution",
    inputs=weighted,
    params=(
        Param("kernel", Shape, doc="size of the window"),
        Param("stride", Shape, (), doc="steps of the window; () = 1"),
        Param("dilate", Shape, (), doc="steps inside of the window; () = 1"),
        Param("pad", Shape, (), doc="zeros on both sides; () = 0"),
        Param("num_filter", Positive, doc="output channels F"),
        Param("num_group", Positive, 1, doc="groups of channels"),
        *_TUNING,
    ),
    shapes=_conv_shapes,
)
def _convolution(data: Value, weight: Value, *bias: Value, **params: Any) -> Value:
    """Cross-correlation with 1 to 3 spatial axes.

    Args:
        data: (N, C, *S), or (N, *S, C) for a layout with channels last.
        weight: (F, C / num_group, *kernel), or (F, *kernel, C / num_group).
        bias: (F,).

    Returns:
        (N, F, *O), O = floor((S + 2 pad - dilate (kernel - 1) - 1) / stride) + 1.
    """
    how, last = _geometry("Convolution", params), _last(params)
    where = {k: how[k] for k in ("stride", "dilate", "pad")}
    x, w = _to_front(data, last), _to_front(weight, last)
    return _to_back(emit("conv", x, w, *bias, groups=params["num_group"], **where), last)


# Deconvolution ------------------------------------------------------------------------------


def _deconv_geometry(params: dict[str, Any], sizes: Dims) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Geometry with the pad that `target_shape` asks for, and the adj that goes with it."""
    how: dict[str, Any] = _geometry("Deconvolution", params)
    n = len(how["kernel"])
    adj = params["adj"] or (0,) * n
    target = params["target_shape"]
    if target and any(target) and None not in sizes:
        whole = [
            _deconv_full(d, i, how) - t for i, (d, t) in enumerate(zip(sizes, target, strict=True))
        ]
        need(min(whole) >= 0, f"expected a target shape that can be reached, got {target}")
        how["pad"], adj = tuple((w + 1) // 2 for w in whole), tuple(w % 2 for w in whole)
    if len(adj) != n or any(a >= s for a, s in zip(adj, how["stride"], strict=False) if a):
        raise ParamError(
            f"[Deconvolution] expected 'adj' of {n} numbers below the stride, got {adj}"
        )
    return how, adj


def _deconv_full(size: Any, i: int, how: dict[str, Any]) -> int:
    return int(how["stride"][i] * (size - 1) + how["dilate"][i] * (how["kernel"][i] - 1) + 1)


def _deconv_sizes(params: dict[str, Any], sizes: Dims) -> Dims:
    how, adj = _deconv_geometry(params, sizes)
    return tuple(
        None if d is None else _deconv_full(d, i, how) - 2 * how["pad"][i] + adj[i]
        for i, d in enumerate(sizes)
    )


def _deconv_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    last, filters, groups = _last(params), params["num_filter"], params["num_group"]
    _check_groups("Deconvolution", params)
    data, out, kernel = _front(ins[0], last), _front(outs[0], last), params["kernel"]
    weight: Dims = (None, filters // groups, *kernel)
    if data is not None:
        _check_rank(data, len(kernel))
        weight = (data[1], filters // groups, *kernel)
        out = merge((data[0], filters, *_deconv_sizes(params, data[2:])), out)
        assert out is not None
        data = (data[0] if data[0] is not None else out[0], *data[1:])
    made = [_back(data, last), _back(weight, last), (filters,)]
    return made[: len(ins)], [_back(out, last)]


@define(
    "Deconvolution",
    inputs=weighted,
    params=(
        Param("kernel", Shape, doc="size of the window"),
        Param("stride", Shape, (), doc="steps of the window; () = 1"),
        Param("dilate", Shape, (), doc="steps inside of the window; () = 1"),
        Param("pad", Shape, (), doc="rows taken off on both sides; () = 0"),
        Param("adj", Shape, (), doc="rows added at the end; () = 0"),
        Param("target_shape", Shape, (), doc="wanted size; replaces pad and adj"),
        Param("num_filter", Positive, doc="output channels F"),
        Param("num_group", Positive, 1, doc="groups of channels"),
        Param("workspace", Int, 512, doc="no meaning here"),
        Param("no_bias", Bool, True, doc="without bias"),
        *_TUNING[2:],
    ),
    shapes=_deconv_shapes,
)
def _deconvolution(data: Value, weight: Value, *bias: Value, **params: Any) -> Value:
    """Transposed convolution: the gradient of Convolution for its data.

    Args:
        data: (N, C, *S), or (N, *S, C) for a layout with channels last.
        weight: (C, F / num_group, *kernel), or (C, *kernel, F / num_group).
        bias: (F,).

    Returns:
        (N, F, *O), O = stride (S - 1) + dilate (kernel - 1) + 1 - 2 pad + adj.
    """
    last = _last(params)
    x, w = _to_front(data, last), _to_front(weight, last)
    how, _ = _deconv_geometry(params, x.shape[2:])
    shape = (x.shape[0], params["num_filter"], *_deconv_sizes(params, x.shape[2:]))
    where = {k: how[k] for k in ("stride", "dilate", "pad")}
    made = emit("conv_data_grad", x, w, shape=shape, groups=params["num_group"], **where)
    for b in bias:
        made = made + along(b, 1, made.ndim)
    return _to_back(made, last)


# Pooling ------------------------------------------------------------------------------------


def _pool_geometry(params: dict[str, Any], sizes: Dims) -> dict[str, Any]:
    """kernel, stride, pad; of a global pool the whole plane."""
    if params["global_pool"]:
        n = len(sizes)
        return {"kernel": sizes, "stride": (1,) * n, "pad": (0,) * n}
    how = _geometry("Pooling", params)
    need(
        len(how["kernel"]) == len(sizes), f"expected a kernel of {len(sizes)}, got {how['kernel']}"
    )
    return how


def _pooled(size: int | None, kernel: int, stride: int, pad: int, convention: str) -> int | None:
    if size is None:
        return None
    wide = size + 2 * pad
    if convention == "same":
        return math.ceil(wide / stride)
    need(kernel <= wide, f"expected a kernel inside the padded data, got {kernel} in {wide}")
    rounding = math.ceil if convention == "full" else math.floor
    return rounding((wide - kernel) / stride) + 1


def _pool_sizes(params: dict[str, Any], sizes: Dims) -> Dims:
    if params["global_pool"]:
        return (1,) * len(sizes)
    how = _pool_geometry(params, sizes)
    rows = zip(sizes, how["kernel"], how["stride"], how["pad"], strict=True)
    return tuple(_pooled(*row, params["pooling_convention"]) for row in rows)


def _pool_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    last = _last(params)
    data, out = _front(ins[0], last), _front(outs[0], last)
    if data is not None:
        need(3 <= len(data) <= 5, f"expected data of 3 to 5 axes, got {len(data)}")
        out = merge((*data[:2], *_pool_sizes(params, data[2:])), out)
        assert out is not None
        data = (*(merge(data[:2], out[:2]) or ()), *data[2:])
    return [_back(data, last)], [_back(out, last)]


def _average_counted(x: Value, how: dict[str, Any], after: tuple[int, ...]) -> Value:
    """Mean over windows that reach past the padding: only elements of the padded data count."""
    wide = tuple(d + 2 * p for d, p in zip(x.shape[2:], how["pad"], strict=True))
    extra = tuple(a - p for a, p in zip(after, how["pad"], strict=True))
    zero = (0,) * len(wide)
    how = {k: how[k] for k in ("kernel", "stride", "pad")}
    ones = filled(1.0, (1, 1, *wide), x.dtype)
    count = emit("pool", ones, mode="sum", pad_after=extra, **{**how, "pad": zero})
    count = binary("maximum", count, 1.0)  # a window that has left the padded data gives 0
    return emit("pool", x, mode="sum", pad_after=after, **how) / count


@define(
    "Pooling",
    params=(
        Param("kernel", Shape, (), doc="size of the window"),
        Param("pool_type", Enum("avg", "lp", "max", "sum"), "max", doc="what a window gives"),
        Param("global_pool", Bool, False, doc="one window over the plane"),
        Param("cudnn_off", Bool, False, doc="no meaning here"),
        Param(
            "pooling_convention",
            Enum("full", "same", "valid"),
            "valid",
            doc="rounding of the output size: down, up (full), or ceil(S / stride)",
        ),
        Param("stride", Shape, (), doc="steps of the window; () = 1"),
        Param("pad", Shape, (), doc="border on both sides; () = 0"),
        Param("p_value", Int, None, nullable=True, doc="power of lp"),
        Param(
            "count_include_pad", Bool, None, nullable=True, doc="avg counts the border; None = yes"
        ),
        _layout(_LAYOUTS),
    ),
    shapes=_pool_shapes,
)
def _pooling(data: Value, **params: Any) -> Value:
    """Largest, mean, sum or p-norm of windows.

    Args:
        data: (N, C, *S), or (N, *S, C) for a layout with channels last.

    Returns:
        (N, C, *O), O = floor((S + 2 pad - kernel) / stride) + 1.
    """
    last, kind = _last(params), params["pool_type"]
    x = _to_front(data, last)
    if kind == "lp" and params["p_value"] not in (1, 2, 3):
        raise ParamError(f"[Pooling] expected 'p_value' 1, 2 or 3 with lp, got {params['p_value']}")
    how = _pool_geometry(params, x.shape[2:])
    if params["global_pool"] and kind in ("avg", "sum"):
        made = _global(x, kind)
        return _to_back(made, last)
    outs = _pool_sizes(params, x.shape[2:])
    windows = list(zip(x.shape[2:], how["kernel"], how["stride"], how["pad"], outs, strict=True))
    after = tuple(max(p, ((o or 0) - 1) * s + k - d - p) for d, k, s, p, o in windows)
    counted = params["count_include_pad"] is not False
    if kind == "avg" and counted and after != how["pad"]:
        return _to_back(_average_counted(x, how, after), last)
    made = emit(
        "pool",
        x,
        kernel=how["kernel"],
        stride=how["stride"],
        pad=how["pad"],
        pad_after=after,
        mode=kind,
        count_include_pad=counted,
        p_value=params["p_value"] or 2,
    )
    if kind == "max" and any(_outside(*row) for row in windows):
        made = binary("maximum", made, float(np.finfo(x.dtype).min))  # -inf has no use there
    return _to_back(made, last)


def _outside(size: int, kernel: int, stride: int, pad: int, out: int | None) -> bool:
    """Whether the first or last window holds no element of the data."""
    return kernel <= pad or ((out or 0) - 1) * stride - pad >= size


def _global(x: Value, kind: str) -> Value:
    count = 1
    for d in x.shape[2:]:
        count *= d
    made = reduce("sum", x, range(2, x.ndim), True)
    return made / float(count) if kind == "avg" else made


# UpSampling ---------------------------------------------------------------------------------


def _upsampling_inputs(params: dict[str, Any]) -> tuple[str, ...]:
    if params["sample_type"] == "bilinear":
        return ("data", "weight")
    return tuple(f"arg{i}" for i in range(params["num_args"]))


def _bilinear(data: Value, weight: Value, scale: int) -> Value:
    channels = data.shape[1]
    kernel = 2 * scale - scale % 2
    merge((channels, 1, kernel, kernel), weight.shape)
    pad = math.ceil((scale - 1) / 2)
    return emit(
        "conv_data_grad",
        data,
        weight,
        stride=(scale, scale),
        dilate=(1, 1),
        pad=(pad, pad),
        groups=channels,
        shape=(*data.shape[:2], *(d * scale for d in data.shape[2:])),
    )


def _upsampling_shapes(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, scale = ins[0], params["scale"]
    if data is None:
        return ins, outs
    need(len(data) == 4, f"expected data (N, C, H, W), got {len(data)} axes")
    sizes = tuple(None if d is None else d * scale for d in data[2:])
    if params["sample_type"] == "bilinear":
        kernel = 2 * scale - scale % 2
        return [data, (data[1], 1, kernel, kernel)], [(*data[:2], *sizes)]
    channels: int | None = data[1]
    if params["multi_input_mode"] == "concat":
        counts = [None if s is None else s[1] for s in ins]
        channels = None if None in counts else sum(c for c in counts if c is not None)
    return ins, [(data[0], channels, *sizes)]


@define(
    "UpSampling",
    inputs=_upsampling_inputs,
    params=(
        Param("scale", Positive, doc="factor of the first input"),
        Param("num_filter", Int, 0, doc="channels of bilinear; no meaning here"),
        Param("sample_type", Enum("bilinear", "nearest"), doc="how to fill in"),
        Param("multi_input_mode", Enum("concat", "sum"), "concat", doc="how inputs are joined"),
        Param("num_args", Positive, doc="number of inputs"),
        Param("workspace", Int, 512, doc="no meaning here"),
    ),
    shapes=_upsampling_shapes,
    variadic="num_args",
)
def _upsampling(
    *args: Value, scale: int, sample_type: str, multi_input_mode: str, **_: Any
) -> Value:
    """A larger plane; of several inputs each grows to the size of the first one's output.

    Args:
        args: (N, C, H, W) each; with bilinear data and weight (C, 1, k, k),
            k = 2 scale - scale % 2.

    Returns:
        (N, C, H * scale, W * scale).
    """
    if sample_type == "bilinear":
        return _bilinear(args[0], args[1], scale)
    goal = args[0].shape[2] * scale
    grown = []
    for x in args:
        need(
            x.ndim == 4 and goal % x.shape[2] == 0,
            f"expected heights that divide {goal}, got {x.shape}",
        )
        factor = goal // x.shape[2]
        grown.append(repeated(repeated(x, factor, 2), factor, 3))
    if multi_input_mode == "concat":
        return concatenated(grown, 1)
    total = grown[0]
    for x in grown[1:]:
        total = total + x
    return total
