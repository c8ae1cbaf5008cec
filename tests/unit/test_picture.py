"""`core.picture`: both cores give OpenCV's pixels, and each other's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core_support import CORES
from hypothesis import given, settings
from hypothesis import strategies as st

from mixflow.errors import MXNetError

BY_NAME = {name: core for name, core, _ in CORES if name != "native-serial"}


@pytest.fixture(params=list(BY_NAME))
def core(request: pytest.FixtureRequest) -> Any:
    return BY_NAME[request.param]


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (height, width, channels), np.uint8)


@pytest.mark.parametrize("size", [(7, 5), (31, 47), (40, 9), (60, 90)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_resizing_gives_the_pixels_of_opencv(core: Any, size: Any, channels: int) -> None:
    cv2 = pytest.importorskip("cv2")
    source = noise(37, 53, channels)
    expected = cv2.resize(source, size[::-1]).reshape(*size, channels)
    out = np.empty((channels, *size), np.uint8)
    core.picture(source, out, (0, 0, 37, 53, *size, 0, 0, 0))
    difference = np.abs(out.transpose(1, 2, 0).astype(int) - expected)
    assert difference.max() <= 1  # OpenCV computes its weights in another way for large scales
    assert (difference > 0).mean() < 0.01


def test_all_steps_in_one_pass(core: Any) -> None:
    source = noise(20, 30)
    out = np.empty((3, 8, 10), np.float32)
    mean, factor, bias = (1.0, 2.0, 3.0), (0.5, 0.25, 2.0), (0.0, -1.0, 7.0)
    core.picture(source, out, (0, 0, 20, 30, 20, 30, 5, 6, 1), (2, 1, 0), mean, factor, bias)
    part = source[5:13, 6:16][:, ::-1, ::-1].transpose(2, 0, 1).astype(np.float32)
    column = np.array([mean, factor, bias], np.float32)[:, :, None, None]
    np.testing.assert_allclose(out, (part - column[0]) * column[1] + column[2], rtol=1e-6)


def test_mean_image_and_small_integers(core: Any) -> None:
    source = noise(6, 6)
    mean_image = np.full((3, 6, 6), 100.0, np.float32)
    out = np.empty((3, 6, 6), np.int8)
    core.picture(
        source, out, (0, 0, 6, 6, 6, 6, 0, 0, 0), factor=(2.0, 2.0, 2.0), mean_image=mean_image
    )
    expected = np.clip((source.transpose(2, 0, 1).astype(int) - 100) * 2, -128, 127)
    np.testing.assert_array_equal(out, expected)


def test_a_region_is_enough(core: Any) -> None:
    source = noise(90, 120)
    geometry = (90, 120, 60, 80, 11, 17, 0)
    whole, part = np.empty((2, 3, 20, 30), np.float32)
    core.picture(source, whole, (0, 0, *geometry))
    core.picture(np.ascontiguousarray(source[16:50, 25:75]), part, (16, 25, *geometry))
    np.testing.assert_array_equal(whole, part)
    with pytest.raises(MXNetError, match=r"expected rows 16 to 47 .* got a region of 34 x 50"):
        core.picture(np.ascontiguousarray(source[17:51, 25:75]), part, (17, 25, *geometry))


@given(
    st.tuples(*[st.integers(1, 40)] * 4),
    st.tuples(*[st.floats(0, 1)] * 4),
    st.sampled_from([1, 3, 4]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_cores_agree(sizes: Any, shares: Any, channels: int, mirror: bool) -> None:
    if "native" not in BY_NAME:
        pytest.skip("needs the compiled core")
    whole_h, whole_w, resized_h, resized_w = sizes
    top, left = int(shares[0] * (resized_h - 1)), int(shares[1] * (resized_w - 1))
    height = 1 + int(shares[2] * (resized_h - top - 1))
    width = 1 + int(shares[3] * (resized_w - left - 1))
    source = noise(whole_h, whole_w, channels)
    made = np.empty((2, channels, height, width), np.float32)
    geometry = (0, 0, *sizes, top, left, int(mirror))
    mean, factor = (3.5,) * channels, (0.1,) * channels
    for out, core in zip(made, BY_NAME.values(), strict=True):
        core.picture(source, out, geometry, None, mean, factor)
    np.testing.assert_allclose(made[0], made[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"source": np.zeros((4, 4, 3), np.float32)}, "source .* of uint8"),
        ({"source": np.zeros((4, 4, 5), np.uint8)}, "1 to 4 channels"),
        ({"out": np.zeros((3, 2, 2), np.float64)}, "output .* of float32, uint8 or int8"),
        ({"geometry": (0, 0, 4, 4, 4, 4, 3, 0, 0)}, r"inside of 4 x 4 pixels, got 2 x 2 at \(3, 0"),
        ({"geometry": (0, 0, 4, 4, 0, 4, 0, 0, 0)}, "at least one pixel, got 0"),
        ({"geometry": (0, 0, 4, 4)}, "9 numbers of geometry, got 4"),
        ({"order": (0, 1)}, "order of 3 channels"),
        ({"mean": (0.0,)}, r"one mean per channel \(3\), got 1"),
        ({"mean_image": np.zeros((3, 1, 1), np.float32)}, "mean image .* 12 bytes"),
    ],
)
def test_errors(core: Any, change: dict[str, Any], text: str) -> None:
    call = {
        "source": np.zeros((4, 4, 3), np.uint8),
        "out": np.zeros((3, 2, 2), np.float32),
        "geometry": (0, 0, 4, 4, 4, 4, 0, 0, 0),
    } | change
    with pytest.raises(MXNetError, match=r"\[picture\] expected.*" + text):
        core.picture(**call)
