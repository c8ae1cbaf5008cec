"""The coordinator of a detached job on Ray, without Ray."""

import socket
import sys
import threading

import pytest

from mixflow.errors import MixflowError
from mixflow.kvstore.job import ray_cluster, ray_job


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


def test_a_cluster_where_nobody_listens_is_told_at_once(monkeypatch):
    started = []
    ray = type("Ray", (), {"init": staticmethod(lambda **given: started.append(given))})
    monkeypatch.setattr(ray_cluster, "load", lambda *_: ray)
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        for address in (
            f"127.0.0.1:{bound.getsockname()[1]}",
            f"ray://localhost:{bound.getsockname()[1]}",
        ):
            with pytest.raises(MixflowError, match=f"expected a Ray cluster at '{address}'"):
                ray_cluster.connect(address)
        bound.listen()
        ray_cluster.connect(f"127.0.0.1:{bound.getsockname()[1]}")
    # One of its own, though others may run on this host.
    ray_cluster.connect(None, 0.5)
    assert len(started) == 2 and started[1]["address"] == "local"
