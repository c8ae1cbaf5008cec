"""Shape and dtype inference of symbols, in the form that MXNet's methods return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtype as dtypes
from ..errors import UnknownNameError, describe_unknown
from ..ir import Node, TensorType, Value
from ..passes.infer import Types, infer

if TYPE_CHECKING:
    from .symbol import Symbol


def given_values(
    symbol: Symbol, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[Value, Any]:
    """Values of the graph's inputs, by position among the arguments or by name.

    Raises:
        UnknownNameError: no input of this name.
    """
    graph = symbol.graph()
    result: dict[Value, Any] = {
        v: a for v, a in zip(graph.inputs, args, strict=False) if a is not None
    }
    by_name: dict[str, list[Value]] = {}
    for value in graph.inputs:
        by_name.setdefault(value.node.name, []).append(value)
    for name, given in kwargs.items():
        if name not in by_name:
            raise UnknownNameError(describe_unknown("input", name, list(by_name)))
        if given is not None:
            result.update(dict.fromkeys(by_name[name], given))
    return result


def partial_shape(shape: Any) -> tuple[int | None, ...] | None:
    """A shape as users give it: 0 and -1 stand for unknown dimensions."""
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    return tuple(None if d in (0, -1, None) else int(d) for d in dims)


def shapes(
    symbol: Symbol, args: Sequence[Any], kwargs: Mapping[str, Any], partial: bool
) -> tuple[Any, Any, Any]:
    """See `Symbol.infer_shape`."""
    known = {v: TensorType(partial_shape(s)) for v, s in given_values(symbol, args, kwargs).items()}
    types = infer(symbol.graph(), known, partial=True)
    lists = _lists(symbol, types)
    if not partial and any(t.shape is None or None in t.shape for part in lists for t in part):
        return None, None, None
    return tuple([_shown(t.shape) for t in part] for part in lists)  # type: ignore[return-value]


def _shown(shape: Any) -> tuple[int, ...]:
    return () if shape is None else tuple(0 if d is None else d for d in shape)


def _lists(symbol: Symbol, types: Types) -> list[list[TensorType]]:
    names = (symbol._variables(False), symbol.heads, symbol._variables(True))
    return [[types[v] for v in values] for values in names]


def dtypes_of(
    symbol: Symbol, args: Sequence[Any], kwargs: Mapping[str, Any], partial: bool
) -> tuple[Any, Any, Any]:
    """See `Symbol.infer_type`."""
    known = {
        v: TensorType(None, dtypes.canonical(t))
        for v, t in given_values(symbol, args, kwargs).items()
    }
    types = spread_dtypes(symbol, infer(symbol.graph(), known, partial=True))
    lists = _lists(symbol, types)
    if not partial and any(t.dtype is None for part in lists for t in part):
        return None, None, None
    args, outs, aux = ([None if t.dtype is None else t.dtype.type for t in p] for p in lists)
    return args, outs, aux


def spread_dtypes(symbol: Symbol, types: Types) -> Types:
    """Fills dtypes that rules leave open without shapes: one dtype for all tensors of a node.

    A node's own ``dtype`` parameter decides its outputs.
    """
    types = dict(types)
    nodes = [n for n in symbol.nodes() if n.op is not None]
    for _ in range(3):
        for node in (*nodes, *reversed(nodes)):
            _spread(node, types)
    return types


def _spread(node: Node, types: Types) -> None:
    own = node.params.get("dtype")
    found = next((types[v].dtype for v in node.inputs if types[v].dtype is not None), None)
    outputs = node.values
    if isinstance(own, np.dtype):
        _fill(outputs, own, types)
    else:
        if found is None:
            found = next((types[v].dtype for v in outputs if types[v].dtype is not None), None)
        _fill(outputs, found, types)
    _fill(node.inputs, found, types)


def _fill(values: Sequence[Value], dtype: Any, types: Types) -> None:
    for value in values:
        if dtype is not None and types[value].dtype is None:
            types[value] = types[value]._replace(dtype=dtype)
