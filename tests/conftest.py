"""What every test shares: a fixed seed that is shown when a test fails."""

import os
import random

import numpy as np
import pytest

SEED = int(os.environ.get("MIXFLOW_TEST_SEED", "0"))


@pytest.fixture(autouse=True)
def _seeds():
    random.seed(SEED)
    np.random.seed(SEED)
    yield


def pytest_report_header():
    from mixflow import _rt, backends

    return f"mixflow core: {_rt.core.name}, seed {SEED}, backend {backends.default_backend().name}"
