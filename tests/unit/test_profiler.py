"""Profiles of plans, and the command that prints them."""

from __future__ import annotations

import pytest

from mixflow import _rt, cli, models, profiler


def test_profile_names_steps_with_their_arithmetic() -> None:
    executor = profiler.bind_random(models.lenet(), models.input_shapes("lenet", 4))
    rows = profiler.profile(executor, is_train=True, repeat=2)
    assert [r.label for r in rows] == [s.label for s in executor.plan(True).steps]
    convolutions = [r for r in rows if r.op == "conv"]
    assert sum(r.flops for r in convolutions) == 2 * 4 * (20 * 24 * 24 * 25 + 50 * 64 * 20 * 25)
    products = [r for r in rows if r.op == "matmul"]
    assert products and all(r.flops > 0 and r.nbytes > 0 for r in products)
    if _rt.core.name != "pure":
        assert all(r.seconds > 0 for r in rows)
    table = profiler.by_primitive(rows)
    assert sum(count for _, count, _ in table) == len(rows)


def test_command_prints_the_costliest_steps(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["profile", "--network", "mlp", "--batch-size", "2", "--repeat", "1", "--show", "3"]
    assert cli.main([*arguments, "--predict"]) == 0
    printed = capsys.readouterr().out
    assert "prediction" in printed and "matmul" in printed


def test_command_refuses_unknown_networks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "--network", "resnet-49"]) == 1
    assert "expected" in capsys.readouterr().err
