"""`autograd.Function`: an operation with a gradient written in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ndarray import NDArray
from .scopes import is_recording, pause
from .tape import Entry, Output, Saved


class Function:
    """Base of user-defined differentiable functions.

    A subclass gives ``forward(*inputs)`` and ``backward(*output_grads)``; both work on arrays and
    are not recorded. Use each instance once.
    """

    def __init__(self) -> None:
        self._saved: tuple[NDArray, ...] = ()

    def save_for_backward(self, *args: NDArray) -> None:
        """Keeps arrays for `backward` as ``self.saved_tensors``."""
        self._saved = args

    @property
    def saved_tensors(self) -> tuple[NDArray, ...]:
        """What `save_for_backward` kept."""
        return self._saved

    def forward(self, *inputs: NDArray) -> Any:
        """Outputs from inputs."""
        raise NotImplementedError

    def backward(self, *output_grads: NDArray) -> Any:
        """Gradients of the inputs from those of the outputs."""
        raise NotImplementedError

    def __call__(self, *inputs: NDArray) -> Any:
        """Runs `forward` and records the call."""
        with pause():
            made = self.forward(*inputs)
        if is_recording() and any(a.autograd is not None for a in inputs):
            self._record(inputs, made if isinstance(made, (list, tuple)) else [made])
        return made

    def _record(self, inputs: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        def run(*grads: NDArray) -> Any:
            with pause():
                return self.backward(*grads)

        entry = Entry(
            None,
            type(self).__name__,
            [a.autograd for a in inputs],
            [Saved(a.view(0, a.shape), a.version) for a in self._saved],
            [Saved(a.view(0, a.shape), a.version) for a in outputs],
            python_backward=run,
        )
        for index, array in enumerate(outputs):
            array.autograd = Output(entry, index)
