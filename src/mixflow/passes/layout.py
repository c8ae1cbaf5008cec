"""Blocked tensors carried through the net, from convolution to convolution.

Hazard: a reorder reads and writes a whole activation, so a pass that makes many costs more than
the convolutions gain. A layout here is a shape: (N, C, *S) becomes (N, C / b, *S, b) in plain
order, so that elementwise, reducing, joining and slicing primitives work on it as they are, and
only convolution, pooling and the norms have blocked forms (`ops/primitives/blocked.py`).

The pass goes through the graph once. A convolution asks the backend for its blocks; what follows
takes over the blocks of its inputs as long as its rule can; each value is reordered at most once
each way, and only where somebody needs the other form. Vectors, weights and gradients of weights
stay plain. Blocks are whole: a tensor whose channels do not divide stays plain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .. import dtype as dtypes
from ..ir import Graph, Node, Value, emit, emit_node, origin
from ..ops.primitives.blocked import to_blocks
from .rewrite import with_heads, with_inputs
from .schedule import desc_of

_FLOATS = (np.dtype(np.float32), dtypes.bfloat16)
_CPU = (1, 0)


def layout(graph: Graph, backend: Any) -> Graph:
    """The graph with blocked activations; the same where the backend wants none."""
    asked = getattr(backend, "layouts", None)
    if asked is None or sum(_is_convolution(n) for n in graph.nodes()) < 2:
        return graph  # a lone convolution reorders inside of its kernel just as well
    return _Layout(graph, asked).run()


def _is_convolution(node: Node) -> bool:
    return node.op is not None and node.op.name in ("conv", "conv_data_grad", "conv_weight_grad")


class _Layout:
    """One walk over a graph: forms of every old value in the new graph."""

    def __init__(self, graph: Graph, asked: Callable[..., tuple[int, int] | None]) -> None:
        self.graph = graph
        self.asked = asked
        self.plains: dict[Value, Value] = {v: v for v in graph.inputs}
        self.blocks: dict[Value, Value] = {}  #: the form in which the producer left it
        self.copies: dict[tuple[Value, int], Value] = {}  #: forms made by reorders

    def run(self) -> Graph:
        """The new graph."""
        for node in self.graph.nodes():
            if node.op is None:
                self.plains[node[0]] = node[0]
                continue
            rule = _RULES.get(node.op.name) or (_elementwise if node.op.elementwise else None)
            with origin(node.origin):
                if rule is None or not rule(self, node):
                    self._keep(node)
        if not self.blocks:
            return self.graph
        heads = [*self.graph.outputs, *(new for new, _ in self.graph.updates)]
        return with_heads(self.graph, {v: self.plain(v) for v in heads})

    def _keep(self, node: Node) -> None:
        made = with_inputs(node, [self.plain(v) for v in node.inputs])
        self.plains.update(zip(node.values, made.values, strict=True))

    def plain(self, value: Value) -> Value:
        """The value in plain order."""
        found = self.plains.get(value)
        if found is None:
            blocked = self.blocks[value]
            flat = all(d == 1 for d in value.shape[2:])
            with origin(value.node.origin):
                made = (
                    emit("reshape", blocked, shape=value.shape)
                    if flat
                    else emit("unblock", blocked)
                )
            found = self.plains[value] = made
        return found

    def size(self, value: Value) -> int:
        """Channels of a block of the value; 0 = plain."""
        found = self.blocks.get(value)
        return 0 if found is None else found.shape[-1]

    def blocked(self, value: Value, size: int) -> Value:
        """The value in blocks of `size`; 0 = plain."""
        if size == 0:
            return self.plain(value)
        if self.size(value) == size:
            return self.blocks[value]
        found = self.copies.get((value, size))
        if found is None:
            with origin(value.node.origin):
                found = self.copies[value, size] = self._reordered(value, size)
        return found

    def _reordered(self, value: Value, size: int) -> Value:
        node, shape = value.node, to_blocks(value.shape, size)
        name = node.op.name if node.op is not None else ""
        if name == "full":
            return emit("full", value=node.params["value"], shape=shape, dtype=value.dtype)
        if name == "broadcast":
            small = self.spread(node.inputs[0], value.shape, size)
            if small is not None:
                return emit("broadcast", small, shape=shape)
        if all(d == 1 for d in value.shape[2:]):
            return emit("reshape", self.plain(value), shape=shape)
        return emit("block", self.plain(value), size=size)

    def spread(self, value: Value, shape: tuple[int, ...], size: int) -> Value | None:
        """A value that broadcasts to a plain `shape`, ready to broadcast to the blocked one."""
        if value.shape == ():
            return self.plain(value)
        if value.shape == shape:
            return self.blocked(value, size)
        wide = (1,) * (len(shape) - value.ndim) + value.shape
        if wide[1] == 1:
            blocks = (wide[0], 1, *wide[2:], 1)
        elif all(d == 1 for d in wide[2:]):
            blocks = to_blocks(wide, size)
        else:
            return None
        return emit("reshape", self.plain(value), shape=blocks)

    def leave(self, node: Node, made: Node | Value, count: int = 1) -> bool:
        """Notes the new node's values: the first `count` are blocked. True, for rules."""
        values = made.node.values if isinstance(made, Value) else made.values
        for k, (old, new) in enumerate(zip(node.values, values, strict=True)):
            (self.blocks if k < count else self.plains)[old] = new
        return True

    def wants(self, node: Node) -> tuple[int, int] | None:
        """Blocks of the input and output (or their gradients) that the backend asks for."""
        op = node.op
        assert op is not None
        if any(v.dtype not in _FLOATS for v in (*node.inputs, node[0])):
            return None
        ins = [desc_of(v.type, _CPU) for v in node.inputs]
        found = self.asked(op, dict(node.params), ins, [desc_of(v.type, _CPU) for v in node.values])
        return None if found is None or found == (0, 0) else found


Rule = Callable[[_Layout, Node], bool]


def _conv(at: _Layout, node: Node) -> bool:
    sizes = at.wants(node)
    if sizes is None:
        return False
    x, w, *bias = node.inputs
    inputs = [at.blocked(x, sizes[0]), at.plain(w), *(at.plain(b) for b in bias)]
    made = emit("blocked_conv", *inputs, **node.params, y_block=sizes[1], bias=bool(bias))
    return at.leave(node, made, int(sizes[1] > 0))


def _data_grad(at: _Layout, node: Node) -> bool:
    sizes = at.wants(node)
    if sizes is None:
        return False
    dy, w = at.blocked(node.inputs[0], sizes[1]), at.plain(node.inputs[1])
    made = emit("blocked_conv_data_grad", dy, w, **node.params, x_block=sizes[0])
    return at.leave(node, made, int(sizes[0] > 0))


def _weight_grad(at: _Layout, node: Node) -> bool:
    sizes = at.wants(node)
    if sizes is None:
        return False
    dy, x = at.blocked(node.inputs[0], sizes[1]), at.blocked(node.inputs[1], sizes[0])
    return at.leave(node, emit("blocked_conv_weight_grad", dy, x, **node.params), 0)


def _same(name: str, tensors: int, at: _Layout, node: Node) -> bool:
    """Pooling and LRN: every one of the `tensors` inputs is blocked alike."""
    size = max(at.size(v) for v in node.inputs[:tensors])
    if size == 0 or node[0].dtype not in _FLOATS or node.params.get("mode") == "lp":
        return False
    return at.leave(node, emit(name, *(at.blocked(v, size) for v in node.inputs), **node.params))


def _norm(name: str, tensors: int, at: _Layout, node: Node) -> bool:
    """Batch normalisation: vectors follow the `tensors` blocked inputs."""
    size = max(at.size(v) for v in node.inputs[:tensors])
    x = node.inputs[0]
    if size == 0 or node[0].dtype not in _FLOATS or node.params["axis"] % x.ndim != 1:
        return False
    params = {k: v for k, v in node.params.items() if k != "axis"}
    inputs = [at.blocked(v, size) for v in node.inputs[:tensors]]
    vectors = [at.plain(v) for v in node.inputs[tensors:]]
    if name == "blocked_norm_grad":  # beta matters only to relu, which the pass epilogue adds
        vectors.insert(1, vectors[0])
    return at.leave(node, emit_node(name, *inputs, *vectors, **params))


def _common_size(at: _Layout, values: tuple[Value, ...]) -> int:
    """The smallest block among the blocked values, if every one divides by it; else 0."""
    sizes = [s for s in map(at.size, values) if s]
    if not sizes or any(v.ndim < 3 for v in values):
        return 0
    size = min(sizes)
    return 0 if any(v.shape[1] % size for v in values) else size


def _concatenate(at: _Layout, node: Node) -> bool:
    size = _common_size(at, node.inputs)
    if size == 0:
        return False
    params = {**node.params, "axis": node.params["axis"] % node[0].ndim}
    made = emit("concatenate", *(at.blocked(v, size) for v in node.inputs), **params)
    return at.leave(node, made)


def _slice(at: _Layout, node: Node) -> bool:
    x, p = node.inputs[0], node.params
    size, begin, end, step = at.size(x), list(p["begin"]), list(p["end"]), list(p["step"])
    if size == 0 or step[1] != 1 or begin[1] % size or end[1] % size:
        return False
    begin[1], end[1] = begin[1] // size, end[1] // size
    made = emit(
        "strided_slice",
        at.blocked(x, size),
        begin=(*begin, 0),
        end=(*end, size),
        step=(*step, 1),
    )
    return at.leave(node, made)


def _pad(at: _Layout, node: Node) -> bool:
    x, p = node.inputs[0], dict(node.params)
    size, before, after = at.size(x), list(p["before"]), list(p["after"])
    channels = before[1] or after[1]
    if size == 0 or (channels and p["mode"] != "constant") or before[1] % size or after[1] % size:
        return False
    before[1], after[1] = before[1] // size, after[1] // size
    p |= {"before": (*before, 0), "after": (*after, 0)}
    return at.leave(node, emit("pad", at.blocked(x, size), **p))


def _reduce(at: _Layout, node: Node) -> bool:
    assert node.op is not None
    x, axes = node.inputs[0], node.params["axes"]
    size, rank = at.size(x), x.ndim
    whole = all(a in axes or x.shape[a] == 1 for a in range(2, rank))
    if size == 0 or not (whole or 1 in axes):
        return False
    both = (*axes, rank) if 1 in axes else axes
    params = {**node.params, "axes": tuple(both), "keepdims": False}
    made = emit(node.op, at.blocked(x, size), **params)
    at.plains[node[0]] = emit("reshape", made, shape=node[0].shape)
    return True


def _elementwise(at: _Layout, node: Node) -> bool:
    shape = node[0].shape
    size = max((at.size(v) for v in node.inputs if v.shape == shape), default=0)
    if size == 0 or len(node.types) != 1:
        return False
    assert node.op is not None
    inputs = [at.spread(v, shape, size) for v in node.inputs]
    if any(v is None for v in inputs):
        return False
    return at.leave(node, emit(node.op, *(v for v in inputs if v is not None), **node.params))


_RULES: dict[str, Rule] = {
    "conv": _conv,
    "conv_data_grad": _data_grad,
    "conv_weight_grad": _weight_grad,
    "pool": partial(_same, "blocked_pool", 1),
    "pool_grad": partial(_same, "blocked_pool_grad", 3),
    "lrn": partial(_same, "blocked_lrn", 1),
    "lrn_grad": partial(_same, "blocked_lrn_grad", 3),
    "batch_norm": partial(_norm, "blocked_norm", 1),
    "batch_norm_train": partial(_norm, "blocked_norm_train", 1),
    "batch_norm_grad": partial(_norm, "blocked_norm_grad", 2),
    "concatenate": _concatenate,
    "strided_slice": _slice,
    "pad": _pad,
    **{f"reduce_{k}": _reduce for k in ("sum", "prod", "max", "min")},
}
