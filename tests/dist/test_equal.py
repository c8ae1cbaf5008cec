"""Two synchronous workers at batch b train what one worker trains at batch 2b."""

import sys
from pathlib import Path

import equal
import numpy as np
import pytest
from jobs_support import JOB_SECONDS, STORE_SECONDS

import mixflow as mx
from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions

pytest.importorskip("zmq")


@pytest.mark.parametrize("way", equal.WAYS)
def test_two_workers_give_the_weights_of_one_with_twice_the_batch(tmp_path, way, monkeypatch):
    out = tmp_path / "weights.npz"
    command = [sys.executable, str(Path(equal.__file__)), way, str(out)]
    # The first layer is cut over both servers.
    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.2, bound=1000)
    assert Job(command, JobOptions(2, 2, store, deadline=JOB_SECONDS)).run() == 0
    one = equal.WAYS[way](mx.kv.create("local"), *equal.samples(), equal.TOGETHER)
    two = dict(np.load(out))
    assert two.keys() == one.keys()
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=0, atol=1e-5)
    # It does take all that is set: without the multipliers the weights are others.
    monkeypatch.setattr(equal, "MULTIPLIERS", {})
    plain = equal.WAYS[way](mx.kv.create("local"), *equal.samples(), equal.TOGETHER)
    assert np.abs(plain["second_weight"] - one["second_weight"]).max() > 1e-2
