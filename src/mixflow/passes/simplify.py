"""Dead code, constants, common subexpressions and algebra on primitives.

Hazard: two equal nodes may be merged only when they have no effect: draws, mutations and copies
stay as they are. Rules keep values to rounding of the dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import dtype as dtypes
from ..ir import Graph, Node, Value, emit, origin
from .rewrite import has_effect, with_heads, with_inputs

_REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
_FOLDED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.true_divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negative": np.negative,
    "sqrt": np.sqrt,
    "square": np.square,
    "exp": np.exp,
    "reciprocal": np.reciprocal,
    "power": np.power,
}


def simplify(graph: Graph) -> Graph:
    """The smallest graph that the rules find; nothing that no output or update needs remains."""
    new: dict[Value, Value] = {}
    seen: dict[Any, Node] = {}
    for node in graph.nodes():
        if node.op is None:
            continue
        made = with_inputs(node, [new.get(v, v) for v in node.inputs])
        if not has_effect(made):
            found = _replacement(made)
            if found is not None:
                new[node[0]] = new.get(found, found)
                continue
            made = seen.setdefault(_key(made), made)
        if made is not node:
            new.update(zip(node.values, made.values, strict=True))
    return with_heads(graph, new)


def _key(node: Node) -> Any:
    return (node.op, node.inputs, tuple(node.params.items()))


def _replacement(node: Node) -> Value | None:
    """A simpler value for the node's only output, or None."""
    assert node.op is not None
    rule = _RULES.get(node.op.name)
    found = rule(node) if rule is not None else None
    if found is None and node.op.elementwise:
        found = _fold(node)
    if found is None and node.op.elementwise and len(node.inputs) > 1:
        found = _drop_broadcasts(node)
    return found


def _full(value: Value) -> float | None:
    """The number that fills the value, if it is a `full`."""
    node = value.node
    if node.op is None:
        return None
    if node.op.name == "broadcast":
        return _full(node.inputs[0])
    return node.params["value"] if node.op.name == "full" else None


def _is_op(value: Value, name: str) -> bool:
    return value.node.op is not None and value.node.op.name == name


def _emit(node: Node, op: str, *inputs: Value, **params: Any) -> Value:
    with origin(node.origin):
        return emit(op, *inputs, **params)


def _cast(node: Node) -> Value | None:
    x = node.inputs[0]
    if x.dtype == node[0].dtype:
        return x
    number = _full(x)
    if number is not None and dtypes.is_float(node[0].dtype):
        return _emit(node, "full", value=number, shape=node[0].shape, dtype=node[0].dtype)
    return None


def _reshape(node: Node) -> Value | None:
    x, shape = node.inputs[0], node[0].shape
    if x.shape == shape:
        return x
    if _is_op(x, "reshape"):
        inner = x.node.inputs[0]
        return inner if inner.shape == shape else _emit(node, "reshape", inner, shape=shape)
    if _is_op(x, "full"):
        return _emit(node, "full", value=x.node.params["value"], shape=shape, dtype=x.dtype)
    return None


def _permute(node: Node) -> Value | None:
    x, axes = node.inputs[0], node.params["axes"]
    if tuple(axes) == tuple(range(len(axes))):
        return x
    if _is_op(x, "permute"):
        inner = x.node.params["axes"]
        both = tuple(inner[a] for a in axes)
        source = x.node.inputs[0]
        same = both == tuple(range(len(both)))
        return source if same else _emit(node, "permute", source, axes=both)
    if _moves_only_ones(x.shape, axes):
        return _emit(node, "reshape", x, shape=node[0].shape)
    return None


def _moves_only_ones(shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Whether a permutation keeps the order of the axes that are longer than 1."""
    kept = [a for a in axes if shape[a] != 1]
    return kept == sorted(kept)


def _broadcast(node: Node) -> Value | None:
    x = node.inputs[0]
    if x.shape == node[0].shape:
        return x
    if _is_op(x, "full"):
        return _emit(node, "full", value=x.node.params["value"], shape=node[0].shape, dtype=x.dtype)
    if _is_op(x, "broadcast"):
        return _emit(node, "broadcast", x.node.inputs[0], shape=node[0].shape)
    return None


def _reduce(node: Node) -> Value | None:
    x = node.inputs[0]
    if all(x.shape[a] == 1 for a in node.params["axes"]):
        return x if x.shape == node[0].shape else _emit(node, "reshape", x, shape=node[0].shape)
    return None


def _identity(node: Node) -> Value | None:
    return node.inputs[0]


def _negative(node: Node) -> Value | None:
    x = node.inputs[0]
    return x.node.inputs[0] if _is_op(x, "negative") else None


def _neutral(number: float, right_only: bool) -> Callable[[Node], Value | None]:
    """x op number = x (and number op x, unless `right_only`)."""

    def rule(node: Node) -> Value | None:
        a, b = node.inputs
        shape = node[0].shape
        if _full(b) == number and a.shape == shape:
            return a
        if not right_only and _full(a) == number and b.shape == shape:
            return b
        return _chain(node)

    return rule


def _chain(node: Node) -> Value | None:
    """(x op c1) op c2 = x op (c1 op c2) for add and multiply of floats."""
    assert node.op is not None
    name = node.op.name
    x, c2 = node.inputs
    if name not in ("add", "multiply") or not dtypes.is_float(x.dtype):
        return None
    if _full(x) is not None:
        x, c2 = c2, x
    second = _full(c2)
    if second is None or not _is_op(x, name):
        return None
    inner, c1 = x.node.inputs
    if _full(inner) is not None:
        inner, c1 = c1, inner
    first = _full(c1)
    if first is None or _full(inner) is not None or inner.shape != node[0].shape:
        return None
    number = first + second if name == "add" else first * second
    return _emit(node, name, inner, _emit(node, "full", value=number, shape=(), dtype=x.dtype))


def _fold(node: Node) -> Value | None:
    """An elementwise function of constants is a constant."""
    assert node.op is not None
    function = _FOLDED.get(node.op.name)
    out = node[0]
    if function is None or not dtypes.is_float(out.dtype):
        return None
    numbers = [_full(v) for v in node.inputs]
    if any(n is None for n in numbers):
        return None
    with np.errstate(all="ignore"):
        wide = np.float64 if out.dtype == np.float64 else np.float32
        value = float(function(*(wide(n) for n in numbers)))
    return _emit(node, "full", value=value, shape=out.shape, dtype=out.dtype)


def _drop_broadcasts(node: Node) -> Value | None:
    """Elementwise kernels broadcast by themselves: explicit broadcasts of single inputs go."""
    inputs = list(node.inputs)
    changed = False
    for k, value in enumerate(inputs):
        small = _narrower(node, value)
        if small is None:
            continue
        trial = [*inputs[:k], small, *inputs[k + 1 :]]
        if np.broadcast_shapes(*(v.shape for v in trial)) == node[0].shape:
            inputs, changed = trial, True
    if not changed:
        return None
    made = with_inputs(node, inputs)
    assert made.op is not None
    rule = _RULES.get(made.op.name)
    return (rule(made) if rule is not None else None) or made[0]


def _narrower(node: Node, value: Value) -> Value | None:
    if _is_op(value, "broadcast"):
        return value.node.inputs[0]
    if _is_op(value, "full") and value.shape != ():
        return _emit(node, "full", value=value.node.params["value"], shape=(), dtype=value.dtype)
    return None


_RULES: dict[str, Callable[[Node], Value | None]] = {
    "cast": _cast,
    "reshape": _reshape,
    "permute": _permute,
    "broadcast": _broadcast,
    "identity": _identity,
    "negative": _negative,
    "add": _neutral(0.0, False),
    "subtract": _neutral(0.0, True),
    "multiply": _neutral(1.0, False),
    "divide": _neutral(1.0, True),
    "power": _neutral(1.0, True),
    **{name: _reduce for name in _REDUCTIONS},
}
