"""The coordinator of a detached job on Ray, without Ray."""

import sys
import threading

import pytest

from mixflow.errors import MixflowError
from mixflow.kvstore.job import ray_job


@pytest.mark.parametrize("error, text", [(MixflowError("[launch] no"), "no"), (OSError(28), "28")])
def test_a_coordinator_that_fails_tells_it_and_ends(tmp_path, monkeypatch, error, text):
    ended, ray = threading.Event(), type("Ray", (), {})()
    ray.get_runtime_context = lambda: type("Context", (), {"current_actor": "me"})()
    ray.kill = lambda actor: ended.set()

    def fail(*_):
        raise error

    for name in ("stdout", "stderr"):  # it takes them for its log
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(ray_job, "load", lambda *_: ray)
    monkeypatch.setattr(ray_job, "run_job", fail)
    monkeypatch.setattr(ray_job, "options_of", lambda args: None)
    monkeypatch.setattr(ray_job, "STOPPED_SECONDS", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = ray_job.Coordinator({"cache": str(tmp_path), "name": "far"})
    with pytest.raises(MixflowError, match=text):
        made.card(60)
    assert ended.wait(60)
