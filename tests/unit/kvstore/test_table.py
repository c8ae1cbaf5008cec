"""Tables of additive rows: alone, on a job's store, and their bound in random schedules."""

import os
import random

import numpy as np
import pytest
from store_support import job, network_of, together

import mixflow as mx
from mixflow.errors import MixflowError, MXNetError, ParamError, ShapeError
from mixflow.kvstore import Table
from mixflow.kvstore.protocol.messages import Configure, Failed, Gradient, Init, Pull, Push, Values
from mixflow.kvstore.protocol.policy import Async, Backup, Bounded, Member, Part, Progress, Sync
from mixflow.kvstore.server.shard import Add, Assign, Memory, Shard
from mixflow.kvstore.simulation.simulator import Cluster, Crash, Job
from mixflow.kvstore.table import Rows

COUNT = 10_000 if os.environ.get("MIXFLOW_FULL_COUNTS") else 300


def test_one_worker_reads_its_own_increments_at_once_and_after_the_clock():
    table = Table("weights", 3, 2, staleness=2)
    table.inc(1, 0, 2.5)
    table.batch_inc(1, {0: 1, 1: -1})
    table.batch_inc(2, np.array([3.0, 4.0]))
    table.batch_inc(None, mx.nd.ones((3, 2)))
    expected = [[1, 1], [4.5, 0], [4, 5]]
    assert table.get().asnumpy().tolist() == expected
    assert table.clock() == table.now == 1
    assert table.get().asnumpy().tolist() == expected
    assert table.get(1).asnumpy().tolist() == expected[1]
    assert (table.name, table.shape, table.staleness) == ("weights", (3, 2), 2)


def test_what_get_gives_is_a_copy():
    table = Table("t", 1, 2)
    row = table.get(0)
    row[:] = 7
    table.inc(0, 1, 1)
    assert table.get(0).asnumpy().tolist() == [0, 1]


def test_a_table_of_whole_numbers_counts_exactly():
    table = Table("t", 2, dtype="int64")
    for _ in range(3):
        table.inc(0, 0, 2**40)
        table.clock()
    assert table.get().dtype == np.int64
    assert table.get(0).asnumpy().tolist() == [3 * 2**40]


def test_mistakes_have_errors():
    table = Table("t", 2, 3)
    for wrong in (-1, 2, 1.5, True):
        with pytest.raises(ParamError, match="expected a row of 0 to 1"):
            table.get(wrong)
    with pytest.raises(ParamError, match="expected a column of 0 to 2, got 3"):
        table.inc(0, 3, 1)
    with pytest.raises(ParamError, match="expected a column"):
        table.batch_inc(0, {0: 1, 5: 1})
    with pytest.raises(ParamError, match="expected a row for deltas by column"):
        table.batch_inc(None, {0: 1})
    with pytest.raises(ShapeError, match=r"deltas of shape \(3,\), got \(2,\)"):
        table.batch_inc(0, [1, 2])
    assert not table.get().asnumpy().any(), "a refused call adds nothing"
    with pytest.raises(ParamError, match=r"shape of at least \(1, 1\)"):
        Table("t", 0)
    with pytest.raises(ParamError, match="staleness >= 0"):
        Table("t", 1, staleness=-1)


# -- on a job's store


def test_workers_add_to_two_tables_with_bounds_of_their_own():
    steps = 6

    def worker(store):
        tight = Table("tight", 2, 2, staleness=0, store=store)
        loose = Table("loose", 30, 5, staleness=3, store=store)  # cut over the servers
        for step in range(steps):
            seen = tight.get().asnumpy()
            assert seen[store.rank, 0] == step, "its own"
            assert seen[:, 0].min() >= step, "bulk synchronous"
            cells = loose.get(7).asnumpy()
            assert cells[store.rank] == step
            assert cells[:2].min() >= step - 3
            tight.inc(store.rank, 0, 1)
            loose.batch_inc(7, {store.rank: 1})
            assert loose.get(7).asnumpy()[store.rank] == step + 1
            tight.clock()
            loose.clock()
        return tight.get().asnumpy()

    with job(2, 2, policy=Bounded(staleness=9)) as stores:
        for end in together(worker, stores):
            assert end.tolist() == [[steps, 0], [steps, 0]]


def test_a_read_names_who_is_behind():
    def make(store):
        return Table("t", 1, 2, staleness=1, store=store)

    with job(2, policy=Bounded(), missed=2.0) as stores:
        fast, slow = together(make, stores)
        fast.clock()
        assert fast.get(0).asnumpy().tolist() == [0, 0]
        fast.clock()
        with pytest.raises(MXNetError, match="nothing from worker 1"):
            fast.get(0)
        slow.inc(0, 1, 4)
        slow.clock()
        assert fast.get(0).asnumpy().tolist() == [0, 4]


def test_workers_must_agree_and_the_store_must_be_of_the_right_kind():
    with job(1, policy=Bounded()) as (store,):
        Table("t", 1, staleness=1, store=store)
        with pytest.raises(MixflowError, match=r"expected staleness 1 for table 't', got 2"):
            store.configure("table t", {"staleness": 2})
        with pytest.raises(MixflowError, match="a second time"):
            Table("t", 1, staleness=1, store=store)
    with (
        job(1, policy=Sync()) as (store,),
        pytest.raises(ParamError, match="mixflow launch --consistency dist_ssp"),
    ):
        Table("t", 1, store=store)


# -- the bound, in random schedules


class TableRun:
    """A random schedule with several tables: each step a worker adds to its own cells."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.workers, self.steps = draw.randrange(1, 5), draw.randrange(1, 7)
        servers = draw.randrange(1, 3)
        self.tables = {f"table{i}": draw.randrange(0, 4) for i in range(draw.randrange(1, 4))}
        self.rows = [self.fresh(0) for _ in range(self.workers)]
        network = network_of(draw)
        slow = draw.choice([1, 10])
        work = Job(
            {name: np.zeros(2 * self.workers, np.int64) for name in self.tables},
            self.steps,
            self.step,
            lambda worker, step, chance: chance.random() * (slow if worker == 0 else 1),
            self.check,
            self.tables,
        )
        self.reads = 0
        crashes = []
        for name in ("worker0", "server0"):
            if draw.random() < 0.25:
                crashes.append(Crash(name, draw.random() * 10, draw.random() * 4))
        # The job's own policy would never hold a reader up: the tables' bounds do.
        policy = Bounded(staleness=1000)
        self.cluster = Cluster(
            work, policy, workers=self.workers, servers=servers, network=network,
            applier=Assign, seed=seed,
        )  # fmt: skip
        self.trace = self.cluster.run(tuple(crashes))

    def fresh(self, clock):
        shape = (2, self.workers)
        return {name: Rows(name, shape, np.int64, clock) for name in self.tables}

    def check(self, worker, clock, values):
        """At a read: everything up to clock - s - 1 is there, and all of its own."""
        if clock != self.rows[worker][next(iter(self.tables))].clock:
            self.rows[worker] = self.fresh(clock)  # started again
        for name, cells in values.items():
            rows = self.rows[worker][name]
            rows.refresh(cells)
            seen = rows.read(0)
            assert rows.fresh and rows.clock == clock
            assert seen.min() >= clock - self.tables[name], (name, worker, clock, seen)
            assert seen[worker] >= clock, "its own"
            np.testing.assert_array_equal(rows.read(1), 3 * seen)
            self.reads += 1

    def step(self, worker, step, values):
        taken = {}
        for name, rows in self.rows[worker].items():
            before = rows.read(None)
            rows.inc(0, worker, 1)
            rows.batch_inc(1, {worker: 3})
            assert (rows.read(None) - before).sum() == 4, "seen before the clock"
            taken[name] = rows.take().reshape(-1)
        return taken


@pytest.mark.parametrize("block", range(10))
def test_the_bound_holds_in_random_schedules(block):
    for seed in range(block * COUNT // 10, (block + 1) * COUNT // 10):
        run = TableRun(seed)
        assert run.trace.errors == {}, seed
        assert run.reads >= run.workers * len(run.tables) * run.steps
        for name in run.tables:
            cells = run.cluster.value(name).reshape(2, -1)
            assert cells[0].tolist() == [run.steps] * run.workers, seed
            assert cells[1].tolist() == [3 * run.steps] * run.workers, seed


def test_a_looser_rule_than_the_table_s_would_be_caught(monkeypatch):
    """The check above can fail: a server that forgot the tables' bounds breaks it."""
    never = lambda self, name: (Async(), Add())  # noqa: E731
    monkeypatch.setattr("mixflow.kvstore.server.rules.Rules.of", never)
    with pytest.raises(AssertionError):
        for seed in range(200):
            TableRun(seed)


def test_a_restarted_server_keeps_the_rules_of_tables():
    ledger = Memory(keep=True)
    make = lambda life: Shard(  # noqa: E731
        "s", Bounded(9), Assign(), workers=2, ledger=ledger, incarnation=life
    )
    shard = make(0)
    shard.handle(Configure("w0", 1, "table t", {"staleness": 0}), 0.0)
    shard.handle(Init("w0", 2, {"t/0": np.zeros(1)}), 0.0)
    push = Push("w0", 3, {"t/0": Gradient((Part(0, 0),), np.ones(1))})
    shard.handle(push, 0.0)
    shard = make(1)
    assert not shard.handle(Pull("w0", 4, 0, {"t/0": 1}), 0.0), "waits for worker 1"
    answers = shard.handle(Push("w1", 1, {"t/0": Gradient((Part(1, 0),), np.ones(1))}), 0.0)
    (values,) = [m for _, m in answers if isinstance(m, Values)]
    assert values.values["t/0"].tolist() == [2]
    (refused,) = shard.handle(Configure("w1", 2, "table t", {"staleness": 5}), 0.0)
    assert isinstance(refused[1], Failed) and "expected staleness 0" in refused[1].text


def test_the_quick_answer_of_a_policy_is_that_of_its_list_of_the_missing():
    for seed in range(300):
        check_quick_answers(random.Random(seed))


def check_quick_answers(draw):
    members = {w: Member(draw.randrange(3)) for w in draw.sample(range(6), draw.randrange(1, 6))}
    progress = Progress(
        version=draw.randrange(6),
        clocks={w: draw.randrange(6) for w in draw.sample(range(6), 4)},
        rounds={s: set(draw.sample(range(6), draw.randrange(6))) for s in range(6)},
    )
    for policy in (Sync(), Async(), Bounded(draw.randrange(3)), Backup(take=2)):
        for worker in members:
            for clock in range(7):
                missing = policy.missing(progress, members, worker, clock)
                opens = policy.opens(progress, members, clock)
                may_read = opens and policy.has_own(progress, members, worker, clock)
                assert may_read == (not missing)
