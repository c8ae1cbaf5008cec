"""Level 1 between processes of one host: shared memory and the host's merger, on real sockets."""

import gc
import os
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from store_support import SECONDS, on_threads, shard_of, together, until

import mixflow as mx
from mixflow.errors import MixflowError
from mixflow.kvstore.dist import DistKVStore
from mixflow.kvstore.host.host_merger import HostMerger, address_of
from mixflow.kvstore.host.merger import Merger
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.protocol.client import Ticket
from mixflow.kvstore.protocol.merging import Sum
from mixflow.kvstore.protocol.messages import (
    Applied,
    Enter,
    Failed,
    Gradient,
    Join,
    Pull,
    Push,
    Query,
    Received,
    Unknown,
    Values,
)
from mixflow.kvstore.protocol.policy import Async, Backup, Bounded, Part, Sync
from mixflow.kvstore.transport.faults import Faults
from mixflow.kvstore.transport.zeromq import Server

pytest.importorskip("zmq")


@contextmanager
def job(workers, *, far=True, merged=True, name="", **options):
    """A server, and workers of host 'near'; with `far` the server is on another host."""
    options = StoreOptions(**{"deadline": SECONDS, **options})
    with ExitStack() as stack:
        shard = shard_of(0, workers, 1, options)
        server = Server(shard, "tcp://127.0.0.1:*", options.faults, "far" if far else "near")
        on_threads(stack, server)
        addresses = {"server0": server.address}
        merger = None
        if merged:
            address = address_of(f"{os.getpid()}-{name}", "near")
            merger = HostMerger(address, addresses, options, "near", seconds=SECONDS)
            on_threads(stack, merger)
        stores = [
            DistKVStore(
                "dist_sync",
                rank,
                workers,
                addresses,
                options,
                host="near",
                merger=(lambda: address) if merged else None,
            )
            for rank in range(workers)
        ]
        yield stores, server, merger
        together(lambda store: store.close(), stores)


def count_up(size, steps, rescale=1.0):
    def worker(store):
        store.init("n", mx.nd.zeros((size,)))
        store.set_optimizer(mx.optimizer.create("test", rescale_grad=rescale))
        out = mx.nd.zeros((size,))
        for step in range(steps):
            store.pushpull("n", mx.nd.full((size,), store.rank + 1), out=out)
            if isinstance(store.options.policy, Sync):
                n = store.num_workers
                assert np.unique(out.asnumpy()).tolist() == [(step + 1) * n * (n + 1) / 2]
        out.wait_to_read()
        store.barrier()
        store.pull("n", out=out)
        return np.unique(out.asnumpy()).tolist()

    return worker


def test_bytes_that_leave_a_host_do_not_grow_with_its_workers():
    sent, received = {}, {}
    for workers in (1, 2, 4):
        with job(workers, name=f"bytes{workers}") as (stores, _, merger):
            together(lambda store: store.init("n", mx.nd.zeros((50_000,))), stores)
            before = merger.link.sent_bytes, merger.link.received_bytes
            for _ in range(4):
                together(
                    lambda store: store.pushpull(
                        "n", mx.nd.ones((50_000,)), out=mx.nd.zeros((50_000,))
                    ),
                    stores,
                )
                mx.nd.waitall()
            sent[workers] = merger.link.sent_bytes - before[0]
            received[workers] = merger.link.received_bytes - before[1]
            assert all(store._link.sent_bytes < 20_000 for store in stores[1:])
    for counted in (sent, received):
        assert 4 * 200_000 <= counted[1] < 4 * 200_000 + 4_000
        assert counted[2] - counted[1] < 1_000 and counted[4] - counted[1] < 2_000


@pytest.mark.parametrize(
    "policy", [Sync(), Async(), Bounded(staleness=1), Backup(take=2)], ids=lambda p: p.name
)
def test_merged_pushes_count_as_those_of_their_workers(policy):
    with job(2, name=policy.name, policy=policy) as (stores, _, merger):
        assert together(count_up(30_000, 6), stores) == [[18.0]] * 2
        assert merger.merger.members == {0: "worker0", 1: "worker1"}


def test_a_bad_network_changes_nothing_in_what_a_merger_counts():
    faults = Faults(lose=0.05, repeat=0.1, delay=0.2, delay_s=0.05, seed=2)
    with job(2, name="bad", faults=faults, repeat=0.05) as (stores, _, _):
        assert together(count_up(6_000, 8), stores) == [[24.0]] * 2


@pytest.mark.parametrize("size", [10, 100_000])
def test_on_one_host_nothing_goes_over_the_network_but_control(size):
    with job(2, far=False, merged=False) as (stores, _, _):
        together(lambda store: store.init("n", mx.nd.zeros((size,))), stores)
        before = [store._link.sent_bytes for store in stores]
        for step in range(3):
            for store in stores:
                store.push("n", mx.nd.ones((size,)) * step)
            for store in stores:
                out = mx.nd.zeros((size,))
                store.pull("n", out=out)
                assert np.unique(out.asnumpy()).tolist() == [2 * step]
        assert [store._link.sent_bytes for store in stores] == before
        assert all(store._link.local_bytes >= 3 * 4 * size for store in stores)


def test_a_push_whose_values_are_waited_for_leaves_room_for_the_next(monkeypatch):
    monkeypatch.setattr("mixflow.kvstore.transport.link.WINDOW_BYTES", 1000)

    def begin(store):
        store.init(["a", "b"], [mx.nd.zeros((5000,))] * 2)
        store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))

    def applied(store, name):
        asked = store._wait("report", lambda client, now: client.ask(["server0"], now))
        return asked.reports["server0"].slices[name]["applied"]

    with job(2, merged=False, policy=Bounded(staleness=0)) as ((fast, slow), _, _):
        together(begin, (fast, slow))
        outs = [mx.nd.zeros((5000,)) for _ in range(2)]
        fast.pushpull("a", mx.nd.ones((5000,)), out=outs[0])
        fast.push("b", mx.nd.ones((5000,)))
        until(lambda: applied(slow, "b/0"))  # it has left
        slow.pushpull("a", mx.nd.ones((5000,)), out=outs[1])
        assert [np.unique(out.asnumpy()).tolist() for out in outs] == [[2], [2]]


def test_values_that_are_being_read_are_not_written():
    with job(1, far=False, merged=False) as (stores, _, _):
        store, size = stores[0], 50_000
        store.init("n", mx.nd.ones((size,)))
        ticket = store._link.call("read", lambda c, now: c.pull(["n/0"], now)).wait(SECONDS)
        for _ in range(3):
            store.push("n", mx.nd.zeros((size,)))
        out = mx.nd.ones((size,))
        store.pull("n", out=out)
        assert out.asnumpy().max() == 0
        assert ticket.values["n/0"].min() == 1  # what was handed out has not changed
        assert not ticket.values["n/0"].flags.writeable


def test_blocks_are_used_again():
    with job(1, far=False, merged=False) as (stores, server, _):
        store, size = stores[0], 50_000
        store.init("n", mx.nd.ones((size,)))
        out = mx.nd.ones((size,))
        for step in range(60):
            store.pushpull("n", mx.nd.full((size,), step), out=out)
            out.wait_to_read()
        gc.collect()
        for blocks in (store._link._blocks, server._blocks):
            assert sum(segment.used for segment in blocks._segments) < 10 * 4 * size


# -- the merger's logic


def push(worker, step, number=1, values=(1.0,), pull=False):
    gradient = Gradient((Part(worker, step),), np.array(values, "float32"))
    return Push(f"worker{worker}", number, {"k": gradient}, pull, 0, {"k": "server0"})


def merger_of(*workers, policy=None, seconds=2.0):
    made = Merger("merger", policy or Sync(), seconds=seconds)
    for worker in workers:
        made.handle(Join(f"worker{worker}", 0, worker, 0, 0), 0.0)
    return made


def parts_of(orders):
    return [[piece.part for piece in order.pieces["k"]] for order in orders if order.pieces]


def test_a_step_leaves_when_all_neighbours_have_pushed_it():
    merger = merger_of(0, 1)
    merger.handle(push(0, 0), 1.0)
    assert merger.take_orders() == [] and merger.next_deadline() == 3.0
    merger.handle(push(1, 0), 1.5)
    (order,) = merger.take_orders()
    assert parts_of([order]) == [[(0, 0), (1, 0)]]
    assert merger.next_deadline() is None


def test_a_slow_neighbour_is_waited_for_up_to_the_deadline():
    merger = merger_of(0, 1)
    merger.handle(push(0, 0), 1.0)
    merger.tick(2.9)
    assert merger.take_orders() == []
    merger.tick(3.0)
    assert parts_of(merger.take_orders()) == [[(0, 0)]]
    merger.handle(push(1, 0), 4.0)  # nobody else is to come
    assert parts_of(merger.take_orders()) == [[(1, 0)]]


def test_a_lost_neighbour_is_not_waited_for():
    merger = merger_of(0, 1)
    merger.handle(push(0, 0), 1.0)
    merger.lost("worker1", 1.1)
    assert parts_of(merger.take_orders()) == [[(0, 0)]]


def test_what_a_server_refuses_goes_again_part_by_part():
    merger = merger_of(0, 1)
    merger.handle(push(0, 0, number=7), 1.0)
    merger.handle(push(1, 0, number=8), 1.0)
    (order,) = merger.take_orders()
    assert merger.ended(order, Ticket(refused={"k": (Part(0, 0),)}), 2.0) == []
    again = merger.take_orders()
    assert parts_of(again) == [[(0, 0)], [(1, 0)]]
    told = [answer for order in again for answer in merger.ended(order, Ticket(), 3.0)]
    assert [(to, type(m), m.number) for to, m in told] == [
        ("worker0", Applied, 7),
        ("worker1", Applied, 8),
    ]


def test_without_rounds_what_is_there_leaves_when_the_link_is_free():
    merger = merger_of(0, 1, policy=Async())
    merger.handle(push(0, 0, 1), 1.0)
    (first,) = merger.take_orders()
    for number, message in enumerate((push(0, 1, 2), push(1, 0, 3), push(1, 1, 4))):
        merger.handle(message, 1.1 + number)
    assert merger.take_orders() == []
    merger.ended(first, Ticket(), 5.0)
    assert parts_of(merger.take_orders()) == [[(0, 1), (1, 0), (1, 1)]]


def reads_of(orders):
    return [(order.asker, order.clocks) for order in orders if not order.pieces]


def kinds(outgoing):
    return [type(message) for _, message in outgoing]


@pytest.mark.parametrize("policy", [Sync(), Bounded(staleness=0)], ids=lambda p: p.name)
def test_what_is_asked_again_is_not_done_again(policy):
    """Repeats while a slow worker is waited for: neither values nor reads pile up."""
    merger = merger_of(0, policy=policy)
    merger.handle(push(0, 0, number=7, pull=True), 1.0)
    orders = merger.take_orders()
    question = Query("worker0", 7, {"k": (Part(0, 0),)}, True)
    for now in (5.0, 9.0):
        assert kinds(merger.handle(question, now)) == [Received]
    if not policy.rounds:  # confirmed; the values wait for others
        pushed, read = orders
        assert kinds(merger.ended(pushed, Ticket(), 10.0)) == [Applied]
        assert reads_of([read]) == [(("worker0", 7), {"k": 1})]
        for now in (14.0, 18.0):
            assert kinds(merger.handle(question, now)) == [Received]
        assert merger.take_orders() == []
        orders = [read]
    (order,) = orders
    ticket = Ticket(values={"k": np.ones(1, "float32")}, versions={"k": 1})
    assert Values in kinds(merger.ended(order, ticket, 20.0))
    assert merger.take_orders() == []
    # Where the answer was lost, the push must come again: here it counts as any copy.
    assert kinds(merger.handle(question, 24.0)) == [Unknown]


@pytest.mark.parametrize("policy", [Sync(), Async()], ids=lambda p: p.name)
@pytest.mark.parametrize("rows", [{}, {"k": np.array([1, 0])}], ids=["whole", "rows"])
def test_a_read_that_is_repeated_is_made_once(policy, rows):
    merger = merger_of(0, policy=policy)
    pull = Pull("worker0", 5, 0, {"k": 3}, 0, {"k": "server0"}, rows)
    for now in (1.0, 5.0, 9.0):
        assert merger.handle(pull, now) == []
    (order,) = merger.take_orders()
    assert order.rows == rows
    ticket = Ticket(values={"k": np.ones(1, "float32")}, versions={"k": 3})
    ((to, answer),) = merger.ended(order, ticket, 20.0)
    assert (to, type(answer), answer.number) == ("worker0", Values, 5)
    # One that has failed may be asked for again.
    again = Pull("worker0", 6, 0, {"k": 4}, 0, {"k": "server0"}, rows)
    merger.handle(again, 21.0)
    assert kinds(merger.ended(merger.take_orders()[0], Ticket(error="[x] lost"), 22.0)) == [Failed]
    merger.handle(again, 23.0)
    assert len(merger.take_orders()) == 1


def test_a_read_does_not_wait_for_a_step_that_needs_its_own_worker():
    """Merger and worker 1 have died: worker 0 pushes step 2 again, worker 1 reads version 2."""
    merger = merger_of(0, 1, seconds=0.0)
    merger.handle(push(0, 2, pull=True), 0.0)
    merger.take_orders()  # its values are those of version 3
    pull = Pull("worker1", 7, 1, {"w": 2})
    merger.handle(pull, 1.0)
    (order,) = merger.take_orders()
    assert (order.worker, order.clocks) == (1, {"w": 2})
    merger.handle(Pull("worker1", 8, 1, {"w": 2}), 1.0)
    assert merger.take_orders() == []
    ticket = Ticket(values={"w": np.ones(1)}, versions={"w": 2})
    answers = merger.ended(order, ticket, 2.0)
    assert [(to, m.number, m.versions) for to, m in answers] == [
        ("worker1", 7, {"w": 2}),
        ("worker1", 8, {"w": 2}),
    ]


def test_rows_go_through_a_merger():
    shape = (50, 400)
    faults = Faults(lose=0.05, repeat=0.1, delay=0.2, delay_s=0.05, seed=3)

    def worker(store):
        store.init("t", mx.nd.zeros(shape).tostype("row_sparse"))
        store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))
        own = mx.nd.array([store.rank, 40])
        rows = mx.nd.sparse.row_sparse_array((np.ones((2, 400), "float32"), own), shape=shape)
        out = mx.nd.sparse.zeros("row_sparse", shape)
        for step in range(4):
            store.push("t", rows)
            store.push("t", mx.nd.ones(shape))  # dense ones are merged, rows are not
            store.row_sparse_pull("t", out=out, row_ids=own)
            seen = out.data.asnumpy()
            assert np.unique(seen[0]).tolist() == [3 * (step + 1)]
            assert np.unique(seen[1]).tolist() == [4 * (step + 1)]
        store.barrier()
        store.row_sparse_pull("t", out=out, row_ids=mx.nd.array([0, 1, 40, 49]))
        return out.data.asnumpy()[:, 399].tolist()

    with job(2, name="rows", faults=faults, repeat=0.05) as (stores, _, merger):
        assert together(worker, stores) == [[12, 12, 16, 8]] * 2
        assert not merger.merger._asked


def test_mistakes_have_errors():
    merger = merger_of(0)
    ((_, answer),) = merger.handle(Enter("worker0", 3, 0, 1), 0.0)
    assert isinstance(answer, Failed) and "expected a push or a pull, got Enter" in answer.text
    with pytest.raises(MixflowError, match="expected the server of 'x', got none"):
        merger.where("x")
    merger.handle(push(0, 0, number=9), 0.0)
    ((to, failed),) = merger.ended(merger.take_orders()[0], Ticket(error="[x] lost"), 1.0)
    assert (to, failed.number, failed.text) == ("worker0", 9, "[x] lost")


def test_sums_hold_what_they_need_not_copy():
    a, b, c = (np.full(3, value, "float32") for value in (1, 2, 4))
    total = Sum("float32")
    total.add(a)
    assert total.result() is a
    total.add(b)
    total.add(c)
    out = np.zeros(3, "float32")
    total.into(out)
    assert out.tolist() == [7] * 3 == total.result().tolist()
    assert (a.tolist(), b.tolist(), c.tolist()) == ([1] * 3, [2] * 3, [4] * 3)
