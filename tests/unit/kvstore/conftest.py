"""What the tests of the store share."""

from contextlib import suppress

import pytest

import mixflow as mx
from mixflow.errors import MXNetError


@pytest.fixture(autouse=True)
def no_error_is_left():
    yield
    with suppress(MXNetError):  # what a test left behind is its own
        mx.nd.waitall()
