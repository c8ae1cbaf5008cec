"""mx.nd.image and mx.sym.image: draws, errors, both faces."""

import numpy as np
import pytest

import mixflow as mx
from mixflow import nd
from mixflow.errors import ShapeError

LEVELS = np.random.default_rng(0).integers(0, 256, (6, 7, 3)).astype(np.float32)


def test_random_flips_do_both():
    x = nd.array(LEVELS)
    for call, axis in ((nd.image.random_flip_left_right, 1), (nd.image.random_flip_top_bottom, 0)):
        found = [call(x).asnumpy() for _ in range(40)]
        flipped = [np.array_equal(f, np.flip(LEVELS, axis)) for f in found]
        same = [np.array_equal(f, LEVELS) for f in found]
        assert all(a != b for a, b in zip(flipped, same, strict=True))
        assert 5 < sum(flipped) < 35


def test_factors_stay_inside_of_their_range():
    x = nd.ones((4, 4, 3))
    found = [nd.image.random_brightness(x, 0.5, 1.5).asnumpy() for _ in range(40)]
    assert all(np.ptp(f) == 0 for f in found)
    values = [f[0, 0, 0] for f in found]
    assert 0.5 <= min(values) < 0.8 < 1.2 < max(values) <= 1.5


def test_saturation_keeps_the_grey():
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    made = nd.image.random_saturation(nd.array(LEVELS), 0.4, 0.4).asnumpy()
    np.testing.assert_allclose(made @ weights, LEVELS @ weights, rtol=1e-5)
    grey = nd.image.random_saturation(nd.array(LEVELS), 0.0, 0.0).asnumpy()
    np.testing.assert_allclose(np.ptp(grey, axis=2), 0, atol=1e-3)


def test_bytes_are_cut_to_their_range():
    x = nd.array(LEVELS, dtype="uint8")
    made = nd.image.random_brightness(x, 2.0, 2.0)
    np.testing.assert_array_equal(made.asnumpy(), np.minimum(LEVELS * 2, 255).astype(np.uint8))


def test_in_a_graph():
    data = mx.sym.Variable("data")
    net = mx.sym.image.normalize(mx.sym.image.to_tensor(data), mean=(0.5,), std=(0.25,))
    executor = net.bind(mx.cpu(), {"data": nd.array(LEVELS)})
    wanted = (LEVELS.transpose(2, 0, 1) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(executor.forward()[0].asnumpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: nd.image.to_tensor(x[0]), r"expected an image .*got 2 axes"),
        (lambda x: nd.image.normalize(x[0]), r"\(channels, height, width\), got 2 axes"),
        (lambda x: nd.image.normalize(x, mean=(1.0, 2.0)), "1 or 6 numbers for mean, got 2"),
        (lambda x: nd.image.crop(x, 5, 0, 3, 3), "inside of 6 x 7 pixels, got x=5"),
        (lambda x: nd.image.flip_left_right(x[0]), "got 2 axes"),
        (lambda x: nd.image.random_brightness(x, -1.0, 1.0), "min_factor of at least 0, got -1"),
        (lambda x: nd.image.random_contrast(nd.ones((2, 2, 2)), 1.0, 1.0), "1 or 3 channels"),
        (lambda x: nd.image.adjust_lighting(x, alpha=(1.0,)), "three numbers for alpha"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ShapeError, match=text):
        call(nd.array(LEVELS))
