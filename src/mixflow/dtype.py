"""Element types: NumPy dtypes inside, MXNet's integer codes at the edges (files, the core)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .errors import DTypeError

bfloat16 = np.dtype(ml_dtypes.bfloat16)

#: MXNet's type flags, as they stand in files; 7 and 12 are bool and bfloat16.
_CODES: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): 0,
    np.dtype(np.float64): 1,
    np.dtype(np.float16): 2,
    np.dtype(np.uint8): 3,
    np.dtype(np.int32): 4,
    np.dtype(np.int8): 5,
    np.dtype(np.int64): 6,
    np.dtype(np.bool_): 7,
    bfloat16: 12,
}
_FROM_CODE = {code: dtype for dtype, code in _CODES.items()}


def canonical(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype for a name, type or dtype; `None` means float32.

    Raises:
        DTypeError: not one of mixflow's nine element types.
    """
    if dtype is None:
        return np.dtype(np.float32)
    try:
        named = isinstance(dtype, str) and dtype == "bfloat16"
        found: np.dtype[Any] | None = bfloat16 if named else np.dtype(dtype)
    except (TypeError, ValueError):
        found = None
    if found is None or found not in _CODES:
        names = ", ".join(d.name for d in _CODES)
        raise DTypeError(f"[dtype] expected one of {names}, got {dtype!r}")
    return found


def code(dtype: Any) -> int:
    """MXNet's integer code of a dtype."""
    return _CODES[canonical(dtype)]


def from_code(number: int) -> np.dtype[Any]:
    """The dtype of one of MXNet's integer codes.

    Raises:
        DTypeError: unknown code.
    """
    if number not in _FROM_CODE:
        raise DTypeError(f"[dtype] expected a type code of {sorted(_FROM_CODE)}, got {number}")
    return _FROM_CODE[number]


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether gradients can flow through arrays of this dtype."""
    return dtype == bfloat16 or np.issubdtype(dtype, np.floating)
