"""The tape: recorded operator calls, and the graphs that differentiate them.

Hazard: a saved array may be overwritten between the call and ``backward()``. Every entry therefore
keeps the version of what it saved, and a plan that would read a newer one is refused with the lines
of both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .. import _rt, ir
from .. import dtype as dtypes
from ..errors import MixflowError
from ..passes.gradient import flows
from ..passes.lower import DRAW, lower

_PACKAGE = __name__.partition(".")[0]


class Leaf:
    """What `attach_grad` puts on an array: where its gradient goes."""

    __slots__ = ("grad", "grad_req")

    def __init__(self, grad: Any, grad_req: str) -> None:
        self.grad = grad
        self.grad_req = grad_req


@dataclass(frozen=True)
class Output:
    """What recording puts on a result: output `index` of `entry`."""

    entry: Entry
    index: int


Source = Leaf | Output | None


@dataclass
class Saved:
    """An array as an entry saw it: a handle without tape, and the version it had."""

    handle: Any
    version: int

    def check(self, entry: Entry) -> None:
        """Raises when the storage was written since.

        Raises:
            MixflowError: names the line of the call.
        """
        if self.handle.version != self.version:
            writer = getattr(self.handle, "last_write", "")
            raise MixflowError(
                f"[backward] expected the saved array {tuple(self.handle.shape)} of {entry.name} "
                f"({entry.site}) unchanged, got one overwritten since"
                f"{f' at {writer}' if writer else ''}; copy it before writing in place"
            )


class Call:
    """What calls of one signature share: the lowered graph and its gradients (cached).

    Args:
        key: hashable; equal calls have equal keys.
        graph: typed graph of primitives and of compositions with a rule of their own; its inputs
            are the tensor inputs in order, then the runtime scalars.
        tensors: number of tensor inputs.
    """

    def __init__(self, key: Any, name: str, graph: ir.Graph, tensors: int) -> None:
        self.key = key
        self.name = name
        self.graph = graph
        self.tensors = tensors
        self._backward: dict[Any, ir.Graph] = {}

    @cached_property
    def differentiable_inputs(self) -> tuple[int, ...]:
        """Positions of the float inputs."""
        values = self.graph.inputs[: self.tensors]
        return tuple(i for i, v in enumerate(values) if dtypes.is_float(v.dtype))

    def backward(self, active: tuple[int, ...], wanted: tuple[int, ...]) -> ir.Graph:
        """The graph of the gradients.

        Args:
            active: outputs that have a gradient.
            wanted: tensor inputs whose gradient is asked for.

        Returns:
            Inputs: those of the call, its outputs, the gradients of the active outputs. Outputs:
            one per wanted input; ``meta['flows']`` tells which of them anything flows to.
        """
        key = (active, wanted)
        if key not in self._backward:
            self._backward[key] = self._differentiate(active, wanted)
        return self._backward[key]

    def _differentiate(self, active: tuple[int, ...], wanted: tuple[int, ...]) -> ir.Graph:
        outputs = self.graph.outputs
        grads = [ir.variable(f"grad{k}", outputs[k].type) for k in active]
        inputs = [self.graph.inputs[i] for i in wanted]
        found = flows([outputs[k] for k in active], list(grads), inputs)
        saved = [ir.variable(f"saved{k}", v.type) for k, v in enumerate(outputs)]
        # Recorded outputs are read, not computed again; an output that is an input stays one.
        cut = {v: s for v, s in zip(outputs, saved, strict=True) if v.node.op is not None}
        present = [g for g in found if g is not None]
        heads = substitute(present, cut)
        graph = ir.Graph((*self.graph.inputs, *saved, *grads), tuple(heads))
        graph = lower(graph)
        graph.meta["flows"] = tuple(g is not None for g in found)
        return graph


class Entry:
    """One recorded call.

    Attributes:
        sources: where each tensor input came from (None: not on the tape).
        inputs, outputs: saved arrays.
        scalars: runtime numbers; draw: first draw number it took; draws: number by label, where a
            recorded backward has several.
        python_backward: instead of a call: gradients of outputs -> gradients of inputs.
        recordable: whether `python_backward` is made of recorded calls (else it has no second
            gradient).
        site: line of the user's program.
    """

    def __init__(
        self,
        call: Call | None,
        name: str,
        sources: Sequence[Source],
        inputs: Sequence[Saved],
        outputs: Sequence[Saved],
        scalars: Sequence[float] = (),
        draw: int = 0,
        python_backward: Callable[..., Any] | None = None,
        recordable: bool = False,
    ) -> None:
        self.call = call
        self.name = name
        self.sources = list(sources)
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.scalars = tuple(scalars)
        self.draw = draw
        self.draws: dict[str, int] = {}
        self.python_backward = python_backward
        self.recordable = recordable
        self.site = user_line()
        self.released = False

    @property
    def device(self) -> tuple[int, int]:
        """Where the call ran."""
        return tuple(self.outputs[0].handle.device)

    def draw_number(self, label: str) -> int:
        """The number that a random node of the call drew."""
        found = self.draws.get(label)
        return self.draw + int(label.rpartition("#")[2]) if found is None else found

    def release(self) -> None:
        """Lets go of everything saved; a second backward through it is an error."""
        self.sources, self.inputs, self.outputs = [], [], []
        self.python_backward = None
        self.released = True


def user_line() -> str:
    """'file.py:12' of the innermost frame outside the package."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "unknown line"
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


def substitute(heads: Sequence[ir.Value], mapping: dict[ir.Value, ir.Value]) -> list[ir.Value]:
    """The heads with every value of `mapping` replaced, in parameters too."""
    done = dict(mapping)

    def replaced(value: ir.Value) -> ir.Value:
        return done.get(value, value)

    for node in ir.topological(heads):
        inputs = tuple(replaced(v) for v in node.inputs)
        params = {k: replaced(v) if isinstance(v, ir.Value) else v for k, v in node.params.items()}
        if inputs == node.inputs and params == dict(node.params):
            continue
        made = ir.Node(
            node.op,
            node.name,
            inputs,
            params,
            dict(node.attrs),
            node.types,
            node.subgraphs,
            node.origin,
            node.kind,
        )
        for old, new in zip(node.values, made.values, strict=True):
            done.setdefault(old, new)
    return [replaced(v) for v in heads]


_calls: dict[Any, Call] = {}
_LIMIT = 4096


def call_of(op_id: int, params: tuple[Any, ...], descs: tuple[Any, ...], train: bool) -> Call:
    """The shared part of a recorded operator call."""
    key = (op_id, params, descs, train)
    if key not in _calls:
        op = ir.by_id(op_id)
        named = {p.name: v for p, v in zip(op.params, params, strict=True)}
        inputs = [
            ir.variable(f"in{i}", ir.TensorType(shape, dtypes.from_code(code)))
            for i, (shape, code) in enumerate(descs)
        ]
        scalars = [
            ir.variable(p.name, ir.TensorType((), np.dtype(np.float64)), "scalar")
            for p in op.params
            if p.runtime
        ]
        node = ir.Node(op, op.name, inputs, {**named, **{s.node.name: s for s in scalars}})
        count = len(node.types) - len(node.mutated)
        graph = ir.Graph((*inputs, *scalars), node.values[:count])
        lowered = lower(graph, _types(graph), train=train, keep_vjp=True)
        if len(_calls) >= _LIMIT:
            _calls.clear()
        _calls[key] = Call(key, op.name, lowered, len(inputs))
    return _calls[key]


def _types(graph: ir.Graph) -> Any:
    from ..passes.infer import infer

    return infer(graph)


#: Operators whose calls may have an entry of another kind: ``(parameters, sources, saved inputs,
#: outputs)`` -> the entry, or None for the usual one.
RECORDERS: dict[str, Callable[..., Entry | None]] = {}


def record(
    op_id: int,
    params: tuple[Any, ...],
    scalars: Sequence[float],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    first_draw: int,
    versions: Sequence[int],
) -> None:
    """The core's recorder: puts a call on the tape if any input is on it.

    Raises:
        MixflowError: the call wrote into a leaf.
    """
    sources = [a.autograd for a in inputs]
    op = ir.by_id(op_id)
    stops = op.differentiable == "no" and op.vjp is None and op.primitive
    if stops or not any(s is not None for s in sources):
        for array in outputs:
            forget(array)
        return
    if any(isinstance(a.autograd, Leaf) for a in outputs):
        raise MixflowError(
            f"[{op.name}] expected to write into an array without attach_grad() while recording, "
            "got one with it; in-place operations on it belong outside of record()"
        )
    saved_in = [Saved(_bare(a), v) for a, v in zip(inputs, versions, strict=True)]
    entry = None
    if op.name in RECORDERS:
        named = {p.name: v for p, v in zip(op.params, params, strict=True)}
        entry = RECORDERS[op.name](named, sources, saved_in, outputs)
    if entry is None:
        descs = tuple((tuple(a.shape), a.dtype_code) for a in inputs)
        call = call_of(op_id, params, descs, _rt.core.is_training())
        saved_out = [Saved(_bare(a), a.version) for a in outputs]
        entry = Entry(call, op.name, sources, saved_in, saved_out, scalars, first_draw)
    for index, array in enumerate(outputs):
        array.autograd = Output(entry, index)


def forget(array: Any) -> None:
    """Takes a written array off the tape: what it holds now did not come from there."""
    if isinstance(array.autograd, Output):
        array.autograd = None


def record_copy(source: Any, target: Any) -> None:
    """Puts a copy between contexts on the tape; its gradient is the copy back."""
    if source.autograd is None:
        return forget(target)
    home = source.context
    entry = Entry(
        None,
        "copyto",
        [source.autograd],
        [],
        [Saved(_bare(target), target.version)],
        python_backward=lambda grad: [grad.as_in_context(home)],
        recordable=True,
    )
    target.autograd = Output(entry, 0)


def _bare(array: Any) -> Any:
    """A handle of the same storage that does not carry the tape (no reference cycles)."""
    return array.view(0, array.shape)


def relabelled(graph: ir.Graph, prefix: str) -> ir.Graph:
    """The graph with its draws' labels made unique by `prefix`."""
    nodes = {n for n in graph.nodes() if DRAW in n.attrs}
    if not nodes:
        return graph
    mapping: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        made = ir.Node(
            node.op,
            node.name,
            node.inputs,
            dict(node.params),
            {**node.attrs, DRAW: f"{prefix}|{node.attrs[DRAW]}"},
            node.types,
            (),
            node.origin,
        )
        mapping.update(zip(node.values, made.values, strict=True))
    return ir.Graph(graph.inputs, tuple(substitute(graph.outputs, mapping)), meta=graph.meta)
