"""Matrix products."""

from __future__ import annotations

from typing import Any

from ..ir import Bool, Enum, Param, Value, emit
from .common import define, need, reshape, size

_PARAMS = (
    Param("transpose_a", Bool, False, doc="use lhs transposed"),
    Param("transpose_b", Bool, False, doc="use rhs transposed"),
    Param(
        "forward_stype",
        Enum("csr", "default", "row_sparse"),
        None,
        nullable=True,
        doc="wanted storage of the output",
    ),
)


def _matrix(value: Value, first: bool, transpose: bool) -> tuple[Value, tuple[int, ...], int]:
    """`value` as a matrix for the product, its free dimensions, its contracted size.

    The contracted axis of the left factor is its last one (the first if transposed), of the right
    factor its first one (the last if transposed).
    """
    need(value.ndim, "expected at least one axis, got none")
    at_end = first != transpose
    shape = value.shape
    free, inner = (shape[:-1], shape[-1]) if at_end else (shape[1:], shape[0])
    return reshape(value, (size(free), inner) if at_end else (inner, size(free))), free, inner


@define("dot", inputs=("lhs", "rhs"), params=_PARAMS)
def _dot(
    lhs: Value, rhs: Value, *, transpose_a: bool, transpose_b: bool, forward_stype: Any
) -> Value:
    """Product over the last axis of lhs and the first of rhs.

    With transpose_a the first axis of lhs is used, with transpose_b the last of rhs.

    Args:
        lhs: (..., K).
        rhs: (K, ...).

    Returns:
        The free axes of lhs, then those of rhs; (1,) for two vectors.
    """
    a, left, inner = _matrix(lhs, True, transpose_a and lhs.ndim > 1)
    b, right, other = _matrix(rhs, False, transpose_b and rhs.ndim > 1)
    need(inner == other, f"expected equal sizes of the summed axes, got {inner} and {other}")
    made = emit(
        "matmul",
        a,
        b,
        transpose_a=transpose_a and lhs.ndim > 1,
        transpose_b=transpose_b and rhs.ndim > 1,
    )
    return reshape(made, (*left, *right) or (1,))


@define("batch_dot", inputs=("lhs", "rhs"), params=_PARAMS)
def _batch_dot(
    lhs: Value, rhs: Value, *, transpose_a: bool, transpose_b: bool, forward_stype: Any
) -> Value:
    """Matrix products of a batch.

    Args:
        lhs: (..., M, K), or (..., K, M) with transpose_a.
        rhs: (..., K, N), or (..., N, K) with transpose_b; the same leading axes.

    Returns:
        (..., M, N).
    """
    fits = lhs.ndim >= 3 and lhs.shape[:-2] == rhs.shape[:-2]
    need(fits, f"expected batches of matrices alike, got {lhs.shape} and {rhs.shape}")
    inner = lhs.shape[-2 if transpose_a else -1]
    other = rhs.shape[-1 if transpose_b else -2]
    need(inner == other, f"expected equal sizes of the summed axes, got {inner} and {other}")
    return emit("matmul", lhs, rhs, transpose_a=transpose_a, transpose_b=transpose_b)
