"""The configuration: its document, its overrides, and the choice of the core at import."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt, config
from mixflow.errors import ParamError, UnknownNameError

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "environment.md").read_text()


def table(heading):
    """First column of the table under a heading, and its rows."""
    section = DOCUMENT.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [r.split("|")[1:-1] for r in section.splitlines() if r.startswith("|")][2:]
    return {row[0].strip().strip("`"): [c.strip().strip("`") for c in row[1:]] for row in rows}


OWN = table("Variables")
HONOURED = table("Names of other programs that are honoured")
OF_TESTS = table("Tests, benchmarks and tools only")


def read_names(folders):
    """Names that sources read from the environment, and every text that looks like one of ours."""
    found = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in (".py", ".cpp", ".h", ".sh") or path == Path(__file__):
                continue
            if folder == "csrc" and "tests" in path.parts:
                continue
            text = path.read_text()
            found |= set(re.findall(r'getenv\(\s*"(\w+)"', text))
            found |= set(re.findall(r'environ(?:\.get|\.pop|\.setdefault)?[\[(]\s*"(\w+)"', text))
            found |= set(re.findall(r'environment(?:\.get)?[\[(]\s*"(\w+)"', text))
            if path.suffix == ".py":
                found |= set(re.findall(r'"(MIXFLOW_[A-Z_]+)"', text))
    return found


def test_every_setting_is_documented():
    assert {v: row[0] for v, row in OWN.items()} == {v: k for k, v in config.VARIABLES.items()}
    assert len(OWN) <= 12


def test_defaults_are_those_of_the_document():
    default = config.from_environment({})
    for name, row in ((row[0], row) for row in OWN.values()):
        if name not in ("onednn_library", "threads"):
            assert config._convert(name, row[1], name) == getattr(default, name)


def test_sources_read_only_documented_names():
    assert read_names(["src", "csrc"]) <= {*OWN, *HONOURED}
    assert set(HONOURED) <= read_names(["src"])


def test_tests_and_benchmarks_read_only_documented_names():
    read = read_names(["tests", "benchmarks", "tools", "examples", "csrc/tests"])
    assert {n for n in read if n.startswith(("MIXFLOW_", "BENCH_"))} <= {*OWN, *OF_TESTS, *HONOURED}


def test_tested_versions_are_those_of_the_installed_packages():
    from importlib.metadata import PackageNotFoundError, version

    for package, (stated, *_) in table("Tested versions").items():
        try:
            major = version(package).split(".")[0]
        except PackageNotFoundError:
            continue
        assert stated.split(".")[0] == major, package


def test_values_from_the_environment():
    made = config.from_environment(
        {
            "MIXFLOW_ENGINE": "serial",
            "MIXFLOW_NUM_THREADS": "3",
            "MIXFLOW_MEMORY_LIMIT": "2G",
            "MIXFLOW_VERIFY": "1",
        }
    )
    assert (made.engine, made.threads, made.memory_limit) == ("serial", 3, 2 << 30)
    assert made.verify and not made.pure


def test_names_of_others_give_way_to_ours():
    assert config.from_environment({"MXNET_ENGINE_TYPE": "NaiveEngine"}).engine == "serial"
    both = {"MXNET_ENGINE_TYPE": "NaiveEngine", "MIXFLOW_ENGINE": "threaded"}
    assert config.from_environment(both).engine == "threaded"
    assert config.from_environment({"OMP_NUM_THREADS": "5,2"}).threads == 5
    both = {"OMP_NUM_THREADS": "5", "MIXFLOW_NUM_THREADS": "4"}
    assert config.from_environment(both).threads == 4


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MIXFLOW_ENGINE", "fast"),
        ("MIXFLOW_NUM_THREADS", "0"),
        ("MIXFLOW_NUM_THREADS", "two"),
        ("MIXFLOW_MEMORY_LIMIT", "-1"),
        ("MIXFLOW_VERIFY", "maybe"),
        ("MXNET_ENGINE_TYPE", "OtherEngine"),
    ],
)
def test_bad_values_name_the_variable(variable, value):
    with pytest.raises(ParamError, match=rf"\[config\] expected .*{variable}"):
        config.from_environment({variable: value})


def test_override_reaches_the_core_and_ends():
    before = (_rt.core.threads(), _rt.core.engine_kind(), config.current())
    with mx.config.override(threads=1, engine="serial") as inside:
        assert (_rt.core.threads(), _rt.core.engine_kind()) == (1, "serial")
        assert config.current() is inside
        np.testing.assert_array_equal((mx.nd.ones((2, 3)) + 1).asnumpy(), np.full((2, 3), 2.0))
    assert (_rt.core.threads(), _rt.core.engine_kind(), config.current()) == before


def test_override_ends_after_an_error_and_nests():
    old = config.current()
    with pytest.raises(ZeroDivisionError), mx.config.override(threads=1):
        with mx.config.override(verify=True):
            assert config.current() == replace(old, threads=1, verify=True)
        assert config.current() == replace(old, threads=1)
        raise ZeroDivisionError
    assert config.current() == old


def test_memory_limit_is_applied():
    held = _rt.core.storage_statistics()["live_bytes"]
    with mx.config.override(memory_limit=held + (1 << 20)), pytest.raises(mx.MXNetError):
        mx.nd.zeros((1 << 22,)).wait_to_read()
    mx.nd.zeros((1 << 22,)).wait_to_read()


def test_verifier_runs_when_asked(monkeypatch):
    from mixflow.passes import manager

    seen = []
    monkeypatch.setattr(manager, "verify", lambda graph, **_: seen.append(graph))
    manager.run_passes(None, [manager.Pass("nothing", lambda g: g)])
    with mx.config.override(verify=True):
        manager.run_passes(None, [manager.Pass("nothing", lambda g: g)])
    assert seen == [None]


def test_unknown_and_fixed_settings():
    with pytest.raises(UnknownNameError, match=r"\[config\] expected a known name, got 'thread'"):
        mx.config.update(thread=1)
    with pytest.raises(ParamError, match=r"'pure' to stay .* set MIXFLOW_PURE before"):
        mx.config.update(pure=not config.current().pure)
    with pytest.raises(ParamError, match=r"expected a value for 'engine', got 'naive'"):
        mx.config.update(engine="naive")
    without = {"image_pixel_limit"}
    assert {f.name for f in fields(config.Config)} - without == set(config.VARIABLES)


SHOW = "import mixflow; from mixflow import _rt; print(_rt.core.name)"


@pytest.mark.parametrize(
    ("core", "pure", "expected"),
    [
        ("absent", "0", "pure"),
        ("broken", "0", r"\[core\] expected mixflow\._core to load, got Imp.*MIXFLOW_PURE=1"),
        ("broken", "1", "pure"),
    ],
)
def test_a_broken_core_is_an_error_and_an_absent_one_is_not(tmp_path, core, pure, expected):
    source = ROOT / "src" / "mixflow"
    shutil.copytree(source, tmp_path / "mixflow", ignore=shutil.ignore_patterns("*.so", "__pyc*"))
    if core == "broken":
        (tmp_path / "mixflow" / "_core.abi3.so").write_bytes(b"no library")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "MIXFLOW_PURE": pure}
    run = subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True)
    assert re.search(expected, run.stdout + run.stderr), run.stderr
    assert (run.returncode == 0) == (expected == "pure")
