"""Mixed precision: products in a narrow float, what lies between them stored narrow.

Hazard: a rounding to 8 bits of mantissa is harmless between two layers and ruins a mean, a loss or
a small update of a large weight. So nothing that is summed up is narrow: products and norms
accumulate in float32, statistics, reductions, losses, parameters, their gradients and moving
averages are float32 values. And a cast that is a step of its own reads and writes a whole tensor,
so the pass must not make many.

The pass decides for every float32 value in which form it is stored, then builds the graph anew:

- products (convolution, matmul, their gradients) run narrow where the backend says that it pays.
  They read float32 operands as they are: rounding is part of the reorder inside of the kernel, so
  weights stay float32 and need no cast. Gradients of weights leave as float32;
- pooling, LRN, batch norms (vectors in float32) and moves follow the tensors that they read;
- elementwise operators read narrow tensors and compute in float32, as fused programs do anyway;
- everything else gets float32 (reductions read narrow tensors and give float32).

Small tensors stay float32: they save nothing, and recurrent states are among them.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from .. import config
from .. import dtype as dtypes
from ..errors import ParamError
from ..ir import Graph, Node, Operator, Value, emit, emit_node, origin
from .rewrite import FREE, with_heads, with_inputs
from .schedule import desc_of

_log = logging.getLogger(__name__)
_told: set[str] = set()
_WIDE = np.dtype(np.float32)
_CPU = (1, 0)
#: Products: all inputs are factors, except the bias.
PRODUCTS = frozenset({"conv", "conv_data_grad", "conv_weight_grad", "matmul"})
#: How many inputs are tensors; the rest are vectors, which stay float32.
FOLLOWERS = {
    "pool": 1,
    "pool_grad": 3,
    "pool_take": 2,
    "lrn": 1,
    "lrn_grad": 3,
    "batch_norm": 1,
    "batch_norm_train": 1,
    "batch_norm_grad": 2,
}
#: Primitives that move elements; they have one dtype, whatever their number of inputs.
MOVES = frozenset(
    {
        "broadcast",
        "concatenate",
        "identity",
        "pad",
        "permute",
        "reshape",
        "reverse",
        "strided_slice",
        "unslice",
    }
)
REDUCTIONS = frozenset({f"reduce_{k}" for k in ("sum", "prod", "max", "min")})


def requested(name: str | None) -> str:
    """A precision by name; None = that of the configuration.

    Raises:
        ParamError: unknown.
    """
    if name is None:
        return config.current().precision
    if name not in config.PRECISIONS:
        known = ", ".join(config.PRECISIONS)
        raise ParamError(f"[precision] expected one of {known}, got {name!r}")
    return name


def served(name: str, backend: Any) -> tuple[Any, np.dtype[Any]] | None:
    """What `pipeline.finish` takes as `narrow` for a precision; None = all in float32.

    A processor without instructions for the dtype computes in float32: narrower storage alone would
    cost accuracy and gain no time. That is said once, and is no error, so that a program that asks
    for mixed precision runs everywhere.
    """
    if name == "float32":
        return None
    dtype = dtypes.canonical(name)
    if dtype in getattr(backend, "narrow_dtypes", ()):
        return backend, dtype
    if name not in _told:
        _told.add(name)
        _log.warning("[precision] no instructions for %s here; float32 is used instead", name)
    return None


def precision(graph: Graph, backend: Any, dtype: np.dtype[Any]) -> Graph:
    """The graph in mixed precision.

    Args:
        graph: primitives with their gradients; its inputs and outputs keep their dtypes.
        backend: says by `narrow_products` which products pay; without that method the graph
            stays as it is.
        dtype: the narrow float, bfloat16 or float16.
    """
    asked = getattr(backend, "narrow_products", None)
    if asked is None:
        return graph
    return _Precision(graph, asked, backend.small_tensor, np.dtype(dtype)).run()


def _name(node: Node) -> str:
    return "" if node.op is None else node.op.name


def _operator(node: Node) -> Operator:
    assert node.op is not None
    return node.op


def _is_literal(value: Value) -> bool:
    return _name(value.node) == "full" and value.shape == ()


class _Precision:
    def __init__(self, graph: Graph, asked: Any, small: int, dtype: np.dtype[Any]) -> None:
        self.graph = graph
        self.small = small
        self.dtype = dtype
        self.order = graph.nodes()
        self.products = {n for n in self.order if self._is_product(n) and self._pays(n, asked)}
        self.wanted: set[Value] = set()  #: read by a product, perhaps through others
        self.wides: dict[Value, Value] = {}
        self.narrows: dict[Value, Value] = {}
        self.stored: dict[Value, bool] = {}  #: whether the value is stored narrow

    def run(self) -> Graph:
        """Marks, then builds."""
        if not self.products:
            return self.graph
        for node in reversed(self.order):
            self._mark(node)
        for node in self.order:
            if node.op is None:
                self._enter(node, node)
                continue
            with origin(node.origin):
                self._build(node)
        heads = [*self.graph.outputs, *(new for new, _ in self.graph.updates)]
        return with_heads(self.graph, {v: self._wide(v) for v in heads})

    # -- what is wanted narrow

    def _is_product(self, node: Node) -> bool:
        single = _name(node) in PRODUCTS and all(v.dtype == _WIDE for v in node.inputs)
        return single and node[0].dtype == _WIDE

    def _pays(self, node: Node, asked: Any) -> bool:
        ins = [desc_of(v.type, _CPU) for v in node.inputs]
        outs = [desc_of(v.type, _CPU) for v in node.values]
        return bool(asked(node.op, dict(node.params), ins, outs, self.dtype))

    def _large(self, value: Value) -> bool:
        return value.dtype == _WIDE and value.type.size >= self.small

    def _tensors(self, node: Node) -> tuple[Value, ...]:
        """Inputs that follow, or are followed by, the node's first output."""
        name = _name(node)
        if name in FOLLOWERS:
            return node.inputs[: FOLLOWERS[name]] if node.params.get("mode") != "lp" else ()
        if name in MOVES:
            return node.inputs
        if node.op is not None and node.op.elementwise and len(node.types) == 1:
            return tuple(v for v in node.inputs if v.dtype == _WIDE and v.shape == node[0].shape)
        return ()

    def _mark(self, node: Node) -> None:
        if node in self.products:
            self.wanted.update(node.inputs[:2])
        elif _name(node) in FOLLOWERS or any(v in self.wanted for v in node.values[:1]):
            self.wanted.update(self._tensors(node))

    # -- the new graph

    def _enter(self, node: Node, made: Node, narrow: bool = False) -> None:
        """Notes the new node's values; with `narrow` the first is stored narrow."""
        for k, (old, new) in enumerate(zip(node.values, made.values, strict=True)):
            self.stored[old] = narrow and k == 0
            (self.narrows if narrow and k == 0 else self.wides)[old] = new

    def _wide(self, value: Value) -> Value:
        found = self.wides.get(value)
        if found is None:
            with origin(value.node.origin):
                found = emit("cast", self.narrows[value], dtype=value.dtype)
            self.wides[value] = found
        return found

    def _read(self, value: Value) -> Value:
        """The value in float32 for an elementwise reader: a narrow one is widened by that reader.

        Each gets a cast of its own, or one program would store the float32 value for the others.
        """
        if value.dtype != _WIDE or not self.stored[value]:
            return self._wide(value)
        with origin(value.node.origin):
            made = emit_node("cast", self.narrows[value], dtype=_WIDE)
        attrs = {FREE: "1"}  # in one program with its producer, that value need not be rounded
        params = dict(made.params)
        return Node(made.op, made.name, made.inputs, params, attrs, made.types, origin=made.origin)[
            0
        ]

    def _narrow(self, value: Value) -> Value:
        found = self.narrows.get(value)
        if found is None:
            with origin(value.node.origin):
                if _is_literal(value):
                    found = emit("full", **{**value.node.params, "dtype": self.dtype})
                else:
                    found = emit("cast", self.wides[value], dtype=self.dtype)
            self.narrows[value] = found
        return found

    def _stored_form(self, value: Value) -> Value:
        return self.narrows[value] if self.stored[value] else self._wide(value)

    def _build(self, node: Node) -> None:
        name = _name(node)
        if node in self.products:
            self._product(node)
        elif node[0].dtype == _WIDE and (name in FOLLOWERS or name in MOVES):
            self._follow(node)
        elif node.op is not None and node.op.elementwise and len(node.types) == 1:
            self._elementwise(node)
        elif name in REDUCTIONS and self.stored[node.inputs[0]]:
            params = {**node.params, "dtype": _WIDE}
            self._enter(node, emit_node(_operator(node), self.narrows[node.inputs[0]], **params))
        else:
            self._enter(node, with_inputs(node, [self._wide(v) for v in node.inputs]))

    def _product(self, node: Node) -> None:
        factors = [self._stored_form(v) for v in node.inputs[:2]]
        if all(f.dtype == _WIDE for f in factors):  # one narrow factor says how to compute
            a, b = (self._is_parameter(v) for v in node.inputs[:2])
            first = 1 if a and not b else 0
            factors[first] = self._narrow(node.inputs[first])
        gradient = _name(node) == "conv_weight_grad"
        narrow = node[0] in self.wanted and self._large(node[0]) and not gradient
        params = {**node.params, "dtype": self.dtype if narrow else _WIDE}
        rest = [self._wide(v) for v in node.inputs[2:]]
        self._enter(node, emit_node(_operator(node), *factors, *rest, **params), narrow)

    def _is_parameter(self, value: Value) -> bool:
        node = value.node
        while _name(node) in ("reshape", "permute"):
            node = node.inputs[0].node
        return node.op is None

    def _follows(self, node: Node) -> bool:
        """Whether a follower's tensors are narrow."""
        tensors = self._tensors(node)
        if not tensors or not self._large(node[0]):
            return False
        return node[0] in self.wanted and any(self.stored[v] or self._large(v) for v in tensors)

    def _follow(self, node: Node) -> None:
        tensors = self._tensors(node)
        narrow = self._follows(node)
        if _name(node) in FOLLOWERS and any(self.stored[v] for v in tensors):
            narrow = True
        inputs = [self._narrow(v) if narrow else self._wide(v) for v in tensors]
        inputs += [self._wide(v) for v in node.inputs[len(tensors) :]]
        made = (
            emit_node(_operator(node), *inputs, **node.params)
            if narrow
            else with_inputs(node, inputs)
        )
        self._enter(node, made, narrow)

    def _elementwise(self, node: Node) -> None:
        """On narrow tensors as they are; mixed with float32 tensors, those decide the dtype."""
        floats = [v for v in node.inputs if v.dtype == _WIDE and not _is_literal(v)]
        same = node[0].dtype == _WIDE and all(v.shape == node[0].shape for v in floats)
        if same and floats and all(self.stored[v] for v in floats):
            inputs = [self._narrow(v) if v.dtype == _WIDE else self._wide(v) for v in node.inputs]
            self._enter(node, emit_node(_operator(node), *inputs, **node.params), True)
            return
        made = with_inputs(node, [self._read(v) for v in node.inputs])
        if node[0] in self.wanted and self._large(node[0]):
            self.narrows[node[0]] = emit("cast", made[0], dtype=self.dtype)
            self.stored[node[0]] = True
        else:
            self._enter(node, made)
