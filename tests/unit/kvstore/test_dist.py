"""Stores of several workers over real sockets, all in this process."""

import threading

import numpy as np
import pytest
from store_support import SECONDS, job, together

import mixflow as mx
from mixflow import _rt
from mixflow.errors import MixflowError, MXNetError, ParamError, ShapeError
from mixflow.kvstore.dist import DistKVStore
from mixflow.kvstore.options import StoreOptions, policy_of
from mixflow.kvstore.protocol.policy import Async, Backup, Bounded, Sync
from mixflow.kvstore.transport.faults import Faults

pytest.importorskip("zmq")


SHAPES = {3: (4,), 5: (2, 3), 9: (30, 20)}  # the last is cut over the servers


@pytest.mark.parametrize("workers,servers", [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_synchronous_sums_as_documented_for_mxnet(workers, servers):
    rate = 2

    def worker(store):
        for key, shape in SHAPES.items():
            store.init(key, mx.nd.ones(shape))
        store.set_optimizer(mx.optimizer.create("test", rescale_grad=rate))
        for step in range(3):
            expected = (workers + 1) * workers * rate / 2 * (step + 1) + 1
            for key, shape in SHAPES.items():
                store.push(key, mx.nd.ones(shape) * (store.rank + 1))
                out = mx.nd.zeros(shape)
                store.pull(key, out=out)
                np.testing.assert_array_equal(out.asnumpy(), np.full(shape, expected))

    with job(workers, servers) as stores:
        together(worker, stores)


def test_without_an_optimizer_the_sum_replaces_the_value():
    def worker(store):
        store.init("a", mx.nd.ones((3,)))
        out = mx.nd.zeros((3,))
        store.pushpull("a", mx.nd.ones((3,)) * (store.rank + 1), out=out)
        assert out.asnumpy().tolist() == [3, 3, 3]
        store.broadcast("b", mx.nd.ones((2,)) * (store.rank + 7), out=mx.nd.zeros((2,)))
        store.pull("b", out=out[:2])

    with job(2) as stores:
        together(worker, stores)


def test_two_workers_at_batch_b_equal_one_at_batch_2b():
    draw = np.random.default_rng(0)
    data = draw.normal(size=(40, 8, 5)).astype("float32")
    truth = draw.normal(size=5).astype("float32")

    def gradient(weight, rows):
        return rows.T @ (rows @ weight - rows @ truth)

    def run(workers):
        def worker(store):
            store.init("w", mx.nd.zeros((5,)))
            store.set_optimizer(
                mx.optimizer.create("sgd", learning_rate=0.01, momentum=0.9, rescale_grad=1 / 8)
            )
            weight = mx.nd.zeros((5,))
            for step in range(100):
                rows = data[step % 40][store.rank :: workers]
                grad = gradient(weight.asnumpy(), rows)
                store.pushpull("w", mx.nd.array(grad), out=weight)
            return weight.asnumpy()

        with job(workers) as stores:
            return together(worker, stores)

    one, two = run(1), run(2)
    np.testing.assert_allclose(two[0], one[0], atol=1e-5)
    np.testing.assert_array_equal(two[0], two[1])


@pytest.mark.parametrize(
    "policy", [Sync(), Async(), Bounded(staleness=1), Backup(take=2)], ids=lambda p: p.name
)
def test_a_bad_network_changes_nothing_in_what_is_counted(policy):
    steps = 12

    def worker(store):
        store.init("n", mx.nd.zeros((150,)))
        store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))
        out = mx.nd.zeros((150,))
        for _ in range(steps):
            store.pushpull("n", mx.nd.ones((150,)), out=out)
        out.wait_to_read()
        store.barrier()
        store.pull("n", out=out)
        return out.asnumpy()

    faults = Faults(lose=0.05, repeat=0.1, delay=0.2, delay_s=0.05, seed=1)
    with job(2, 2, policy=policy, faults=faults, repeat=0.05) as stores:
        found = together(worker, stores)
    for values in found:
        np.testing.assert_array_equal(values, np.full(150, 2 * steps))


@pytest.mark.parametrize(
    "policy", [Sync(), Async(), Bounded(staleness=1), Backup(take=2)], ids=lambda p: p.name
)
def test_a_bad_network_changes_nothing_in_rows(policy):
    steps, shape = 8, (75, 2)

    def worker(store):
        store.init("t", mx.nd.zeros(shape).tostype("row_sparse"))
        store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))
        out = mx.nd.sparse.zeros("row_sparse", shape)
        own = mx.nd.array([store.rank, 70])
        rows = mx.nd.sparse.row_sparse_array((np.ones((2, 2), "float32"), own), shape=shape)
        for _ in range(steps):
            store.push("t", rows)
            store.row_sparse_pull("t", out=out, row_ids=own)
            out.wait_to_read()
        store.barrier()
        store.row_sparse_pull("t", out=out, row_ids=mx.nd.array([0, 1, 70, 74]))
        return out.data.asnumpy()[:, 0].tolist()

    faults = Faults(lose=0.05, repeat=0.1, delay=0.2, delay_s=0.05, seed=2)
    with job(2, 2, policy=policy, faults=faults, repeat=0.05) as stores:
        for found in together(worker, stores):
            assert found == [steps, steps, 2 * steps, 0]


def test_compressed_pushes_as_documented_for_mxnet():
    workers, rate, threshold = 2, 2, 0.5

    def worker(store):
        store.set_gradient_compression({"type": "2bit", "threshold": threshold})
        store.init(9, mx.nd.zeros((30, 20)))
        store.set_optimizer(mx.optimizer.create("test", rescale_grad=rate))
        seen = []
        for value in (0.4, 0.1, 0.2, 0.3):
            store.push(9, mx.nd.ones((30, 20)) * value)
            out = mx.nd.zeros((30, 20))
            store.pull(9, out=out)
            seen.append(float(out.asnumpy()[0, 0]))
        return seen

    once = threshold * rate * workers
    with job(workers, 2) as stores:
        for seen in together(worker, stores):
            assert seen == [0, once, once, 2 * once]


def test_learning_rate_and_multipliers_act_on_the_servers():
    def worker(store):
        store.init("a_weight", mx.nd.zeros((2,)))
        store.init("b_weight", mx.nd.zeros((2,)))
        optimizer = mx.optimizer.create("sgd", learning_rate=1.0)
        optimizer.set_lr_mult({"b_weight": 0.5})
        store.set_optimizer(optimizer)
        out = mx.nd.zeros((2,))
        seen = []
        for rate in (1.0, 0.25):
            optimizer.set_learning_rate(rate)
            for name in ("a_weight", "b_weight"):
                store.pushpull(name, mx.nd.ones((2,)), out=out)
                seen.append(float(out.asnumpy()[0]))
        return seen

    with job(1) as stores:
        assert together(worker, stores) == [[-1.0, -0.5, -1.25, -0.625]]


def test_a_missing_worker_is_named_within_the_deadline():
    with job(2, missed=2.0) as stores:
        together(lambda store: store.init("a", mx.nd.zeros((2,))), stores)
        out = mx.nd.zeros((2,))
        stores[0].pushpull("a", mx.nd.ones((2,)), out=out)
        with pytest.raises(MXNetError, match="nothing from worker 1"):
            out.asnumpy()
        stores[1].push("a", mx.nd.ones((2,)))


def test_the_others_go_on_without_a_missing_worker_if_so_configured():
    with job(2, missed=2.0, give_up=True) as stores:
        together(lambda store: store.init("a", mx.nd.zeros((2,))), stores)
        out = mx.nd.zeros((2,))
        for _ in range(3):
            stores[0].pushpull("a", mx.nd.ones((2,)), out=out)
        assert out.asnumpy().tolist() == [1, 1]


def test_a_worker_that_ends_early_does_not_hold_up_the_others():
    def worker(store):
        store.init("a", mx.nd.zeros((1,)))
        store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))
        out = mx.nd.zeros((1,))
        for _ in range(3 + 4 * store.rank):
            store.pushpull("a", mx.nd.ones((1,)), out=out)
        found = float(out.asscalar())
        store.close()
        return found

    with job(2) as stores:
        assert together(worker, stores) == [6.0, 10.0]


def test_a_store_that_closes_waits_for_pushes_whose_gradients_are_not_there_yet():
    """Else the last round of a job is closed without this worker's part."""
    release = threading.Event()
    with job(1) as (store,):
        store.init("a", mx.nd.zeros((4,)))
        gradient, out = mx.nd.zeros((4,)), mx.nd.zeros((4,))
        handle = _rt.core.fresh_handle(gradient)

        def make():
            release.wait(SECONDS)
            handle.copy_from_numpy(np.full(4, 3, np.float32))

        _rt.core.push(make, [], [gradient], "a slow gradient", 0)
        store.pushpull("a", gradient, out=out)
        threading.Timer(0.3, release.set).start()
        store.close()
        assert out.asnumpy().tolist() == [3] * 4


def test_mistakes_have_errors():
    with job(1) as stores:
        store = stores[0]
        store.init("a", mx.nd.zeros((2,)))
        with pytest.raises(MixflowError, match="a second time"):
            store.init("a", mx.nd.zeros((2,)))
        with pytest.raises(MixflowError, match="call init"):
            store.push("b", mx.nd.zeros((2,)))
        with pytest.raises(MixflowError, match="Mixed key types"):
            store.init(1, mx.nd.zeros((2,)))
        with pytest.raises(ShapeError, match=r"expected shape \(2,\)"):
            store.push("a", mx.nd.zeros((3,)))
        with pytest.raises(MixflowError, match="expected 'out'"):
            store.pull("a")
        with pytest.raises(MixflowError, match="set_optimizer"):
            store.set_updater(print)
        for call in (store.save_optimizer_states, store.load_optimizer_states):
            with pytest.raises(MixflowError, match="expected an optimizer, got none"):
                call("states")
        assert (store.type, store.rank, store.num_workers) == ("dist_sync", 0, 1)
    with pytest.raises(MixflowError, match="an open store"):
        store.barrier()


def test_options_are_checked_and_travel():
    options = StoreOptions(policy=Bounded(2), deadline=3, faults=Faults(lose=0.1))
    assert StoreOptions.from_json(options.to_json()) == options
    assert policy_of("dist_device_sync") == Sync()
    with pytest.raises(MixflowError, match="dist_sync"):
        policy_of("dist_sink")
    with pytest.raises(ParamError, match="deadline > 0"):
        StoreOptions(deadline=0)
    assert Faults.from_text("lose=0.1, seed=3") == Faults(lose=0.1, seed=3)
    with pytest.raises(ParamError, match="expected one of"):
        Faults.from_text("drop=1")
    with pytest.raises(ParamError, match="lose=number"):
        Faults.from_text("lose=x")
    with pytest.raises(ParamError, match=r"in \[0, 1\)"):
        Faults(repeat=1.0)


@pytest.mark.parametrize("compressed", [False, True])
def test_small_keys_of_a_list_travel_in_one_message(compressed):
    shapes = {"a": (3,), "b": (400_000,), "c": (2, 2), "d": (70,)}

    def body(store):
        if compressed:
            store.set_gradient_compression({"type": "2bit", "threshold": 1.0})
        store.init(list(shapes), [mx.nd.zeros(shape) for shape in shapes.values()])
        calls, call = [], store._link.call
        store._link.call = lambda what, make: calls.append(what) or call(what, make)
        outs = [[mx.nd.zeros(shape)] for shape in shapes.values()]
        for step in range(3):
            grads = [[mx.nd.ones(shape) * (step + 1)] for shape in shapes.values()]
            store.pushpull(list(shapes), grads, outs)
        values = [out.asnumpy() for (out,) in outs]
        # 'b' is larger than a group; 'a' before it and 'c', 'd' behind it make one each.
        return calls, values

    with job(2, servers=2, bound=1000, boards=False) as stores:
        for calls, values in together(body, stores):
            assert calls == ["push"] * 9
            for value, shape in zip(values, shapes.values(), strict=True):
                # Without an optimizer the last sum stands there; of 2 bits, the threshold.
                np.testing.assert_array_equal(value, np.full(shape, 2.0 if compressed else 6.0))


def test_a_newcomer_begins_at_one_step_of_all_slices(monkeypatch):
    """Rounds of one server's key are closed between its question and its joining."""
    with job(2, servers=2) as stores:
        ones, out = mx.nd.ones((2,)), mx.nd.zeros((2,))
        for key in ("a", "b"):
            together(lambda store, key=key: store.init(key, mx.nd.zeros((2,))), stores)
        added = mx.optimizer.create("test", rescale_grad=1.0)
        together(lambda store: store.set_optimizer(added), stores)

        def step(*keys):
            for store in stores:
                for key in keys:
                    store.push(key, ones)

        ask, asked = DistKVStore._reports, []

        def ask_and_go_on(store):
            found = ask(store)
            if not asked:
                step("a")
                step("a")
                stores[0].pull("a", out=out)
                out.wait_to_read()
            asked.append(store)
            return found

        step("a", "b")
        monkeypatch.setattr(DistKVStore, "_reports", ask_and_go_on)
        newcomer = DistKVStore("dist_sync", 2, 2, stores[0]._link._addresses, stores[0].options)
        # 'a' stands at 3, 'b' at 1: its two rounds do not wait for the newcomer.
        assert newcomer.first_step == 3 and len(asked) == 2
        step("b")
        step("b")
        for key in ("a", "b"):
            newcomer.init(key, mx.nd.zeros((2,)))
            newcomer.push(key, ones)
        step("a", "b")
        for key in ("a", "b"):
            newcomer.pull(key, out=out)
            assert out.asnumpy().tolist() == [2 + 2 + 2 + 3] * 2
        newcomer.close()


def test_a_worker_that_was_given_up_is_told_until_it_joins_again():
    with job(2, missed=2.0, give_up=True) as stores:
        together(lambda store: store.init("a", mx.nd.zeros((2,))), stores)
        out = mx.nd.zeros((2,))
        stores[0].pushpull("a", mx.nd.ones((2,)), out=out)
        assert out.asnumpy().tolist() == [1, 1]
        late = mx.nd.zeros((2,))
        stores[1].pushpull("a", mx.nd.ones((2,)), out=late)
        with pytest.raises(MXNetError, match=r"one of worker 1, which was given up after 2 s"):
            late.asnumpy()
        again = DistKVStore(
            "dist_sync", 1, 2, stores[1]._link._addresses, stores[1].options, life=1
        )
        assert again.first_step == 1
        again.init("a", late)
        stores[0].pushpull("a", mx.nd.ones((2,)), out=out)
        again.pushpull("a", mx.nd.ones((2,)), out=late)
        assert out.asnumpy().tolist() == late.asnumpy().tolist() == [2, 2]
        again.close()
