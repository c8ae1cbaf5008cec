"""Rows on their way: bytes, sums, slices, and what a server answers to bad ones."""

import itertools

import numpy as np
import pytest

import mixflow as mx
from mixflow.errors import FormatError, MixflowError
from mixflow.kvstore.protocol import row_gradients, wire
from mixflow.kvstore.protocol.compression import decode
from mixflow.kvstore.protocol.merging import Sum
from mixflow.kvstore.protocol.messages import Configure, Failed, Gradient, Init, Pull, Push, Values
from mixflow.kvstore.protocol.policy import Part, Sync
from mixflow.kvstore.protocol.row_gradients import RowGradient, pack
from mixflow.kvstore.protocol.sharding import Directory, Slice
from mixflow.kvstore.server.appliers import Optimizing
from mixflow.kvstore.server.shard import Add, Assign, Memory, Shard
from mixflow.ndarray.rows import Rows
from mixflow.optimizer.describe import describe


def rows(numbers, width=2, value=1.0, dtype="float32"):
    return Rows(np.array(numbers, np.int64), np.full((len(numbers), width), value, dtype))


def over_the_wire(message):
    return wire.decode([bytes(frame) for frame in wire.encode(message)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64"])
@pytest.mark.parametrize("numbers", [[], [0], [1, 4, 9]])
def test_a_gradient_comes_back_from_its_bytes(numbers, dtype):
    message = Push("w", 1, {"k/0": pack(rows(numbers, 3, 2, dtype))})
    gradient = over_the_wire(message).gradients["k/0"]
    found = decode(gradient, 30)
    assert found.rows.numbers.tolist() == numbers
    assert found.rows.values.dtype == dtype
    assert found.rows.values.shape == (len(numbers), 3)
    assert (found.size, found.width) == (30, 3)


@pytest.mark.parametrize(
    "code, size",
    [
        ("rows:1:2:<f4", 9),
        ("rows:2:2:<f4", 20),
        ("rows:-1:2:<f4", 20),
        ("rows:1:0:<f4", 20),
        ("rows:1:2", 20),
        ("rows:1:2:object", 20),
        ("rows:1:2:O", 20),
        ("rows:x:2:<f4", 20),
    ],
)
def test_bytes_that_do_not_fit(code, size):
    good = pack(rows([3]))
    with pytest.raises(FormatError, match="expected rows of a slice"):
        decode(Gradient((), good.values, code), size)


@pytest.mark.parametrize("numbers", [[10], [-1, 2], [3, 3], [4, 2]])
def test_rows_outside_or_out_of_order(numbers):
    with pytest.raises(FormatError, match="rising row numbers from 0 to 9"):
        decode(pack(rows(numbers)), 20)


def sum_of(*parts, dtype="f4"):
    total = Sum(dtype)
    for part in parts:
        total.add(part)
    return total


def test_sums_of_dense_and_sparse():
    sparse = [RowGradient(rows(n), 8) for n in ([0, 2], [2, 3])]
    dense = np.arange(8.0, dtype="f4")
    both = sum_of(*sparse).result()
    assert isinstance(both, RowGradient)
    assert both.rows.numbers.tolist() == [0, 2, 3]
    assert both.rows.values[:, 0].tolist() == [1, 2, 1]
    assert sparse[0].rows.values.tolist() == [[1, 1], [1, 1]]
    for order in ([dense, sparse[0]], [sparse[0], dense]):
        assert sum_of(*order).result().tolist() == [1, 2, 2, 3, 5, 6, 6, 7]
    for order in itertools.permutations([dense, sparse[0], dense, sparse[1]]):
        for into in (False, True):
            found, total = np.zeros(8, "f4"), sum_of(*order)
            if into:
                total.into(found)
            else:
                found = total.result()
            assert found.tolist() == [1, 3, 4, 6, 10, 12, 13, 15]
    assert dense.tolist() == list(range(8))
    only, value = sum_of(*sparse), np.full(8, 7.0, "f4")
    only.into(value)
    assert value.tolist() == [1, 1, 0, 0, 2, 2, 1, 1]


@pytest.mark.parametrize("replaces", [True, False], ids=["replaced", "added"])
def test_16_bit_sums_of_dense_and_sparse_are_rounded_once(replaces):
    """2048 + 1 is 2048 in float16: twice, and the sum below would miss 2050."""
    shard = Shard("s", Sync(), Assign() if replaces else Add(), workers=3, decode=decode)
    shard.handle(Init("worker0", 1, {"t": np.zeros(2, "f2")}), 0.0)
    gradients = [
        Gradient((), np.full(2, 2048, "f2")),
        pack(rows([0], dtype="f2")),
        Gradient((), np.ones(2, "f2")),
    ]
    for worker, gradient in enumerate(gradients):
        gradient.parts = (Part(worker, 0),)
        shard.handle(Push(f"worker{worker}", 2, {"t": gradient}), 0.0)
    assert shard.slots["t"].progress.version == 1
    assert shard.slots["t"].value.dtype == "f2"
    assert shard.slots["t"].value.tolist() == [2050, 2050]


def test_what_becomes_of_a_value():
    for applier, expected in ((Assign(), [0, 0, 1, 1]), (Add(), [5, 5, 6, 6])):
        value = np.full(4, 5.0, "f4")
        applier.apply("k", value, RowGradient(rows([1]), 4), 1)
        assert value.tolist() == expected


def test_slices_of_tables_begin_at_rows():
    directory = Directory(3, bound=100)
    entry = directory.place({"t": (70 * 7, "<f4", 4, 7)})["t"]
    assert len(entry.slices) == 3
    assert all(piece.begin % 7 == 0 == piece.end % 7 for piece in entry.slices)
    row_gradients.check_slices(entry.slices, 7)
    found = row_gradients.gradients(entry.slices, 7, rows([0, 22, 23, 69], 7))
    assert [decode(g, 1000 * 7).rows.numbers.tolist() for g in found.values()] == [
        [0, 22],
        [0],
        [22],
    ]
    asked = row_gradients.requests(entry.slices, 7, np.array([1, 69]))
    assert {k: v.tolist() for k, v in asked.items()} == {"t/0": [7, 1], "t/2": [7, 22]}
    with pytest.raises(MixflowError, match="initialise the key as row_sparse everywhere"):
        row_gradients.check_slices([Slice("t/0", 0, 0, 5)], 2)


@pytest.mark.parametrize("name", ["sgd", "adam", "ftrl", "rmsprop"])
def test_a_restarted_shard_goes_on_with_the_states_of_rows(name):
    def shard(ledger=None, incarnation=0):
        options = {"workers": 1, "decode": decode, "incarnation": incarnation}
        return Shard("s", Sync(), Optimizing(), ledger=ledger, **options)

    ledger = Memory(keep=True)
    servers = [shard(), shard(ledger)]
    extra = {"momentum": 0.9} if name == "sgd" else {}
    text = describe(mx.optimizer.create(name, learning_rate=0.1, **extra))
    for server in servers:
        server.handle(Init("worker0", 1, {"t/0": np.ones(8, "f4")}), 0)
        server.handle(Configure("worker0", 2, "optimizer", text), 0)
    for step, numbers in enumerate(([0, 2], [2], [2, 3], [1])):
        if step == 2:
            servers[1] = shard(ledger, 1)
        for server in servers:
            gradient = pack(rows(numbers, value=step + 1.0))
            gradient.parts = (Part(0, step),)
            server.handle(Push("worker0", 3 + step, {"t/0": gradient}), 0)
    first, second = (server.slots["t/0"] for server in servers)
    np.testing.assert_array_equal(first.value, second.value)
    assert second.progress.version == 4
    assert (first.value[2:4] != 1).all()


class TestServer:
    @pytest.fixture
    def shard(self):
        shard = Shard("s", Sync(), Add(), workers=1, decode=decode)
        shard.handle(Init("worker0", 1, {"t": np.arange(8, dtype="f4")}), 0.0)
        return shard

    def test_rows_of_a_slice(self, shard):
        pull = Pull("worker0", 2, 0, {"t": 0}, rows={"t": np.array([2, 0, 3])})
        ((_, answer),) = shard.handle(over_the_wire(pull), 0.0)
        assert isinstance(answer, Values)
        assert answer.values["t"].tolist() == [0, 1, 6, 7]

    @pytest.mark.parametrize("request_", [[], [0, 1], [3, 1], [2, 4], [2, -1]])
    def test_bad_rows_are_the_reader_s_mistake(self, shard, request_):
        pull = Pull("worker0", 2, 0, {"t": 0}, rows={"t": np.array(request_, np.int64)})
        ((to, answer),) = shard.handle(pull, 0.0)
        assert (to, type(answer)) == ("worker0", Failed)
        assert "expected rows of a slice of 8 values" in answer.text

    def test_bad_rows_change_nothing(self, shard):
        bad = pack(rows([4]))
        bad.parts = (Part(0, 0),)
        ((_, answer),) = shard.handle(Push("worker0", 3, {"t": bad}), 0.0)
        assert "rising row numbers from 0 to 3" in answer.text
        good = pack(rows([3]))
        good.parts = (Part(0, 0),)
        shard.handle(Push("worker0", 4, {"t": good}), 0.0)
        assert shard.slots["t"].value.tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
