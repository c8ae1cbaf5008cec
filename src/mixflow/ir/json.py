"""MXNet 1.x symbol files: JSON text to values over nodes, and back.

Hazard: files of ten years exist in several forms ('param' and 'attr' beside 'attrs', auxiliary
states left out, ``weight_lr_mult`` on the operator). All of them are read; one form is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..errors import FormatError, MixflowError, describe_unknown
from . import op as _op
from .graph import Graph, Node, Value, topological
from .params import Keywords

#: Attributes that MXNet stores as ``__key__``.
HIDDEN = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage", "profiler_scope")
VERSION = 10901
_MAX_NODES = 10_000_000


def hidden_key(key: str) -> str:
    """The stored form of an attribute's key."""
    return f"__{key}__" if key in HIDDEN else key


def param_strings(node: Node) -> dict[str, str]:
    """The node's parameters that differ from their defaults, as MXNet writes them."""
    if node.op is None:
        return {}
    result: dict[str, str] = {}
    for p in node.op.params:
        value = node.params.get(p.name)
        if value is None and p.default is None:
            continue
        if p.kind is Keywords:
            result.update(value or {})
        elif value != p.default or p.name == node.op.variadic:
            result[p.name] = p.format(value)
    return result


def dumps(heads: Sequence[Value]) -> str:
    """The JSON text of the graph that computes `heads`."""
    nodes = topological(heads)
    index = {n: k for k, n in enumerate(nodes)}
    rows = [0]
    for node in nodes:
        rows.append(rows[-1] + _output_count(node))
    data = {
        "nodes": [_node_entry(n, index) for n in nodes],
        "arg_nodes": [k for k, n in enumerate(nodes) if n.op is None],
        "node_row_ptr": rows,
        "heads": [[index[v.node], v.index, 0] for v in heads],
        "attrs": {"mxnet_version": ["int", VERSION]},
    }
    return json.dumps(data, indent=2)


def _output_count(node: Node) -> int:
    return 1 if node.op is None else len(node.op.output_names(dict(node.params)))


def _node_entry(node: Node, index: dict[Node, int]) -> dict[str, Any]:
    attrs = {**param_strings(node), **node.attrs}
    mutated = set(node.mutated)
    entry: dict[str, Any] = {"op": "null" if node.op is None else node.op.name, "name": node.name}
    if attrs:
        entry["attrs"] = {k: attrs[k] for k in sorted(attrs)}
    entry["inputs"] = [
        [index[v.node], v.index, int(k in mutated)] for k, v in enumerate(node.inputs)
    ]
    if node.subgraphs:
        entry["subgraphs"] = [json.loads(dumps(g.outputs)) for g in node.subgraphs]
    return entry


def loads(text: str | bytes) -> tuple[Value, ...]:
    """The heads of a symbol file.

    Raises:
        FormatError: truncated, corrupt, not a symbol file, or of an unknown operator.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"[symbol file] expected JSON, got something else ({error})") from None
    try:
        return _graph(data)
    except FormatError:
        raise
    except MixflowError as error:
        raise FormatError(f"[symbol file] {error}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"[symbol file] expected nodes and heads of MXNet's form, got {error!r}"
        ) from None


def _graph(data: Any) -> tuple[Value, ...]:
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise FormatError(
            "[symbol file] expected an object with 'nodes', got none; is it a symbol?"
        )
    entries = data["nodes"]
    if not entries or len(entries) > _MAX_NODES:
        raise FormatError(f"[symbol file] expected 1 to {_MAX_NODES} nodes, got {len(entries)}")
    _lift_attributes(entries)
    nodes: list[Node] = []
    for entry in entries:
        nodes.append(_node(entry, nodes))
    heads = data.get("heads")
    if not isinstance(heads, list) or not heads:
        raise FormatError("[symbol file] expected 'heads', got none")
    return tuple(_value(h, nodes) for h in heads)


def _value(reference: Any, nodes: list[Node]) -> Value:
    number, index = int(reference[0]), int(reference[1]) if len(reference) > 1 else 0
    if not 0 <= number < len(nodes):
        raise FormatError(f"[symbol file] expected a node before this one, got number {number}")
    node = nodes[number]
    if not 0 <= index < _output_count(node):
        raise FormatError(
            f"[symbol file] expected an output below {_output_count(node)} of '{node.name}', "
            f"got {index}"
        )
    return Value(node, index)


def _attributes(entry: dict[str, Any]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for key in ("attr", "param", "attrs"):
        found = entry.get(key) or {}
        if not isinstance(found, dict):
            raise FormatError(f"[symbol file] expected an object under '{key}', got {found!r}")
        merged.update(found)
    for key, value in merged.items():
        if not isinstance(value, str):
            raise FormatError(f"[symbol file] expected a string for '{key}', got {value!r}")
    return {hidden_key(k): v for k, v in merged.items()}


def _lift_attributes(entries: list[Any]) -> None:
    """Moves ``weight_lr_mult`` of an operator to ``__lr_mult__`` of its variable (old files)."""
    for entry in entries:
        if entry["op"] == "null":
            continue
        found = {**(entry.get("attr") or {}), **(entry.get("attrs") or {})}
        for key in [k for k in found if k.endswith(tuple("_" + h for h in HIDDEN))]:
            hidden = next(h for h in HIDDEN if key.endswith("_" + h))
            suffix = "_" + key[: -len(hidden) - 1]
            for reference in entry["inputs"]:
                source = entries[reference[0]]
                if source["op"] == "null" and source["name"].endswith(suffix):
                    source.setdefault("attrs", {})[f"__{hidden}__"] = found[key]
                    for place in ("attr", "attrs"):
                        (entry.get(place) or {}).pop(key, None)


def _node(entry: Any, before: list[Node]) -> Node:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise FormatError(f"[symbol file] expected a node with a name, got {entry!r:.80}")
    name, attrs = entry["name"], _attributes(entry)
    if entry["op"] == "null":
        if entry.get("inputs"):
            raise FormatError(f"[symbol file] expected no inputs of variable '{name}', got some")
        return Node(None, name, attrs=attrs)
    op = _op.get(entry["op"])
    known = {p.name for p in op.params}
    if any(p.kind is Keywords for p in op.params):
        known.update(k for k in attrs if not k.startswith("__"))
    params = op.check_params({k: v for k, v in attrs.items() if k in known})
    inputs = [_value(r, before) for r in entry["inputs"]]
    if op.variadic is None:
        inputs = _complete(op, params, name, inputs)
    subgraphs = [_subgraph(s) for s in entry.get("subgraphs") or ()]
    rest = {k: v for k, v in attrs.items() if k not in known}
    _check_rest(op, name, rest, entry)
    return Node(op, name, inputs, params, rest, subgraphs=subgraphs)


def _check_rest(op: _op.Operator, name: str, rest: dict[str, str], entry: dict[str, Any]) -> None:
    """A misspelt parameter is an error. Before 0.9, 'attr' beside 'param' was free for users."""
    free = entry.get("attr") or {} if "param" in entry else {}
    for key in rest:
        if key not in free and not (key.startswith("__") and key.endswith("__")):
            known = [p.name for p in op.params]
            text = describe_unknown(f"parameter of {op.name} '{name}'", key, known)
            raise FormatError(f"[symbol file] {text}")


def _complete(
    op: _op.Operator, params: dict[str, Any], name: str, inputs: list[Value]
) -> list[Value]:
    """Adds the auxiliary variables that files before MXNet 0.9 leave out."""
    names = op.input_names(params)
    if len(inputs) > len(names):
        raise FormatError(
            f"[{op.name}] expected {len(names)} inputs, got {len(inputs)} in '{name}'"
        )
    for missing in names[len(inputs) :]:
        if missing not in op.aux_names(params):
            raise FormatError(f"[{op.name}] expected input '{missing}', got none in '{name}'")
        inputs.append(Value(Node(None, f"{name}_{missing}"), 0))
    return inputs


def _subgraph(data: Any) -> Graph:
    heads = _graph(data)
    inputs = tuple(Value(n, 0) for n in topological(heads) if n.op is None)
    return Graph(inputs, heads)
