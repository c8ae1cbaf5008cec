"""Writes the type stubs of the generated functions of mx.nd and mx.sym from the operator records.

    python tools/make_stubs.py           writes src/mixflow/{ndarray,symbol}/_generated.pyi
    python tools/make_stubs.py --check   exits with 1 where they are not current

`_generated` exists for type checkers only: each package imports it under TYPE_CHECKING, so that the
types of the package's own modules stay what their sources say.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
sys.path.insert(0, str(SOURCE))

from mixflow import ir  # noqa: E402
from mixflow.ndarray import register  # noqa: E402

SPACES = ("contrib", "image", "linalg", "sparse")
HEADER = '''"""Made by tools/make_stubs.py from the operator records; do not edit."""

from collections.abc import Sequence
from typing import Any

{imports}

'''
IMPORTS = {
    "ndarray": "from .ndarray import NDArray",
    "symbol": "from .symbol import Symbol",
}
TENSOR = {"ndarray": "NDArray", "symbol": "Symbol"}
KINDS = {
    "int": "int",
    "float": "float",
    "boolean": "bool",
    "string": "str",
    "shape": "int | Sequence[int]",
    "tuple of float": "float | Sequence[float]",
}


def own_names(package: str) -> set[str]:
    """Names that the package's __init__ binds itself: they hide generated ones."""
    tree = ast.parse((SOURCE / "mixflow" / package / "__init__.py").read_text())
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
    return found


def annotation(kind: ir.Kind) -> str:
    """Type of a parameter."""
    if kind.name.startswith("{"):
        return "str"
    if kind.name.startswith(("int ", "float ")):  # a number with bounds
        return kind.name.split()[0]
    return KINDS.get(kind.name, "Any")


def returned(op: ir.Operator, tensor: str) -> str:
    """One array, or Any where the number of outputs depends on the parameters."""
    if tensor == "Symbol":
        return tensor
    count = len(op.outputs) if op.visible is None and not callable(op.outputs) else op.visible
    return tensor if count == 1 else "Any"


def arguments(op: ir.Operator, tensor: str) -> list[str]:
    """Arguments of the function as text."""
    parts: list[str] = []
    keyword_only = False
    for p in register.call_signature(op).parameters.values():
        if not p.name.isidentifier() or keyword.iskeyword(p.name):
            continue
        if p.kind is inspect.Parameter.VAR_POSITIONAL:
            parts.append(f"*{p.name}: {tensor} | Sequence[{tensor}]")
            keyword_only = True
            continue
        if p.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        param = op.param(p.name)
        if p.name == "out":
            kind = "Any"
        elif p.name == "name":
            kind = "str"
        else:
            kind = tensor if param is None else annotation(param.kind)
        parts.append(f"{p.name}: {kind}" + ("" if kind == "Any" else " | None") + " = ...")
    if tensor == "Symbol":
        parts.append("attr: dict[str, str] | None = ...")
    parts.append("**kwargs: Any")
    return parts


def function(name: str, op: ir.Operator, tensor: str, indent: str = "") -> str:
    """One stub."""
    lines = [f"{indent}@staticmethod"] if indent else []
    lines.append(f"{indent}def {name}(")
    lines += [f"{indent}    {a}," for a in arguments(op, tensor)[:-1]]
    lines.append(f"{indent}    {arguments(op, tensor)[-1]},")
    lines.append(f"{indent}) -> {returned(op, tensor)}: ...")
    return "\n".join(lines)


def tables() -> dict[str, dict[str, ir.Operator]]:
    """Public functions by name space, '' for the package itself."""
    found: dict[str, dict[str, ir.Operator]] = {"": {}, **{s: {} for s in SPACES}}
    for name, op in ir.names().items():
        space, short = register.place(name)
        if op.internal or not short.isidentifier() or keyword.iskeyword(short):
            continue
        if space in found:
            found[space].setdefault(short, op)
        if op.namespace in SPACES and space == "":
            found[op.namespace].setdefault(short, op)
    return found


def stub(package: str) -> str:
    """The whole file."""
    tensor, hidden = TENSOR[package], own_names(package)
    found = tables()
    parts = [HEADER.format(imports=IMPORTS[package]).rstrip("\n") + "\n"]
    for name, op in sorted(found[""].items()):
        if name not in hidden and not name.startswith("_") and name not in SPACES:
            parts.append(function(name, op, tensor))
    return "\n".join(parts) + "\n"


def main() -> int:
    """Writes or checks both files."""
    stale = []
    for package in TENSOR:
        path = SOURCE / "mixflow" / package / "_generated.pyi"
        text = stub(package)
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text() != text:
                stale.append(str(path))
        else:
            path.write_text(text)
    for path in stale:
        print(f"{path} is not current; run python tools/make_stubs.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
