"""No process is left behind: children end with their test, all others with its module."""

import os
import uuid
from pathlib import Path

import psutil
import pytest
import survivors
from jobs_support import JOB_SECONDS, until

from mixflow.kvstore.job import control, registry

HERE = Path(__file__).parent
#: Of a test, unless the command names one: its job's own deadline comes first, and says more.
TEST_SECONDS = 2 * JOB_SECONDS


def pytest_collection_modifyitems(config, items):
    if config.getoption("timeout", None) is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.timeout(TEST_SECONDS))


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
    until(lambda: set(psutil.Process().children(recursive=True)) <= before)


@pytest.fixture(autouse=True)
def nobody_is_in_a_hurry(monkeypatch):
    """Those who wait for a process of a job wait longer than a user would: it may stand still."""
    monkeypatch.setattr(control, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(registry, "ENDING_SECONDS", 60.0)
