"""Binary families (elemwise_*, broadcast_*, *_scalar) and the elementwise functions of one input
that are not primitives."""

from __future__ import annotations

import math
from typing import Any

from ..ir import REQUIRED, Bool, DType, Float, Int, Param, Value, binary, emit
from .common import (
    Compose,
    broadcast_shape,
    cast,
    define,
    filled,
    reshape,
    same_shape,
    select,
)

# Binary families ----------------------------------------------------------------------------


def _mod(a: Any, b: Any) -> Value:
    """Remainder with the sign of the divisor; 0 where the divisor is 0, as in MXNet."""
    made = binary("mod", a, b)
    zero = (
        binary("equal", b, 0.0) if isinstance(b, Value) else filled(float(b == 0), (), made.dtype)
    )
    return select(zero, 0.0, made)


def _plain(primitive: str) -> Compose:
    return lambda a, b: binary(primitive, a, b)


#: elementwise name, broadcasting name, scalar name, scalar on the left, formula, what it is.
_FAMILIES: tuple[tuple[str, str, str, str, Compose, str], ...] = (
    ("elemwise_add", "broadcast_add", "_plus_scalar", "", _plain("add"), "lhs + rhs"),
    (
        "elemwise_sub",
        "broadcast_sub",
        "_minus_scalar",
        "_rminus_scalar",
        _plain("subtract"),
        "lhs - rhs",
    ),
    ("elemwise_mul", "broadcast_mul", "_mul_scalar", "", _plain("multiply"), "lhs * rhs"),
    ("elemwise_div", "broadcast_div", "_div_scalar", "_rdiv_scalar", _plain("divide"), "lhs / rhs"),
    ("_mod", "broadcast_mod", "_mod_scalar", "_rmod_scalar", _mod, "lhs modulo rhs"),
    ("_power", "broadcast_power", "_power_scalar", "_rpower_scalar", _plain("power"), "lhs ** rhs"),
    (
        "_maximum",
        "broadcast_maximum",
        "_maximum_scalar",
        "",
        _plain("maximum"),
        "The larger of lhs and rhs",
    ),
    (
        "_minimum",
        "broadcast_minimum",
        "_minimum_scalar",
        "",
        _plain("minimum"),
        "The smaller of lhs and rhs",
    ),
    ("_hypot", "broadcast_hypot", "_hypot_scalar", "", _plain("hypot"), "sqrt(lhs^2 + rhs^2)"),
    (
        "_equal",
        "broadcast_equal",
        "_equal_scalar",
        "",
        _plain("equal"),
        "1 where lhs == rhs, else 0",
    ),
    (
        "_not_equal",
        "broadcast_not_equal",
        "_not_equal_scalar",
        "",
        _plain("not_equal"),
        "1 where lhs != rhs, else 0",
    ),
    (
        "_greater",
        "broadcast_greater",
        "_greater_scalar",
        "",
        _plain("greater"),
        "1 where lhs > rhs, else 0",
    ),
    (
        "_greater_equal",
        "broadcast_greater_equal",
        "_greater_equal_scalar",
        "",
        _plain("greater_equal"),
        "1 where lhs >= rhs, else 0",
    ),
    (
        "_lesser",
        "broadcast_lesser",
        "_lesser_scalar",
        "",
        _plain("less"),
        "1 where lhs < rhs, else 0",
    ),
    (
        "_lesser_equal",
        "broadcast_lesser_equal",
        "_lesser_equal_scalar",
        "",
        _plain("less_equal"),
        "1 where lhs <= rhs, else 0",
    ),
    (
        "_logical_and",
        "broadcast_logical_and",
        "_logical_and_scalar",
        "",
        _plain("logical_and"),
        "1 where both are not 0, else 0",
    ),
    (
        "_logical_or",
        "broadcast_logical_or",
        "_logical_or_scalar",
        "",
        _plain("logical_or"),
        "1 where one is not 0, else 0",
    ),
    (
        "_logical_xor",
        "broadcast_logical_xor",
        "_logical_xor_scalar",
        "",
        _plain("logical_xor"),
        "1 where exactly one is not 0, else 0",
    ),
)

_SCALAR = (
    Param("scalar", Float, 1.0, runtime=True, doc="the number, taken in the dtype of data"),
    Param("is_int", Bool, True, doc="kept for MXNet's files; no meaning here"),
)


def _define_family(
    elementwise: str, broadcast: str, scalar: str, reversed_: str, formula: Compose, what: str
) -> None:
    two: dict[str, Any] = {"inputs": ("lhs", "rhs"), "reuse": ((0, 0), (0, 1))}
    define(
        elementwise,
        shapes=same_shape,
        doc=f"{what}, elementwise.\n\nArgs:\n    lhs, rhs: one shape.\n\nReturns:\n    That shape.",
        **two,
    )(lambda lhs, rhs: formula(lhs, rhs))
    define(
        broadcast,
        shapes=broadcast_shape,
        doc=f"{what}, broadcasting.\n\nArgs:\n    lhs, rhs: shapes that broadcast.\n\nReturns:\n"
        "    The broadcast shape.",
        **two,
    )(lambda lhs, rhs: formula(lhs, rhs))
    _define_scalar(scalar, what.replace("rhs", "scalar").replace("lhs", "data"), formula)
    if reversed_:
        text = what.replace("lhs", "scalar").replace("rhs", "data")
        _define_scalar(reversed_, text, lambda x, s: formula(s, x))


def _define_scalar(name: str, what: str, formula: Compose) -> None:
    def compose(data: Value, *, scalar: Any, is_int: bool) -> Any:
        return formula(data, scalar)

    doc = (
        f"{what}, with a number.\n\nArgs:\n    data: any shape.\n\nReturns:\n    The shape of data."
    )
    define(name, params=_SCALAR, shapes=same_shape, reuse=((0, 0),), doc=doc)(compose)


for _family in _FAMILIES:
    _define_family(*_family)


@define("_grad_add", inputs=("lhs", "rhs"), shapes=same_shape, reuse=((0, 0), (0, 1)))
def _grad_add(lhs: Value, rhs: Value) -> Value:
    """Sum of two gradients of one value.

    Args:
        lhs, rhs: one shape.

    Returns:
        That shape.
    """
    return lhs + rhs


@define(
    "add_n",
    inputs=lambda p: tuple(f"arg{i}" for i in range(p["num_args"])),
    params=(Param("num_args", Int, doc="number of inputs"),),
    shapes=same_shape,
    variadic="num_args",
    reuse=((0, 0),),
)
def _add_n(*args: Value, num_args: int) -> Value:
    """Sum of all inputs.

    Args:
        args: one shape.

    Returns:
        That shape.
    """
    total = args[0]
    for value in args[1:]:
        total = total + value
    return total


# One input ----------------------------------------------------------------------------------


@define("_copy", shapes=same_shape, reuse=((0, 0),))
def _copy(data: Value) -> Value:
    """The input itself, as a new array.

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    return emit("identity", data)


@define("_copyto", shapes=same_shape)
def _copyto(data: Value) -> Value:
    """The input, copied (to another device where the output lies on one).

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    return emit("copy", data)


@define("_CrossDeviceCopy", shapes=same_shape)
def _cross_device_copy(data: Value) -> Value:
    """The input, copied: what stands at the border of two contexts (see `mixflow.placement`).

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    return emit("copy", data)


@define("BlockGrad", shapes=same_shape, vjp=lambda node, grads: [None], reuse=((0, 0),))
def _block_grad(data: Value) -> Value:
    """The input; no gradient flows back.

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    return emit("identity", data)


@define(
    "Cast",
    params=(Param("dtype", DType, doc="dtype of the output"),),
    shapes=same_shape,
    dtypes="*->@dtype",
)
def _cast(data: Value, *, dtype: Any) -> Value:
    """Another dtype.

    Args:
        data: any shape.

    Returns:
        The shape of data. Floats truncate to integers; bool is x != 0.
    """
    return cast(data, dtype)


@define(
    "amp_cast",
    params=(Param("dtype", DType, doc="dtype of the output"),),
    shapes=same_shape,
    dtypes="*->@dtype",
)
def _amp_cast(data: Value, *, dtype: Any) -> Value:
    """Another floating dtype, as mixed-precision graphs insert it.

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    return cast(data, dtype)


@define(
    "clip",
    params=(
        Param("a_min", Float, REQUIRED, runtime=True, doc="smallest value of the output"),
        Param("a_max", Float, REQUIRED, runtime=True, doc="largest value of the output"),
    ),
    shapes=same_shape,
    reuse=((0, 0),),
)
def _clip(data: Value, *, a_min: Any, a_max: Any) -> Value:
    """Values held within a_min and a_max.

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    return binary("minimum", binary("maximum", data, a_min), a_max)


@define(
    "smooth_l1",
    params=(
        Param("scalar", Float, 1.0, runtime=True, doc="sigma: quadratic below 1 / sigma^2"),
        Param("is_int", Bool, True, doc="kept for MXNet's files; no meaning here"),
    ),
    shapes=same_shape,
)
def _smooth_l1(data: Value, *, scalar: Any, is_int: bool) -> Value:
    """Huber's loss: 0.5 (sigma x)^2 below 1 / sigma^2, else abs(x) - 0.5 / sigma^2.

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    square = scalar * scalar
    size = emit("abs", data)
    edge = binary("divide", filled(1.0, (), data.dtype), square)
    small = binary("less", size, edge)
    near = select(small, data, 0.0)  # an infinite element would leave 0 * inf as slope
    inner = binary("multiply", near * near, square) * 0.5
    return select(small, inner, size - edge * 0.5)


@define(
    "hard_sigmoid",
    params=(
        Param("alpha", Float, 0.2, runtime=True, doc="slope"),
        Param("beta", Float, 0.5, runtime=True, doc="value at 0"),
    ),
    shapes=same_shape,
)
def _hard_sigmoid(data: Value, *, alpha: Any, beta: Any) -> Value:
    """alpha * x + beta, held within 0 and 1.

    Args:
        data: any shape.

    Returns:
        The shape of data.
    """
    line = binary("add", binary("multiply", data, alpha), beta)
    return binary("minimum", binary("maximum", line, 0.0), 1.0)


@define("_contrib_div_sqrt_dim", shapes=same_shape)
def _div_sqrt_dim(data: Value) -> Value:
    """The input divided by the square root of its last dimension.

    Args:
        data: (..., d).

    Returns:
        The shape of data.
    """
    return data * (1.0 / math.sqrt(data.shape[-1]))


@define("where", inputs=("condition", "x", "y"), dtypes="~T,T,T->T", nondiff=("condition",))
def _where(condition: Value, x: Value, y: Value) -> Value:
    """x where condition is not 0, else y.

    Args:
        condition: the shape of x, or (d0,) to choose along the first axis.
        x, y: one shape (d0, ...).

    Returns:
        The shape of x.
    """
    if condition.shape != x.shape and condition.ndim == 1 and x.ndim > 1:
        condition = reshape(condition, (*condition.shape, *(1,) * (x.ndim - 1)))
        condition = emit("broadcast", condition, shape=x.shape)
    same_shape({}, [condition.shape, x.shape, y.shape], [])
    return select(condition, x, y)
