"""Fixtures of the unit tests."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from core_support import CORES

from mixflow import _rt
from mixflow.errors import MXNetError


@pytest.fixture(params=CORES, ids=[name for name, _, _ in CORES])
def core(request: pytest.FixtureRequest) -> Any:
    """Each core and engine in turn; what a test leaves behind is its own."""
    _, chosen, kind = request.param
    if chosen is not _rt.core:  # nobody else has told the other core
        chosen.set_array_class(chosen.Array)
    before = chosen.engine_kind()
    chosen.set_engine(kind)
    yield chosen
    with contextlib.suppress(MXNetError):
        chosen.wait_all()
    chosen.set_engine(before)
