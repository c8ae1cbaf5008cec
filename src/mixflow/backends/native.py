"""The native backend: kernels of the compiled core, and NumPy for what they do not serve."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from .. import _rt, config
from .. import dtype as dtypes
from ..ir import Desc, Operator
from . import onednn_loader

_log = logging.getLogger(__name__)
#: Multiplications below which a convolution stays plain: reorders would cost more.
SMALL_CONVOLUTION = 2_000_000
#: Multiplications below which a product stays in float32: casts would cost more.
SMALL_PRODUCT = 2_000_000
#: Products in which an element of a factor stands less often stay in float32: converting the factor
#: would cost as much as the narrow product saves (prediction for a few samples).
FEW_USES = 32
#: Elements below which a tensor stays in float32 in mixed precision.
SMALL_TENSOR = 1 << 15


def load() -> str | None:
    """Adds the optional kernel libraries to the core, and the folder for choices made by timing.

    Returns oneDNN's version, or None.
    """
    core: Any = _rt.core
    core.set_tuning_folder(os.path.join(_cache_folder(), "mixflow"))
    return onednn_loader.load(core)


def _cache_folder() -> str:
    return os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")


def attributes(params: dict[str, Any]) -> dict[str, Any]:
    """A primitive's parameters as the core takes them.

    A dtype becomes its integer code, a tuple a list; None stands for absent and is dropped.
    """
    return {name: _attribute(value) for name, value in params.items() if value is not None}


def _attribute(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return dtypes.code(value)
    if isinstance(value, tuple):
        return list(value)
    return value


def _signature(
    op: Operator,
    params: dict[str, Any],
    inputs: Sequence[Desc],
    outputs: Sequence[Desc],
    threads: int,
) -> Hashable:
    return (op.name, tuple(sorted(params.items())), tuple(inputs), tuple(outputs), threads)


def _forward_roles(
    name: str, inputs: Sequence[Desc], outputs: Sequence[Desc]
) -> tuple[Desc, Desc, Desc]:
    """Input, weight and output of the forward convolution, whose gradient `name` may be."""
    if name == "conv":
        return inputs[0], inputs[1], outputs[0]
    if name == "conv_data_grad":
        return outputs[0], inputs[1], inputs[0]
    return inputs[1], outputs[0], inputs[0]


def _multiplications(weight: Desc, result: Desc) -> int:
    return math.prod(result.shape) * math.prod(weight.shape[1:])


def _matmul_pays(
    params: dict[str, Any], inputs: Sequence[Desc], outputs: Sequence[Desc], small: int
) -> bool:
    inner = inputs[0].shape[-2 if params["transpose_a"] else -1]
    often = min(outputs[0].shape[-2:]) >= FEW_USES
    return often and math.prod(outputs[0].shape) * inner >= small


class NativeBackend:
    """Prepared native kernels, cached by signature; a `Backend`.

    Attributes:
        reference: the backend that serves what the core does not.
        fallbacks: how many signatures of each primitive the reference serves.
        narrow_dtypes: floats of 16 bits that the processor multiplies by itself.
    """

    name = "native"

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.fallbacks: Counter[str] = Counter()
        self._cache: dict[Hashable, Any] = {}
        self.block_size = onednn_loader.block_size(_rt.core)
        self.small_convolution = SMALL_CONVOLUTION
        self.small_product = SMALL_PRODUCT
        self.small_tensor = SMALL_TENSOR
        self.narrow_dtypes = (
            frozenset({dtypes.bfloat16}) if onednn_loader.has_bfloat16(_rt.core) else frozenset()
        )

    def prepare(
        self,
        op: Operator,
        params: dict[str, Any],
        inputs: Sequence[Desc],
        outputs: Sequence[Desc],
        threads: int = 0,
    ) -> Any:
        """A native `Kernel`, or the reference backend's host call where there is none.

        Raises:
            UnknownNameError: neither backend implements the primitive.
        """
        if op.host is not None:
            return op.host(params, inputs, outputs)
        threads = threads or _rt.core.threads()
        key = (
            _signature(op, params, inputs, outputs, threads),
            config.current().deterministic,
        )
        kernel = self._cache.get(key)
        if kernel is None:
            kernel = _rt.core.prepare(op.name, attributes(params), inputs, outputs, threads)
            if kernel is None:
                kernel = self._fall_back(op, params, inputs, outputs, threads)
            self._cache[key] = kernel
        return kernel

    def layouts(
        self, op: Operator, params: dict[str, Any], inputs: Sequence[Desc], outputs: Sequence[Desc]
    ) -> tuple[int, int] | None:
        """Blocks of a convolution's input and output; see `Backend.layouts`."""
        data, weight, result = _forward_roles(op.name, inputs, outputs)
        if not self.block_size or _multiplications(weight, result) < self.small_convolution:
            return None
        groups = params["groups"]
        channels, filters = data.shape[1], weight.shape[0]
        sizes = (self._block(channels, groups), self._block(filters, groups))
        if sizes == (0, 0) or (0 in sizes and (groups > 1 or op.name == "conv_data_grad")):
            return None
        if not sizes[0] and channels > 4:
            return None  # few input channels are read plainly; others would be padded to blocks
        return sizes

    def narrow_products(
        self,
        op: Operator,
        params: dict[str, Any],
        inputs: Sequence[Desc],
        outputs: Sequence[Desc],
        dtype: np.dtype[Any],
    ) -> bool:
        """Whether a product of float32 tensors is faster in a narrow dtype; see `Backend`."""
        if dtype not in self.narrow_dtypes:
            return False
        if op.name == "matmul":
            return _matmul_pays(params, inputs, outputs, self.small_product)
        _, weight, result = _forward_roles(op.name, inputs, outputs)
        often = math.prod(result.shape) // result.shape[1] >= FEW_USES
        return often and _multiplications(weight, result) >= self.small_product

    def _block(self, channels: int, groups: int) -> int:
        """The largest block that divides the channels of a group (of all, one to a group)."""
        whole = channels if groups in (1, channels) else channels // groups
        return next((b for b in (self.block_size, 8) if whole % b == 0), 0)

    def is_native(self, kernel: Any) -> bool:
        """Whether the kernel runs without Python: host calls are callable, kernels are not."""
        return not callable(kernel)

    def clear(self) -> None:
        """Forgets every prepared kernel (after other kernels were registered)."""
        self._cache.clear()
        self.fallbacks.clear()

    def _fall_back(
        self,
        op: Operator,
        params: dict[str, Any],
        inputs: Sequence[Desc],
        outputs: Sequence[Desc],
        threads: int,
    ) -> Any:
        call = self.reference.prepare(op, params, inputs, outputs, threads)
        if not self.fallbacks[op.name]:
            types = ", ".join(f"{dtypes.from_code(d.dtype)}{d.shape}" for d in inputs)
            _log.info("[%s] no native kernel for (%s); NumPy serves", op.name, types)
        self.fallbacks[op.name] += 1
        return call
