"""What the benchmarks make of their measurements, and that rivals' files fit the driver."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
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


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of benchmarks/platforms/programs as its rivals' files do."""

    def module(name: str) -> Any:
        monkeypatch.syspath_prepend(str(ROOT))  # as for a script of benchmarks/
        monkeypatch.syspath_prepend(str(ROOT / "platforms"))
        return importlib.import_module(f"programs.{name}")

    return module


def test_cells_of_platforms_are_the_same_work_for_all(programs: Any) -> None:
    tasks = programs("tasks")
    names = [cell.name for cell in tasks.all_cells()]
    assert len(set(names)) == len(names)
    for cell in tasks.all_cells():
        assert tasks.Cell.from_json(cell.to_json()) == cell
        assert cell.passes * cell.rows == cell.steps * cell.size * cell.workers
        last = cell.batch_rows(cell.steps_per_pass - 1)
        assert last.stop <= cell.rows // cell.workers
        assert cell.batch_rows(cell.steps_per_pass) == cell.batch_rows(0)
    sync, free = tasks.Cell("softmax", "sync", 100, 3), tasks.Cell("softmax", "async", 100, 3)
    # A synchronous gradient is a mean over all workers; an asynchronous one that of its own batch.
    assert free.rate == sync.rate / 3


def test_weights_of_platforms_are_judged(programs: Any, monkeypatch: Any, tmp_path: Path) -> None:
    tasks = programs("tasks")
    monkeypatch.setattr(tasks, "FOLDER", tmp_path)
    files, cell = tasks.paths("logistic"), tasks.Cell("logistic", "sync", 100, 1)
    np.save(files["judged-x"], np.array([[1, 0], [0, 1], [2, 0]], np.float32))
    np.save(files["judged-y"], np.array([1, 0, 0], np.float32))
    zeros = tasks.judge(cell, [np.zeros((1, 2)), np.zeros(1)])
    assert zeros["loss"] == pytest.approx(np.log(2))
    found = tasks.judge(cell, [np.array([[2.0, -2.0]]), np.zeros(1)])
    logits = np.array([2.0, -2.0, 4.0])
    expected = np.log1p(np.exp(-logits * [1, -1, -1])).mean()
    assert found["loss"] == pytest.approx(expected)
    assert found["accuracy"] == pytest.approx(2 / 3)


def test_first_values_and_gradients_of_platforms(programs: Any, monkeypatch: Any) -> None:
    """The partition's gradients, which are written by hand, are those of finite differences."""
    tasks = programs("tasks")
    monkeypatch.setitem(sys.modules, "tasks", tasks)
    gradients = programs("gradients")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 784)), np.array([0.0, 3, 9, 1, 1])
    cell = tasks.Cell("two hidden layers", "sync", 0, 1)
    monkeypatch.setattr(gradients, "mapped", lambda cell, rank: (x, y))
    weights = [w.astype(float) for w in tasks.first_values(cell)]

    def loss() -> float:
        value = np.maximum(x @ weights[0].T + weights[1], 0)
        value = np.maximum(value @ weights[2].T + weights[3], 0) @ weights[4].T + weights[5]
        logs = value - np.log(np.exp(value).sum(axis=1, keepdims=True))
        return float(-logs[np.arange(5), y.astype(int)].sum())

    class Shared:
        value = weights

    found = gradients.part_sums(cell, Shared, 0)
    for weight, gradient in zip(weights, found, strict=True):
        place = np.unravel_index(np.abs(gradient).argmax(), weight.shape)
        before, step = weight[place], 1e-5
        weight[place] = before + step
        above = loss()
        weight[place] = before - step
        assert (above - loss()) / (2 * step) == pytest.approx(gradient[place], rel=1e-4)
        weight[place] = before


#: A program that "trains" as the programs of the platforms do: it counts its blocks.
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import tasks
watch, blocks = tasks.Watch(sys.argv[2], int(sys.argv[3])), 0
while watch.begin():
    blocks += 1
    watch.end(**({"passes": 4.0} if blocks == 2 else {}))
if sys.argv[3] == "0":
    watch.write([tasks.np.full((10, 784), blocks), tasks.np.zeros(10)])
"""


def test_platforms_take_turns_block_by_block(
    programs: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    jobs, tasks = programs("jobs"), programs("tasks")
    cell = tasks.Cell("softmax", "sync", 100, 2)
    judged = []
    monkeypatch.setattr(tasks, "judge", lambda c, w: judged.append(w[0][0, 0]) or {"loss": 1.0})

    def processes(cell: Any, out: str) -> Any:
        command = [sys.executable, "-c", PROGRAM, str(jobs.PROGRAMS), out]
        return jobs.Processes([([*command, str(rank)], {}) for rank in (0, 1)], 2, 2)

    runner = jobs.Runner(processes, [cell])
    measure = runner.cases[cell.name]()
    first, second = measure(), measure()
    assert first > 0 and second > 0
    figures = runner.figures[cell.name]()
    assert figures["blocks"] == [round(first, 6), round(second, 6)]
    assert figures["timed_passes"] == pytest.approx(cell.passes + 4.0)
    assert judged == [2.0]
    assert measure() is None  # its processes have ended


def test_a_job_that_does_not_end_well_is_reported(programs: Any, monkeypatch: Any) -> None:
    jobs = programs("jobs")
    cell = jobs.tasks.Cell("softmax", "sync", 100, 1)
    codes = {
        "raise SystemExit('no such model')": (60.0, "no such model"),
        "print('too early')": (60.0, "ended before its time: too early"),
        "import time; time.sleep(60)": (0.5, "not within 0.5 s"),
    }
    for code, (limit, text) in codes.items():
        monkeypatch.setattr(jobs, "LIMIT", limit)

        def processes(cell: Any, out: str, code: str = code) -> Any:
            return jobs.Processes([([sys.executable, "-c", code], {})], 1, 1)

        runner = jobs.Runner(processes, [cell])
        assert runner.cases[cell.name]()() is None
        assert text in runner.figures[cell.name]()["unfinished"]


def test_cells_of_platforms_name_the_fastest_and_doubt_other_losses(load: Any) -> None:
    module = load("platform_cells.py")

    def row(case: str, rival: str, seconds: float | None, loss: float) -> dict[str, Any]:
        timed = {"median_seconds": seconds} if seconds else {"unfinished": "not within 1 s"}
        return {"case": case, "rival": rival, "loss": loss, **timed}

    rows = [
        row("a, sync, x", "ours", 2.0, 0.5),
        row("a, sync, x", "mxnet", 3.0, 0.5001),
        row("a, sync, x", "torch", 1.0, 0.6),
        row("a, sync, x", "spark_mllib", None, 9.0),
        row("b, async, x", "ours", 1.0, 0.5),
        row("b, async, x", "mxnet", 4.0, 0.55),
        row("c, staleness 3, x", "ours", 1.0, 0.5),
    ]
    lost, won, alone = module.cells(rows)
    assert (lost["fastest"], lost["ratio"]) == ("torch", 0.5)
    assert lost["spread"] == pytest.approx(0.1)
    assert (won["fastest"], won["ratio"], alone["ratio"]) == ("mxnet", 4.0, None)
    text = module.table([won, alone, lost]).splitlines()
    assert text[2] == "| a, sync, x | 2 s | 1 s (torch) | 0.50 | 1.0e-01 (too much) |"
    assert text[3] == "| b, async, x | 1 s | 4 s (mxnet) | 4.00 | 5.0e-02 |"
    assert text[4] == "| c, staleness 3, x | 1 s | no other has it |  |  |"
    assert text[-1].endswith("in 1 of 2 cells.")


def test_rows_that_were_not_measured_again_stay(load: Any) -> None:
    run = load("run.py")
    old = [{"case": c, "rival": r, "n": 1} for c in "ab" for r in ("ours", "mxnet")]
    new = [{"case": "a", "rival": "ours", "n": 2}, {"case": "c", "rival": "ours", "n": 2}]
    found = run.merged(old, new)
    assert [(row["case"], row["rival"], row["n"]) for row in found] == [
        ("a", "ours", 2),
        ("a", "mxnet", 1),
        ("b", "ours", 1),
        ("b", "mxnet", 1),
        ("c", "ours", 2),
    ]
    assert run.wanted("a, sync", []) and run.wanted("a, sync", ["x", "a*"])
    assert not run.wanted("a, sync", ["b*"])
    assert run.amounts([], "seconds") == {}
    assert run.amounts([3.0, 1.0, 2.0], "seconds")["median_seconds"] == 2.0


MS = 1_000_000


def test_a_run_that_is_cut_off_keeps_its_rows(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = load("run.py")

    class Worker:
        def __init__(self, question: str, rival: str, threads: int) -> None:
            self.rival = rival
            self.hello = {"cases": ["a", "b"], "unit": "seconds", "rounds": 1, "version": "0"}
            self.hello["together"] = False

        def measure(self, case: str) -> float:
            if case == "b":
                raise KeyboardInterrupt
            return 2.0

        def figures(self, case: str) -> dict[str, Any]:
            return {}

    for name in ("HERE", "ROOT"):
        monkeypatch.setattr(run, name, tmp_path)
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked" / "ours.py").touch()
    target = tmp_path / "results" / "asked.json"
    run.write(target, [{"case": "a", "rival": "ours"}, {"case": "b", "rival": "ours"}])
    monkeypatch.setattr(run, "Worker", Worker)
    monkeypatch.setattr(run.sys, "argv", ["run.py", "asked", "--case", "*"])
    with pytest.raises(KeyboardInterrupt):
        run.main()
    first, second = json.loads(target.read_text())
    assert first["best_seconds"] == 2.0 and second == {"case": "b", "rival": "ours"}
    assert [path.name for path in target.parent.iterdir()] == ["asked.json"]


def test_overlap_by_trace(load: Any) -> None:
    overlap = load("overlap.py")
    assert overlap.union([(5, 9), (0, 3), (2, 4), (9, 10)]) == [[0, 4], [5, 10]]
    assert overlap.covered([(0, 10), (5, 20)], [(0, 5), (15, 40)]) == 0.5
    assert overlap.covered([], [(0, 5)]) == 0.0
    first = {
        "computing": [[0, 100 * MS], [100 * MS, 101 * MS], [110 * MS, 210 * MS]],
        "exchanges": [
            [40 * MS, 60 * MS, [1, 2]],
            [100 * MS, 110 * MS, [0]],
            [148 * MS, 172 * MS, [1, 2]],
            [210 * MS, 222 * MS, [0]],
        ],
    }
    second = {"computing": [[0, 106 * MS], [112 * MS, 210 * MS]], "exchanges": []}
    assert overlap.pauses([first, second]) == ([0.008], [0.003])
    assert overlap.profile([first, second], [4, 8, 16]) == [
        {"bytes": 24, "ready_ms": -61.0, "there_ms": -39.0},
        {"bytes": 4, "ready_ms": 0.0, "there_ms": 11.0},
    ]


def test_overlap_by_blocks(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    overlap = load("overlap.py")
    monkeypatch.setattr(overlap.os, "cpu_count", lambda: 2)

    def worker(seconds: dict[str, float], busy: float) -> dict[str, Any]:
        blocks = {kind: [s, s, 0.1 * s, busy * 2 * s] for kind, s in seconds.items()}
        trace = {
            "computing": [[0, 10 * MS], [12 * MS, 20 * MS]],
            "exchanges": [[8 * MS, 12 * MS, [0]]],
        }
        return {"rounds": [blocks] * 2, "sizes": [4], "trace": trace}

    slow = {"forward": 1.0, "compute": 3.0, "alone": 1.0, "both": 3.2}
    fast = {"forward": 1.0, "compute": 2.9, "alone": 0.9, "both": 3.2}
    quiet = [worker(slow, 1.02), worker(fast, 1.0)]
    loud = [worker({kind: 2 * s for kind, s in slow.items()}, 1.2), worker(fast, 1.0)]
    row = overlap.figures([quiet, loud])
    assert (row["rounds"], row["rounds_left_out"]) == (2, 2)
    assert row["share"] == 0.5 and row["hidden"] == pytest.approx(0.8)
    assert row["hidden_quartiles"] == pytest.approx([0.8] * 3)
    assert row["hidden_by_trace"] == 0.5 and row["pause"] == 0.002
    assert overlap.figures([loud, loud])["rounds_left_out"] == 0  # it is all there is


def test_figures_of_scaling_are_shown_where_the_check_holds(load: Any) -> None:
    figures = load("scaling/figures.py")
    parameters, found, convergence = (
        json.loads((figures.RESULTS / f"{name}.json").read_text())
        for name in ("parameters", "figures", "convergence")
    )
    text = figures.document(parameters, found, convergence)
    assert text in figures.DOCUMENT.read_text()
    for kind, name in (("machines", "scaling"), ("passes", "googlenet")):
        link = f"images/{name}.png"
        assert (figures.IMAGES / f"{name}.png").exists() == bool(found[kind]) == (link in text)
    parameters["check"] = [{**row, "off": 0.01} for row in parameters["check"]]
    made = figures.passes(parameters, 0)
    rows = [{**row, "label": "dist_sync"} for row in made[:2]]
    shown = {"machines": rows, "passes": made, "missing": [["a", "why"], ["b", "why"]]}
    text = figures.document(parameters, shown, convergence)
    assert "| paper | 14,000 | 1,400 | 10.00 |" in text and "| model, overlapped |" in text
    assert "foretold within 1 %" in text and "Not shown: *a*, *b*. why." in text
    parameters["check"] = [{**row, "off": -0.2} for row in parameters["check"]]
    rows, missing = figures.sweeps(parameters, 0)
    assert rows == [] and len(missing) == 6 and "nothing larger is shown" in missing[0][1]


def test_the_table_of_failures_is_that_of_its_rows(load: Any) -> None:
    pytest.importorskip("psutil")
    report = load("failures/report.py")
    paths = sorted((ROOT / "results" / "failures").glob("*.json"))
    rows = [row for path in paths for row in json.loads(path.read_text())]
    assert rows and all(row["right"] for row in rows)
    assert report.table(rows) in report.DOCUMENT.read_text()
    quiet, hurt = report.of(rows, "worker")
    # Runs beside other work count, but their times say nothing.
    slow = {**hurt[0], "seconds": 1000.0, "timed": False}
    assert report.times(quiet, [slow, *hurt])[1] == report.times(quiet, hurt)[1]
    assert report.cells(quiet, [slow, *hurt])[0] == str(len(hurt) + 1)
    assert report.cells(quiet, [{**slow, "counter_exact": False}, *hurt])[1].startswith(
        f"{len(hurt)} of "
    )
