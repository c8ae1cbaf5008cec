"""mypy (strict) passes on the package and on a program that uses the generated functions."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("mypy")

PROGRAM = """
import mixflow as mx

a = mx.nd.relu(mx.nd.ones((2, 3)))
reveal_type(a)
net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3)
reveal_type(net)
mx.sym.FullyConnected(net, num_hidden="three")
"""


def mypy(*arguments: str) -> str:
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_the_package_is_typed():
    assert "Success: no issues found" in mypy()


def test_generated_functions_have_types(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    found = mypy(str(path))
    assert 'Revealed type is "mixflow.ndarray.ndarray.NDArray"' in found
    assert 'Revealed type is "mixflow.symbol.symbol.Symbol"' in found
    assert 'Argument "num_hidden" to "FullyConnected" has incompatible type "str"' in found
