"""Reverse accumulation over the gradient rules of primitives and of compositions that have one.

Hazard: a rule may be undefined (integers, indices) or defined once only; asking for more is an
error that names the operator, never a silent zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from .. import dtype as dtypes
from ..errors import GraphError, ShapeError
from ..ir import Node, Value, emit, origin, topological

#: Attribute of nodes that the gradient rule of a once-differentiable operator made.
ONCE = "__once__"


def gradient(
    heads: Sequence[Value],
    head_grads: Sequence[Value | None] | None,
    wrt: Sequence[Value],
) -> list[Value]:
    """Gradients of the sum of ``heads[i] * head_grads[i]``.

    Args:
        heads: typed values.
        head_grads: of the heads' shapes; None = ones.
        wrt: typed values, any that the heads are computed from.

    Returns:
        One value per entry of `wrt`; zeros where nothing flows.

    Raises:
        GraphError: the way passes an operator that is not differentiable (often enough).
    """
    found = flows(heads, head_grads, wrt)
    return [
        g if g is not None else emit("full", value=0.0, shape=v.shape, dtype=v.dtype)
        for g, v in zip(found, wrt, strict=True)
    ]


def flows(
    heads: Sequence[Value],
    head_grads: Sequence[Value | None] | None,
    wrt: Sequence[Value],
) -> list[Value | None]:
    """As `gradient`, with None where nothing flows."""
    work = _Reverse(topological([*heads, *wrt]), wrt)
    given = head_grads if head_grads is not None else [None] * len(heads)
    for head, grad in zip(heads, given, strict=True):
        if not dtypes.is_float(head.dtype):
            continue
        if grad is None:
            grad = emit("full", value=1.0, shape=head.shape, dtype=head.dtype)
        elif grad.shape != head.shape:
            raise ShapeError(
                f"[backward] expected a head gradient of shape {head.shape}, got {grad.shape}"
            )
        work.add(head, grad)
    work.run()
    return [work.total(v) for v in wrt]


class _Reverse:
    def __init__(self, nodes: list[Node], wrt: Sequence[Value]) -> None:
        self.nodes = nodes
        self.wrt = set(wrt)
        self.terms: dict[Value, list[Value]] = {}
        self.active = {v.node for v in wrt if v.node.op is None}
        targets = set(wrt)
        for node in nodes:
            if any(v.node in self.active or v in targets for v in self._flowing(node)):
                self.active.add(node)

    @staticmethod
    def _flowing(node: Node) -> list[Value]:
        """Inputs through which a gradient may pass."""
        if node.op is None:
            return []
        blocked = node.op.nondiff
        names = node.op.input_names(dict(node.params)) if blocked else ()
        return [
            v
            for k, v in enumerate(node.inputs)
            if not (blocked and k < len(names) and names[k] in blocked) and dtypes.is_float(v.dtype)
        ]

    def add(self, value: Value, grad: Value) -> None:
        self.terms.setdefault(value, []).append(grad)

    def total(self, value: Value) -> Value | None:
        terms = self.terms.get(value)
        if not terms:
            return None
        result = terms[0]
        for term in terms[1:]:
            with origin(term.node.origin):
                result = emit("add", result, term)
        self.terms[value] = [result]
        return result

    def run(self) -> None:
        for node in reversed(self.nodes):
            if node.op is None or node not in self.active:
                continue
            grads = [self.total(v) for v in node.values]
            if any(g is not None for g in grads) and self._reaches(node):
                self._node(node, grads)

    def _reaches(self, node: Node) -> bool:
        return any(v.node in self.active or v in self.wrt for v in self._flowing(node))

    def _node(self, node: Node, grads: list[Value | None]) -> None:
        op = node.op
        assert op is not None
        if ONCE in node.attrs:
            raise GraphError(
                f"[{node.attrs[ONCE]}] expected one differentiation, got a second one; "
                "its gradient has no gradient rule"
            )
        if op.vjp is None or op.differentiable == "no":
            raise GraphError(
                f"[{op.name}] expected a differentiable operator on the way to a gradient, "
                f"got {op.name} in node {node.origin}; stop the gradient with BlockGrad"
            )
        with origin(node.origin):
            found = list(op.vjp(node, grads))
        found += [None] * (len(node.inputs) - len(found))
        if op.differentiable == "once":
            _mark(found, node, grads)
        for value, grad in zip(node.inputs, found, strict=True):
            if grad is None or not dtypes.is_float(value.dtype):
                continue
            if grad.shape != value.shape or grad.dtype != value.dtype:
                raise GraphError(
                    f"[{op.name}] expected a gradient of {value.type}, got {grad.type}"
                )
            self.add(value, grad)


def _mark(found: Sequence[Value | None], node: Node, grads: Sequence[Value | None]) -> None:
    """Labels the nodes that a rule has made, so that they are not differentiated again."""
    assert node.op is not None
    known = {id(node)} | {id(v.node) for v in node.inputs}
    known |= {id(g.node) for g in grads if g is not None}
    stack = [g.node for g in found if g is not None]
    while stack:
        made = stack.pop()
        if id(made) in known or made.op is None:
            continue
        known.add(id(made))
        made.attrs = MappingProxyType({**made.attrs, ONCE: node.op.name})
        stack += [v.node for v in made.inputs]
