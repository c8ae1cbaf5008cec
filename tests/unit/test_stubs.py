"""The committed stubs are those that the operator records give."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mixflow as mx
from mixflow import ir

ROOT = Path(__file__).resolve().parents[2]


def test_stubs_are_current():
    command = [sys.executable, str(ROOT / "tools" / "make_stubs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", ["ndarray", "symbol"])
def test_every_stub_exists_at_run_time(package):
    path = ROOT / "src" / "mixflow" / package / "_generated.pyi"
    module = getattr(mx, package)
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            made = getattr(module, node.name)
            assert callable(made)
            stated = {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
            known = {p.name for p in ir.get(node.name).params}
            variadic = ir.get(node.name).variadic
            assert known - {variadic, "ctx", "name", "out"} <= stated, node.name


def test_the_package_is_marked_as_typed():
    assert (ROOT / "src" / "mixflow" / "py.typed").exists()
