"""Boards of one worker each: bits, counts and clocks, reads, and what a staleness allows."""

import shutil
import threading
import time

import numpy as np
import pytest
from store_support import job, together
from test_native_rounds import OPTIMIZERS, SHAPES, assert_same, first_values

import mixflow as mx
from mixflow import _rt
from mixflow.kvstore.protocol.policy import Async, Bounded
from mixflow.kvstore.server.ledger import SharedLedger

pytestmark = pytest.mark.skipif(
    not hasattr(_rt.core, "ServerDesk"), reason="the plain core has no boards"
)
STEPS = 80


def trained(folder, make, boards=True, ledgers=(), at_step=None):
    """Weights and states after `STEPS` of two workers that take turns, and the servers' shards."""
    path, turns = folder / f"states-{boards}", threading.Barrier(2, timeout=60)

    def worker(store):
        values = {k: mx.nd.array(v) for k, v in first_values("float32").items()}
        for key, value in values.items():
            store.init(key, value)
        store.set_optimizer(make())
        rng = np.random.default_rng(store.rank)
        for step in range(STEPS):
            for turn in range(2):
                turns.wait()
                if turn != store.rank:
                    continue
                if at_step is not None:
                    at_step(store, step)
                grads = [mx.nd.array(rng.normal(size=s)) for s in SHAPES.values()]
                store.pushpull(list(SHAPES), grads, list(values.values()))
                for value in values.values():
                    value.wait_to_read()
        turns.wait()
        if store.rank == 0:
            store.pull(list(SHAPES), list(values.values()))
            mx.nd.waitall()
            store.save_optimizer_states(str(path))
        return [value.asnumpy() for value in values.values()]

    with job(2, servers=2, ledgers=ledgers, boards=boards, policy=Async()) as stores:
        weights = together(worker, stores)[0]
        closed = sum(server._boards.rounds for server in stores.servers)
        shards = [server.shard for server in stores.servers]
    with np.load(path) as states:
        return weights, {name: states[name] for name in states.files}, closed, shards


@pytest.mark.parametrize("name", ["sgd", "momentum", "factor", "adam, factor", "ftrl"])
def test_steps_of_the_desk_have_the_bits_of_those_in_python(tmp_path, name):
    by_desk = trained(tmp_path, OPTIMIZERS[name])
    in_python = trained(tmp_path, OPTIMIZERS[name], boards=False)
    assert_same(by_desk, in_python)
    slices = 4
    assert by_desk[2] > slices * STEPS  # of 2 * slices * STEPS
    assert in_python[2] == 0


def test_a_setting_in_between_counts_from_the_next_step_on(tmp_path):
    def at_step(store, step):
        if store.rank == 1 and step == 40:
            store.configure("learning_rate", {"value": 0.01})
        if store.rank == 0 and step % 20 == 10:
            store.pull(0, mx.nd.zeros(SHAPES[0]))

    make = OPTIMIZERS["momentum"]
    by_desk = trained(tmp_path, make, at_step=at_step)
    assert_same(by_desk, trained(tmp_path, make, boards=False, at_step=at_step))
    assert by_desk[2] > STEPS


def test_the_ledger_has_the_steps_of_each_worker(tmp_path):
    ledgers = [SharedLedger(tmp_path / f"ledger{n}") for n in range(2)]
    _, _, closed, shards = trained(tmp_path, OPTIMIZERS["momentum"], ledgers=ledgers)
    assert closed > STEPS
    for number, shard in enumerate(shards):
        shutil.copytree(tmp_path / f"ledger{number}", tmp_path / f"copy{number}")
        copy = SharedLedger(tmp_path / f"copy{number}")
        for key, value, states, progress in copy.slices():
            slot = shard.slots[key]
            np.testing.assert_array_equal(value, slot.value)
            assert progress.to_json() == slot.progress.to_json()
            assert progress.clocks == {0: STEPS, 1: STEPS}
            assert states["count"].tolist() == [2 * STEPS]
        copy.close()
        shard.ledger.close()


def stepped(store, value, steps=1):
    for _ in range(steps):
        store.pushpull("a", mx.nd.ones(value.shape), out=value)
        value.wait_to_read()


def own(value):
    return -value.asnumpy()[0]


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_read_is_as_new_as_its_asking(size):
    turns = threading.Barrier(2, timeout=60)

    def worker(store):
        value = mx.nd.zeros((size,))
        store.init("a", value)
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1))
        for step in range(1, 40):
            if store.rank == 0:
                stepped(store, value)
            turns.wait()
            if store.rank == 1:  # of what it has pushed itself this is too old
                store.pull("a", value)
                assert own(value) == step + (step > 1) * 1
                if step == 1:
                    stepped(store, value)
            turns.wait()
        return store._link.lane.steps

    with job(2, policy=Async()) as stores:
        steps = together(worker, stores)
    assert steps[0] > 20


def test_a_fast_worker_waits_for_a_slow_one_by_boards():
    done, bound = [0, 0], 2

    def worker(store):
        value = mx.nd.zeros((3,))
        store.init("a", value)
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1))
        for step in range(60):
            if store.rank == 1 and step > 30:
                time.sleep(0.01)
            stepped(store, value)
            done[store.rank] = step + 1
            assert own(value) >= step + 1 + max(0, step + 1 - bound)
        return store._link.lane.steps

    with job(2, policy=Bounded(bound)) as stores:
        steps = together(worker, stores)
    assert min(steps) > 30


def test_those_that_go_by_messages_are_waited_for_too():
    """One of the workers uses no boards: the others have none either, and all wait for it."""

    def worker(store):
        value = mx.nd.zeros((3,))
        store.init("a", value)
        store.set_optimizer(mx.optimizer.SGD(learning_rate=1))
        for step in range(20):
            if store.rank == 1:
                store._link.client.offers = False
                store._link.lane.retire(["a/0"])
            stepped(store, value)
            assert own(value) >= step + 1 + max(0, step)
        return store._link.lane.steps

    with job(2, policy=Bounded(1)) as stores:
        steps = together(worker, stores)
    assert steps == [0, 0]


def test_an_optimizer_of_python_updates_on_boards_too():
    def worker(store):
        value = mx.nd.zeros((3,))
        store.init("a", value)
        store.set_optimizer(mx.optimizer.Test(rescale_grad=1.0))
        for _ in range(40):
            stepped(store, value)
        store.barrier()
        store.pull("a", value)
        assert value.asnumpy().tolist() == [120] * 3
        return store._link.lane.steps

    with job(3, policy=Async()) as stores:
        steps = together(worker, stores)
        assert sum(server._boards.rounds for server in stores.servers) == 0
    assert min(steps) > 20


def test_an_update_that_fails_on_a_board_is_told():
    class Failing(mx.optimizer.Optimizer):
        def update(self, index, weight, grad, state):
            if self._index_update_count.get(index, 0) >= 0 and weight.asnumpy()[0] >= 5:
                raise ValueError("no more than five")
            weight[:] += grad

        def create_state(self, index, weight):
            return None

    def worker(store):
        value = mx.nd.zeros((3,))
        store.init("a", value)
        store.set_optimizer(Failing())
        with pytest.raises(mx.MXNetError, match="no more than five"):
            stepped(store, value, 50)

    with job(2, policy=Async()) as stores:
        together(worker, stores)
