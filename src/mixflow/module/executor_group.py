"""One executor per context, and the batch split between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .. import ndarray as nd
from ..context import Context
from ..errors import ParamError, ShapeError
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


def _same_kind(source: NDArray, target: NDArray) -> bool:
    """Whether a plain copy of the bytes will do."""
    return (
        type(source) is type(target)
        and source.dtype_code == target.dtype_code
        and source.device == target.device
    )


def requests_of(
    arguments: Sequence[str], trained: set[str], grad_req: str | Mapping[str, str] | Sequence[str]
) -> dict[str, str]:
    """What is asked of the gradient of each argument: 'null' for those that are not trained."""
    if isinstance(grad_req, str):
        wanted = dict.fromkeys(arguments, grad_req)
    elif isinstance(grad_req, Mapping):
        wanted = {n: grad_req.get(n, "null") for n in arguments}
    else:
        wanted = dict(zip(arguments, grad_req, strict=True))
    return {n: (wanted[n] if n in trained else "null") for n in arguments}


def described(desc: Any) -> DataDesc:
    """A `DataDesc` of what may be a tuple."""
    return desc if isinstance(desc, DataDesc) else DataDesc(*desc)


def shape_key(data: Sequence[DataDesc], labels: Sequence[DataDesc]) -> Any:
    """What executors for these inputs differ in."""
    return tuple((d.name, tuple(d.shape), np.dtype(d.dtype), d.layout) for d in (*data, *labels))


def group_contexts(group2ctxs: Any, count: int) -> list[Any]:
    """`group2ctx` of each of `count` executors, from any of the forms that MXNet takes.

    Args:
        group2ctxs: None; one mapping of names to contexts, for all executors; a list with one
            mapping for each; or a mapping of names to lists of one or `count` contexts.

    Raises:
        ParamError: another form, or another number.
    """
    if group2ctxs is None:
        return [None] * count
    if isinstance(group2ctxs, (list, tuple)):
        if len(group2ctxs) != count:
            raise ParamError(
                f"[Module] expected {count} group2ctxs, one for each context, got {len(group2ctxs)}"
            )
        return list(group2ctxs)
    if not isinstance(group2ctxs, Mapping):
        raise ParamError(
            f"[Module] expected group2ctxs as a mapping or a list of mappings, got {group2ctxs!r}"
        )
    made: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, contexts in group2ctxs.items():
        listed = list(contexts) if isinstance(contexts, (list, tuple)) else [contexts]
        if len(listed) not in (1, count):
            raise ParamError(
                f"[Module] expected 1 or {count} contexts for the group '{name}', got {len(listed)}"
            )
        for number, own in enumerate(made):
            own[name] = listed[number % len(listed)]
    return made


class ExecutorGroup:
    """The executors of a Module.

    Args:
        symbol: network.
        contexts: where the parts run.
        data_shapes, label_shapes: descriptions of a whole batch.
        grad_req: per argument.
        shared: group whose parameters and arenas are reused.
        memory_limit: most bytes of internal arrays on each context.
        precision: of `simple_bind`.
        group2ctxs: of `simple_bind`, for each context.
        placement: of `simple_bind`, with the contexts among which the one executor is spread.
    """

    def __init__(
        self,
        symbol: Symbol,
        contexts: Sequence[Context],
        data_shapes: Sequence[DataDesc],
        label_shapes: Sequence[DataDesc],
        grad_req: Mapping[str, str],
        shared: ExecutorGroup | None = None,
        memory_limit: int | str | None = None,
        precision: str | None = None,
        group2ctxs: Sequence[Any] | None = None,
        placement: tuple[Any, Sequence[Context]] = (None, ()),
    ) -> None:
        self.symbol = symbol
        self.contexts = list(contexts)
        self.data_shapes = list(data_shapes)
        self.label_shapes = list(label_shapes)
        self.grad_req = dict(grad_req)
        self.memory_limit = memory_limit
        self.precision = precision
        self.group2ctxs = group2ctxs or [None] * len(self.contexts)
        self.placement = placement
        self.batch_size = data_shapes[0].shape[DataDesc.get_batch_axis(data_shapes[0].layout)]
        self.slices = split_batch(self.batch_size, len(self.contexts))
        self.executors = [self._bind(i, shared) for i in range(len(self.contexts))]
        self._inputs = [e._args for e in self.executors]
        self._positions = {n: i for i, n in enumerate(self._inputs[0])}

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
        request, spread = self.placement
        return self.symbol.simple_bind(
            self.contexts[number] if request is None else spread,
            grad_req=self.grad_req,
            type_dict=types,
            shared_exec=shared.executors[number] if shared else None,
            memory_limit=self.memory_limit,
            precision=self.precision,
            group2ctx=self.group2ctxs[number],
            placement=request,
            **shapes,
        )

    def _feeds(self, batch: DataBatch) -> list[list[tuple[int, NDArray]]]:
        """Per executor: its part of a batch by position of the input that it goes to.

        Labels only if some are bound. What has another dtype or context is copied at once.
        """
        feeds: list[list[tuple[int, NDArray]]] = [[] for _ in self.executors]
        self._add(feeds, self.data_shapes, batch.data)
        if batch.label and self.label_shapes:
            self._add(feeds, self.label_shapes, batch.label)
        return feeds

    def _add(
        self,
        feeds: list[list[tuple[int, NDArray]]],
        descriptions: Sequence[DataDesc],
        arrays: Sequence[NDArray],
    ) -> None:
        if len(descriptions) != len(arrays):
            names = [d.name for d in descriptions]
            raise ShapeError(f"[Module] expected arrays for {names}, got {len(arrays)}")
        for d, array in zip(descriptions, arrays, strict=True):
            if array.shape != d.shape:
                raise ShapeError(
                    f"[Module] expected shape {d.shape} for '{d.name}', got {array.shape}"
                )
            position = self._positions.get(d.name)
            if position is None:
                continue
            for number, own in enumerate(feeds):
                part = self.slices[number]
                source = array if len(feeds) == 1 else array[part.start : part.stop]
                target = self._inputs[number][d.name]
                if _same_kind(source, target):
                    own.append((position, source))
                else:
                    source.copyto(target)

    def forward(self, batch: DataBatch, is_train: bool) -> None:
        """Forward of a batch on every context."""
        for executor, feeds in zip(self.executors, self._feeds(batch), strict=True):
            executor._forward(is_train, feeds)

    def forward_backward(self, batch: DataBatch) -> None:
        """Forward in training mode and backward: one task per context."""
        for executor, feeds in zip(self.executors, self._feeds(batch), strict=True):
            executor._forward_backward(feeds)

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
        return [
            (e._args if kind == "arg" else getattr(e, f"{kind}_dict"))[name] for e in self.executors
        ]
