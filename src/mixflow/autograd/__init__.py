"""Automatic differentiation of imperative code (``mx.autograd``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _rt
from ..errors import MixflowError, ParamError
from ..ndarray import NDArray, install_methods
from ..ndarray.row_sparse import RowSparseNDArray
from . import rows
from .backward import Backward
from .function import Function
from .scopes import (
    is_recording,
    is_training,
    pause,
    predict_mode,
    record,
    set_recording,
    set_training,
    train_mode,
)
from .tape import Leaf, record_copy
from .tape import record as _recorder

__all__ = [
    "Function",
    "backward",
    "grad",
    "is_recording",
    "is_training",
    "mark_variables",
    "pause",
    "predict_mode",
    "record",
    "set_recording",
    "set_training",
    "train_mode",
]


def mark_variables(
    variables: NDArray | Sequence[NDArray],
    gradients: NDArray | Sequence[NDArray],
    grad_reqs: str | Sequence[str] = "write",
) -> None:
    """Makes arrays leaves of the tape.

    Args:
        variables, gradients: arrays, and arrays of their shapes for the gradients.
        grad_reqs: 'write', 'add' or 'null', for all or for each.

    Raises:
        ParamError: an unknown request.
    """
    variables, gradients = _listed(variables), _listed(gradients)
    requests = [grad_reqs] * len(variables) if isinstance(grad_reqs, str) else list(grad_reqs)
    for variable, gradient, request in zip(variables, gradients, requests, strict=True):
        if request not in ("write", "add", "null"):
            raise ParamError(f"[attach_grad] expected write, add or null, got {request!r}")
        variable.autograd = Leaf(gradient, request)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _head_list(heads: Any, head_grads: Any) -> tuple[list[NDArray], list[NDArray | None]]:
    heads = _listed(heads)
    grads = [None] * len(heads) if head_grads is None else _listed(head_grads)
    if len(grads) != len(heads):
        raise ParamError(
            f"[backward] expected one head gradient per head, got {len(heads)} and {len(grads)}"
        )
    return heads, grads


def backward(
    heads: NDArray | Sequence[NDArray],
    head_grads: Any = None,
    retain_graph: bool = False,
    train_mode: bool = True,
) -> None:
    """Computes the gradients of `heads` into the arrays that `attach_grad` made.

    Args:
        heads: arrays computed under `record`.
        head_grads: gradients of their shapes; None = ones.
        retain_graph: keep the tape for another backward.
        train_mode: kept for MXNet programs; each call keeps the mode it was recorded in.

    Raises:
        MixflowError: not recorded, released, or a saved array was overwritten.
    """
    heads, grads = _head_list(heads, head_grads)
    with pause():
        work = Backward(heads, grads, None)
        found = work.run()
        for number, leaf in enumerate(work.leaves):
            gradient = found.get(("leaf", number))
            if gradient is not None:
                _store(leaf, gradient)
    if not retain_graph:
        for entry in work.entries:
            entry.release()


def _store(leaf: Leaf, gradient: Any) -> None:
    if "row_sparse" in (gradient.stype, leaf.grad.stype):
        rows.store(leaf, gradient)
    elif leaf.grad_req == "add":
        leaf.grad += gradient
    elif leaf.grad_req == "write" and gradient is not leaf.grad:
        gradient.copyto(leaf.grad)


def grad(
    heads: NDArray | Sequence[NDArray],
    variables: NDArray | Sequence[NDArray],
    head_grads: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    train_mode: bool = True,
) -> Any:
    """Gradients of `heads` with respect to `variables`, as new arrays.

    Args:
        heads, head_grads, train_mode: as in `backward`.
        variables: leaves, or results on the tape.
        retain_graph: keep the tape; None = as `create_graph`.
        create_graph: record the computation, so that the result can be differentiated.

    Returns:
        One array, or a list as `variables` is.

    Raises:
        MixflowError: a variable that the heads do not depend on.
    """
    heads, grads = _head_list(heads, head_grads)
    asked = _listed(variables)
    wanted = [v.autograd for v in asked]
    if any(w is None for w in wanted):
        raise MixflowError(
            "[grad] expected variables with attach_grad() or on the tape, got another"
        )
    with record() if create_graph else pause():
        work = Backward(heads, grads, wanted, create_graph)
        found = work.run()
    results = []
    for variable in asked:
        key = work.key_of(variable.autograd)
        if key is None or key not in found:
            raise MixflowError(
                f"[grad] expected heads that depend on every variable, got one of shape "
                f"{variable.shape} that they do not depend on"
            )
        results.append(found[key])
    if not (create_graph if retain_graph is None else retain_graph):
        for entry in work.entries:
            entry.release()
    return results if isinstance(variables, (list, tuple)) else results[0]


def _attach_grad(self: NDArray, grad_req: str = "write", stype: str | None = None) -> None:
    """Makes an array of zeros for the gradient of this one, and starts a new tape at it.

    Args:
        grad_req: 'write' (replace at each backward), 'add' or 'null'.
        stype: of the gradient, 'default' or 'row_sparse'; None = as the array. `Embedding` with
            `sparse_grad` computes row_sparse ones from the rows alone; others are converted.

    Raises:
        ParamError: an unknown request or storage.
    """
    mark_variables(self, rows.zero_gradient(self, stype), grad_req)


def _backward(
    self: NDArray, out_grad: Any = None, retain_graph: bool = False, train_mode: bool = True
) -> None:
    """Computes gradients from here; see `autograd.backward`."""
    backward(self, out_grad, retain_graph, train_mode)


def _detach(self: NDArray) -> NDArray:
    """A handle of the same storage that autograd does not follow."""
    made: NDArray = self.view(0, self.shape)
    return made


def _grad(self: NDArray) -> NDArray | None:
    """The gradient array, or None."""
    source = self.autograd
    return source.grad if isinstance(source, Leaf) else None


RowSparseNDArray.attach_grad = _attach_grad  # type: ignore[attr-defined]
RowSparseNDArray.grad = property(_grad)  # type: ignore[attr-defined]
_rt.core.set_recorder(_recorder)
install_methods(
    attach_grad=_attach_grad,
    backward=_backward,
    detach=_detach,
    grad=_grad,
    record_copy=record_copy,
)
