"""Writes the API reference, docs/api/*.md, from the docstrings and the operator records.

    python tools/api_reference.py [FOLDER]

One page per public module and one for the operators. Exits with 1, and lists them, where public
names have no docstring.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import mixflow as mx  # noqa: E402
from mixflow import ir  # noqa: E402
from mixflow.ndarray import register  # noqa: E402

MODULES = (
    "amp", "attribute", "autograd", "callback", "checkpoint", "config", "context", "datasets",
    "errors", "executor", "im2rec", "image", "initializer", "io", "kvstore", "lr_scheduler",
    "metric", "model", "models", "module", "name", "ndarray", "operator", "optimizer", "pipeline",
    "pipeline.partitions", "random",
    "recordio", "symbol", "visualization",
)  # fmt: skip


class Reference:
    """Collects pages, and the public names that have no docstring."""

    def __init__(self) -> None:
        self.missing: list[str] = []

    def doc(self, owner: str, thing: Any) -> str:
        """The docstring of a public name, or a remark that it is missing."""
        text = inspect.getdoc(thing)
        if text:
            return text
        self.missing.append(owner)
        return "(no docstring)"

    def entry(self, level: int, owner: str, title: str, thing: Any) -> str:
        """A heading with a signature, then the docstring as it stands."""
        return f"{'#' * level} `{title}`\n\n```text\n{self.doc(owner, thing)}\n```\n"

    def klass(self, name: str, cls: type) -> str:
        """A class with its public methods and properties."""
        parts = [self.entry(2, name, f"class {name}{signature(cls)}", cls)]
        for key in sorted(dir(cls)):
            if key.startswith("_"):
                continue
            member = inspect.getattr_static(cls, key)
            thing = getattr(cls, key, None)
            where = defined_in(member, cls, key)
            if where is None or not where.startswith("mixflow"):
                continue
            if isinstance(member, property):
                parts.append(self.entry(3, f"{name}.{key}", f"{name}.{key}", member))
            elif callable(thing):
                title = f"{name}.{key}{signature(thing)}"
                parts.append(self.entry(3, f"{name}.{key}", title, thing))
        return "\n".join(parts)

    def module(self, name: str) -> str:
        """The page of a module."""
        module = importlib.import_module(f"mixflow.{name}")
        parts = [f"# mixflow.{name}\n\n{self.doc(name, module)}\n"]
        for key, thing in public(module):
            if isinstance(thing, type):
                parts.append(self.klass(key, thing))
            else:
                parts.append(self.entry(2, f"{name}.{key}", f"{key}{signature(thing)}", thing))
        return "\n".join(parts)

    def operators(self) -> str:
        """The page of all operators of mx.nd and mx.sym."""
        by_record: dict[int, list[str]] = {}
        for name, op in ir.names().items():
            if not op.internal:
                by_record.setdefault(op.id, []).append(name)
        parts = ["# Operators\n\nEach is `mx.nd.NAME` on arrays and `mx.sym.NAME` on symbols.\n"]
        for number, names in sorted(by_record.items(), key=lambda item: item[1][0].lower()):
            op = ir.by_id(number)
            name = op.name if op.name in names else names[0]
            if not op.doc.strip():
                self.missing.append(f"operator {name}")
            lines = [f"## `{name}{register.call_signature(op)}`\n"]
            others = [f"`{n}`" for n in names if n != name]
            if others:
                lines.append(f"Also {', '.join(others)}.\n")
            lines.append(f"```text\n{op.doc.strip() or '(no docstring)'}\n```\n")
            lines += [f"- `{p.name}` ({p.kind.name}): {p.doc}" for p in op.params if p.doc]
            parts.append("\n".join(lines) + "\n")
        return "\n".join(parts)


def signature(thing: Any) -> str:
    """Arguments as text; empty where Python does not tell."""
    try:
        return str(inspect.signature(thing))
    except (ValueError, TypeError):
        return ""


def defined_in(member: Any, cls: type, key: str) -> str | None:
    """Module of a class member."""
    if isinstance(member, property):
        return getattr(member.fget, "__module__", None)
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    return getattr(member, "__module__", None)


def public(module: ModuleType) -> list[tuple[str, Any]]:
    """Functions and classes that a module offers: `__all__`, or what it defines itself."""
    names = getattr(module, "__all__", None)
    found = []
    for key in sorted(names or vars(module)):
        thing = getattr(module, key)
        own = names is not None or getattr(thing, "__module__", "") == module.__name__
        is_code = isinstance(thing, type) or inspect.isroutine(thing)
        if own and is_code and not key.startswith("_"):
            found.append((key, thing))
    return found


def write(folder: Path) -> list[str]:
    """Writes every page; returns the public names without a docstring."""
    reference = Reference()
    folder.mkdir(parents=True, exist_ok=True)
    names = [m for m in MODULES if (Path(mx.__file__).parent / m.replace(".", "/")).exists()
             or (Path(mx.__file__).parent / f"{m}.py").exists()]  # fmt: skip
    for name in names:
        (folder / f"{name}.md").write_text(reference.module(name))
    (folder / "operators.md").write_text(reference.operators())
    links = "\n".join(f"- [{n}]({n}.md)" for n in [*names, "operators"])
    (folder / "index.md").write_text(f"# API of mixflow {mx.__version__}\n\n{links}\n")
    return reference.missing


def main() -> int:
    """Command line."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "api"
    missing = write(folder)
    for name in missing:
        print(f"no docstring: {name}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
