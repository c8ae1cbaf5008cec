"""A lone worker that holds its job's state: the servers' values, and nobody is left out."""

import threading
import time

import numpy as np
import pytest
from store_support import SECONDS, job, together, until

import mixflow as mx
from mixflow.errors import MixflowError, ParamError
from mixflow.kvstore.dist import DistKVStore
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.protocol.messages import (
    Ask,
    Configure,
    Deposit,
    Done,
    Failed,
    Gradient,
    Init,
    Join,
    Kept,
    Leave,
    Lend,
    Pull,
    Push,
    Report,
    Values,
)
from mixflow.kvstore.protocol.policy import Async, Bounded, Part, Sync
from mixflow.kvstore.server.appliers import Optimizing
from mixflow.kvstore.server.shard import Memory, Shard
from mixflow.kvstore.server.snapshot import Capture
from mixflow.kvstore.transport.faults import Faults
from mixflow.optimizer.describe import describe

pytest.importorskip("zmq")


# -- the server's side


def shard_of(policy=None, workers=1, ledger=None, **options):
    policy = policy or Sync()
    made = Shard("s", policy, Optimizing(), workers=workers, ledger=ledger, **options)
    if not made.slots:
        made.handle(Init("worker0", 1, {"a/0": np.zeros(3, "f4")}), 0.0)
        text = describe(mx.optimizer.create("sgd", learning_rate=1.0, momentum=0.5))
        made.handle(Configure("worker0", 2, "optimizer", text), 0.0)
    return made


def deposit(number, step, lease="one", last=False, value=1.0):
    count = np.array([step], "i8")
    values = {"a/0|": np.full(3, value, "f4"), "a/0|0": np.full(3, -1.0, "f4"), "a/0|count": count}
    return Deposit("worker0", number, 0, lease, step, last, values)


def kinds(outgoing):
    return [(to, type(message)) for to, message in outgoing]


@pytest.mark.parametrize("policy", [Sync(), Async(), Bounded(3)], ids=lambda p: p.name)
def test_a_deposit_is_the_state_after_its_steps_and_a_copy_of_it_changes_nothing(policy):
    shard = shard_of(policy)
    assert kinds(shard.handle(Lend("worker0", 3, 0, "one"), 0.0)) == [("worker0", Done)]
    first = deposit(4, 5, value=5.0)
    for message, value in ((first, 5), (deposit(5, 9, value=9.0), 9), (first, 9)):
        assert kinds(shard.handle(message, 0.0)) == [("worker0", Kept)]
        assert shard.slots["a/0"].value.tolist() == [value] * 3
    progress = shard.slots["a/0"].progress
    assert (progress.version, progress.applied) == (9, 9)
    assert shard.states("a/0")["0"].tolist() == [-1] * 3
    shard.handle(deposit(6, 9, last=True), 0.0)
    # The next push is that of step 9, with the momentum of the deposit: 9 - (0.5 + 2).
    gradient = Gradient((Part(0, 9),), np.full(3, 2.0, "f4"))
    shard.handle(Push("worker0", 7, {"a/0": gradient}, True), 0.0)
    assert shard.slots["a/0"].value.tolist() == [9 - 0.5 - 2] * 3


def test_others_wait_until_the_state_is_given_back():
    shard = shard_of()
    shard.handle(Lend("worker0", 3, 0, "one"), 0.0)
    for _ in range(2):  # the second is a copy
        assert shard.handle(Ask("worker1", 1), 0.0) == []
    assert shard.handle(Pull("worker1", 2, 1, {"a/0": 0}), 0.0) == []
    ((_, told),) = shard.handle(deposit(4, 5), 0.0)
    assert told.recalled
    out = shard.handle(deposit(5, 7, last=True, value=7.0), 0.0)
    assert kinds(out) == [("worker0", Kept), ("worker1", Report), ("worker1", Values)]
    assert out[1][1].slices["a/0"]["version"] == 7
    assert out[2][1].values["a/0"].tolist() == [7] * 3
    # A copy of the last deposit: the same answer.
    assert kinds(shard.handle(deposit(5, 7, last=True), 0.0)) == [("worker0", Kept)]
    assert kinds(shard.handle(Join("worker1", 3, 1, 7, 0), 0.0)) == [("worker1", Done)]
    ((_, told),) = shard.handle(Lend("worker0", 6, 0, "two"), 0.0)
    assert told.text == ("[kvstore server s] expected worker 0 to be alone, got members [0, 1]")


def test_whoever_waits_for_a_silent_holder_is_told_its_name():
    shard = shard_of(deadline=5.0)
    shard.handle(Lend("worker0", 3, 0, "one"), 0.0)
    shard.handle(Pull("worker1", 2, 1, {"a/0": 0}), 1.0)
    assert shard.next_deadline() == 6.0
    ((to, told),) = shard.tick(6.5)
    assert to == "worker1" and isinstance(told, Failed) and told.missing == (0,)
    assert "expected the state that a worker holds" in told.text and "worker 0" in told.text


def test_a_holder_that_is_gone_keeps_nobody_waiting():
    shard = shard_of(give_up=True, deadline=5.0)
    shard.handle(Lend("worker0", 3, 0, "one"), 0.0)
    shard.handle(deposit(4, 5, value=5.0), 0.0)
    shard.handle(Pull("worker1", 2, 1, {"a/0": 0}), 0.0)
    assert kinds(shard.handle(Leave("job", 9, 0, 3), 0.0)) == [("job", Done), ("worker1", Values)]
    again = shard_of(give_up=True, deadline=5.0)
    again.handle(Lend("worker0", 3, 0, "one"), 0.0)
    again.handle(Pull("worker1", 2, 1, {"a/0": 0}), 0.0)
    assert kinds(again.tick(6.0)) == [("worker1", Values)]


def test_an_old_process_of_a_worker_can_deposit_nothing():
    shard = shard_of()
    shard.handle(Lend("worker0", 3, 0, "one"), 0.0)
    shard.handle(Ask("worker0", 1 << 32), 0.0)  # a new life
    shard.handle(Lend("worker0", (1 << 32) + 1, 0, "two"), 0.0)
    ((_, told),) = shard.handle(deposit(4, 5), 0.0)
    assert told.text == (
        "[kvstore server s] expected the deposit of a lease that is held, got one of worker 0 "
        "that has ended: another process of it took over"
    )
    assert shard.slots["a/0"].value.tolist() == [0] * 3


def test_a_restarted_server_knows_the_lease_and_the_last_deposit():
    ledger = Memory(keep=True)
    shard = shard_of(ledger=ledger)
    shard.handle(Lend("worker0", 3, 0, "one"), 0.0)
    shard.handle(deposit(4, 5, value=5.0), 0.0)
    again = shard_of(ledger=ledger, incarnation=1)
    assert again.slots["a/0"].value.tolist() == [5] * 3
    assert again.handle(Ask("worker1", 1), 0.0) == []
    assert kinds(again.handle(deposit(5, 9, value=9.0), 0.0)) == [("worker0", Kept)]
    assert again.slots["a/0"].progress.version == 9


def test_a_deposit_that_does_not_fit_changes_nothing():
    shard = shard_of()
    shard.handle(Lend("worker0", 3, 0, "one"), 0.0)
    for values, got in (({"a/0|": np.ones(4, "f4")}, "4"), ({"a/0|0": np.ones(3, "f4")}, "none")):
        ((_, told),) = shard.handle(Deposit("worker0", 4, 0, "one", 5, False, values), 0.0)
        assert told.text == f"[kvstore server s] expected 3 values for key 'a/0', got {got}"
    assert shard.slots["a/0"].progress.version == 0


def test_snapshots_are_taken_of_deposits_and_marks_that_were_leapt_over_are_late():
    shard = shard_of(capture=Capture(True, 4))
    shard.handle(Lend("worker0", 3, 0, "one"), 0.0)
    shard.capture.mark(7, shard)
    shard.handle(deposit(4, 4, value=4.0), 0.0)
    shard.handle(deposit(5, 9), 0.0)
    (found,) = shard.capture.done
    assert found.number == 4 and found.slices["a/0"].value.tolist() == [4] * 3
    assert shard.capture.late == {7}


# -- the worker's side


def module_of(store, rate=0.1, batch=8, **settings):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=5, name="fc1")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="relu"), num_hidden=3, name="fc2")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.bind([("data", (batch, 40))], [("softmax_label", (batch,))])
    mx.random.seed(3)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(store, "sgd", {"learning_rate": rate, "momentum": 0.9, **settings})
    return module


def batches(count, batch=8):
    draw = np.random.default_rng(0)
    for _ in range(count):
        x, y = draw.normal(size=(batch, 40)), draw.integers(0, 3, batch)
        yield mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array(y)])


def train(module, count=25, act=None):
    for step, batch in enumerate(batches(count)):
        module.forward_backward(batch)
        module.update()
        if act is not None:
            act(step)
    return {k: v.asnumpy() for k, v in module.get_params()[0].items()}


def equal(one, other):
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])


@pytest.mark.parametrize("policy", [Sync(), Async(), Bounded(2)], ids=lambda p: p.name)
def test_a_lone_worker_trains_as_with_its_servers(policy, tmp_path):
    found, files = {}, []
    for lease in (0.0, 0.02):
        with job(1, 2, policy=policy, lease=lease) as (store,):
            schedule = mx.lr_scheduler.FactorScheduler(step=7, factor=0.5, base_lr=0.1)
            module = module_of(store, wd=0.01, lr_scheduler=schedule)
            found[lease] = train(module, act=lambda step: time.sleep(0.004))
            assert (store._lease is not None) == (lease > 0)
            files.append(tmp_path / str(lease))
            module.save_optimizer_states(str(files[-1]))
            out = mx.nd.zeros((5, 40))  # what the servers have
            store.pull(0, out=out)
            np.testing.assert_array_equal(out.asnumpy(), found[lease]["fc1_weight"])
            assert store._lease is None
            found[lease] |= {f"more {k}": v for k, v in train(module, 5).items()}
    equal(found[0.0], found[0.02])
    one, other = (np.load(path, allow_pickle=False) for path in files)
    assert sorted(one.files) == sorted(other.files)
    equal(dict(one), dict(other))


def test_a_bad_network_does_not_change_a_lone_workers_values():
    with job(1, lease=0.0) as (store,):
        expected = train(module_of(store))
    faults = Faults(lose=0.2, repeat=0.2, delay=0.3, delay_s=0.03, seed=4)
    with job(1, 2, faults=faults, repeat=0.05, lease=0.01) as (store,):
        found = train(module_of(store), act=lambda step: time.sleep(0.005))
        assert store._lease is not None
        out = mx.nd.zeros((5, 40))
        store.pull(0, out=out)
    equal(found, expected)
    np.testing.assert_array_equal(out.asnumpy(), expected["fc1_weight"])


def test_a_learning_rate_that_is_set_counts_from_the_next_update_on():
    found = []
    for lease in (0.0, 60.0):
        with job(1, lease=lease) as (store,):
            module = module_of(store)

            def slower(step, module=module):
                if step == 9:
                    mx.nd.waitall()  # else pushes before it may carry the new rate as well
                    module._optimizer.set_learning_rate(0.01)

            found.append(train(module, 20, slower))
            out = mx.nd.zeros((5, 40))
            store.pull(0, out=out)  # ends the lease; the servers go on with the rate
            found[-1] |= {f"more {k}": v for k, v in train(module, 4).items()}
    equal(*found)


def test_what_ends_a_lease_and_what_does_not():
    with job(1, lease=60.0) as (store,):
        module = module_of(store)
        train(module, 3)
        store.init(99, mx.nd.zeros((2,)))
        out = mx.nd.zeros((2,))
        store.pull(99, out=out)
        assert out.asnumpy().tolist() == [0, 0] and store._lease is not None
        store.configure("multipliers", {"lr_mult": {}, "wd_mult": {}})
        assert store._lease is None
        assert store.lend([0], [out], [out]) is None  # once for an optimizer
    with job(1, lease=60.0) as (store,):
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        train(module_of(store), 2)
        assert store._lease is None


def test_a_worker_that_joins_begins_where_the_lone_one_has_come_to():
    options = {"lease": 0.05, "deadline": SECONDS}
    with job(1, 2, **options) as (store,):
        module = module_of(store)
        train(module, 30)
        lease = store._lease
        assert lease is not None
        addresses = dict(store._link._addresses)
        joined = DistKVStore("dist_sync", 1, 1, addresses, StoreOptions(bound=100, **options))
        assert joined.first_step == 30
        assert not lease.update()  # the servers make updates again
        gradients = [[mx.nd.ones((5, 40))], [mx.nd.zeros((5,))]]

        def push(one):
            out = [mx.nd.zeros((5, 40)), mx.nd.zeros((5,))]
            one.pushpull([0, 1], gradients, out=[[o] for o in out])
            return out[0].asnumpy()

        for key, shape in ((0, (5, 40)), (1, (5,)), (2, (3, 5)), (3, (3,))):
            joined.init(key, mx.nd.zeros(shape))
        one, other = together(push, [store, joined])
        np.testing.assert_array_equal(one, other)
        joined.close()


def test_an_error_of_the_servers_reaches_the_training_loop():
    with job(1, lease=0.02) as (store,):
        module = module_of(store)
        train(module, 3)
        # As a new life of this worker would: the lease of this one is over then.
        store._wait("resume", lambda c, now: c.ask(store._servers, now))
        until(lambda: store._lease._error)  # what the next deposit meets
        with pytest.raises(MixflowError, match="another process of it took over"):
            train(module, 2)
        store._lease = None  # nothing to give back


def test_options_of_a_lease():
    with pytest.raises(ParamError, match=r"expected lease >= 0, got -1"):
        StoreOptions(lease=-1)
    assert StoreOptions.from_json(StoreOptions(lease=2.5).to_json()).lease == 2.5


def test_updates_from_a_thread_and_the_end_of_a_lease_do_not_mix():
    """The end comes in the middle of updates: none is lost, none is made twice."""
    with job(1, lease=0.0) as (store,):
        expected = train(module_of(store), 60)
    with job(1, lease=60.0) as (store,):
        module = module_of(store)

        def end(step):
            if step == 20:
                threading.Thread(target=store._lease.end).start()

        equal(train(module, 60, end), expected)


def test_a_copy_that_fails_in_the_middle_is_no_deposit(monkeypatch):
    with job(1, lease=60.0) as (store,):
        train(module_of(store), 3)
        lease, staged, calls = store._lease, store._link.staged, []

        def failing(values):
            calls.append(values)
            if len(calls) == 3:
                raise MemoryError
            return staged(values)

        with monkeypatch.context() as patch:
            patch.setattr(store._link, "staged", failing)
            with pytest.raises(MixflowError, match="expected a copy of the state, got none"):
                lease.deposit()
        assert not lease.deposit()
