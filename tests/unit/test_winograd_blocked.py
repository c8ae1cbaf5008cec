"""Winograd's kernels behind the primitives on blocked tensors (N, C / b, H, W, b)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixflow import _rt
from mixflow.backends import native
from mixflow.backends.reference import compute
from mixflow.ir import Desc

core: Any = _rt.load_native()
pytestmark = pytest.mark.skipif(core is None, reason="the compiled core was not built")
CPU = (1, 0)
HOW = {"stride": (1, 1), "dilate": (1, 1), "pad": (1, 1), "groups": 1}
WEIGHT = (32, 16, 3, 3)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng([3, *shape]).standard_normal(shape).astype(np.float32)


def check(op: str, params: dict[str, Any], ins: list[np.ndarray]) -> None:
    """Runs the Winograd kernel and compares every output with the reference's."""
    want = [np.asarray(w, np.float32) for w in compute(op, params, ins)]
    asked = native.attributes({**params, "winograd": 4})
    descs = [[Desc(0, a.shape) for a in arrays] for arrays in (ins, want)]
    kernel = core.prepare(op, asked, *descs, 2)
    assert kernel.implementation in ("winograd:f4", "winograd:f4k5")
    outs = [core.empty(w.shape, 0, CPU) for w in want]
    core.run_kernel(kernel, [core.from_numpy(a, CPU) for a in ins], outs)
    for got, expected in zip(outs, want, strict=True):
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(got.to_numpy() / scale, expected / scale, rtol=0, atol=3e-5)


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_forward(block: int, relu: bool, bias: bool) -> None:
    x, vector = draw(2, 16 // block, 13, 10, block), [draw(32)] if bias else []
    params = {**HOW, "y_block": block, "bias": bias, "add": False, "relu": relu}
    check("blocked_conv", params, [x, draw(*WEIGHT), *vector])


@pytest.mark.parametrize("block", [8, 16])
def test_data_gradient(block: int) -> None:
    dy = draw(2, 32 // block, 13, 10, block)
    params = {**HOW, "shape": (2, 16, 13, 10), "x_block": block}
    check("blocked_conv_data_grad", params, [dy, draw(*WEIGHT)])


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("bias", [False, True])
def test_weight_gradient_with_the_gradient_of_the_bias(block: int, bias: bool) -> None:
    dy, x = draw(2, 32 // block, 13, 10, block), draw(2, 16 // block, 13, 10, block)
    check("blocked_conv_weight_grad", {**HOW, "shape": WEIGHT, "bias": bias}, [dy, x])


def test_five_by_five() -> None:
    how, weight = {**HOW, "pad": (2, 2)}, draw(32, 16, 5, 5)
    x, dy = draw(2, 1, 13, 10, 16), draw(2, 2, 13, 10, 16)
    ends = {"y_block": 16, "bias": True, "add": False, "relu": True}
    check("blocked_conv", {**how, **ends}, [x, weight, draw(32)])
    check("blocked_conv_data_grad", {**how, "shape": (2, 16, 13, 10), "x_block": 16}, [dy, weight])
    check("blocked_conv_weight_grad", {**how, "shape": weight.shape, "bias": True}, [dy, x])


def test_an_addend_is_left_to_others() -> None:
    x, y = Desc(0, (2, 1, 13, 10, 16)), Desc(0, (2, 2, 13, 10, 16))
    params = {**HOW, "y_block": 16, "bias": False, "add": True, "relu": False, "winograd": 4}
    kernel = core.prepare(
        "blocked_conv", native.attributes(params), [x, Desc(0, WEIGHT), y], [y], 2
    )
    assert kernel is None or "winograd" not in kernel.implementation
