"""Gradient compression: 2 bits or 1 bit per value, with the remainder kept at the sender.

What a code can't carry stays in a residual and is added to the next gradient, so that nothing is
lost, only late. The codes are those of MXNet 1.9.1 ('2bit') and 2.0 ('1bit'): the first value lies
in the highest bits of a byte. Source of 1 bit: Seide et al., "1-Bit Stochastic Gradient Descent
and its Application to Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import FormatError, ParamError, UnknownNameError, describe_unknown
from . import row_gradients
from .messages import Array, Gradient

#: Values per byte of each code.
PER_BYTE = {"2bit": 4, "1bit": 8}
#: Whole groups of this many values go into one float32 of MXNet's code: slices are cut there.
ALIGNMENT = {"2bit": 16, "1bit": 32}


@dataclass(frozen=True)
class Compression:
    """A code and its threshold.

    Raises:
        UnknownNameError: unknown code.
        ParamError: a threshold that is not positive ('2bit'), or not finite.
    """

    kind: str = "2bit"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in PER_BYTE:
            known = list(PER_BYTE)
            raise UnknownNameError(describe_unknown("gradient compression", self.kind, known))
        if not np.isfinite(self.threshold) or (self.kind == "2bit" and self.threshold <= 0):
            raise ParamError(
                f"[gradient compression] expected a threshold above 0, got {self.threshold}"
            )

    @staticmethod
    def from_params(params: Mapping[str, Any]) -> Compression:
        """The setting of ``set_gradient_compression({'type': '2bit', 'threshold': 0.5})``.

        Raises:
            ParamError: 'type' is missing, or another key is unknown.
        """
        unknown = set(params) - {"type", "threshold"}
        if "type" not in params or unknown:
            raise ParamError(
                "[gradient compression] expected 'type' and maybe 'threshold', got "
                f"{sorted(params)}"
            )
        default = 0.5 if params["type"] == "2bit" else 0.0
        return Compression(str(params["type"]), float(params.get("threshold", default)))

    @property
    def code(self) -> str:
        """Name of the code on the wire, with what decoding needs."""
        return f"{self.kind}:{self.threshold!r}"

    def encode(self, gradient: Array, residual: Array) -> Array:
        """Codes a flat float32 gradient as bytes; `residual` (same shape) is changed in place."""
        residual += gradient
        if self.kind == "1bit":
            up = residual > self.threshold
            residual += np.where(up, np.float32(-1), np.float32(1))
            return np.packbits(up)
        up, down = residual >= self.threshold, residual <= -self.threshold
        step = np.float32(self.threshold)
        residual -= np.where(up, step, np.float32(0))
        residual += np.where(down, step, np.float32(0))
        # 11 is +threshold, 10 is -threshold, 00 is nothing.
        bits = np.stack([up | down, up], axis=1)
        return np.packbits(bits.reshape(-1))


def decode(gradient: Gradient, size: int) -> Any:
    """Values of a gradient of `size` values: decoded, or as they are where there is no code.

    Of code 'rows' it is a `RowGradient`.

    Raises:
        FormatError: unknown code, or bytes that do not fit the size.
    """
    if not gradient.code:
        return gradient.values
    kind, _, threshold = gradient.code.partition(":")
    if kind == row_gradients.CODE:
        return row_gradients.unpack(gradient, size)
    codes = gradient.values
    if kind not in PER_BYTE or codes.dtype != np.uint8:
        raise FormatError(f"[gradient compression] expected a known code, got {gradient.code!r}")
    if codes.size != -(-size // PER_BYTE[kind]):
        raise FormatError(
            f"[gradient compression] expected the code of {size} values, got {codes.size} bytes"
        )
    bits = np.unpackbits(codes)
    if kind == "1bit":
        return np.where(bits[:size], np.float32(1), np.float32(-1))
    pairs = bits.reshape(-1, 2)[:size]
    step = np.float32(float(threshold))
    return np.where(pairs[:, 0], np.where(pairs[:, 1], step, -step), np.float32(0))
