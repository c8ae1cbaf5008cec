"""Shapes and dtypes of every value, in both directions, to a fixpoint.

Hazard: a rule that only looks forward cannot give a weight its shape. Every rule sees what is
known of its inputs and outputs and returns both with more filled in; a node is looked at again
when one of its values learnt something.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import DTypeError, MixflowError, ParamError, ShapeError
from ..ir import Graph, Node, TensorType, Value, variable
from ..ir.types import check_size

Types = dict[Value, TensorType]
_UNKNOWN = TensorType()
_FLOAT = np.dtype(np.float32)


def plain_params(node: Node) -> dict[str, Any]:
    """Parameters for a shape rule: a scalar given at run time reads as 1.0."""
    params = node.params
    if any(isinstance(v, Value) for v in params.values()):
        return {k: 1.0 if isinstance(v, Value) else v for k, v in params.items()}
    return dict(params)


def merge(a: TensorType, b: TensorType, where: str) -> TensorType:
    """What both types say together.

    Raises:
        ShapeError, DTypeError: they contradict each other; the text begins with `where`.
    """
    if a is b or a == b or b is _UNKNOWN:
        return a
    dtype = a.dtype if b.dtype is None else b.dtype
    if a.dtype is not None and dtype != a.dtype:
        raise DTypeError(f"{where} expected {a.dtype.name}, got {dtype}; cast one of the inputs")
    stype = a.stype if b.stype == "default" else b.stype
    if a.shape is None or b.shape is None:
        return TensorType(
            b.shape if a.shape is None else a.shape, dtype, stype, a.dynamic or b.dynamic
        )
    if len(a.shape) != len(b.shape):
        raise ShapeError(f"{where} expected shape {a.shape}, got {b.shape}; the ranks differ")
    dims = []
    for x, y in zip(a.shape, b.shape, strict=True):
        if x is not None and y is not None and x != y:
            raise ShapeError(
                f"{where} expected shape {a.shape}, got {b.shape}; a dimension differs"
            )
        dims.append(y if x is None else x)
    return TensorType(tuple(dims), dtype, stype, a.dynamic or b.dynamic)


def infer(
    graph: Graph, known: Mapping[Value, TensorType] | None = None, *, partial: bool = False
) -> Types:
    """Type of every value of the graph.

    Args:
        graph: at any level.
        known: types given from outside, usually of the inputs.
        partial: return what can be known instead of raising for the rest.

    Raises:
        ShapeError, DTypeError: a contradiction, or an input that nothing fixes; names the node,
            the shapes and a hint.
    """
    work = _Inference(graph, known or {})
    work.run()
    if not partial:
        work.check()
    return work.types


def _variable_hint(node: Node) -> TensorType:
    """Type that a variable's own attributes state (``__shape__``, ``__dtype__``)."""
    shape, dtype = node.attrs.get("__shape__"), node.attrs.get("__dtype__")
    if shape is None and dtype is None:
        return _UNKNOWN
    try:
        return _hint(shape, dtype)
    except (ValueError, TypeError):
        raise ParamError(
            f"[{node.name}] expected a shape and a dtype, got __shape__ {shape!s:.80} and "
            f"__dtype__ {dtype!s:.80}"
        ) from None


def _hint(shape: Any, dtype: str | None) -> TensorType:
    from .. import dtype as dtypes
    from ..ir import Shape

    dims = None if shape is None else tuple(d or None for d in Shape.convert(shape))
    if dims == () or (dims and -1 in dims):
        dims = None if dims == () else tuple(None if d == -1 else d for d in dims)
    if dtype is None or dtype == "-1":
        return TensorType(dims)
    return TensorType(
        dims, dtypes.from_code(int(dtype)) if dtype.isdigit() else dtypes.canonical(dtype)
    )


class _Inference:
    def __init__(self, graph: Graph, known: Mapping[Value, TensorType]) -> None:
        self.nodes = graph.nodes()
        self.types: Types = {}
        self.users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.values:
                declared = node.types[value.index] or _UNKNOWN
                self.types[value] = declared
            if node.op is None and node.types[0] is None:
                hint, given = _variable_hint(node), known.get(Value(node, 0), _UNKNOWN)
                self.types[Value(node, 0)] = TensorType(
                    hint.shape if given.shape is None else None,
                    hint.dtype if given.dtype is None else None,
                )
            for value in node.inputs:
                self.users.setdefault(value, []).append(node)
        for value, given in known.items():
            if value in self.types:
                where = f"[{value.node.name}]"
                self.types[value] = merge(self.types[value], given, where)

    def run(self) -> None:
        queue = deque(n for n in self.nodes if n.op is not None)
        waiting = set(queue)
        while queue:
            node = queue.popleft()
            waiting.discard(node)
            for changed in self._visit(node):
                touched = [*self.users.get(changed, ()), changed.node]
                for other in touched:
                    if other.op is not None and other is not node and other not in waiting:
                        waiting.add(other)
                        queue.append(other)

    def _visit(self, node: Node) -> list[Value]:
        """Applies the node's rule and returns the values that became better known."""
        ins = [self.types[v] for v in node.inputs]
        mutated = node.mutated
        outs = [self.types[v] for v in node.values[: len(node.types) - len(mutated)]]
        if all(t.known for t in ins) and all(t.known for t in outs):
            new_ins, new_outs = ins, outs
        else:
            new_ins, new_outs = self._apply(node, ins, outs)
        changed = []
        pairs = [
            *zip(node.inputs, new_ins, strict=False),
            *zip(node.values, new_outs, strict=False),
        ]
        pairs += [(node[len(outs) + k], new_ins[i]) for k, i in enumerate(mutated)]
        for value, new in pairs:
            old = self.types[value]
            if new == old:
                continue
            both = self._merged(old, new, node, ins)
            if both != old:
                self.types[value] = both
                changed.append(value)
        return changed

    def _merged(
        self, old: TensorType, new: TensorType, node: Node, ins: list[TensorType]
    ) -> TensorType:
        try:
            return merge(old, new, "")
        except MixflowError:  # the text of where takes longer than the rest
            return merge(old, new, self._where(node, ins))

    def _apply(
        self, node: Node, ins: list[TensorType], outs: list[TensorType]
    ) -> tuple[list[TensorType], list[TensorType]]:
        assert node.op is not None
        params = plain_params(node)
        if node.op.infer is None:
            return ins, _run_composition(node, params, ins, outs)
        try:
            return node.op.infer(params, ins, outs)
        except MixflowError as error:
            if f"node {node.name}" in str(error):
                raise
            raise type(error)(f"{error}; in node {node.name}({self._shown(node, ins)})") from None

    def _shown(self, node: Node, ins: list[TensorType]) -> str:
        return ", ".join(f"{v.node.name}: {t}" for v, t in zip(node.inputs, ins, strict=True))

    def _where(self, node: Node, ins: list[TensorType]) -> str:
        assert node.op is not None
        return f"[{node.op.name}] node {node.name}({self._shown(node, ins)})"

    def check(self) -> None:
        """Every value is known, else names the first that is not."""
        for node in self.nodes:
            for value in node.values:
                found = self.types[value]
                if found.known or found.dynamic:
                    check_size(node.name, found)
                    continue
                what = "argument" if node.op is None else f"output {value.index} of {node.op.name}"
                kind = (
                    DTypeError
                    if found.shape is not None and None not in found.shape
                    else ShapeError
                )
                raise kind(
                    f"[infer] expected shapes and dtypes that fix every value, got {found} for "
                    f"{what} '{node.name}'; give its shape or that of more inputs"
                )


def _run_composition(
    node: Node, params: dict[str, Any], ins: list[TensorType], outs: list[TensorType]
) -> list[TensorType]:
    """Output types of a composition without a rule: builds it on typed variables."""
    if any(t.shape is None or None in t.shape for t in ins):
        return outs
    assert node.op is not None and node.op.compose is not None
    guess = [t if t.dtype is not None else t._replace(dtype=_FLOAT) for t in ins]
    values = [variable(f"i{k}", t) for k, t in enumerate(guess)]
    if node.op.needs_mode:
        params = {**params, "train": False}
    made = node.op.compose(*values, **params)
    made = made if isinstance(made, (tuple, list)) and not isinstance(made, Value) else (made,)
    known = all(t.dtype is not None for t in ins)
    return [v.type if known else v.type._replace(dtype=None) for v in made[: len(outs)]]
