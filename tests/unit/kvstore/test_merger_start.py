"""A host's merger that can't start: its workers are told at once."""

import os

import psutil
import pytest

from mixflow.errors import MixflowError
from mixflow.kvstore.host import host_merger as host

pytest.importorskip("zmq")


def test_a_merger_that_ends_at_once_is_not_waited_for(capfd):
    task = {"address": host.address_of(f"none-{os.getpid()}", "near"), "host": "near", "options": 3}
    with pytest.raises(MixflowError, match=r"merger of host 'near' .*, got its end with code 1"):
        host.ensure(task)
    assert "Traceback" in capfd.readouterr().err


def test_a_merger_that_does_not_come_is_an_error(monkeypatch):
    monkeypatch.setattr(host, "START_SECONDS", 0.1)
    monkeypatch.setattr(host.subprocess, "Popen", _sleeping(host.subprocess.Popen))
    task = {"address": host.address_of(f"late-{os.getpid()}", "near"), "host": "near"}
    before = set(psutil.Process().children())
    with pytest.raises(MixflowError, match=r"host 'near' to start within 0.1 s, got none"):
        host.ensure(task)
    assert set(psutil.Process().children()) == before


def _sleeping(popen):
    return lambda words, **options: popen(["sleep", "100"], **options)
