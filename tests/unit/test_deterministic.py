"""``deterministic``: two runs give the same bits; no named network calls Python between steps."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import bits_child
import numpy as np
import pytest
from model_runs import CLASSES, INPUTS, compiled, prediction_graph, training_graph

import mixflow as mx
from mixflow import _rt, autograd, models, nd
from mixflow.backends.reference import evaluate
from mixflow.executor import bound_types
from mixflow.passes.joint import joint_graph
from mixflow.passes.pipeline import finish

backward = importlib.import_module("mixflow.autograd.backward")  # its name is a function's too
CHILD = Path(bits_child.__file__)
SECONDS = 100
native_only = pytest.mark.skipif(_rt.core.name == "pure", reason="kernels of the compiled core")
#: Networks whose plans are made in CI at the size of their papers; `make prove` makes all.
QUICK = ("lenet", "mlp", "softmax", "alexnet", "googlenet", "vgg-11", "resnet-50")
NAMED = [
    pytest.param(n, marks=() if n in QUICK else (pytest.mark.slow, pytest.mark.timeout(900)))
    for n in models.NETWORKS
]


def in_processes(name: str, folders: list[Path]) -> set[str]:
    """The hashes that fresh processes print, each with a tuning file of its own."""
    started = [
        subprocess.Popen(
            [sys.executable, str(CHILD), name],
            env={**os.environ, "MIXFLOW_DETERMINISTIC": "1", "XDG_CACHE_HOME": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for folder in folders
    ]
    found = set()
    for process in started:
        try:
            out, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        assert process.returncode == 0, err
        found.add(out.strip())
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", bits_child.NETWORKS)
def test_two_runs_give_the_same_bits(name: str, tmp_path: Path) -> None:
    with mx.config.override(deterministic=True):
        here = {bits_child.train(name) for _ in range(2)}
    folders = [tmp_path / "one", tmp_path / "two"]
    assert len(here) == 1 and in_processes(name, folders) == here
    assert not any(f.exists() for f in folders)  # nothing was timed


def implementations(graph: Any) -> set[str]:
    return {s.kernel.implementation for s in compiled(graph, fuse=True, layout=True).steps}


def conv_graph(dtype: type) -> Any:
    symbol = bits_child.conv_net()
    requests = {n: "write" for n in symbol.list_arguments() if n not in INPUTS}
    shapes = {"data": (8, 32, 32, 32)}
    return joint_graph(symbol.graph(), bound_types(symbol, shapes, {"data": dtype}), requests)[0]


@native_only
def test_winograd_serves_float32_by_rule_and_never_float64() -> None:
    with mx.config.override(deterministic=True):
        assert any("winograd" in name for name in implementations(conv_graph(np.float32)))
        double = conv_graph(np.float64)
        assert not any("winograd" in name for name in implementations(double))
    assert not any("winograd" in name for name in implementations(double))


@native_only
def test_float64_is_computed_in_float64() -> None:
    symbol = mx.sym.Convolution(
        mx.sym.Variable("data"), kernel=(3, 3), pad=(1, 1), num_filter=64, name="conv"
    )
    types = bound_types(symbol, {"data": (2, 64, 32, 32)}, {"data": np.float64})
    graph = joint_graph(symbol.graph(), types, {"conv_weight": "write"})[0]
    rng = np.random.default_rng(0)
    feeds = {v: rng.normal(size=v.shape) for v in graph.inputs}
    wanted = evaluate(finish(graph, fuse=False), feeds)
    given = {v.node.name: mx.nd.array(x, dtype=np.float64) for v, x in feeds.items()}
    names = symbol.list_arguments()
    executor = symbol.bind(
        mx.cpu(),
        {n: given[n] for n in names},
        {"conv_weight": mx.nd.zeros((64, 64, 3, 3), dtype=np.float64)},
        {n: "write" if n == "conv_weight" else "null" for n in names},
    )
    got = executor.forward(is_train=True)[0].asnumpy()
    executor.backward([given["head0_grad"]])
    np.testing.assert_allclose(got, wanted[0], rtol=1e-11, atol=1e-11)
    found = executor.grad_dict["conv_weight"].asnumpy()
    np.testing.assert_allclose(found, wanted[1], rtol=1e-11, atol=1e-10)


@native_only
@pytest.mark.parametrize("name", NAMED)
def test_named_networks_make_no_host_calls(name: str) -> None:
    shapes = models.input_shapes(name, 1)
    with mx.config.override(deterministic=True):
        for make in (training_graph, prediction_graph):
            plan = compiled(make(name, shapes), fuse=True, layout=True)
            assert plan.plan.host_calls == 0
            assert plan.plan.phases == (2 if make is training_graph else 1)
            assert plan.out_descs[0].shape[-1] == CLASSES


def test_plans_of_the_tape_are_made_anew_when_kernels_are_chosen_otherwise() -> None:
    def step() -> None:
        x = nd.ones((2, 3))
        x.attach_grad()
        with autograd.record():
            y = (x * x).sum()
        y.backward()

    for _ in range(3):
        step()
    assert backward._programs or backward._steps
    with mx.config.override(deterministic=not mx.config.current().deterministic):
        assert not backward._programs and not backward._steps
        step()
