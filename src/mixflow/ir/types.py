"""TensorType: what is known about a value before it has bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import ShapeError

#: A shape; None inside is an unknown dimension.
PartialShape = tuple["int | None", ...]


class TensorType(NamedTuple):
    """Shape, dtype and storage type of a value; None = not known yet.

    Fully known once `shape` holds only integers and `dtype` is set. Values whose shape is known
    only at run time (``boolean_mask``) keep a None dimension and `dynamic` true.
    """

    shape: PartialShape | None = None
    dtype: np.dtype[Any] | None = None
    stype: str = "default"
    dynamic: bool = False

    def __eq__(self, other: object) -> bool:
        # NumPy says dtype('float64') == None: an unknown dtype must not equal float64.
        return (
            isinstance(other, TensorType)
            and self.shape == other.shape
            and (self.dtype is None) == (other.dtype is None)
            and self.dtype == other.dtype
            and self.stype == other.stype
            and self.dynamic == other.dynamic
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.stype, self.dynamic))

    @property
    def known(self) -> bool:
        """Whether shape and dtype are complete."""
        return self.dtype is not None and self.shape is not None and None not in self.shape

    @property
    def size(self) -> int:
        """Number of elements; needs a known shape."""
        total = 1
        for dim in self.shape or ():
            total *= dim or 0
        return total

    @property
    def nbytes(self) -> int:
        """Bytes of the dense value; needs a known type."""
        assert self.dtype is not None
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        shape = (
            "?"
            if self.shape is None
            else "x".join("?" if d is None else str(d) for d in self.shape)
        )
        return f"{self.dtype.name if self.dtype is not None else '?'}[{shape}]"


#: Bytes of the largest tensor whose offsets and sums of offsets still fit into 64 bits.
_MAX_BYTES = 2**60


def check_size(name: str, found: TensorType) -> None:
    """Raises ShapeError for a tensor so large that its offsets would wrap around."""
    if found.known and found.nbytes > _MAX_BYTES:
        raise ShapeError(f"[{name}] expected a tensor of at most 2^60 bytes, got {found}")


class Desc(NamedTuple):
    """What a kernel may depend on about one tensor (mirror of csrc/base/desc.h).

    Attributes:
        dtype: MXNet's type code.
        shape: dimensions.
        layout: id of the order of elements in memory; 0 is plain row-major.
        device: (type code, index).
    """

    dtype: int
    shape: tuple[int, ...]
    layout: int = 0
    device: tuple[int, int] = (1, 0)
