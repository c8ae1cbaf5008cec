"""Optimizer updates: the new weight, and new versions of the optimizer's states.

Rates and decays are runtime numbers: a changed learning rate makes no new kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir import Bool, Float, Int, Param, Value, binary, emit, emit_node
from .common import cast, define, same_shape, select

_LR = Param("lr", Float, runtime=True, doc="learning rate")
_WD = Param("wd", Float, 0.0, runtime=True, doc="weight decay")
_RESCALE = Param("rescale_grad", Float, 1.0, runtime=True, doc="factor of the gradient")
_CLIP = Param("clip_gradient", Float, -1.0, doc="largest magnitude of the gradient; below 0 = none")
_COMMON = (_WD, _RESCALE, _CLIP)
_LAZY = Param("lazy_update", Bool, True, doc="sparse gradients touch only their rows")
_MOMENTUM = Param("momentum", Float, 0.0, runtime=True, doc="decay of the momentum")
_FLOAT32 = np.dtype(np.float32)


def _rate(name: str, default: float, doc: str) -> Param:
    return Param(name, Float, default, runtime=True, doc=doc)


def _clipped(value: Value, bound: float) -> Value:
    if bound < 0.0:
        return value
    return binary("minimum", binary("maximum", value, -bound), bound)


def _gradient(grad: Value, p: dict[str, Any]) -> Value:
    """The gradient rescaled, then clipped."""
    return _clipped(grad * p["rescale_grad"], p["clip_gradient"])


def _decayed(weight: Value, grad: Value, p: dict[str, Any]) -> Value:
    """The gradient rescaled, weight decay added, then clipped."""
    return _clipped(grad * p["rescale_grad"] + weight * p["wd"], p["clip_gradient"])


def _next(variable: Value, value: Value) -> Value:
    return emit_node("assign", variable, value).values[-1]


def _mixed(share: Any, old: Value, new: Value) -> Any:
    """share * old + (1 - share) * new."""
    return old * share + new * (1.0 - share)


Rule = Callable[..., "tuple[Value, ...]"]


def _doc(what: str, states: tuple[str, ...]) -> str:
    names = ", ".join(("weight", "grad", *states))
    return f"{what}\n\nArgs:\n    {names}: one shape.\n\nReturns:\n    That shape: the new weight."


def _define_update(
    name: str, states: tuple[str, ...], params: tuple[Param, ...], what: str, **fields: Any
) -> Callable[[Rule], Rule]:
    """Registers a rule (weight, grad, *states, p) -> (new weight, *new states)."""

    def wrap(rule: Rule) -> Rule:
        def compose(weight: Value, grad: Value, *old: Value, **p: Any) -> Any:
            made, *new = rule(weight, grad, *old, p)
            return (made, *(_next(v, n) for v, n in zip(old, new, strict=True)))

        define(
            name,
            inputs=("weight", "grad", *states),
            params=params,
            shapes=same_shape,
            mutates=states,
            reuse=((0, 0),),
            differentiable="no",
            doc=_doc(what, states),
            **fields,
        )(compose)
        return rule

    return wrap


def _define_mixed(
    name: str, states: tuple[str, ...], params: tuple[Param, ...], rule: Rule
) -> None:
    """The mixed-precision form: states and a float32 copy of the weight, output in its dtype."""

    def compose(weight: Value, grad: Value, *old: Value, **p: Any) -> Any:
        *own, master = old
        made, *new = rule(master, cast(grad, _FLOAT32), *own, p)
        pairs = zip((*own, master), (*new, made), strict=True)
        return (cast(made, weight.dtype), *(_next(v, n) for v, n in pairs))

    held = (*states, "weight32")
    define(
        name,
        inputs=("weight", "grad", *held),
        params=params,
        shapes=same_shape,
        dtypes="T,T" + ",float32" * len(held) + "->T",
        mutates=held,
        differentiable="no",
        doc=_doc("The update of the same name on a float32 copy of the weight.", held),
    )(compose)


# Gradient descent ---------------------------------------------------------------------------


@_define_update("sgd_update", (), (_LR, *_COMMON, _LAZY), "weight (1 - lr wd) - lr grad.")
def _sgd(weight: Value, grad: Value, p: dict[str, Any]) -> tuple[Value, ...]:
    return (weight * (1.0 - p["lr"] * p["wd"]) - _gradient(grad, p) * p["lr"],)


@_define_update(
    "sgd_mom_update",
    ("mom",),
    (_LR, _MOMENTUM, *_COMMON, _LAZY),
    "mom = momentum mom - lr (grad + wd weight); weight + mom.",
)
def _sgd_mom(weight: Value, grad: Value, mom: Value, p: dict[str, Any]) -> tuple[Value, ...]:
    new = mom * p["momentum"] - weight * (p["lr"] * p["wd"]) - _gradient(grad, p) * p["lr"]
    return weight + new, new


@_define_update(
    "nag_mom_update",
    ("mom",),
    (_LR, _MOMENTUM, *_COMMON),
    "Nesterov's momentum: mom = momentum mom - lr g; weight + momentum mom - lr g.",
)
def _nag(weight: Value, grad: Value, mom: Value, p: dict[str, Any]) -> tuple[Value, ...]:
    step = (_gradient(grad, p) + weight * p["wd"]) * p["lr"]
    new = mom * p["momentum"] - step
    return weight + new * p["momentum"] - step, new


_define_mixed("mp_sgd_update", (), (_LR, *_COMMON, _LAZY), _sgd)
_define_mixed("mp_sgd_mom_update", ("mom",), (_LR, _MOMENTUM, *_COMMON, _LAZY), _sgd_mom)
_define_mixed("mp_nag_mom_update", ("mom",), (_LR, _MOMENTUM, *_COMMON), _nag)


@_define_update("signsgd_update", (), (_LR, *_COMMON), "weight (1 - lr wd) - lr sign(grad).")
def _signsgd(weight: Value, grad: Value, p: dict[str, Any]) -> tuple[Value, ...]:
    return (weight * (1.0 - p["lr"] * p["wd"]) - emit("sign", grad) * p["lr"],)


@_define_update(
    "signum_update",
    ("mom",),
    (_LR, _MOMENTUM, *_COMMON, _rate("wd_lh", 0.0, "decay that is not part of the momentum")),
    "mom = momentum mom - (1 - momentum) (grad + wd weight); weight (1 - lr wd_lh) + lr sign(mom).",
)
def _signum(weight: Value, grad: Value, mom: Value, p: dict[str, Any]) -> tuple[Value, ...]:
    new = _mixed(p["momentum"], mom, -(_gradient(grad, p) + weight * p["wd"]))
    return weight * (1.0 - p["lr"] * p["wd_lh"]) + emit("sign", new) * p["lr"], new


# Adaptive rates -----------------------------------------------------------------------------


@_define_update(
    "adam_update",
    ("mean", "var"),
    (
        _LR,
        _rate("beta1", 0.9, "decay of mean"),
        _rate("beta2", 0.999, "decay of var"),
        _rate("epsilon", 1e-8, "added to the root"),
        *_COMMON,
        _LAZY,
    ),
    "Adam without bias correction (Kingma, Ba, 2014): weight - lr mean / (sqrt(var) + epsilon).",
)
def _adam(
    weight: Value, grad: Value, mean: Value, var: Value, p: dict[str, Any]
) -> tuple[Value, ...]:
    g = _decayed(weight, grad, p)
    m, v = _mixed(p["beta1"], mean, g), _mixed(p["beta2"], var, g * g)
    return weight - m * p["lr"] / (emit("sqrt", v) + p["epsilon"]), m, v


_RMS = (
    _rate("epsilon", 1e-8, "added below the root"),
    *_COMMON,
    Param("clip_weights", Float, -1.0, doc="largest magnitude of a weight; below 0 = none"),
)


@_define_update(
    "rmsprop_update",
    ("n",),
    (_LR, _rate("gamma1", 0.95, "decay of n"), *_RMS),
    "RMSProp (Tieleman, Hinton, 2012): weight - lr g / sqrt(n + epsilon).",
)
def _rmsprop(weight: Value, grad: Value, n: Value, p: dict[str, Any]) -> tuple[Value, ...]:
    g = _decayed(weight, grad, p)
    new = _mixed(p["gamma1"], n, g * g)
    made = weight - g * p["lr"] / emit("sqrt", new + p["epsilon"])
    return _clipped(made, p["clip_weights"]), new


@_define_update(
    "rmspropalex_update",
    ("n", "g", "delta"),
    (_LR, _rate("gamma1", 0.95, "decay of n and g"), _rate("gamma2", 0.9, "decay of delta"), *_RMS),
    "RMSProp of Graves (2013): delta = gamma2 delta - lr g / sqrt(n - g^2 + epsilon), then "
    "weight + delta.",
)
def _rmspropalex(
    weight: Value, grad: Value, n: Value, g: Value, delta: Value, p: dict[str, Any]
) -> tuple[Value, ...]:
    step = _decayed(weight, grad, p)
    square, first = _mixed(p["gamma1"], n, step * step), _mixed(p["gamma1"], g, step)
    root = emit("sqrt", square - first * first + p["epsilon"])
    new = delta * p["gamma2"] - step * p["lr"] / root
    return _clipped(weight + new, p["clip_weights"]), square, first, new


@_define_update(
    "ftrl_update",
    ("z", "n"),
    (
        _LR,
        _rate("lamda1", 0.01, "L1 coefficient"),
        _rate("beta", 1.0, "added to the root"),
        *_COMMON,
    ),
    "Follow the regularised leader, proximal (McMahan and others, 2013).",
)
def _ftrl(weight: Value, grad: Value, z: Value, n: Value, p: dict[str, Any]) -> tuple[Value, ...]:
    g = _gradient(grad, p)
    square = n + g * g
    root = emit("sqrt", square)
    new = z + g - (root - emit("sqrt", n)) * weight / p["lr"]
    pulled = emit("sign", new) * p["lamda1"] - new
    made = pulled / ((root + p["beta"]) / p["lr"] + p["wd"])
    return select(binary("greater", emit("abs", new), p["lamda1"]), made, 0.0), new, square


@_define_update(
    "_sparse_adagrad_update",
    ("history",),
    (_LR, _rate("epsilon", 1e-7, "added below the root"), *_COMMON),
    "AdaGrad (Duchi, Hazan, Singer, 2011): weight - lr (g / sqrt(history + epsilon) + wd weight).",
)
def _adagrad(weight: Value, grad: Value, history: Value, p: dict[str, Any]) -> tuple[Value, ...]:
    g = _gradient(grad, p)
    new = history + g * g
    step = g / emit("sqrt", new + p["epsilon"]) + weight * p["wd"]
    return weight - step * p["lr"], new


@_define_update(
    "ftml_update",
    ("d", "v", "z"),
    (
        _LR,
        Param("beta1", Float, 0.6, doc="decay of z"),
        Param("beta2", Float, 0.999, doc="decay of v"),
        _rate("epsilon", 9.99999993922529e-09, "added to the root"),
        Param("t", Int, doc="number of the step, from 1"),
        _WD,
        _RESCALE,
        Param("clip_grad", Float, -1.0, doc="largest magnitude of the gradient; below 0 = none"),
    ),
    "Follow the moving leader (Zheng, Kwok, 2017).",
)
def _ftml(
    weight: Value, grad: Value, d: Value, v: Value, z: Value, p: dict[str, Any]
) -> tuple[Value, ...]:
    g = _decayed(weight, grad, {**p, "clip_gradient": p["clip_grad"]})
    square = _mixed(p["beta2"], v, g * g)
    root = emit("sqrt", square / (1.0 - p["beta2"] ** p["t"])) + p["epsilon"]
    scale = root * (1.0 - p["beta1"] ** p["t"]) / p["lr"]
    sigma = scale - d * p["beta1"]
    new = _mixed(p["beta1"], z, g) - sigma * weight
    return -new / scale, scale, square, new


@_define_update(
    "lamb_update_phase1",
    ("mean", "var"),
    (
        Param("beta1", Float, 0.9, doc="decay of mean"),
        Param("beta2", Float, 0.999, doc="decay of var"),
        _rate("epsilon", 1e-6, "added to the root"),
        Param("t", Int, doc="number of the step, from 1"),
        Param("bias_correction", Bool, True, doc="divide by 1 - beta^t"),
        Param("wd", Float, runtime=True, doc="weight decay"),
        _RESCALE,
        _CLIP,
    ),
    "LAMB (You and others, 2019), the direction: mean / (sqrt(var) + epsilon) + wd weight.",
)
def _lamb1(
    weight: Value, grad: Value, mean: Value, var: Value, p: dict[str, Any]
) -> tuple[Value, ...]:
    g = _gradient(grad, p)
    m, v = _mixed(p["beta1"], mean, g), _mixed(p["beta2"], var, g * g)
    m1, v1 = m, v
    if p["bias_correction"]:
        m1, v1 = m / (1.0 - p["beta1"] ** p["t"]), v / (1.0 - p["beta2"] ** p["t"])
    return m1 / (emit("sqrt", v1) + p["epsilon"]) + weight * p["wd"], m, v


@define(
    "lamb_update_phase2",
    inputs=("weight", "g", "r1", "r2"),
    params=(
        _LR,
        Param("lower_bound", Float, -1.0, doc="smallest norm of the weight; below 0 = none"),
        Param("upper_bound", Float, -1.0, doc="largest norm of the weight; below 0 = none"),
    ),
    differentiable="no",
)
def _lamb2(
    weight: Value,
    g: Value,
    r1: Value,
    r2: Value,
    *,
    lr: Any,
    lower_bound: float,
    upper_bound: float,
) -> Any:
    """LAMB, the step: weight - lr r1 / r2 g.

    Args:
        weight, g: one shape.
        r1, r2: (1,), norms of weight and g.

    Returns:
        The shape of weight.
    """
    if lower_bound >= 0.0:
        r1 = binary("maximum", r1, lower_bound)
    if upper_bound >= 0.0:
        r1 = binary("minimum", r1, upper_bound)
    both = binary("logical_and", r1, r2)
    ratio = select(both, r1 / r2, 1.0)
    return weight - g * ratio * lr
