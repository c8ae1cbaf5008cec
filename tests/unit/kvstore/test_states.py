"""Optimizer states of a job's servers as files, and pushes that are only asked for."""

import numpy as np
import pytest
from store_support import job, together

import mixflow as mx
from mixflow.errors import FormatError, MixflowError
from mixflow.kvstore.protocol.client import Client
from mixflow.kvstore.protocol.messages import Applied, Join, Push, Query, Received, Unknown, Values
from mixflow.kvstore.protocol.policy import Async, Bounded, Progress, Sync
from mixflow.kvstore.protocol.sharding import Directory
from mixflow.kvstore.server.shard import Add, Shard
from mixflow.kvstore.server.slots import Slot
from mixflow.kvstore.server.states import join

SHAPES = {"big": (25, 12), "small": (3,)}


def train(store, steps, first=0):
    out = {key: mx.nd.zeros(shape) for key, shape in SHAPES.items()}
    for step in range(first, first + steps):
        for key, shape in SHAPES.items():
            gradient = np.random.default_rng(step).normal(size=shape).astype("float32")
            # Powers of two: the sum over workers is exact.
            store.pushpull(key, mx.nd.array(gradient) / store.num_workers, out=out[key])
    return {key: value.asnumpy() for key, value in out.items()}


def begin(store, optimizer="adam"):
    for key, shape in SHAPES.items():
        store.init(key, mx.nd.ones(shape))
    store.set_optimizer(mx.optimizer.create(optimizer, learning_rate=0.1, rescale_grad=1.0))


def archive(path):
    with np.load(path) as found:
        return {key: found[key] for key in found.files}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_states_are_those_of_a_store_of_one_process(tmp_path, optimizer):
    alone = mx.kv.create("local")
    begin(alone, optimizer)
    train(alone, 3)
    alone.save_optimizer_states(str(tmp_path / "alone"))
    with job(2, servers=2) as stores:
        together(lambda store: begin(store, optimizer), stores)
        together(lambda store: train(store, 3), stores)
        stores[1].save_optimizer_states(str(tmp_path / "job"))
    here, there = archive(tmp_path / "alone"), archive(tmp_path / "job")
    assert here.keys() == there.keys()
    for key, value in here.items():
        np.testing.assert_allclose(there[key], value, rtol=1e-6, err_msg=key)
        assert there[key].shape == value.shape


def test_states_are_taken_back_by_another_number_of_servers(tmp_path):
    alone = mx.kv.create("local")
    begin(alone)
    train(alone, 3)
    alone.save_optimizer_states(str(tmp_path / "states"))
    # Weights differ from those of `alone` by a constant: states alone decide the next steps.
    expected = train(alone, 2, first=3)
    weights = {key: value.copy() for key, value in expected.items()}

    def go_on(store):
        begin(store)
        if store.rank == 0:
            store.load_optimizer_states(str(tmp_path / "states"))
        store.barrier()
        return train(store, 2, first=3)

    fresh = mx.kv.create("local")
    begin(fresh)
    fresh.load_optimizer_states(str(tmp_path / "states"))
    weights = train(fresh, 2, first=3)
    with job(2, servers=3) as stores:
        for found in together(go_on, stores):
            for key, value in found.items():
                np.testing.assert_allclose(value, weights[key], rtol=1e-6)


def test_states_that_do_not_fit_are_refused(tmp_path):
    alone = mx.kv.create("local")
    alone.init("big", mx.nd.zeros((2,)))
    alone.set_optimizer(mx.optimizer.create("adam"))
    alone.pushpull("big", mx.nd.ones((2,)))
    alone.save_optimizer_states(str(tmp_path / "other"))
    alone = mx.kv.create("local")
    alone.init("else", mx.nd.zeros((2,)))
    alone.set_optimizer(mx.optimizer.create("adam"))
    alone.pushpull("else", mx.nd.ones((2,)))
    alone.save_optimizer_states(str(tmp_path / "unknown"))
    (tmp_path / "damaged").write_bytes(b"PK no archive")
    with job(1) as (store,):
        store.init("big", mx.nd.zeros(SHAPES["big"]))
        with pytest.raises(MixflowError, match="expected an optimizer, got none"):
            store.save_optimizer_states(str(tmp_path / "states"))
        store.set_optimizer(mx.optimizer.create("adam"))
        with pytest.raises(FormatError, match=r"expected states of shapes \[\(25, 12\)"):
            store.load_optimizer_states(str(tmp_path / "other"))
        with pytest.raises(FormatError, match="got key 'else'"):
            store.load_optimizer_states(str(tmp_path / "unknown"))
        with pytest.raises(FormatError, match="expected a"):
            store.load_optimizer_states(str(tmp_path / "damaged"))
    entry = Directory(2, bound=10).place({"k": (64, "<f4", 4)})["k"]
    with pytest.raises(FormatError, match="have not been updated yet"):
        join(entry, {"k/0": {"0": np.zeros(32)}})


def ask(client, shard, now, drop=()):
    """Lets client and shard talk until nothing is left to say; kinds in `drop` get lost."""
    said = []
    while outgoing := client.take_outgoing():
        for _, message in outgoing:
            said.append(type(message))
            for _, answer in shard.handle(message, now):
                said.append(type(answer))
                if not isinstance(answer, tuple(drop)):
                    client.handle(answer, now)
    return said


def talkers(policy, workers=1):
    shard = Shard("server0", policy, Add(), workers=workers)
    shard.prompt = lambda: False  # as with a stand-by: that a push has arrived is said apart
    client = Client("worker0", 0, lambda key: "server0", policy, repeat=1.0)
    client.init({"k": np.zeros(1000)}, 0.0)
    ask(client, shard, 0.0)
    return client, shard


@pytest.mark.parametrize("policy", [Sync(), Async()])
def test_a_push_that_arrived_is_asked_for_not_sent_again(policy):
    client, shard = talkers(policy)
    ticket = client.push({"k": np.ones(1000)}, 1.0, pull=True)
    said = ask(client, shard, 1.0, drop=[Applied, Values])
    assert said[0] is Push and Received in said and not ticket.done
    client.tick(1.0 + 4.5)
    assert ask(client, shard, 6.0) == [Query, Received, Applied, Values]
    assert ticket.done and not client.pending and ticket.values["k"].tolist() == [1] * 1000


def test_a_question_before_the_round_is_closed_is_answered_when_it_is():
    client, shard = talkers(Sync(), workers=2)
    ticket = client.push({"k": np.ones(1000)}, 1.0, pull=True)
    ask(client, shard, 1.0)
    for now in (5.5, 10.0, 14.5):
        client.tick(now)
        assert ask(client, shard, now) == [Query, Received]
    other = Client("worker1", 1, lambda key: "server0", Sync())
    other.push({"k": np.ones(1000)}, 15.0)
    for _, message in other.take_outgoing():
        for to, answer in shard.handle(message, 15.0):
            if to == "worker0":
                client.handle(answer, 15.0)
    assert ticket.done and not client.pending and ticket.values["k"].tolist() == [2] * 1000


def test_a_push_that_was_applied_at_once_is_asked_for_while_its_values_wait():
    """A server leaves `Received` out then: `Applied` says as much."""
    shard = Shard("server0", Bounded(0), Add(), workers=2)
    client = Client("worker0", 0, lambda key: "server0", Bounded(0), repeat=1.0)
    client.init({"k": np.zeros(1000)}, 0.0)
    ask(client, shard, 0.0)
    ticket = client.push({"k": np.ones(1000)}, 1.0, pull=True)
    assert ask(client, shard, 1.0) == [Push, Applied] and not ticket.done
    assert not client.silent(9.0, 1.0)
    client.tick(6.0)
    assert ask(client, shard, 6.0) == [Query, Received, Applied] and not ticket.done
    other = Client("worker1", 1, lambda key: "server0", Bounded(0))
    other.push({"k": np.ones(1000)}, 7.0)
    ((_, message),) = other.take_outgoing()
    for to, answer in shard.handle(message, 7.0):
        if to == "worker0":
            client.handle(answer, 7.0)
    assert not client.pending and ticket.values["k"].tolist() == [2] * 1000


def test_what_the_server_does_not_have_is_sent_again():
    client, shard = talkers(Sync(), workers=2)
    client.push({"k": np.ones(1000)}, 1.0)
    ask(client, shard, 1.0)
    # A server that forgot its open rounds without a word of its restart.
    forgetful = Shard("server0", Sync(), Add(), workers=2)
    forgetful.slots["k"] = Slot(np.zeros(1000), forgetful.policy, forgetful.applier)
    client.tick(6.0)
    assert ask(client, forgetful, 6.0) == [Query, Unknown, Push, Received]
    # One that says of its restart in the same word is no reason to send twice.
    forgetful.incarnation, forgetful.slots["k"].progress = 1, Progress()
    client.tick(11.0)
    assert ask(client, forgetful, 11.0) == [Query, Unknown, Push, Received]
    forgetful.handle(Join("worker1", 1, 1, 5, 0), 7.0)
    client.tick(17.0)
    assert Applied in ask(client, forgetful, 17.0) and not client.pending


def test_a_server_that_was_lost_after_a_push_had_arrived_is_silent():
    client = Client("worker0", 0, lambda key: "server0", Sync(), repeat=0.1)
    client.push({"a/0": np.zeros(1, np.float32)}, 0.0)
    ((_, push),) = client.take_outgoing()
    now = 0.0
    for _ in range(10):  # another worker is late: the server says that the push is there
        client.handle(Received("server0", push.number, 0), now)
        now += 0.4
        assert not client.silent(now, 0.3)
        client.tick(now)
        assert [type(asked) for _, asked in client.take_outgoing()] == [Query]
    client.tick(now + 0.4)  # nobody answers that: the server may be at another address by now
    assert client.silent(now + 1.2, 0.3)
    client.handle(Applied("server0", push.number, ("a/0",), 0), now + 1.3)
    assert not client.silent(now + 9.0, 0.3)
