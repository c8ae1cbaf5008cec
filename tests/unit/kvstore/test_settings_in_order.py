"""Settings stand in a program's order: they are for the pushes after them, and for no others.

The programs never wait for an array: their pushes are still on their way when a setting comes.
"""

import numpy as np
import pytest
from store_support import job, together

import mixflow as mx

STEPS = 60
SHAPE = (300,)


def pushed(store, value, steps=STEPS, pull=True):
    for _ in range(steps):
        gradient = mx.nd.ones(SHAPE)
        if pull:
            store.pushpull(0, gradient, out=value)
        else:
            store.push(0, gradient)


def found(program, workers=2, **options):
    """The one value of a key after a program of each worker."""

    def worker(store):
        value = mx.nd.zeros(SHAPE)
        store.init(0, value)
        optimizer = mx.optimizer.SGD(learning_rate=1.0)
        store.set_optimizer(optimizer)
        program(store, value, optimizer)
        store.pull(0, out=value)
        return np.unique(value.asnumpy()).tolist()

    with job(workers, 2, **options) as stores:
        every = together(worker, stores)
    assert every == [every[0]] * workers
    return every[0]


@pytest.mark.parametrize("boards", [True, False])
@pytest.mark.parametrize("pull", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_learning_rate(boards, pull, workers):
    def program(store, value, optimizer):
        pushed(store, value, pull=pull)
        optimizer.set_learning_rate(0.5)
        pushed(store, value, pull=pull)

    assert found(program, workers, boards=boards) == [-1.5 * STEPS * workers]


@pytest.mark.parametrize("pull", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_another_optimizer(pull, workers):
    def program(store, value, optimizer):
        pushed(store, value, pull=pull)
        store.set_optimizer(mx.optimizer.SGD(learning_rate=0.25))
        pushed(store, value, pull=pull)

    assert found(program, workers) == [-1.25 * STEPS * workers]


def test_gradient_compression():
    def program(store, value, optimizer):
        pushed(store, value)
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        pushed(store, value)

    assert found(program) == [-1.5 * STEPS * 2]


def test_states_of_a_file(tmp_path):
    path = str(tmp_path / "states")

    def worker(store):
        value = mx.nd.zeros(SHAPE)
        store.init(0, value)
        store.set_optimizer(mx.optimizer.SGD(1.0, learning_rate=1.0))
        pushed(store, value, 1)
        store.save_optimizer_states(path)
        pushed(store, value)
        store.load_optimizer_states(path)
        pushed(store, value, 1)
        return value.asnumpy()

    with job(1, 2) as (store,):
        np.testing.assert_array_equal(worker(store), worker(mx.kv.create("local")))


def test_a_key_that_stands_in_a_call_twice_is_pushed_twice():
    def program(store, value, optimizer):
        other = mx.nd.zeros(SHAPE)
        gradients = [mx.nd.ones(SHAPE), mx.nd.ones(SHAPE) * 2]
        for _ in range(STEPS):
            store.pushpull([0, 0], gradients, out=[value, other])
        np.testing.assert_array_equal(value.asnumpy(), other.asnumpy())

    assert found(program) == [-3.0 * STEPS * 2]
