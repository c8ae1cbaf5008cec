"""Indexing against NumPy: the same elements, views where regions are contiguous."""

import numpy as np
import pytest

from mixflow import _rt
from mixflow import ndarray as nd

SHAPE = (4, 3, 5)
BASIC = [
    0,
    -1,
    np.int64(2),
    slice(1, 3),
    slice(None),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(3, 0, -2),
    slice(-2, None),
    Ellipsis,
    None,
    (),
    (1, 2),
    (0, slice(1, 3)),
    (Ellipsis, 1),
    (slice(None), 1),
    (slice(1, 3), slice(None), slice(0, 5, 2)),
    (0, Ellipsis, slice(None, None, -2)),
    (None, 0),
    (0, None, 1),
    (slice(1, 2), None, Ellipsis, None),
    (slice(None), slice(None), 4),
    (2, slice(1, 2), slice(1, 4)),
    slice(10, 20),
    (slice(None), slice(2, 1)),
    (slice(0, 9),),
]
ADVANCED = [
    [0, 2],
    [[0, 1], [3, 2]],
    np.array([3, -1, 0]),
    (slice(None), [0, 2]),
    ([0, 1], [1, 2]),
    ([0, 1], [1, 2], [3, 4]),
    (slice(None), [0, 2], [1, 1]),
    ([0, 3], slice(None), [1, 4]),
    (0, [1, 2]),
    (0, slice(None), [1, 2]),
    ([[0], [1]], [0, 1]),
    (slice(1, 3), [2, 0], slice(0, 4, 2)),
    (None, [0, 1]),
    ([0, 1], None, [1, 2]),
    np.array([True, False, True, True]),
    (slice(None), np.array([True, False, True])),
    (np.array([True, False, True, False]), 1),
    (Ellipsis, [0, 4]),
    ([], slice(None)),
    np.zeros(4, bool),
    range(2),
]


def data(shape=SHAPE):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return values, nd.array(values)


def plain(shape):
    return shape or (1,)


@pytest.mark.parametrize("key", BASIC + ADVANCED, ids=str)
def test_read(key):
    values, a = data()
    expected = values[key]
    got = a[key]
    assert got.shape == plain(expected.shape)
    np.testing.assert_array_equal(got.asnumpy().reshape(expected.shape), expected)


@pytest.mark.parametrize("key", BASIC + ADVANCED, ids=str)
@pytest.mark.parametrize("kind", ["number", "array", "numpy", "broadcast"])
def test_write(key, kind):
    values, a = data()
    shape = values[key].shape
    if kind == "number":
        value = 7.5
    elif kind == "broadcast":
        value = np.full((1,) * len(shape[:-1]) + shape[-1:], -3, np.float32)
    else:
        value = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    a[key] = nd.array(value) if kind == "array" else value
    values[key] = value
    np.testing.assert_array_equal(a.asnumpy(), values)


@pytest.mark.parametrize("key", BASIC, ids=str)
def test_read_while_recording_goes_through_operators(key):
    values, a = data()
    old = _rt.core.set_recording(True)
    try:
        got = a[key]
    finally:
        _rt.core.set_recording(old)
    np.testing.assert_array_equal(got.asnumpy().reshape(values[key].shape), values[key])


@pytest.mark.parametrize("seed", range(40))
def test_random_keys(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 5, size=rng.integers(1, 5)))
    values, a = data(shape)
    lead = tuple(rng.integers(1, 3, size=rng.integers(1, 3)))
    key = []
    for size in shape:
        kind = rng.integers(4)
        if kind == 0:
            key.append(int(rng.integers(-size, size)))
        elif kind == 1:
            begin, end = rng.integers(-size - 1, size + 1, 2)
            key.append(slice(int(begin), int(end), int(rng.choice([-2, -1, 1, 2]))))
        elif kind == 2:
            key.append(rng.integers(-size, size, lead))
        else:
            key.append(slice(None))
    key = tuple(key)
    expected = values[key]
    got = a[key]
    assert got.shape == plain(expected.shape)
    np.testing.assert_array_equal(got.asnumpy().reshape(expected.shape), expected)
    a[key] = -1
    values[key] = -1
    np.testing.assert_array_equal(a.asnumpy(), values)


def test_array_keys_on_device_wrap_negative_numbers():
    values, a = data()
    np.testing.assert_array_equal(a[nd.array([0, -1])].asnumpy(), values[[0, -1]])
    index = nd.array([[0, 2], [1, 0]], dtype="int32")
    np.testing.assert_array_equal(a[:, index].asnumpy(), values[:, [[0, 2], [1, 0]]])


def test_mask_arrays():
    values, a = data()
    mask = nd.array(values % 2, dtype="bool")
    np.testing.assert_array_equal(a[mask].asnumpy(), values[values % 2 == 1])


def test_views_write_through():
    _, a = data()
    part = a[1:3]
    assert part.shares_storage(a)
    part[:] = 5
    a[0][1] = 6
    a[3, 2, 1:3] = 7
    expected = np.arange(60, dtype=np.float32).reshape(SHAPE)
    expected[1:3], expected[0, 1], expected[3, 2, 1:3] = 5, 6, 7
    np.testing.assert_array_equal(a.asnumpy(), expected)
    np.testing.assert_array_equal(part.asnumpy(), expected[1:3])


def test_views_of_views():
    values, a = data((6, 4))
    inner = a[1:5][1:3].reshape((4, 2))
    inner[1] = -1
    values[2, 2:4] = -1
    np.testing.assert_array_equal(a.asnumpy(), values)


def test_copies_do_not_write_through():
    values, a = data()
    a[:, 1][:] = 0
    a[[0, 1]][:] = 0
    a[::2][:] = 0
    np.testing.assert_array_equal(a.asnumpy(), values)


def test_overlapping_assignment():
    values, a = data((8,))
    a[1:] = a[:-1]
    values[1:] = values[:-1].copy()
    np.testing.assert_array_equal(a.asnumpy(), values)
    a[::-1] = a
    np.testing.assert_array_equal(a.asnumpy(), values[::-1])


def test_iteration_and_length():
    values, a = data((3, 2))
    assert len(a) == 3
    np.testing.assert_array_equal(np.stack([r.asnumpy() for r in a]), values)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (4, "index 4 is out of bounds for axis 0 with size 4"),
        ((0, -4), "index -4 is out of bounds for axis 1 with size 3"),
        ((0, 0, 0, 0), "at most 3 indices, got 4"),
        ((Ellipsis, Ellipsis), "one Ellipsis"),
        ("x", "of type str"),
        (1.5, "of type float"),
        ([0, 4], "index 4 is out of bounds"),
        (np.array([True, False]), "boolean mask of shape"),
    ],
    ids=str,
)
def test_errors(key, text):
    _, a = data()
    with pytest.raises(IndexError, match=text):
        a[key]
    with pytest.raises(IndexError, match=text):
        a[key] = 1


def test_value_that_does_not_fit():
    _, a = data()
    for key in (slice(None), 0, (slice(None), 1), [0, 1]):
        with pytest.raises(ValueError, match="broadcasts"):
            a[key] = np.zeros((7, 7, 7, 2))


def test_write_converts_dtype_and_context():
    a = nd.zeros((2, 2), dtype="int32")
    a[0] = nd.array([1.7, 2.2])
    a[1] = 3.9
    np.testing.assert_array_equal(a.asnumpy(), [[1, 2], [3, 3]])
    from mixflow.context import cpu

    a[:] = nd.ones((2, 2), ctx=cpu(1))
    np.testing.assert_array_equal(a.asnumpy(), np.ones((2, 2)))


def test_writing_what_autograd_follows_is_refused():
    from mixflow import autograd
    from mixflow.errors import MXNetError

    x = nd.ones((2, 2))
    x.attach_grad()
    with autograd.record():
        y = x * 2
        for array in (x, y):
            with pytest.raises(MXNetError, match="not supported while recording"):
                array[0] = 1
    y[0] = 1


def test_values_out_of_the_same_storage():
    values, a = data((4, 4))
    a[[3, 2, 1, 0]] = a
    a[:, ::2] = a[:, 2:]
    a[0] = a[0:1]
    values[[3, 2, 1, 0]] = values.copy()
    values[:, ::2] = values[:, 2:].copy()
    np.testing.assert_array_equal(a.asnumpy(), values)
