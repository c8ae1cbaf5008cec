"""Fewer partitions in an epoch than workers: who has none in it has none, and goes on."""

import numpy as np
import pytest

import mixflow as mx


@pytest.fixture
def source(tmp_path):
    np.save(tmp_path / "data.npy", np.arange(40, dtype="f4").reshape(8, 5))
    np.save(tmp_path / "label.npy", np.zeros(8, "f4"))
    return {"kind": "npy", "data": f"{tmp_path}/data.npy", "label": f"{tmp_path}/label.npy"}


def part_of(source, rank, workers=3):
    return mx.io.PartitionedIter(source, 4, executors=1, num_parts=workers, part_index=rank)


def fitted(data, epochs):
    """(epoch of the data, first sample) of each batch that `fit` trains on."""
    had = []
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.fit(
        data,
        num_epoch=epochs,
        batch_end_callback=lambda _: had.append((data.epoch, int(data.current_batch.index[0]))),
    )
    return had


def test_fit_goes_through_as_many_epochs_as_it_was_told(source):
    had = []
    for rank in range(3):
        with part_of(source, rank) as data:
            had += fitted(data, 3)
    assert sorted(had) == [(epoch, first) for epoch in range(3) for first in (0, 4)]


def test_an_iterator_that_was_used_up_before_begins_its_next_epoch(source):
    with part_of(source, 0, workers=1) as data:
        for _ in data:
            pass
        assert fitted(data, 1) == [(1, 0), (1, 4)]


def test_a_worker_without_a_partition_has_an_empty_epoch(source):
    with part_of(source, 2) as data:
        counts = []
        for _ in range(3):
            counts.append((len(data), len(list(data))))
            data.reset()
        assert counts == [(0, 0), (1, 1), (1, 1)]
