"""One executor per context, and the batch split between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .. import ndarray as nd
from ..context import Context
from ..errors import ShapeError
from ..io import DataBatch, DataDesc
from ..ndarray import NDArray
from ..symbol import Symbol


def split_batch(size: int, parts: int) -> list[slice]:
    """Slices of a batch, as even as possible.

    Raises:
        ShapeError: fewer samples than parts.
    """
    if size < parts:
        raise ShapeError(
            f"[Module] expected at least {parts} samples for {parts} contexts, got {size}"
        )
    bounds = [size * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(bounds)]


class ExecutorGroup:
    """The executors of a Module.

    Args:
        symbol: network.
        contexts: where the parts run.
        data_shapes, label_shapes: descriptions of a whole batch.
        grad_req: per argument.
        shared: group whose parameters and arenas are reused.
        precision: of `simple_bind`.
    """

    def __init__(
        self,
        symbol: Symbol,
        contexts: Sequence[Context],
        data_shapes: Sequence[DataDesc],
        label_shapes: Sequence[DataDesc],
        grad_req: Mapping[str, str],
        shared: ExecutorGroup | None = None,
        precision: str | None = None,
    ) -> None:
        self.symbol = symbol
        self.contexts = list(contexts)
        self.data_shapes = list(data_shapes)
        self.label_shapes = list(label_shapes)
        self.grad_req = dict(grad_req)
        self.precision = precision
        self.batch_size = data_shapes[0].shape[DataDesc.get_batch_axis(data_shapes[0].layout)]
        self.slices = split_batch(self.batch_size, len(self.contexts))
        self.executors = [self._bind(i, shared) for i in range(len(self.contexts))]

    def _bind(self, number: int, shared: ExecutorGroup | None) -> Any:
        part = self.slices[number]
        shapes: dict[str, tuple[int, ...]] = {}
        types = {}
        for d in (*self.data_shapes, *self.label_shapes):
            axis = DataDesc.get_batch_axis(d.layout)
            shape = list(d.shape)
            shape[max(axis, 0)] = part.stop - part.start
            shapes[d.name] = tuple(shape)
            types[d.name] = d.dtype
        known = set(self.symbol.list_arguments())
        shapes = {k: v for k, v in shapes.items() if k in known}
        types = {k: v for k, v in types.items() if k in known}
        return self.symbol.simple_bind(
            self.contexts[number],
            grad_req=self.grad_req,
            type_dict=types,
            shared_exec=shared.executors[number] if shared else None,
            precision=self.precision,
            **shapes,
        )

    def load_batch(self, batch: DataBatch) -> None:
        """Copies a batch into the executors' inputs; labels only if some are bound."""
        self._load(self.data_shapes, batch.data)
        if batch.label and self.label_shapes:
            self._load(self.label_shapes, batch.label)

    def _load(self, descriptions: Sequence[DataDesc], arrays: Sequence[NDArray]) -> None:
        if len(descriptions) != len(arrays):
            names = [d.name for d in descriptions]
            raise ShapeError(f"[Module] expected arrays for {names}, got {len(arrays)}")
        for d, array in zip(descriptions, arrays, strict=True):
            if tuple(array.shape) != d.shape:
                raise ShapeError(
                    f"[Module] expected shape {d.shape} for '{d.name}', got {array.shape}"
                )
            for part, executor in zip(self.slices, self.executors, strict=True):
                target = executor.arg_dict.get(d.name)
                if target is not None:
                    whole = len(self.slices) == 1
                    (array if whole else array[part.start : part.stop]).copyto(target)

    def forward(self, is_train: bool) -> None:
        """Forward on every context."""
        for executor in self.executors:
            executor.forward(is_train=is_train)

    def backward(self, out_grads: Sequence[NDArray] | None = None) -> None:
        """Backward on every context; head gradients are split like the batch."""
        for part, executor in zip(self.slices, self.executors, strict=True):
            if out_grads is None:
                executor.backward()
            else:
                heads = [g[part.start : part.stop].as_in_context(executor.ctx) for g in out_grads]
                executor.backward(heads)

    def _merged(self, lists: Sequence[Sequence[NDArray]], merge: bool) -> list[Any]:
        if not merge:
            return [list(column) for column in zip(*lists, strict=True)]
        if len(lists) == 1:
            return list(lists[0])
        home = self.contexts[0]
        return [
            nd.concat(*[a.as_in_context(home) for a in column], dim=0)
            for column in zip(*lists, strict=True)
        ]

    def outputs(self, merge: bool = True) -> list[Any]:
        """Outputs, joined along the batch axis or as one list per output."""
        return self._merged([e.outputs for e in self.executors], merge)

    def input_grads(self, merge: bool = True) -> list[Any]:
        """Gradients of the data inputs."""
        names = [d.name for d in self.data_shapes]
        return self._merged([[e.grad_dict[n] for n in names] for e in self.executors], merge)

    def arrays(self, kind: str, name: str) -> list[NDArray]:
        """The array of a name ('arg', 'grad' or 'aux') on each context."""
        return [getattr(e, f"{kind}_dict")[name] for e in self.executors]
