"""What a backend is: it turns (primitive, parameters, descriptors) into a prepared kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..ir import Desc, Operator


class Backend(Protocol):
    """Prepared kernels come from here; passes get the backend as an argument."""

    name: str

    def prepare(
        self,
        op: Operator,
        params: dict[str, Any],
        inputs: Sequence[Desc],
        outputs: Sequence[Desc],
        threads: int = 0,
    ) -> Any:
        """A native `Kernel` or a Python `HostCall` (the reference kernel) for one primitive.

        Kernels are cached by signature. `threads` 0 = the whole core budget.

        Raises:
            UnknownNameError: no backend of this process implements the primitive.
        """

    def is_native(self, kernel: Any) -> bool:
        """Whether the kernel runs without Python."""

    def narrow_products(
        self,
        op: Operator,
        params: dict[str, Any],
        inputs: Sequence[Desc],
        outputs: Sequence[Desc],
        dtype: Any,
    ) -> bool:
        """Whether mixed precision pays for a product of float32 tensors.

        Optional: a backend without this method computes as the graph says. One that has it also
        has `small_tensor`, the elements below which tensors stay in float32, and `narrow_dtypes`.

        Args:
            op: conv, conv_data_grad, conv_weight_grad or matmul.
            dtype: bfloat16 or float16.
        """

    def layouts(
        self, op: Operator, params: dict[str, Any], inputs: Sequence[Desc], outputs: Sequence[Desc]
    ) -> tuple[int, int] | None:
        """Blocks of channels in which a convolution wants its activations.

        Optional: a backend without this method wants plain tensors.

        Args:
            op: conv, conv_data_grad or conv_weight_grad.

        Returns:
            Channels of a block of the convolution's input and of its output (or their gradients),
            0 = plain; None where all plain serves best.
        """
