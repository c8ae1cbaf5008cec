"""Sparse arrays, updates by rows and the local store against recorded values of MXNet 1.9.1."""

import sys
from pathlib import Path

import numpy as np
import pytest

import mixflow as mx

sys.path.insert(0, str(Path(__file__).parent))
import sparse_cases

RECORDED = np.load(Path(__file__).parent / "data" / "sparse.npz")
#: Products store the rows that both have; MXNet also stores rows of 0 for the others.
FEWER_ROWS = ("a * b", "elemwise_mul")
NAMES = [name for name in RECORDED.files if name.endswith("|values")]


@pytest.fixture(scope="module")
def ours():
    return {name: (stype, rows, values) for name, stype, rows, values in cases()}


def cases():
    return sparse_cases.everything(mx)


@pytest.mark.parametrize("key", NAMES)
def test_as_recorded(key, ours):
    name, stype, _ = key.split("|")
    got, rows, values = ours[name]
    assert got == stype
    expected = RECORDED[key]
    assert (values.dtype, values.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=5e-6)
    if name not in FEWER_ROWS:
        np.testing.assert_array_equal(rows, RECORDED[f"{name}|{stype}|rows"])


def test_every_case_is_recorded(ours):
    assert len(ours) == len(NAMES) > 90
