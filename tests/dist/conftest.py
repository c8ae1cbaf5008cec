"""No process is left behind: children end with their test, all others with its module."""

import os
import uuid

import psutil
import pytest
import survivors
from jobs_support import until


@pytest.fixture(scope="module", autouse=True)
def no_process_of_the_module_is_left_behind():
    os.environ.setdefault(survivors.MARK, uuid.uuid4().hex)
    before = survivors.marked()
    yield
    left = survivors.left_behind(before)
    assert not left, f"left behind: {left}"


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = set(psutil.Process().children(recursive=True))
    yield
    until(lambda: set(psutil.Process().children(recursive=True)) <= before, 10)
