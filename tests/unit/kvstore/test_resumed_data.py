"""Where a worker's data go on when its job has begun with a snapshot."""

from types import SimpleNamespace

import numpy as np
import pytest

from mixflow import io, random
from mixflow.module import stores


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("counted", [5, 3, 1])
def test_batches_that_the_servers_lack_come_again(monkeypatch, counted, has_state):
    """A worker saves its place after step 3; without rounds, slices may have other steps."""
    monkeypatch.setattr(stores, "_of_a_job", lambda store: True)

    def batches():
        return io.NDArrayIter(np.arange(8, dtype="float32"), batch_size=1)

    before = batches()
    for _ in range(3):
        next(before)
    data = before.state_dict() if has_state else None
    saved = {"epoch": 0, "batch": 3, "step": 3, "data": data, "arrays": {}}
    store = SimpleNamespace(steps_to_skip=counted, restored={**saved, "random": random.get_state()})
    after = batches()
    assert stores.go_on(store, None, after, 0, 1) == (0, counted)
    assert next(after).data[0].asnumpy().tolist() == [counted]
    assert store.steps_to_skip == 0
