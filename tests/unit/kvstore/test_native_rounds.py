"""Rounds that a server's desk closes without Python have the bits, states and counts of others."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from store_support import job, together

import mixflow as mx
from mixflow import _rt
from mixflow.dtype import code
from mixflow.errors import MXNetError
from mixflow.kvstore.protocol.foreseen import ROUNDS
from mixflow.kvstore.server.appliers import Optimizing
from mixflow.kvstore.server.ledger import SharedLedger
from mixflow.kvstore.transport.boards import _update, address_of
from mixflow.optimizer import Updater
from mixflow.optimizer.describe import describe

pytestmark = pytest.mark.skipif(
    not hasattr(_rt.core, "ServerDesk"), reason="the plain core has no boards"
)
#: The last one is cut into two slices (`bound` is 100).
SHAPES = {0: (3,), 1: (7, 5), 2: (301,)}
STEPS = ROUNDS + 20


def factor():
    return mx.lr_scheduler.FactorScheduler(step=5, factor=0.9)


def falling():
    return mx.lr_scheduler.CosineScheduler(max_update=STEPS, base_lr=0.1, final_lr=0.01)


OPTIMIZERS = {
    "sgd": lambda: mx.optimizer.SGD(learning_rate=0.1, rescale_grad=1 / 3),
    "momentum": lambda: mx.optimizer.SGD(0.9, learning_rate=0.1, wd=1e-2, clip_gradient=0.4),
    "factor": lambda: mx.optimizer.SGD(0.9, learning_rate=0.1, lr_scheduler=factor()),
    "nag": lambda: mx.optimizer.NAG(0.9, wd=1e-3, lr_scheduler=falling()),
    "adam": lambda: mx.optimizer.Adam(0.01, wd=1e-3),
    "adam, factor": lambda: mx.optimizer.Adam(0.01, lr_scheduler=factor()),
    "rmsprop": lambda: mx.optimizer.RMSProp(0.01, centered=True),
    "adagrad": lambda: mx.optimizer.AdaGrad(learning_rate=0.1),
    "signum": lambda: mx.optimizer.Signum(0.01, wd_lh=1e-3),
    "ftrl": lambda: mx.optimizer.Ftrl(),
}


def first_values(dtype):
    rng = np.random.default_rng(5)
    return {key: rng.normal(size=shape).astype(dtype) for key, shape in SHAPES.items()}


def trained(folder, make, dtype="float32", boards=True, ledgers=(), at_step=None):
    """Weights and states after `STEPS`, and how many rounds of slices the desk closed."""
    path = folder / f"states-{boards}"

    def worker(store):
        optimizer = make()
        optimizer.idx2name = {0: "fc_bias", 1: "fc_weight", 2: "other_weight"}
        optimizer.set_lr_mult({"fc_weight": 0.5})
        optimizer.set_wd_mult({"other_weight": 2.0})
        values = {k: mx.nd.array(v, dtype=dtype) for k, v in first_values(dtype).items()}
        for key, value in values.items():
            store.init(key, value)
        store.set_optimizer(optimizer)
        rng = np.random.default_rng(store.rank)
        for step in range(STEPS):
            if at_step is not None:
                at_step(store, optimizer, step)
            grads = [mx.nd.array(rng.normal(size=s), dtype=dtype) for s in SHAPES.values()]
            store.pushpull(list(SHAPES), grads, list(values.values()))
            for value in values.values():
                value.wait_to_read()
        if store.rank == 0:
            store.save_optimizer_states(str(path))
        return [value.asnumpy() for value in values.values()]

    with job(2, servers=2, ledgers=ledgers, boards=boards) as stores:
        weights = together(worker, stores)
        closed = sum(server._boards.rounds for server in stores.servers)
        told = [server.shard for server in stores.servers]
    for mine, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    with np.load(path) as states:
        return weights[0], {name: states[name] for name in states.files}, closed, told


def assert_same(one, other):
    for mine, theirs in zip(one[0], other[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert one[1].keys() == other[1].keys()
    for name, state in one[1].items():
        np.testing.assert_array_equal(state, other[1][name], err_msg=name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rounds_of_the_desk_have_the_bits_of_those_in_python(tmp_path, name):
    by_desk = trained(tmp_path, OPTIMIZERS[name])
    in_python = trained(tmp_path, OPTIMIZERS[name], boards=False)
    assert_same(by_desk, in_python)
    assert by_desk[2] > 4 * STEPS / 2  # the first rounds, and one in `ROUNDS`, are Python's
    assert in_python[2] == 0


def test_rounds_of_doubles_are_closed_by_the_desk(tmp_path):
    make = OPTIMIZERS["momentum"]
    by_desk = trained(tmp_path, make, "float64")
    assert_same(by_desk, trained(tmp_path, make, "float64", boards=False))
    assert by_desk[2] > STEPS


def test_settings_count_from_the_next_round_on(tmp_path):
    def at_step(store, optimizer, step):
        if store.rank == 0 and step == 40:
            optimizer.set_learning_rate(0.01)  # reaches the servers with this worker's next push
        if step == 80:
            store.barrier()
            if store.rank == 0:
                store.configure("multipliers", {"lr_mult": {"fc_bias": 0.1}, "wd_mult": {}})
                store.configure("rescale", {"value": 0.5})
            store.barrier()

    ledgers = [SharedLedger(tmp_path / f"ledger{n}") for n in range(2)]
    by_desk = trained(tmp_path, OPTIMIZERS["momentum"], ledgers=ledgers, at_step=at_step)
    for number, shard in enumerate(by_desk[3]):
        assert_kept(tmp_path, number, shard)
    in_python = trained(tmp_path, OPTIMIZERS["momentum"], boards=False, at_step=at_step)
    assert_same(by_desk, in_python)
    assert by_desk[2] > STEPS


def assert_kept(folder, number, shard):
    """The ledger has a shard as it stands after `STEPS`."""
    shutil.copytree(folder / f"ledger{number}", folder / f"copy{number}")
    copy = SharedLedger(folder / f"copy{number}")
    found = {key: rest for key, *rest in copy.slices()}
    copy.close()
    shard.ledger.close()
    assert found.keys() == shard.slots.keys()
    for key, (value, kept, progress) in found.items():
        slot = shard.slots[key]
        np.testing.assert_array_equal(value, slot.value)
        assert progress.to_json() == slot.progress.to_json()
        assert progress.version == STEPS
        alive = slot.applier.states(key)
        assert kept.keys() == alive.keys()
        assert kept["count"].tolist() == [STEPS]
        for name, state in alive.items():
            np.testing.assert_array_equal(kept[name], state)


@pytest.mark.parametrize("name", ["momentum", "adam, factor"])
def test_the_ledger_has_each_round_of_the_desk(tmp_path, name):
    ledgers = [SharedLedger(tmp_path / f"ledger{n}") for n in range(2)]
    _, _, closed, shards = trained(tmp_path, OPTIMIZERS[name], ledgers=ledgers)
    assert closed > STEPS
    for number, shard in enumerate(shards):
        assert_kept(tmp_path, number, shard)


def test_what_the_desk_can_not_close_is_left_to_python(tmp_path):
    by_desk = trained(tmp_path, lambda: mx.optimizer.Test(rescale_grad=0.5))
    assert by_desk[2] == 0
    assert_same(
        by_desk, trained(tmp_path, lambda: mx.optimizer.Test(rescale_grad=0.5), boards=False)
    )


class Drawn(mx.optimizer.SGD):
    """A rule that changes something when it is asked for."""

    def update_rule(self, index):
        self.rescale_grad /= 2
        return super().update_rule(index)


class Half(mx.lr_scheduler.LRScheduler):
    """A schedule with a state: each question halves the rate."""

    def __call__(self, num_update):
        self.base_lr /= 2
        return self.base_lr


def applier_of(optimizer):
    """An applier with this very optimizer, and a slice that was updated once."""
    made, value = Optimizing(), np.zeros(3, np.float32)
    made.configure("optimizer", describe(mx.optimizer.SGD()))
    made._updater = Updater(optimizer)
    made._schedule = optimizer.lr_scheduler
    made.apply("0/0", value, np.ones(3, np.float32), 1)
    return made, value


def test_a_rule_that_changes_something_is_not_asked_ahead():
    applier, value = applier_of(Drawn(rescale_grad=8.0))
    assert not Drawn.rule_reads
    assert applier.foresee("0/0", value) is None
    assert applier._updater.optimizer.rescale_grad == 4.0


def test_what_is_foreseen_is_what_comes_and_changes_nothing():
    applier, value = applier_of(mx.optimizer.Adam(0.5, lr_scheduler=Half(64.0)))
    foreseen = applier.foresee("0/0", value)
    assert foreseen.rounds == len(foreseen.numbers) == ROUNDS
    assert foreseen.numbers == applier.foresee("0/0", value).numbers
    optimizer = applier._updater.optimizer
    assert (optimizer._counts["0/0"], foreseen.count.tolist()) == (1, [1])
    rates = []
    for _ in range(3):
        optimizer._update_count("0/0")
        rates.append(list(optimizer.update_rule("0/0").scalars.values()))
    assert [list(numbers) for numbers in foreseen.numbers[:3]] == rates


def test_schedules_follow_the_rounds_of_the_desk():
    applier, value = applier_of(mx.optimizer.SGD(lr_scheduler=Half(64.0)))
    fifth = applier.foresee("0/0", value).numbers[4]
    applier.followed("0/0", 4)
    assert applier.states("0/0")["count"].tolist() == [5]
    assert applier.foresee("0/0", value).numbers[0] == fifth


def test_numbers_that_only_a_setting_can_change_are_asked_for_once():
    applier, value = applier_of(mx.optimizer.SGD(0.9, learning_rate=0.5))
    foreseen = applier.foresee("0/0", value)
    assert (foreseen.rounds, len(foreseen.numbers)) == (None, 1)


def test_an_update_has_numbers():
    memory = np.zeros(64 * 3, np.uint8)
    desk = _rt.core.ServerDesk(address_of(memory), 1)
    total, *_ = _rt.core.lane_layout([12], 1)
    board = np.zeros(total, np.uint8)
    number = desk.open([12], address_of(board), [0], [0])
    applier, value = applier_of(mx.optimizer.SGD())
    foreseen = replace(applier.foresee("0/0", value), numbers=[])
    with pytest.raises(MXNetError, match="expected numbers of at least one round, got none"):
        desk.arm(number, 0, code(np.dtype(np.float32)), None, _update(foreseen))
