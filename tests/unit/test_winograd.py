"""Winograd's convolution against the NumPy reference, its error bound, and the tuner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixflow import _rt
from mixflow import dtype as dtypes
from mixflow.backends import native, onednn_loader
from mixflow.backends.reference import compute
from mixflow.ir import Desc

core: Any = _rt.load_native()
pytestmark = pytest.mark.skipif(core is None, reason="the compiled core was not built")
if core is not None:
    onednn_loader.load(core)

DIRECTIONS = ("conv", "conv_data_grad", "conv_weight_grad")
#: Relative error (in the norm) against float64 of F(side x side, taps x taps), by (side, taps).
BOUND = {(2, 3): 2e-6, (4, 3): 1e-5, (2, 5): 1e-5, (4, 5): 1e-5}
RULES = list(BOUND)


def draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def problem(
    direction: str, n: int, c: int, h: int, w: int, k: int, pad: tuple[int, int], taps: int = 3
) -> tuple[dict[str, Any], list[np.ndarray], tuple[int, ...]]:
    """Parameters, inputs and output shape."""
    x, weights = (n, c, h, w), (k, c, taps, taps)
    y = (n, k, h + 2 * pad[0] - taps + 1, w + 2 * pad[1] - taps + 1)
    params = {"stride": (1, 1), "dilate": (1, 1), "pad": pad, "groups": 1}
    if direction == "conv":
        return params, [draw(x, 1), draw(weights, 2)], y
    if direction == "conv_data_grad":
        return {**params, "shape": x}, [draw(y, 1), draw(weights, 2)], x
    return {**params, "shape": weights}, [draw(y, 1), draw(x, 2)], weights


def to_blocks(array: np.ndarray, block: int) -> np.ndarray:
    """NCHW with `block` channels innermost, zeros beyond the channels; plain for block 1."""
    if block == 1:
        return array
    n, c, h, w = array.shape
    whole = np.zeros((n, -(-c // block) * block, h, w), array.dtype)
    whole[:, :c] = array
    return np.ascontiguousarray(whole.reshape(n, -1, block, h, w).transpose(0, 1, 3, 4, 2))


def prepare(
    direction: str,
    params: dict[str, Any],
    ins: list[np.ndarray],
    shape: tuple[int, ...],
    threads: int = 1,
    **more: Any,
) -> Any:
    descs = [Desc(0, x.shape) for x in ins]
    attrs = native.attributes({**params, **more})
    return core.prepare(direction, attrs, descs, [Desc(0, shape)], threads)


def run(kernel: Any, ins: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    arrays = [core.from_numpy(np.ascontiguousarray(x), (1, 0)) for x in ins]
    out = core.from_numpy(np.full(shape, np.nan, np.float32), (1, 0))
    core.run_kernel(kernel, arrays, [out], 0, 0)
    return out.to_numpy()


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30))


SHAPES = [
    # n, c, h, w, k, pad
    (1, 16, 8, 8, 16, (1, 1)),
    (2, 3, 7, 9, 5, (1, 1)),
    (3, 20, 13, 11, 33, (0, 0)),
    (1, 17, 5, 6, 31, (2, 2)),
    (2, 33, 14, 14, 16, (1, 0)),
    (2, 48, 28, 51, 32, (1, 1)),
    (1, 64, 3, 3, 64, (0, 1)),
    (3, 5, 1, 1, 7, (1, 1)),
    (1, 1, 2, 70, 1, (2, 1)),
    (2, 130, 9, 10, 70, (0, 2)),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("case", SHAPES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_equals_the_reference(
    direction: str, case: Any, rule: tuple[int, int], threads: int
) -> None:
    side, taps = rule
    wider = (taps - 3) // 2  # 5 x 5 with more padding sees as many windows
    pad = tuple(p + wider for p in case[-1])
    params, ins, shape = problem(direction, *case[:-1], pad, taps)
    kernel = prepare(direction, params, ins, shape, threads, winograd=side)
    assert kernel.implementation == f"winograd:f{side}" + ("k5" if taps == 5 else "")
    want = compute(direction, params, [x.astype(np.float64) for x in ins])[0]
    assert error(run(kernel, ins, shape), want) < 2 * BOUND[rule]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_many_blocks_of_tiles(direction: str, threads: int) -> None:
    """Several blocks for each thread, with large sums of the weight gradient and small ones."""
    for case in ((3, 160, 30, 29, 176, (1, 1)), (3, 40, 62, 61, 40, (1, 1), 5)):
        params, ins, shape = problem(direction, *case)
        kernel = prepare(direction, params, ins, shape, threads, winograd=4)
        want = compute(direction, params, ins)[0]
        got = run(kernel, ins, shape)
        assert error(got, want) < BOUND[4, 3]
        np.testing.assert_array_equal(got, run(kernel, ins, shape))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_error_bound_at_512_channels(direction: str) -> None:
    for taps in (3, 5):
        params, ins, shape = problem(direction, 1, 512, 14, 14, 512, (taps // 2,) * 2, taps)
        want = compute(direction, params, [x.astype(np.float64) for x in ins])[0]
        for side in (side for side, other in RULES if other == taps):
            kernel = prepare(direction, params, ins, shape, 2, winograd=side)
            found = error(run(kernel, ins, shape), want)
            assert found <= BOUND[side, taps], f"F({side}, {taps}) has an error of {found:.1e}"


@pytest.mark.parametrize("relu", [False, True])
def test_bias_and_relu_in_the_output_transform(relu: bool) -> None:
    params, ins, shape = problem("conv", 2, 18, 10, 11, 21, (1, 1))
    ins.append(draw((21,), 3) * 20)
    kernel = prepare("conv", params, ins, shape, 1, winograd=4, relu=relu)
    want = compute("conv", params, [x.astype(np.float64) for x in ins])[0]
    got = run(kernel, ins, shape)
    assert error(got, np.maximum(want, 0) if relu else want) < BOUND[4, 3]


@pytest.mark.parametrize("direction", DIRECTIONS[:2])
def test_weights_kept_between_runs(direction: str) -> None:
    """The form that prediction keeps gives the same bits; the weight gradient has none."""
    params, ins, shape = problem(direction, 2, 20, 10, 11, 35, (1, 1))
    kernel = prepare(direction, params, ins, shape, 2, winograd=4)
    assert kernel.prepared_bytes >= 36 * 20 * 35 * 4
    arrays = [core.from_numpy(x, (1, 0)) for x in ins]
    outs = [core.from_numpy(np.full(shape, np.nan, np.float32), (1, 0)) for _ in range(2)]
    core.run_kernel(kernel, arrays, outs[:1])
    core.run_kernel(kernel, arrays, outs[1:], prepared=True)
    np.testing.assert_array_equal(outs[0].to_numpy(), outs[1].to_numpy())


def blocked_run(
    direction: str, case: Any, orders: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Result and expected value with the activations in blocks of 1, 8 or 16 channels."""
    params, ins, shape = problem(direction, *case)
    layouts = {1: 0, 8: 1, 16: 2}
    want = compute(direction, params, ins)[0]
    blocks = {"conv": (orders[0], 1), "conv_data_grad": (orders[0], 1)}.get(direction, orders)
    out_block = 1 if direction == "conv_weight_grad" else orders[1]
    descs = [Desc(0, x.shape, layouts[b]) for x, b in zip(ins, blocks, strict=True)]
    out = [Desc(0, shape, layouts[out_block])]
    kernel = core.prepare(direction, native.attributes({**params, "winograd": 4}), descs, out, 1)
    stored = [to_blocks(x, b) for x, b in zip(ins, blocks, strict=True)]
    expected = to_blocks(want, out_block)
    return run(kernel, stored, expected.shape), expected


@pytest.mark.parametrize("orders", [(8, 8), (16, 16), (1, 16), (16, 1), (8, 16)], ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_blocked_orders(direction: str, orders: tuple[int, int]) -> None:
    for case in ((2, 32, 9, 13, 48, (1, 1)), (1, 12, 6, 7, 20, (0, 1))):
        got, want = blocked_run(direction, case, orders)
        assert error(got, want) < BOUND[4, 3]


def test_refuses_what_it_cannot_compute() -> None:
    params, ins, shape = problem("conv", 1, 16, 8, 8, 16, (1, 1))
    for change in ({"stride": (2, 2)}, {"dilate": (2, 2)}):
        out = compute("conv", {**params, **change}, ins)[0].shape
        kernel = prepare("conv", {**params, **change}, ins, out, winograd=4)
        assert "winograd" not in kernel.implementation
    double = [Desc(dtypes.code(np.dtype(np.float64)), x.shape) for x in ins]
    out64 = [Desc(double[0].dtype, shape)]
    kernel = core.prepare("conv", native.attributes({**params, "winograd": 4}), double, out64, 1)
    assert "winograd" not in kernel.implementation
    with pytest.raises(Exception, match="expected winograd to be 0, 2 or 4, got 3"):
        prepare("conv", params, ins, shape, winograd=3)


# -- the tuner ------------------------------------------------------------------------------------

TUNED = (2, 64, 28, 28, 64, (1, 1))


def tuned(direction: str = "conv") -> str:
    params, ins, shape = problem(direction, *TUNED)
    return str(prepare(direction, params, ins, shape, 1).implementation)


@pytest.fixture
def tuning_file(tmp_path: Path) -> Any:
    old = core.tuning_path()
    path = tmp_path / "cache" / "mixflow" / "tuning.json"
    core.set_tuning_path(str(path))
    yield path
    core.set_tuning_path(old)


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_tuning_file_is_written_once_and_read(tuning_file: Path) -> None:
    chosen = tuned()
    (row,) = rows(tuning_file)
    assert row["choice"] == (chosen if "winograd" in chosen else "direct")
    assert "threads=1" in row["key"] and "winograd-" in row["key"]
    other = "direct" if "winograd" in chosen else "winograd:f4"
    tuning_file.write_text(json.dumps({**row, "choice": other}) + "\n")
    assert tuned() == chosen  # remembered in memory
    core.set_tuning_path(str(tuning_file))
    assert ("winograd" in tuned()) == (other == "winograd:f4")  # what the file says
    tuned("conv_weight_grad")
    assert len(rows(tuning_file)) == 2
    assert not [p for p in tuning_file.parent.iterdir() if p != tuning_file]


@pytest.mark.parametrize("rubbish", [b"\0\xff\n{", b'{"key": "a', b'{"key": 1, "choice": []}\n'])
def test_corrupted_tuning_file_is_rewritten(tuning_file: Path, rubbish: bytes) -> None:
    tuned()
    (row,) = rows(tuning_file)
    tuning_file.write_bytes(rubbish)
    core.set_tuning_path(str(tuning_file))
    tuned()
    assert [r["key"] for r in rows(tuning_file)] == [row["key"]]


def test_tuning_file_that_names_an_unknown_choice(tuning_file: Path) -> None:
    tuned()
    (row,) = rows(tuning_file)
    tuning_file.write_text(json.dumps({**row, "choice": "abacus"}) + "\n")
    core.set_tuning_path(str(tuning_file))
    tuned()
    assert rows(tuning_file)[0]["choice"] in ("direct", "winograd:f4")


def test_tuning_without_a_place_to_write(tmp_path: Path) -> None:
    old = core.tuning_path()
    (tmp_path / "file").write_text("")
    core.set_tuning_path(str(tmp_path / "file" / "tuning.json"))
    try:
        assert tuned()
    finally:
        core.set_tuning_path(old)


def test_tuning_path_follows_the_cache_folder(tmp_path: Path) -> None:
    code = (
        "import mixflow\n"
        "mixflow.backends.default_backend()\n"
        "print(mixflow._rt.load_native().tuning_path())"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    path = Path(result.stdout.strip())
    assert path.parent == tmp_path / "mixflow"
    assert path.name.startswith("tuning-") and path.suffix == ".json"


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_deterministic_rule_times_nothing(tuning_file: Path, direction: str) -> None:
    core.set_deterministic(True)
    try:
        chosen = {tuned(direction) for _ in range(3)}
    finally:
        core.set_deterministic(False)
    assert len(chosen) == 1
    params, ins, shape = problem(direction, *TUNED)
    one = prepare(direction, params, ins, shape, 1, deterministic=True)
    assert {one.implementation} == chosen
    assert not tuning_file.exists()


def test_tiny_work_is_not_timed(tuning_file: Path) -> None:
    params, ins, shape = problem("conv", 1, 16, 8, 8, 16, (1, 1))
    assert "winograd" not in prepare("conv", params, ins, shape).implementation
    assert not tuning_file.exists()
