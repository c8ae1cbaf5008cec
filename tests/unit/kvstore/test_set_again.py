"""Optimizers that a program sets one after the other, and again when worker 0 begins anew."""

import numpy as np
import own_support
import pytest
from store_support import SECRET, job

import mixflow as mx
from mixflow.kvstore.dist import DistKVStore
from mixflow.kvstore.protocol import program
from mixflow.kvstore.protocol.program import RESTARTED, RESUMED, TURN, numbered, repeats

pytest.importorskip("zmq")
SHAPE = (300,)


def first():
    return mx.optimizer.SGD(1.0, learning_rate=1.0)


def second():
    return mx.optimizer.SGD(0.5, learning_rate=0.25)


def own():
    return own_support.Momentum(learning_rate=0.5)


def trained(store, value, steps=3):
    for _ in range(steps):
        store.pushpull(0, mx.nd.ones(SHAPE), out=value)


def in_one_process(*parts):
    """The value after some steps with each optimizer."""
    store, value = mx.kv.create("local"), mx.nd.zeros(SHAPE)
    store.init(0, value)
    for make, steps in parts:
        store.set_optimizer(make())
        trained(store, value, steps)
    return value.asnumpy()


def begun_anew(stores, kind="restarted"):
    """Worker 0 of a job of one, whose process has ended; it has a key already."""
    old = stores[0]
    old.abandon()
    life = 1 if kind == "restarted" else 0
    made = DistKVStore(
        "dist_sync", 0, 1, old._link._addresses, old.options, life=life, resumed=not life
    )
    made._secret, stores[0] = SECRET, made
    made.init(0, mx.nd.zeros(SHAPE))
    return made


@pytest.fixture
def stores():
    with job(1, 2) as made:
        made[0].init(0, mx.nd.zeros(SHAPE))
        yield made


def test_the_same_optimizer_is_fresh_when_a_running_program_sets_it_again(stores):
    store, value, optimizer = stores[0], mx.nd.zeros(SHAPE), first()
    store.set_optimizer(optimizer)
    trained(store, value)
    optimizer.set_learning_rate(0.5)
    trained(store, value)
    store.set_optimizer(first())
    trained(store, value)
    local, expected, optimizer = mx.kv.create("local"), mx.nd.zeros(SHAPE), first()
    local.init(0, expected)
    local.set_optimizer(optimizer)
    trained(local, expected)
    optimizer.set_learning_rate(0.5)
    trained(local, expected)
    local.set_optimizer(first())
    trained(local, expected)
    np.testing.assert_array_equal(value.asnumpy(), expected.asnumpy())


@pytest.mark.parametrize("later", [second, own])
def test_a_restarted_worker_does_not_bring_back_what_was_replaced(stores, later):
    if later is own:
        pytest.importorskip("cloudpickle")
    value = mx.nd.zeros(SHAPE)
    stores[0].set_optimizer(first())
    trained(stores[0], value)
    stores[0].set_optimizer(later())
    trained(stores[0], value)
    value.wait_to_read()
    store = begun_anew(stores)
    assert store.first_step == 6
    store.set_optimizer(first())  # as at the start of every run
    trained(store, value, 1)
    np.testing.assert_array_equal(value.asnumpy(), in_one_process((first, 3), (later, 4)))
    store.set_optimizer(first())  # while it runs: a new one
    trained(store, value)
    expected = in_one_process((first, 3), (later, 4), (first, 3))
    np.testing.assert_array_equal(value.asnumpy(), expected)
    value.wait_to_read()
    again = begun_anew(stores)
    again.set_optimizer(first())  # is the last one of the run before
    trained(again, value, 1)
    expected = in_one_process((first, 3), (later, 4), (first, 4))
    np.testing.assert_array_equal(value.asnumpy(), expected)


@pytest.mark.parametrize("kind", ["restarted", "resumed"])
def test_a_run_that_begins_anew_keeps_the_states_of_the_same(stores, kind):
    value = mx.nd.zeros(SHAPE)
    stores[0].set_optimizer(first())
    trained(stores[0], value)
    value.wait_to_read()
    store = begun_anew(stores, kind)
    store.set_optimizer(first())
    trained(store, value, 1)
    np.testing.assert_array_equal(value.asnumpy(), in_one_process((first, 4)))


def test_what_repeats():
    def at(turn, again, name="sgd"):
        return {"name": name, TURN: [turn, again]}

    known = at(2, "")
    assert repeats(known, at(1, RESTARTED, "adam")) and repeats(known, at(2, RESTARTED))
    assert not repeats(known, at(2, RESTARTED, "adam")) and not repeats(known, at(3, RESTARTED))
    assert not repeats(known, at(1, RESUMED, "adam")) and repeats(known, at(1, RESUMED))
    assert not repeats(known, at(3, ""))
    assert repeats({"name": "sgd"}, at(1, RESUMED))  # of a snapshot that has no turns
    assert repeats({"name": "sgd"}, {"name": "sgd"})
    assert numbered(known, at(1, "")) == at(3, "")
    assert numbered(None, at(1, RESTARTED)) == at(1, RESTARTED)
    assert program.same(at(1, ""), at(2, RESUMED))
