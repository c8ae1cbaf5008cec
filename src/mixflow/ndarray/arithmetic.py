"""mx.nd.add and its kind: each side an NDArray or a number."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _rt
from .register import function
from .row_sparse import BaseSparseNDArray

_NUMBERS = (bool, int, float, np.generic)


def _two_sided(
    name: str,
    array_op: str,
    scalar_op: str,
    left_scalar_op: str,
    numbers: Callable[..., Any],
    doc: str,
) -> Callable[..., Any]:
    def call(lhs: Any, rhs: Any) -> Any:
        array = (_rt.core.Array, BaseSparseNDArray)
        if isinstance(lhs, array):
            if isinstance(rhs, array):
                return function(array_op)(lhs, rhs)
            if isinstance(rhs, _NUMBERS):
                return function(scalar_op)(lhs, scalar=float(rhs))
            raise TypeError(f"[{name}] expected an NDArray or a number, got {type(rhs).__name__}")
        if isinstance(lhs, _NUMBERS):
            if isinstance(rhs, array):
                return function(left_scalar_op)(rhs, scalar=float(lhs))
            if isinstance(rhs, _NUMBERS):
                return numbers(lhs, rhs)
            raise TypeError(f"[{name}] expected an NDArray or a number, got {type(rhs).__name__}")
        raise TypeError(f"[{name}] expected an NDArray or a number, got {type(lhs).__name__}")

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{doc}\n\nArgs:\n    lhs, rhs: NDArray or number; shapes broadcast.\n"
    return call


add = _two_sided("add", "broadcast_add", "_plus_scalar", "_plus_scalar", operator.add, "lhs + rhs")
subtract = _two_sided(
    "subtract", "broadcast_sub", "_minus_scalar", "_rminus_scalar", operator.sub, "lhs - rhs"
)
multiply = _two_sided(
    "multiply", "broadcast_mul", "_mul_scalar", "_mul_scalar", operator.mul, "lhs * rhs"
)
divide = _two_sided(
    "divide", "broadcast_div", "_div_scalar", "_rdiv_scalar", operator.truediv, "lhs / rhs"
)
true_divide = divide
modulo = _two_sided(
    "modulo", "broadcast_mod", "_mod_scalar", "_rmod_scalar", operator.mod, "lhs % rhs"
)
_power = _two_sided(
    "power", "broadcast_power", "_power_scalar", "_rpower_scalar", operator.pow, "base ** exp"
)


def power(base: Any, exp: Any) -> Any:
    """base ** exp; each an NDArray or a number."""
    return _power(base, exp)


maximum = _two_sided(
    "maximum", "broadcast_maximum", "_maximum_scalar", "_maximum_scalar", max, "The larger of both"
)
minimum = _two_sided(
    "minimum", "broadcast_minimum", "_minimum_scalar", "_minimum_scalar", min, "The smaller of both"
)


def _compare(name: str, stem: str, left: str, numbers: Callable[..., Any]) -> Callable[..., Any]:
    return _two_sided(
        name,
        f"broadcast_{stem}",
        f"_{stem}_scalar",
        f"_{left}_scalar",
        lambda a, b: float(numbers(a, b)),
        f"1 where lhs {stem} rhs, else 0, in the dtype of the input",
    )


equal = _compare("equal", "equal", "equal", operator.eq)
not_equal = _compare("not_equal", "not_equal", "not_equal", operator.ne)
greater = _compare("greater", "greater", "lesser", operator.gt)
greater_equal = _compare("greater_equal", "greater_equal", "lesser_equal", operator.ge)
lesser = _compare("lesser", "lesser", "greater", operator.lt)
lesser_equal = _compare("lesser_equal", "lesser_equal", "greater_equal", operator.le)
logical_and = _compare(
    "logical_and", "logical_and", "logical_and", lambda a, b: bool(a) and bool(b)
)
logical_or = _compare("logical_or", "logical_or", "logical_or", lambda a, b: bool(a) or bool(b))
logical_xor = _compare("logical_xor", "logical_xor", "logical_xor", lambda a, b: bool(a) != bool(b))

#: Key of `core.set_operator_ids` -> operator.
PROTOCOL = {
    "add": "broadcast_add",
    "sub": "broadcast_sub",
    "mul": "broadcast_mul",
    "div": "broadcast_div",
    "mod": "broadcast_mod",
    "pow": "broadcast_power",
    "eq": "broadcast_equal",
    "ne": "broadcast_not_equal",
    "lt": "broadcast_lesser",
    "le": "broadcast_lesser_equal",
    "gt": "broadcast_greater",
    "ge": "broadcast_greater_equal",
    "add_scalar": "_plus_scalar",
    "sub_scalar": "_minus_scalar",
    "rsub_scalar": "_rminus_scalar",
    "mul_scalar": "_mul_scalar",
    "div_scalar": "_div_scalar",
    "rdiv_scalar": "_rdiv_scalar",
    "mod_scalar": "_mod_scalar",
    "rmod_scalar": "_rmod_scalar",
    "pow_scalar": "_power_scalar",
    "rpow_scalar": "_rpower_scalar",
    "eq_scalar": "_equal_scalar",
    "ne_scalar": "_not_equal_scalar",
    "lt_scalar": "_lesser_scalar",
    "le_scalar": "_lesser_equal_scalar",
    "gt_scalar": "_greater_scalar",
    "ge_scalar": "_greater_equal_scalar",
    "neg": "negative",
    "abs": "abs",
}
