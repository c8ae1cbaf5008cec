"""docs/tour.py and the tutorials run."""

import importlib.util
import io
import re
import sys
import tokenize
from pathlib import Path

import pytest

import mixflow as mx

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_tour_trains_both_ways(capsys):
    spec = importlib.util.spec_from_file_location("tour", DOCS / "tour.py")
    tour = importlib.util.module_from_spec(spec)
    sys.modules["tour"] = tour
    spec.loader.exec_module(tour)
    assert tour.main(300) > 0.95
    assert "both ways give the same weights: True" in capsys.readouterr().out
    with pytest.raises(ZeroDivisionError):  # an error reaches the wait of what depends on it
        first, second = tour.Tag(), tour.Tag()
        tour.engine.push(lambda: 1 / 0, [], [first])
        tour.engine.push(lambda: None, [first], [second])
        tour.engine.wait(second)


def test_tour_stays_small():
    names = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    text = (DOCS / "tour.py").read_text()
    without_docstrings = re.sub(r'""".*?"""', "", text, flags=re.S)
    tokens = tokenize.generate_tokens(io.StringIO(without_docstrings).readline)
    assert len({t.start[0] for t in tokens if t.type not in names}) <= 380


@pytest.mark.parametrize("path", sorted((DOCS / "tutorials").glob("*.md")), ids=lambda p: p.stem)
def test_tutorial_runs(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.S))
    assert code
    mx.random.seed(0)
    exec(compile(code, path.name, "exec"), {"__name__": path.stem})
    mx.nd.waitall()
