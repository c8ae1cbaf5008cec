"""The miss handler: an imperative call that the dispatch cache does not know becomes a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _rt, ir
from ..backends import default_backend
from ..context import Context
from ..dtype import from_code
from ..errors import MXNetError


@dataclass
class Prepared:
    """What the core keeps for a signature (see `_rt.Core.set_miss_handler`)."""

    plan: Any
    out_descs: list[ir.Desc]
    visible: int
    inplace: list[tuple[int, int]]
    name: str


def one_node_graph(
    op: ir.Operator, params: dict[str, Any], in_descs: Sequence[ir.Desc]
) -> ir.Graph:
    """A graph that applies `op` once. Runtime parameters are scalar variables among its inputs."""
    names = list(op.input_names(params)) if op.variadic is None else []
    inputs = []
    for i, desc in enumerate(in_descs):
        label = names[i] if i < len(names) else f"data{i}"
        inputs.append(ir.variable(label, ir.TensorType(tuple(desc.shape), from_code(desc.dtype))))
    scalars = []
    for p in op.params:
        if p.runtime:
            value = ir.variable(p.name, ir.TensorType((), from_code(1)), kind="scalar")
            params[p.name] = value
            scalars.append(value)
    node = ir.Node(op, op.name, inputs, params)
    visible = len(node.types) - len(node.mutated)
    updates = tuple((node[visible + k], inputs[i]) for k, i in enumerate(node.mutated))
    outputs = tuple(node[i] for i in range(visible))
    return ir.Graph((*inputs, *scalars), outputs, updates)


def miss(
    op_id: int,
    params: tuple[Any, ...],
    in_descs: Sequence[Any],
    device: tuple[int, int],
    training: bool,
) -> Prepared:
    """Compiles one operator like any other graph."""
    from ..passes.pipeline import compile_graph

    op = ir.by_id(op_id)
    places = {tuple(d.device) for d in in_descs}
    if len(places) > 1:
        shown = " and ".join(f"{Context.devtype2str[k]}({i})" for k, i in sorted(places))
        raise MXNetError(
            f"[{op.name}] expected inputs on one context, got {shown}; use as_in_context"
        )
    named = {p.name: value for p, value in zip(op.params, params, strict=True)}
    visible = op.visible_count(named)
    graph = one_node_graph(op, named, in_descs)
    compiled = compile_graph(graph, default_backend(), train=training, device=device)
    return Prepared(compiled.plan, compiled.out_descs, visible, compiled.inplace, op.name)


def install() -> None:
    """Gives the core its miss handler."""
    _rt.core.set_miss_handler(miss)
