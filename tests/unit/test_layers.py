"""The house rules that a machine can check (tools/check_layers.py), and that it finds breaches."""

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "check_layers.py"


def test_the_package_keeps_the_rules():
    done = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check_layers", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_layers"] = module
    spec.loader.exec_module(module)
    return module


def modules(check, **sources):
    """Modules from texts; `__` in a name stands for a dot."""
    names = {key.replace("__", "."): text for key, text in sources.items()}
    return {
        name: check.Module(name, Path(f"{name}.py"), ast.parse(text), text)
        for name, text in names.items()
    }


def test_an_import_from_above_is_found(check):
    found = check.check_imports(modules(check, errors="from . import ir", ir=""))
    assert found == ["errors.py:1: errors imports ir from above"]


def test_an_import_from_above_inside_a_function_is_found(check):
    text = "def f():\n    from .ir import Graph\n"
    found = check.check_imports(modules(check, errors=text, ir=""))
    assert found == ["errors.py:2: errors imports ir from above"]


def test_an_import_from_above_inside_of_a_package_is_found(check):
    text = "from ..server.shard import x\nfrom ..novel import y"
    found = modules(check, kvstore__protocol__a=text, kvstore__server__shard="", kvstore__novel="")
    assert check.check_imports(found) == [
        "kvstore.protocol.a.py:1: kvstore.protocol.a imports kvstore.server.shard from above",
        "kvstore.protocol.a.py:2: 'kvstore.novel' stands on no line of INNER_LAYERS",
    ]
    text = "from ..protocol.a import x"
    assert not check.check_imports(modules(check, kvstore__server__b=text, kvstore__protocol__a=""))


def test_a_cycle_is_found(check):
    text = {"ir__a": "from .b import x", "ir__b": "from .a import y"}
    assert check.check_imports(modules(check, **text)) == ["import cycle: ir.a <-> ir.b"]


def test_an_early_import_of_a_package_is_found(check):
    early, late = "import scipy", "def f():\n    import scipy\n"
    assert check.check_imports(modules(check, errors=early)) == [
        "errors.py:1: import of scipy at top level"
    ]
    assert check.check_imports(modules(check, errors=late)) == []


def test_an_unknown_module_is_found(check):
    (found,) = check.check_imports(modules(check, novel=""))
    assert "'novel' stands on no line of LAYERS" in found


def test_long_lines_files_and_functions_are_found(check):
    body = "".join(f"    x = {i}\n" for i in range(40))
    problems, _ = check.check_sizes(modules(check, errors=f"def f():\n{body}"))
    assert any("functions under 30 lines" in p for p in problems)
    problems, _ = check.check_sizes(modules(check, errors="x = '" + "-" * 100 + "'\n"))
    assert "errors.py:1: 106 columns" in problems
    problems, _ = check.check_sizes(modules(check, errors="x = 1\n" * 601))
    assert "errors.py: 601 lines (most: 600)" in problems


def test_missing_docstrings_are_found(check):
    text = '"""Doc."""\nclass A:\n    """A."""\n    def f(self):\n        return 1\n'
    assert check.undocumented(modules(check, errors=text)) == ["errors.py:4: A.f has no docstring"]
    assert check.undocumented(modules(check, errors=text.replace("def f", "def _f"))) == []


LATE = ["kvstore.dist", "kvstore.table", "io.partitioned", "pipeline.partitions", "placement"]


def test_what_few_programs_use_is_imported_when_asked_for():
    lines = [
        "import sys, mixflow as mx",
        f"early = [n for n in {LATE} if f'mixflow.{{n}}' in sys.modules]",
        "assert not early, early",
        "assert mx.kv.create('local').type == 'local'",
        "mx.kv.DistKVStore, mx.kv.Table, mx.io.PartitionedIter, mx.placement.Auto",
        "mx.pipeline.partitions.open_source",
        f"late = [n for n in {LATE} if f'mixflow.{{n}}' not in sys.modules]",
        "assert not late, late",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["mixflow", "mixflow.io", "mixflow.kvstore"])
def test_an_unknown_name_of_a_package_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = importlib.import_module(package).nothing
