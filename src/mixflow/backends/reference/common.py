"""What the reference kernels share: their signature, their table, and compute dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ... import dtype as dtypes

Array = np.ndarray[Any, Any]
#: (inputs, parameters, (seed, draw)) -> the outputs, then the next version of each mutated input.
#: Results may have a wider dtype than declared; they are rounded on store.
Kernel = Callable[[Sequence[Array], Mapping[str, Any], tuple[int, int]], Sequence[Array]]

#: Every primitive's NumPy meaning, by name.
KERNELS: dict[str, Kernel] = {}

_NARROW = (np.dtype(np.float16), dtypes.bfloat16)


def kernel(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function (inputs..., parameters) with one result into the table."""

    def enter(fn: Callable[..., Any]) -> Callable[..., Any]:
        KERNELS[name] = lambda ins, params, key: [fn(*ins, params)]
        return fn

    return enter


def kernels(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same for a function with a tuple of results."""

    def enter(fn: Callable[..., Any]) -> Callable[..., Any]:
        KERNELS[name] = lambda ins, params, key: list(fn(*ins, params))
        return fn

    return enter


def widened(x: Array) -> Array:
    """float16 and bfloat16 as float32; anything else as it is."""
    return x.astype(np.float32) if x.dtype in _NARROW else x


def factors(a: Array, b: Array) -> tuple[Array, Array]:
    """Two factors as products read them: float32 beside a narrow float is rounded to that first."""
    narrow = next((x.dtype for x in (a, b) if x.dtype in _NARROW), None)
    if narrow is None:
        return a, b
    return a.astype(narrow).astype(np.float32), b.astype(narrow).astype(np.float32)


def computed(x: Array) -> Array:
    """As fused programs compute: narrow floats in float32, integers and bool in int64."""
    if x.dtype in _NARROW:
        return x.astype(np.float32)
    return x.astype(np.int64) if x.dtype.kind in "iub" else x


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that `computed` gives."""
    found: np.dtype[Any] = computed(np.empty(0, dtype)).dtype
    return found


def stored(value: Any, dtype: np.dtype[Any]) -> Array:
    """A result rounded to its declared dtype; floats truncate to integers."""
    return np.asarray(value).astype(dtype, copy=False)
