"""The intermediate representation: operator records, immutable graphs, verifier, JSON codec."""

from .graph import (
    Graph,
    Node,
    Value,
    binary,
    constant,
    emit,
    emit_node,
    fresh,
    origin,
    topological,
    variable,
)
from .op import Operator, all_operators, by_id, get, names, primitive, register, signature
from .params import (
    REQUIRED,
    Any_,
    Bool,
    DType,
    Enum,
    Float,
    Floats,
    Int,
    Keywords,
    Kind,
    Param,
    Shape,
    Str,
)
from .types import Desc, TensorType

__all__ = [
    "REQUIRED", "Any_", "Bool", "DType", "Desc", "Enum", "Float", "Floats", "Graph", "Int",
    "Keywords", "Kind", "Node", "Operator", "Param", "Shape", "Str", "TensorType", "Value",
    "all_operators", "binary", "by_id", "constant", "emit", "emit_node", "fresh", "get", "names",
    "origin", "primitive", "register", "signature", "topological", "variable",
]
