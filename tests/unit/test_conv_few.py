"""Convolution of images of few channels against the NumPy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixflow import _rt
from mixflow.backends import native, onednn_loader
from mixflow.backends.reference import compute
from mixflow.ir import Desc

core: Any = _rt.load_native()
pytestmark = pytest.mark.skipif(core is None, reason="the compiled core was not built")
if core is not None:
    onednn_loader.load(core)

CASES = [
    # n, c, h, w, k, (kernel rows, columns), pad
    (3, 1, 28, 28, 20, (5, 5), (0, 0)),
    (5, 3, 11, 17, 7, (3, 3), (1, 1)),
    (1, 4, 9, 33, 1, (1, 1), (0, 0)),
    (2, 2, 6, 5, 9, (2, 7), (1, 3)),
    (4, 1, 5, 5, 3, (5, 5), (0, 0)),
    (1, 1, 1, 70, 6, (1, 11), (0, 2)),
]


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng([5, *shape]).standard_normal(shape).astype(np.float32)


def problem(op: str, case: Any, bias: bool) -> tuple[dict[str, Any], list[np.ndarray]]:
    n, c, h, w, k, taps, pad = case
    weights = (k, c, *taps)
    params = {"stride": (1, 1), "dilate": (1, 1), "pad": pad, "groups": 1}
    if op == "conv":
        return params, [draw(n, c, h, w), draw(*weights), *([draw(k)] if bias else [])]
    dy = (n, k, h + 2 * pad[0] - taps[0] + 1, w + 2 * pad[1] - taps[1] + 1)
    return {**params, "shape": weights}, [draw(*dy), draw(n, c, h, w)]


def prepared(op: str, params: dict[str, Any], ins: list[np.ndarray], out: Any, **more: Any) -> Any:
    descs = [Desc(0, a.shape) for a in ins]
    return core.prepare(op, native.attributes({**params, **more}), descs, [Desc(0, out)], 2)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("op", ["conv", "conv_bias", "conv_weight_grad"])
def test_equals_the_reference(op: str, case: Any) -> None:
    name = op.removesuffix("_bias")
    params, ins = problem(name, case, op == "conv_bias")
    want = compute(name, params, [a.astype(np.float64) for a in ins])[0]
    kernel = prepared(name, params, ins, want.shape, few=True)
    assert kernel.implementation == "few"
    outs = [core.from_numpy(np.full(want.shape, np.nan, np.float32), (1, 0)) for _ in range(2)]
    for out in outs:
        core.run_kernel(kernel, [core.from_numpy(a, (1, 0)) for a in ins], [out])
    got = outs[0].to_numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())
    np.testing.assert_array_equal(got, outs[1].to_numpy())


@pytest.mark.parametrize("change", [{"stride": (2, 2)}, {"dilate": (2, 2)}])
def test_refuses_what_it_cannot_compute(change: dict[str, Any]) -> None:
    params, ins = problem("conv", CASES[1], False)
    params |= change
    out = compute("conv", params, ins)[0].shape
    assert prepared("conv", params, ins, out, few=True).implementation != "few"


def test_five_channels_are_not_few() -> None:
    params, ins = problem("conv", (2, 5, 9, 9, 4, (3, 3), (1, 1)), False)
    assert prepared("conv", params, ins, (2, 4, 9, 9), few=True).implementation != "few"


def test_deterministic_rule_goes_by_the_filters() -> None:
    found = {}
    core.set_deterministic(True)
    try:
        for filters in (20, 32):
            params, ins = problem("conv", (20, 1, 28, 28, filters, (5, 5), (0, 0)), False)
            kernel = prepared("conv", params, ins, (20, filters, 24, 24))
            found[filters] = kernel.implementation
    finally:
        core.set_deterministic(False)
    assert found[20] == "few" and found[32] != "few"
