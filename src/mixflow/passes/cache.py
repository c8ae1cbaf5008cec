"""What was computed for a graph, found again when it, or one written the same way, is bound again.

Hazard: an entry must not keep its graph alive, nor be found for another graph. Heads are held by
weak references, which compare by identity while they live; graphs that are not the same objects
share entries only where every node has the same operator, name, parameters, attributes and inputs.
Entries hold no nodes.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from ..ir import Graph, Node, TensorType, Value, topological
from .infer import Types
from .plan import CompiledPlan

_KEPT = 8  # networks whose entries outlive their symbols

Table = dict[Hashable, Any]
Made = TypeVar("Made")
_tables: weakref.WeakKeyDictionary[Node, dict[Hashable, Table]] = weakref.WeakKeyDictionary()
_recent: OrderedDict[Hashable, Table] = OrderedDict()


def cached_plan(
    heads: Sequence[Value], key: Hashable, make: Callable[[], CompiledPlan]
) -> CompiledPlan:
    """The plan of these heads and this key, made at the first call.

    Args:
        heads: at Symbol level, at least one.
        key: everything else that the plan depends on.
        make: compiles it.
    """
    return _entry(_table(heads), ("plan", key), make)


def cached_types(graph: Graph, key: Hashable, make: Callable[[], Types]) -> Types:
    """The types of a graph's values for this key, computed at the first call.

    Args:
        graph: at Symbol level.
        key: what was given: shapes and dtypes.
        make: infers them.
    """
    nodes = graph.nodes()

    def flat() -> list[TensorType]:
        types = make()
        return [types[v] for n in nodes for v in n.values]

    found = _entry(_table(graph.outputs), ("types", key), flat)
    return dict(zip((v for n in nodes for v in n.values), found, strict=True))


def clear() -> None:
    """Forgets everything."""
    _tables.clear()
    _recent.clear()


def _entry(table: Table, key: Hashable, make: Callable[[], Made]) -> Made:
    found: Made | None = table.get(key)
    if found is None:
        found = table[key] = make()
    return found


def _table(heads: Sequence[Value]) -> Table:
    """The entries of these heads, shared with those of graphs that read the same."""
    known = _tables.setdefault(heads[0].node, {})
    same = tuple((weakref.ref(v.node), v.index) for v in heads)
    found = known.get(same)
    if found is None:
        found = known[same] = _shared(signature(heads))
    return found


def _shared(text: Hashable) -> Table:
    if text is None:
        return {}
    found = _recent.setdefault(text, {})
    _recent.move_to_end(text)
    while len(_recent) > _KEPT:
        _recent.popitem(last=False)
    return found


def signature(heads: Sequence[Value]) -> Hashable:
    """What a graph says, as a key; None where nodes may behave differently all the same.

    Those are nodes that call Python code, which may have a state, and nodes with subgraphs.
    """
    nodes = topological(heads)
    numbers = {n: k for k, n in enumerate(nodes)}
    entries = []
    for node in nodes:
        if node.subgraphs or (node.op is not None and not _plain(node)):
            return None
        inputs = tuple((numbers[v.node], v.index) for v in node.inputs)
        params = tuple(node.params.items())
        attrs = tuple(node.attrs.items())
        entries.append((node.op, node.kind, node.name, inputs, params, attrs, node.types))
    made = (tuple(entries), tuple((numbers[v.node], v.index) for v in heads))
    try:
        hash(made)
    except TypeError:
        return None
    return made


def _plain(node: Node) -> bool:
    assert node.op is not None
    calls = node.op.host is not None or node.op.name in ("Custom", "_Custom")
    return not calls and not any(isinstance(v, Value) for v in node.params.values())
