"""What the benchmarks make of their measurements, and that rivals' files fit the driver."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loads a script of benchmarks/ the way Python starts it: its folder comes first."""

    def script(path: str) -> Any:
        monkeypatch.syspath_prepend(str((ROOT / path).parent))
        for name in ("run", "worker", "report", "training", "update_tables"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        name = "bench_" + path.replace("/", "_").removesuffix(".py")
        spec = importlib.util.spec_from_file_location(name, ROOT / path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return script


def test_shares_use_the_best_limit_of_the_run(load: Any) -> None:
    ours = {"rival": "ours", "flops": 100.0, "bytes": 30.0, "median_seconds": 2.0}
    rows = [
        {**ours, "case": "a", "flop_limit": 50.0, "byte_limit": 60.0},
        {**ours, "case": "b", "flop_limit": 100.0, "byte_limit": 10.0, "median_seconds": 1.0},
        {"case": "a", "rival": "mxnet", "median_seconds": 4.0},
    ]
    first, second, other = load("run.py").with_shares(rows)
    assert (first["flop_share"], first["byte_share"]) == (0.5, 0.25)
    assert (second["flop_share"], second["byte_share"]) == (1.0, 0.5)
    assert "flop_share" not in other
    assert load("run.py").with_shares([other]) == [other]


def test_every_rival_has_an_environment(load: Any) -> None:
    run = load("run.py")
    for question in run.QUESTIONS:
        rivals = {p.stem for p in (ROOT / question).glob("*.py")}
        assert "ours" in rivals
        names = {run.SHARED.get(r, r) for r in rivals if not r.startswith("ours")}
        assert names <= set(run.ENVIRONMENTS), question


def test_rivals_of_convnets_measure_cases_of_ours() -> None:
    """The other packages are not installed here, so their files are only read."""
    nets = {}
    for path in sorted((ROOT / "convnets").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "NETS":
                kept = node.value.keys if isinstance(node.value, ast.Dict) else node.value.elts
                nets[path.stem] = [ast.literal_eval(x) for x in kept]
    assert nets["ours"] == nets["mxnet"] == nets["torch"] == list(nets["ours"])
    assert set(nets["tensorflow"]) == {"vgg-11", "resnet-50"}


def runs(losses: Any, accuracies: Any) -> dict[str, Any]:
    pairs = zip(losses, accuracies, strict=True)
    made = {str(k): {"losses": list(x), "accuracies": list(a)} for k, (x, a) in enumerate(pairs)}
    return {"version": "1", "runs": made}


def test_statistics_of_curves(load: Any) -> None:
    report = load("curves/report.py")
    mxnet = np.linspace(2.0, 1.0, 100) + np.array([[0.0], [0.2]])
    ours = mxnet.copy()
    ours[1, 5] *= 1.01
    ours[:, -64:] += np.array([[0.1], [0.3]])
    task = {
        "ours": runs(ours, [[0.5, 0.8], [0.5, 0.9]]),
        "mxnet": runs(mxnet, [[0.5, 0.7], [0.5, 0.9]]),
        "processor": "p", "commit": "c", "date": "d",
    }  # fmt: skip
    found = report.statistics(task)
    assert found["first_step"] == 0 and found["early"] == pytest.approx(0.01)
    assert found["loss_difference"] == pytest.approx(0.2)
    assert found["loss_error"] == pytest.approx(0.1)
    assert found["accuracy_difference"] == pytest.approx(0.05)
    assert found["mxnet_accuracy_spread"] == pytest.approx(0.2 / np.sqrt(2))
    text = report.table({"net": task})
    assert "| net | 2 | 0e+00 | 1e-02 |" in text and "+5.00 ± 5.00 %" in text


def test_images_take_the_form_of_the_network(load: Any) -> None:
    run = load("curves/run.py")
    images = np.random.default_rng(0).uniform(size=(2, 1, 28, 28)).astype(np.float32)
    assert run.sample("lenet", images).shape == (2, 1, 28, 28)
    made = run.sample("resnet-20-cifar", images)
    assert made.shape == (2, 3, 32, 32) and made.dtype == np.float32
    np.testing.assert_array_equal(made[:, 2, 2:-2, 2:-2], images[:, 0] - np.float32(0.5))
    assert (made[:, :, :2] == -0.5).all()
