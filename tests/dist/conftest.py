"""No process is left behind: what the tests of a module have started is gone when it ends."""

import os
import uuid

import pytest
import survivors


@pytest.fixture(scope="module", autouse=True)
def no_process_of_the_module_is_left_behind():
    os.environ.setdefault(survivors.MARK, uuid.uuid4().hex)
    before = survivors.marked()
    yield
    left = survivors.left_behind(before)
    assert not left, f"left behind: {left}"
