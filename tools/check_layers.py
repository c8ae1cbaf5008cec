"""Checks the house rules that a machine can check (DESIGN.md sections 2, 9, 10).

- a module imports only from modules on its own line of `LAYERS` or above, and inside of a package
  on its line of `INNER_LAYERS`; no import cycles;
- third-party packages other than numpy and ml_dtypes are imported inside functions;
- files under 600 lines, 95 % of functions under 30 lines, lines under 100 columns;
- every public module, class, function and method has a docstring.

Prints what breaks a rule and exits with 1, else prints the figures.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src" / "mixflow"

#: From the bottom up; a module may import from its own line and from lines above it.
LAYERS: list[list[str]] = [
    ["errors", "libinfo"],
    ["base", "extras", "files", "scalar_log"],
    ["config"],
    ["dtype"],
    ["ir"],
    ["arguments"],
    ["_rt"],
    ["context", "name", "attribute"],
    ["ops"],
    ["passes"],
    ["backends"],
    ["ndarray"],
    ["random"],
    ["symbol"],
    ["placement"],
    ["executor"],
    ["binding"],
    ["amp"],
    ["autograd", "operator"],
    ["lr_scheduler", "initializer", "metric"],
    ["optimizer"],
    ["recordio"],
    ["io", "image", "pipeline"],
    ["im2rec"],
    ["kvstore"],
    ["visualization", "checkpoint", "monitor", "profiler", "callback"],
    ["contrib"],
    ["module", "model", "gluon", "models"],
    ["datasets"],
    ["test_utils"],
    ["train", "simulate"],
    ["cli"],
    ["__init__", "__main__"],
]
#: The same inside of packages that have folders.
INNER_LAYERS: dict[str, list[list[str]]] = {
    "kvstore": [
        ["base"],
        ["protocol"],
        ["server"],
        ["transport"],
        ["options", "utilisation", "local"],
        ["host"],
        ["worker"],
        ["dist"],
        ["table"],
        ["job", "simulation"],
        ["__init__"],
    ],
}
ALLOWED_PACKAGES = {"numpy", "ml_dtypes"}
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 30
MAX_COLUMNS = 100
FUNCTION_SHARE = 0.95


@dataclass
class Module:
    """One source file: dotted name below the package, tree, text."""

    name: str
    path: Path
    tree: ast.Module
    text: str

    @property
    def top(self) -> str:
        """Name of the line of LAYERS."""
        return self.name.split(".")[0]


def load() -> dict[str, Module]:
    """Every module of the package by dotted name; a package's __init__ has the package's name."""
    modules = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__" and len(parts) > 1:
            parts.pop()
        name = ".".join(parts)
        text = path.read_text()
        modules[name] = Module(name, path, ast.parse(text), text)
    return modules


def is_type_checking(node: ast.stmt) -> bool:
    """Whether a statement is ``if TYPE_CHECKING:``; imports below it do not run."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(module: Module) -> list[tuple[list[str], int, bool, bool]]:
    """(targets, line, inside a function, own package) of each import that runs."""
    found: list[tuple[list[str], int, bool, bool]] = []
    is_package = module.path.name == "__init__.py"

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.stmt) and is_type_checking(node):
            return
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = [] if module.name == "__init__" else module.name.split(".")
                drop = node.level - (1 if is_package else 0)
                base = base[: len(base) - drop] if drop else base
                stem = [*base, *(node.module.split(".") if node.module else [])]
                found.append(
                    ([".".join([*stem, a.name]) for a in node.names], node.lineno, inside, True)
                )
            else:
                found.append(([node.module or ""], node.lineno, inside, False))
        elif isinstance(node, ast.Import):
            found.append(([a.name for a in node.names], node.lineno, inside, False))
        deeper = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for child in ast.iter_child_nodes(node):
            visit(child, deeper)

    visit(module.tree, False)
    return found


def resolve(target: str, modules: dict[str, Module]) -> str | None:
    """The module that a dotted import target names (itself or its parent)."""
    while target:
        if target in modules:
            return target
        target = target.rpartition(".")[0]
    return "__init__" if "__init__" in modules else None


def breach_inside(name: str, found: str) -> str:
    """What is wrong with an import inside of a package by `INNER_LAYERS`, or ''."""
    package = name.split(".")[0]
    if package not in INNER_LAYERS or package != found.split(".")[0]:
        return ""
    rank = {part: i for i, line in enumerate(INNER_LAYERS[package]) for part in line}
    here, there = ([*module.split("."), "__init__"][1] for module in (name, found))
    if unknown := {here, there} - set(rank):
        return f"'{package}.{min(unknown)}' stands on no line of INNER_LAYERS"
    return f"{name} imports {found} from above" if rank[there] > rank[here] else ""


def check_imports(modules: dict[str, Module]) -> list[str]:
    """Breaches of the layer rule, cycles, and early third-party imports."""
    rank = {name: i for i, line in enumerate(LAYERS) for name in line}
    problems = []
    edges: dict[str, set[str]] = {name: set() for name in modules}
    for module in modules.values():
        if module.top not in rank:
            problems.append(f"{module.path}: '{module.top}' stands on no line of LAYERS")
            continue
        for targets, line, inside, own in imports(module):
            for target in targets:
                if not own:
                    package = target.split(".")[0]
                    known = package in sys.stdlib_module_names or package in ALLOWED_PACKAGES
                    if not known and not inside and package != "__future__":
                        problems.append(f"{module.path}:{line}: import of {package} at top level")
                    continue
                found = resolve(target, modules)
                if found is None or found == module.name or found == "__init__":
                    continue
                top = found.split(".")[0]
                if rank.get(top, 99) > rank[module.top]:
                    problems.append(f"{module.path}:{line}: {module.top} imports {top} from above")
                if not inside:
                    if breach := breach_inside(module.name, found):
                        problems.append(f"{module.path}:{line}: {breach}")
                    edges[module.name].add(found)
    return problems + cycles(edges)


def cycles(edges: dict[str, set[str]]) -> list[str]:
    """One line per import cycle: strongly connected components, by Tarjan's algorithm."""
    sys.setrecursionlimit(10_000)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[str] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges.get(name, ()):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = []
            while True:
                group.append(stack.pop())
                if group[-1] == name:
                    break
            if len(group) > 1:
                found.append("import cycle: " + " <-> ".join(sorted(group)))

    for name in edges:
        if name not in index:
            visit(name)
    return found


def functions(module: Module) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its name."""
    return [
        (n.name, n)
        for n in ast.walk(module.tree)
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def check_sizes(modules: dict[str, Module]) -> tuple[list[str], str]:
    """Files, functions and lines that are too long, and a summary."""
    problems = []
    lengths: list[tuple[int, str]] = []
    for module in modules.values():
        lines = module.text.splitlines()
        if len(lines) > MAX_FILE_LINES:
            problems.append(f"{module.path}: {len(lines)} lines (most: {MAX_FILE_LINES})")
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS:
                problems.append(f"{module.path}:{number}: {len(line)} columns")
        lengths += [
            (body_lines(n), f"{module.path}:{n.lineno} {name}") for name, n in functions(module)
        ]
    lengths.sort(reverse=True)
    short = sum(1 for length, _ in lengths if length <= MAX_FUNCTION_LINES)
    share = short / max(1, len(lengths))
    if share < FUNCTION_SHARE:
        worst = "; ".join(f"{where} ({length})" for length, where in lengths[:10])
        problems.append(f"only {share:.1%} of functions under {MAX_FUNCTION_LINES} lines: {worst}")
    total = sum(len(m.text.splitlines()) for m in modules.values())
    return problems, f"{len(modules)} modules, {total} lines, {share:.1%} of functions are short"


def undocumented(modules: dict[str, Module]) -> list[str]:
    """Public names without a docstring."""
    problems = []

    def visit(module: Module, node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                continue
            if child.name.startswith("_"):
                continue
            stub = all(
                isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in child.body
            )
            if ast.get_docstring(child) is None and not stub and not is_overload(child):
                problems.append(
                    f"{module.path}:{child.lineno}: {prefix}{child.name} has no docstring"
                )
            if isinstance(child, ast.ClassDef):
                visit(module, child, child.name + ".")

    for module in modules.values():
        if ast.get_docstring(module.tree) is None and module.text.strip():
            problems.append(f"{module.path}: the module has no docstring")
        visit(module, module.tree, "")
    return problems


def is_overload(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether a setter or overload shares its getter's docstring."""
    marks = [ast.unparse(d) for d in node.decorator_list]
    return any(m.endswith(".setter") or m.endswith("overload") for m in marks)


def main() -> int:
    """Runs every check."""
    modules = load()
    size_problems, summary = check_sizes(modules)
    problems = check_imports(modules) + size_problems + undocumented(modules)
    for problem in problems:
        print(problem.replace(str(ROOT.parent.parent) + "/", ""))
    print(f"check_layers: {summary}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
