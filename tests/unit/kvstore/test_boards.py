"""Boards and messages together, with processes that die between any two stores."""

import os
import threading

import pytest
from boards_world import Own, Torn, TornOwn, World, assert_all_counted_once
from store_support import job, together

import mixflow as mx
from mixflow import _rt

pytestmark = pytest.mark.skipif(
    not hasattr(_rt.core, "ServerDesk"), reason="the plain core has no boards"
)
COUNT = 2500 if os.environ.get("MIXFLOW_FULL_COUNTS") else 60


@pytest.mark.parametrize("seed", range(COUNT))
def test_every_push_counts_once_by_boards_and_by_messages(seed):
    world = World(seed)
    world.run()
    assert_all_counted_once(world)


@pytest.mark.parametrize("seed", range(COUNT))
def test_every_push_counts_once_where_each_makes_an_update(seed):
    world = Own(seed)
    world.run()
    assert_all_counted_once(world)


def test_an_update_that_was_not_kept_comes_again():
    worlds = [TornOwn(seed) for seed in range(40) if seed % 3 != 1]  # the desk closes rounds
    for world in worlds:
        world.run()
        assert_all_counted_once(world)
    assert sum(world.torn for world in worlds) > 10


def test_a_round_that_was_read_and_not_kept_comes_again():
    worlds = [Torn(seed) for seed in range(40) if seed % 3 != 1]  # the desk closes rounds
    for world in worlds:
        world.run()
        assert_all_counted_once(world)
    assert sum(world.torn for world in worlds) > 10


@pytest.mark.parametrize("kind", [World, Own])
def test_boards_are_used_in_these_schedules(kind):
    runs = [kind(seed) for seed in range(24)]
    for world in runs:
        world.run()
    assert sum(world.reads_by_boards for world in runs) > 20
    assert sum(world.by_boards for world in runs) > 50
    by_desk = {kind: sum(w.by_desk for w in runs if w.kind == kind) for kind in ("sum", "update")}
    assert min(by_desk.values()) > 15


def test_threads_that_help_and_threads_of_the_lane_end_each_exchange_once():
    """Several calls of each worker are under way at once, over the boards of two servers."""
    shapes, steps = {"a": (3,), "b": (500,), "c": (40, 5)}, 150

    def worker(store):
        values = {key: mx.nd.zeros(shape) for key, shape in shapes.items()}
        for key, value in values.items():
            store.init(key, value)
        for step in range(steps):
            for key, value in values.items():
                store.pushpull(key, mx.nd.ones(value.shape) * (step + 1), out=value)
            for value in values.values():
                assert value.asnumpy().min() == value.asnumpy().max() == 3 * (step + 1)
        return store._link.lane.steps

    with job(3, servers=2) as stores:
        counts = together(worker, stores)
    assert min(counts) > steps  # the first rounds went by messages, later ones if a stop was long


@pytest.mark.parametrize("apart", [False, True])
def test_steps_that_were_asked_for_before_boards_were_opened_go_by_them(apart):
    """Two workers have asked for every step before the third one makes the first round whole: a
    training loop that never waits is always ahead like that."""
    ready, steps = threading.Barrier(3), 40

    def worker(store):
        out, ones = mx.nd.zeros((3,)), mx.nd.ones((3,))
        store.init("a", out)
        if store.rank == 2:
            ready.wait(30)
        for _ in range(steps):
            if apart:
                store.push("a", ones)
                store.pull("a", out)
            else:
                store.pushpull("a", ones, out)
        if store.rank != 2:
            ready.wait(30)
        assert out.asnumpy().tolist() == [3, 3, 3]
        return store._link.lane.steps

    with job(3) as stores:
        counts = together(worker, stores)
    assert min(counts) > steps / 2


def test_a_store_may_be_kept_from_boards():
    def worker(store):
        out = mx.nd.zeros((3,))
        store.init("a", out)
        for _ in range(5):
            store.pushpull("a", mx.nd.ones((3,)), out=out)
            out.wait_to_read()
        return store._link.lane

    with job(2, boards=False) as stores:
        assert together(worker, stores) == [None, None]
