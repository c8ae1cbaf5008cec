"""Immutable nodes and values.

A Symbol is a set of Values over nodes whose types are not known yet. After `infer` and `lower`
the same classes hold primitives whose output types are known when the node is made: `emit`
infers eagerly, so that compositions and gradient rules can ask for ``value.shape``.

Mutation is a pure node with one extra output per mutated input: the next version of that
variable. `Node.aliases` states which output is which input's storage.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..errors import GraphError, ShapeError
from . import op as _op
from .op import Operator
from .types import TensorType, check_size

_EMPTY: MappingProxyType[str, Any] = MappingProxyType({})


class Node:
    """One application of an operator, or a variable (``op is None``).

    Attributes:
        op: the operator; None for a variable.
        name: unique within a Symbol; only a label after lowering.
        inputs: values read, in the operator's order.
        params: typed parameters.
        attrs: user attributes (strings: ``ctx_group``, ``__lr_mult__``, ``__shape__``...).
        types: type of each output, None where unknown (Symbol level).
        subgraphs: bodies of control flow.
        origin: label of the user's node that this one was lowered from.
        kind: of a variable: 'arg', 'aux', 'scalar' (a float given at each run) or 'const'.
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "inputs",
        "kind",
        "name",
        "op",
        "origin",
        "params",
        "subgraphs",
        "types",
    )

    def __init__(
        self,
        op: Operator | None,
        name: str,
        inputs: Sequence[Value] = (),
        params: dict[str, Any] | None = None,
        attrs: dict[str, str] | None = None,
        types: Sequence[TensorType | None] | None = None,
        subgraphs: Sequence[Graph] = (),
        origin: str = "",
        kind: str = "arg",
    ) -> None:
        self.op = op
        self.name = name
        self.inputs = tuple(inputs)
        self.params: MappingProxyType[str, Any] = MappingProxyType(params) if params else _EMPTY
        self.attrs: MappingProxyType[str, str] = MappingProxyType(attrs) if attrs else _EMPTY
        self.types: tuple[TensorType | None, ...] = tuple(types) if types else self._unknown()
        self.subgraphs = tuple(subgraphs)
        self.origin = origin or name
        self.kind = kind

    def _unknown(self) -> tuple[None, ...]:
        """No type for any output."""
        if self.op is None:
            return (None,)
        return (None,) * (len(self.op.output_names(dict(self.params))) + len(self.mutated))

    @property
    def is_variable(self) -> bool:
        """Whether the node is an input of the graph."""
        return self.op is None

    @property
    def mutated(self) -> tuple[int, ...]:
        """Positions of the inputs whose next version this node makes."""
        op = self.op
        return () if op is None or not op.mutates else op.mutated_indices(dict(self.params))

    @property
    def aliases(self) -> dict[int, int]:
        """Obligatory aliases: output index -> input index."""
        first = len(self.types) - len(self.mutated)
        return {first + k: i for k, i in enumerate(self.mutated)}

    def __getitem__(self, index: int) -> Value:
        return Value(self, index)

    @property
    def values(self) -> tuple[Value, ...]:
        """All outputs, next versions of mutated inputs last."""
        return tuple(Value(self, i) for i in range(len(self.types)))

    def __repr__(self) -> str:
        what = self.kind if self.op is None else self.op.name
        return f"<{what} {self.name}>"


class Value(NamedTuple):
    """Output `index` of `node`. Arithmetic builds nodes and needs known types."""

    node: Node
    index: int = 0  # type: ignore[assignment]  # hides tuple.index on purpose

    @property
    def type(self) -> TensorType:
        """Type of the value.

        Raises:
            GraphError: not inferred yet.
        """
        found = self.node.types[self.index]
        if found is None:
            raise GraphError(f"[{self.node.name}] expected a known type, got none; run infer first")
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Known shape."""
        return self.type.shape  # type: ignore[return-value]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Known dtype."""
        return self.type.dtype  # type: ignore[return-value]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __hash__(self) -> int:
        return hash((id(self.node), self.index))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.node is other.node and self.index == other.index

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __add__(self, other: Any) -> Value:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return binary("subtract", self, other)

    def __rsub__(self, other: Any) -> Value:
        return binary("subtract", other, self)

    def __mul__(self, other: Any) -> Value:
        return binary("multiply", self, other)

    def __rmul__(self, other: Any) -> Value:
        return binary("multiply", other, self)

    def __truediv__(self, other: Any) -> Value:
        return binary("divide", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return binary("divide", other, self)

    def __neg__(self) -> Value:
        return emit("negative", self)

    def __repr__(self) -> str:
        return f"{self.node.name}:{self.index}"


@dataclass(frozen=True)
class Graph:
    """Inputs (variable nodes' values, in binding order) and outputs.

    `updates` are outputs that exist for their effect: (next version, the variable it belongs to).
    `phases` splits the execution: number of leading outputs that belong to phase 0 (forward); the
    rest are computed in phase 1 (backward). None = one phase.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    updates: tuple[tuple[Value, Value], ...] = ()
    phase_outputs: int | None = None
    phase_updates: int | None = None
    meta: dict[str, Any] = field(default_factory=dict, compare=False)

    def nodes(self) -> list[Node]:
        """Every node that an output or update needs, inputs before users."""
        return topological([*self.outputs, *(new for new, _ in self.updates)], self.inputs)


def topological(heads: Iterable[Value], first: Iterable[Value] = ()) -> list[Node]:
    """Nodes reachable from `heads`, each after its inputs; depth-first in input order.

    Iterative: deep graphs do not meet Python's recursion limit.
    """
    done: dict[int, Node] = {}
    for value in (*first, *heads):
        stack: list[tuple[Node, Iterator[Value]]] = []
        if id(value.node) not in done:
            stack.append((value.node, iter(value.node.inputs)))
        entered = {id(value.node)}
        while stack:
            node, rest = stack[-1]
            for child in rest:
                key = id(child.node)
                if key not in done and key not in entered:
                    entered.add(key)
                    stack.append((child.node, iter(child.node.inputs)))
                    break
            else:
                done[id(node)] = node
                stack.pop()
    return list(done.values())


def variable(name: str, type: TensorType | None = None, kind: str = "arg", **attrs: str) -> Value:
    """A new variable."""
    return Value(Node(None, name, attrs=attrs, types=(type,), kind=kind), 0)


_counter = threading.local()


def fresh(prefix: str) -> str:
    """A label that is unique in this thread."""
    number = getattr(_counter, "value", 0)
    _counter.value = number + 1
    return f"{prefix}{number}"


_origin = threading.local()


class origin:
    """Scope in which emitted nodes carry the label of the user's node they belong to."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> None:
        self._old = getattr(_origin, "label", "")
        _origin.label = self._label

    def __exit__(self, *_: Any) -> None:
        _origin.label = self._old


def emit_node(op: str | Operator, *inputs: Value, **params: Any) -> Node:
    """A typed node of `op` on typed values; infers its output types now.

    A string names a primitive if there is one, else a public operator.

    Raises:
        ShapeError, DTypeError: from the operator's rule.
    """
    operator = _op.primitive(op) if isinstance(op, str) else op
    checked = operator.check_params(params)
    in_types = [v.type for v in inputs]
    out_count = len(operator.output_names(checked))
    if operator.infer is None:
        raise GraphError(f"[{operator.name}] expected a shape rule, got none")
    _, out_types = operator.infer(checked, in_types, [TensorType()] * out_count)
    for t in out_types:
        if not t.known and not t.dynamic:
            shown = ", ".join(str(t) for t in in_types)
            raise ShapeError(f"[{operator.name}] expected inputs that fix the output, got {shown}")
        check_size(operator.name, t)
    mutated = [in_types[i] for i in operator.mutated_indices(checked)]
    label = getattr(_origin, "label", "")
    return Node(
        operator, fresh(operator.name), inputs, checked, types=[*out_types, *mutated], origin=label
    )


def emit(op: str | Operator, *inputs: Value, **params: Any) -> Value:
    """First output of `emit_node`."""
    return Value(emit_node(op, *inputs, **params), 0)


def constant(value: float, dtype: Any, shape: tuple[int, ...] = ()) -> Value:
    """A value filled with one number; shape () broadcasts for free in elementwise programs."""
    return emit("full", value=float(value), shape=shape, dtype=np.dtype(dtype))


def _is_weak(value: Value) -> bool:
    """Whether a 0-d value is made of runtime scalars and constants alone, so that its dtype gives
    way to that of an array it meets (``high - low`` of a draw).
    """
    node = value.node
    if value.shape != ():
        return False
    if node.op is None:
        return node.kind == "scalar"
    return node.op.name == "full" or (node.op.elementwise and all(_is_weak(v) for v in node.inputs))


def binary(op: str, a: Any, b: Any) -> Value:
    """Elementwise `op` of two values, either of which may be a Python number."""
    if not isinstance(a, Value):
        a = constant(a, b.dtype)
    elif not isinstance(b, Value):
        b = constant(b, a.dtype)
    elif a.dtype != b.dtype and _is_weak(a):
        a = emit("cast", a, dtype=b.dtype)
    elif a.dtype != b.dtype and _is_weak(b):
        b = emit("cast", b, dtype=a.dtype)
    return emit(op, a, b)
