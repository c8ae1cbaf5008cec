"""Gradients that hold some rows of a table: ``Embedding(..., sparse_grad=True)``.

The hazard: a batch reads a hundred rows of a table of a million, and a dense gradient would cost a
pass over the million. So where the table asks for a row_sparse gradient (``attach_grad(stype=
'row_sparse')``, or a table that is row_sparse itself), the call goes on the tape with a gradient
that adds up the rows it read. Whatever else reads the table adds its dense gradient as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ndarray as nd
from ..errors import ParamError
from ..ndarray import NDArray
from ..ndarray import rows as row_math
from ..ndarray.row_sparse import RECORDED, RowSparseNDArray
from . import tape
from .tape import Entry, Leaf, Output, Saved


def _entry(data: Saved, source: Any, output: Any, shape: tuple[int, ...]) -> Entry:
    """A look-up on the tape: `data` read rows of a table of this shape."""

    def backward(head: NDArray) -> list[Any]:
        made = RowSparseNDArray(shape, head.dtype, head.context)

        def collect(ids: Any, values: Any) -> row_math.Rows:
            held = np.clip(ids.reshape(-1).astype(np.int64), 0, shape[0] - 1)
            return row_math.sum_equal(held, values.reshape(-1, shape[1]))

        return [None, made.fill(collect, data.handle, head, name="Embedding gradient")]

    saved = Saved(output.view(0, output.shape), output.version)
    return Entry(None, "Embedding", [None, source], [data], [saved], python_backward=backward)


def _of_dense_table(
    params: dict[str, Any], sources: Sequence[Any], inputs: Sequence[Saved], outputs: Sequence[Any]
) -> Entry | None:
    """For the recorder: the entry, where the table is a leaf with a row_sparse gradient."""
    leaf = sources[1]
    if not params["sparse_grad"] or not isinstance(leaf, Leaf) or sources[0] is not None:
        return None
    if not isinstance(leaf.grad, RowSparseNDArray):
        return None
    return _entry(inputs[0], leaf, outputs[0], tuple(inputs[1].handle.shape))


def _of_sparse_table(inputs: Sequence[Any], output: Any) -> None:
    """Puts a look-up in a row_sparse table on the tape."""
    data, table = inputs
    if table.autograd is not None:
        saved = Saved(data.view(0, data.shape), data.version)
        output.autograd = Output(_entry(saved, table.autograd, output, table.shape), 0)


def _of_cast(inputs: Sequence[Any], output: Any) -> None:
    """A dense copy of a row_sparse array: its gradient is that of the array."""
    saved = Saved(output.view(0, output.shape), output.version)
    entry = Entry(
        *(None, "cast_storage", [inputs[0].autograd], [], [saved]),
        python_backward=lambda head: [head],
        recordable=True,
    )
    output.autograd = Output(entry, 0)


def zero_gradient(variable: Any, stype: str | None) -> Any:
    """An array of zeros for the gradient of a variable.

    Raises:
        ParamError: a storage other than 'default' and 'row_sparse'.
    """
    wanted = variable.stype if stype is None else stype
    if wanted not in ("default", "row_sparse"):
        raise ParamError(f"[attach_grad] expected stype 'default' or 'row_sparse', got {wanted!r}")
    return nd.zeros(variable.shape, ctx=variable.context, dtype=variable.dtype, stype=wanted)


def store(leaf: Leaf, gradient: Any) -> None:
    """Writes or adds a gradient of either storage to a leaf's, which keeps its own."""
    if leaf.grad_req == "add":
        gradient = leaf.grad + gradient
    gradient.copyto(leaf.grad)


tape.RECORDERS["Embedding"] = _of_dense_table
RECORDED.update(Embedding=_of_sparse_table, cast_storage=_of_cast)
