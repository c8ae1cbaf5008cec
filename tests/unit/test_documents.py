"""The documents that are not code: the example of the README, its table, links."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def tool(name):
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_blocks(path):
    """Python blocks of a Markdown file, joined."""
    return "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.S))


def test_readme_is_one_screen_and_its_example_runs():
    text = (ROOT / "README.md").read_text()
    without_table = re.sub(r"<!-- bench -->.*<!-- /bench -->", "", text, flags=re.S)
    assert len(without_table.splitlines()) <= 80
    scope = {}
    exec(compile(code_blocks(ROOT / "README.md"), "README.md", "exec"), scope)
    np.testing.assert_array_equal(scope["run"].outputs[0].argmax(axis=1).asnumpy(), [0, 1, 0, 1])
    np.testing.assert_allclose(scope["w"].grad.asnumpy(), 2 * scope["w"].asnumpy(), rtol=1e-6)


@pytest.mark.parametrize(
    "path", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda p: p.name
)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def rows():
    common = {"case": "mlp", "version": "1.0", "processor": "p", "threads": 2, "commit": "c"}
    made = [("ours", 0.002), ("mxnet", 0.005), ("torch", 3e-6)]
    return [
        {**common, "question": "small_nets", "date": "d", "rival": r, "median_seconds": s}
        for r, s in made
    ]


def test_table_of_benchmark_rows(tmp_path):
    update = tool("update_tables")
    (tmp_path / "small_nets.json").write_text(json.dumps(rows()))
    text = update.table(update.read_rows(tmp_path))
    assert "**small_nets**" in text and "limit" not in text and "mean" not in text
    assert "| mlp | 2 ms | 5 ms | 3 us | 2.50 | 0.00 |" in text
    assert "p, 2 threads" in text
    assert update.table([]) == update.EMPTY


def test_table_of_nets_has_means_and_shares():
    update = tool("update_tables")
    made = []
    for net, factor in (("a", 2.0), ("b", 8.0)):
        for row in rows():
            made.append({**row, "question": "convnets", "case": f"{net} train"})
        made[-2]["median_seconds"] = 0.002 * factor
    del made[-1]  # torch lacks the second net
    made[0].update(flop_share=1.06, byte_share=0.14, flop_limit=234e9, byte_limit=44e9)
    text = update.table(made)
    assert "| of arithmetic limit | of memory-traffic limit |" in text
    assert "| a train | 2 ms | 4 ms | 3 us | 2.00 | 0.00 | 106 % | 14 % |" in text
    assert "| b train | 2 ms | 16 ms |  | 8.00 |  |  |  |" in text
    assert "| geometric mean, train |  |  |  | 4.00 | 0.00 (of 1) |  |  |" in text
    assert "limits 234 GFLOP/s, 44.0 GB/s" in text


def test_filling_the_markers():
    update = tool("update_tables")
    assert update.filled("a <!-- bench -->old<!-- /bench --> b", "new") == (
        "a <!-- bench -->\nnew\n<!-- /bench --> b"
    )
    with pytest.raises(ValueError, match=r"\[update_tables\] expected"):
        update.filled("nothing", "new")


@pytest.mark.parametrize("content", [{"runs": []}, [{"share": 0.5}], [1.5], "rows"])
def test_results_that_are_no_rows_are_named(content, tmp_path):
    update = tool("update_tables")
    (tmp_path / "overlap.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"\[update_tables\] expected .*overlap\.json"):
        update.read_rows(tmp_path)


def test_tables_are_those_of_the_results(monkeypatch):
    update = tool("update_tables")
    monkeypatch.setattr(sys, "argv", ["update_tables", "--check"])
    assert update.main() == 0


def test_reference_is_complete(tmp_path):
    reference = tool("api_reference")
    assert reference.write(tmp_path) == []  # public names without a docstring
    assert "## `Convolution(" in (tmp_path / "operators.md").read_text()
    assert "class Module(" in (tmp_path / "module.md").read_text()


def test_table_of_many_rivals_shows_the_fastest_and_what_came_out():
    update = tool("update_tables")
    common = {"question": "platforms", "version": "1.0", "processor": "p", "threads": 2}
    common |= {"commit": "c", "date": "d"}
    seconds = {"ours": 2.0, "mxnet": 5.0, "spark": 9.0, "tensorflow": 1.0, "torch": None}
    made = []
    for case, factor in (("a", 1.0), ("b", 4.0)):
        for rival, value in seconds.items():
            row = {**common, "case": case, "rival": rival}
            if value is None:
                row["unfinished"] = "not within 90 s"
            else:
                row["median_seconds"] = value * (factor if rival == "tensorflow" else 1)
                row.update(loss=0.5, accuracy=0.875)
            made.append(row)
    text = update.table(made)
    assert "| a | 2 s | 5 s | 9 s | 1 s | not finished | 0.50 |" in text
    assert "| b | 2 s | 5 s | 9 s | 4 s | not finished | 2.00 |" in text
    assert "| geometric mean; mixflow is the fastest in 1 of 2 |  |  |  |  |  | 1.00 |" in text
    assert "| a | 0.5000, 87.5 % | 0.5000, 87.5 % |" in text
