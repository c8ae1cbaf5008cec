"""Wire format, compression, sharding, travelling optimizers, and the server's own checks."""

import itertools
import json

import numpy as np
import pytest

import mixflow as mx
from mixflow.errors import FormatError, ParamError, UnknownNameError
from mixflow.kvstore.base import in_groups
from mixflow.kvstore.protocol import policy, wire
from mixflow.kvstore.protocol.client import Client
from mixflow.kvstore.protocol.compression import Compression, decode
from mixflow.kvstore.protocol.messages import (
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
    Place,
    Push,
    Refused,
    Report,
    Values,
)
from mixflow.kvstore.protocol.policy import Part
from mixflow.kvstore.protocol.sharding import Directory, Entry, spans
from mixflow.kvstore.server.appliers import Optimizing
from mixflow.kvstore.server.shard import Memory, Shard
from mixflow.optimizer.describe import describe, rebuild

MESSAGES = [
    Push("w", 1, {"a": Gradient((Part(0, 3), Part(1, 3)), np.arange(5.0), "")}, True, -2),
    Values("s", 2, {"a": np.ones(3, "float32"), "b": np.zeros(0, "int64")}, {"a": 1, "b": 2}, 5),
    Refused("s", 3, {"a": (Part(0, 1),)}),
    Failed("s", 4, "text", (1, 2)),
    Configure("w", 5, "optimizer", {"name": "sgd", "values": [1, 2]}),
    Leave("w", 6, 1, 3),
    Place("w", 7, {"a": (10, "<f4", 4)}),
    Lend("w", 9, 0, "name"),
    Deposit("w", 10, 0, "name", 7, True, {"a|": np.ones(3, "float32"), "a|0": np.ones(1, "i8")}),
    Kept("s", 11, True),
    Report("s", 8, {"a": {"version": 1, "clocks": [[0, 1]]}}, 1),
]


def frames_of(message):
    return [bytes(frame) for frame in wire.encode(message)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_survives_the_wire(message):
    found = wire.decode(frames_of(message))
    assert type(found) is type(message)
    assert [bytes(f) for f in wire.encode(found)] == frames_of(message)
    if isinstance(message, Push):
        assert found.gradients["a"].parts == message.gradients["a"].parts
        np.testing.assert_array_equal(found.gradients["a"].values, np.arange(5.0))


@pytest.mark.parametrize("seed", range(200))
def test_damaged_frames_are_an_error_or_a_message(seed):
    draw = np.random.default_rng(seed)
    frames = [bytearray(f) for f in frames_of(MESSAGES[seed % len(MESSAGES)])]
    frame = frames[draw.integers(len(frames))]
    for _ in range(draw.integers(1, 4)):
        if frame:
            frame[draw.integers(len(frame))] = draw.integers(256)
    if draw.random() < 0.3:
        frames.pop()
    try:
        wire.decode(frames)
    except FormatError as error:
        assert "[kvstore wire] expected" in str(error)


def test_another_version_and_dtypes_without_a_name_are_refused():
    head = json.loads(frames_of(MESSAGES[3])[0])
    head[0] = 99
    with pytest.raises(FormatError, match="expected version 1, got 99"):
        wire.decode([json.dumps(head).encode()])
    with pytest.raises(FormatError, match="expected a contiguous array"):
        wire.encode(Values("s", 1, {"a": np.zeros(2, "complex64")}, {"a": 0}))


def test_two_bits_keep_what_they_cannot_carry():
    setting, residual = Compression("2bit", 0.5), np.zeros(5, "float32")
    gradient = np.array([0.4, -0.6, 1.2, 0.0, 0.5], "float32")
    code = setting.encode(gradient, residual)
    assert code.tolist() == [0b00101100, 0b11000000]
    np.testing.assert_array_equal(
        decode(Gradient((), code, setting.code), 5), np.float32([0, -0.5, 0.5, 0, 0.5])
    )
    np.testing.assert_allclose(residual, [0.4, -0.1, 0.7, 0, 0], atol=1e-6)


def test_one_bit_sends_signs():
    setting, residual = Compression("1bit", 0.0), np.zeros(3, "float32")
    code = setting.encode(np.array([0.3, -0.2, 0.0], "float32"), residual)
    assert decode(Gradient((), code, setting.code), 3).tolist() == [1, -1, -1]
    np.testing.assert_allclose(residual, [-0.7, 0.8, 1.0], atol=1e-6)


@pytest.mark.parametrize("kind", ["2bit", "1bit"])
def test_compressed_sums_approach_the_true_sum(kind):
    draw, residual, sent = np.random.default_rng(0), np.zeros(37, "float32"), 0
    setting, total = Compression(kind, 0.5 if kind == "2bit" else 0.0), 0
    for _ in range(50):
        gradient = draw.uniform(-0.4, 0.4, 37).astype("float32")
        total = total + gradient
        sent = sent + decode(Gradient((), setting.encode(gradient, residual), setting.code), 37)
    np.testing.assert_allclose(sent + residual, total, atol=1e-4)


def test_compression_settings_are_checked():
    assert Compression.from_params({"type": "2bit"}).threshold == 0.5
    with pytest.raises(UnknownNameError, match="2bit"):
        Compression.from_params({"type": "4bit"})
    with pytest.raises(ParamError, match="threshold above 0"):
        Compression.from_params({"type": "2bit", "threshold": 0})
    with pytest.raises(ParamError, match="expected 'type'"):
        Compression.from_params({"threshold": 1})
    with pytest.raises(FormatError, match="code of 9 values"):
        decode(Gradient((), np.zeros(1, "uint8"), "2bit:0.5"), 9)
    with pytest.raises(FormatError, match="known code"):
        decode(Gradient((), np.zeros(1, "uint8"), "zip:1"), 4)


def test_big_keys_are_cut_and_small_ones_packed():
    directory = Directory(3, bound=1000)
    big = directory.place({"big": (3001, "<f4", 4)})["big"]
    assert [s.server for s in big.slices] == [0, 1, 2]
    assert big.slices[0].begin == 0 and big.slices[-1].end == 3001
    assert all(s.begin % 32 == 0 for s in big.slices)
    for number in range(30):
        directory.place({f"small{number}": (100, "<f4", 4)})
    assert max(directory._bytes) - min(directory._bytes) <= 400
    again = Directory(3, bound=1000)
    again.restore(directory.to_json())
    assert again.entries == directory.entries and again._bytes == directory._bytes
    with pytest.raises(ParamError, match="workers disagree"):
        directory.place({"big": (10, "<f4", 4)})
    assert Entry.from_json(big.to_json()) == big


@pytest.mark.parametrize("size,count", [(1, 4), (0, 2), (31, 3), (1000, 7), (33, 2)])
def test_spans_cover_everything_once(size, count):
    found = spans(size, count, 32)
    assert found[0][0] == 0 and found[-1][1] == size
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found))


def test_an_optimizer_travels_with_schedule_and_multipliers():
    schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.4)
    made = mx.optimizer.create(
        "sgd", momentum=0.9, wd=0.1, lr_scheduler=schedule, param_idx2name={0: "a_weight"}
    )
    made.set_lr_mult({"a_weight": 3.0})
    text = json.loads(json.dumps(describe(made)))
    found = rebuild(text)
    one, other = mx.optimizer.get_updater(made), mx.optimizer.get_updater(found)
    a, b = mx.nd.ones((3,)), mx.nd.ones((3,))
    for _ in range(5):
        one(0, mx.nd.array([1.0, 2, 3]), a)
        other(0, mx.nd.array([1.0, 2, 3]), b)
    np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


def test_optimizers_that_cannot_travel_say_why():
    class Unregistered(mx.optimizer.SGD):
        pass

    with pytest.raises(ParamError, match="expected a registered class"):
        describe(Unregistered())
    odd = mx.optimizer.SGD()
    odd.callback = print
    with pytest.raises(ParamError, match="expected plain attributes"):
        describe(odd)
    with pytest.raises(UnknownNameError):
        rebuild({"name": "nope", "state": {"pairs": []}})
    with pytest.raises(FormatError, match="expected a description"):
        rebuild({"name": "sgd"})


def shard(**options):
    return Shard("s", policy.Sync(), Optimizing(), workers=2, **options)


def answers(found, kind):
    return [message for _, message in found if isinstance(message, kind)]


def push(worker, step, values, **options):
    gradient = Gradient((Part(worker, step),), np.array(values, "float32"))
    return Push(f"w{worker}", step + 10, {"k": gradient}, **options)


def test_a_restarted_shard_goes_on_with_the_optimizers_state():
    ledger = Memory(keep=True)
    servers = [shard(), shard(ledger=ledger)]
    text = describe(mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9))
    for server in servers:
        server.handle(Init("w0", 1, {"k": np.ones(3, "float32")}), 0)
        server.handle(Configure("w0", 2, "optimizer", text), 0)
    for step in range(4):
        if step == 2:
            servers[1] = shard(ledger=ledger, incarnation=1)
        for server in servers:
            server.handle(push(0, step, [1, 2, 3]), 0)
            server.handle(push(1, step, [1, 0, 1]), 0)
    np.testing.assert_array_equal(servers[0].slots["k"].value, servers[1].slots["k"].value)
    assert servers[1].slots["k"].progress.version == 4


def test_a_merged_push_that_overlaps_is_refused_with_what_was_seen():
    server = shard()
    server.handle(Init("w0", 1, {"k": np.zeros(1, "float32")}), 0)
    server.handle(push(0, 0, [1]), 0)
    merged = Gradient((Part(0, 0), Part(1, 0)), np.array([3], "float32"))
    found = server.handle(Push("host", 1, {"k": merged}), 0)
    assert answers(found, Refused)[0].seen == {"k": (Part(0, 0),)}
    assert server.slots["k"].progress.version == 0
    server.handle(push(1, 0, [2]), 0)
    assert server.slots["k"].value.tolist() == [3]


def test_bad_requests_change_nothing_and_say_what_was_expected():
    server = shard()
    server.handle(Init("w0", 1, {"k": np.zeros(2, "float32")}), 0)
    bad = [
        (push(0, 0, [1, 2, 3]), "expected 2 values for key 'k', got 3"),
        (Push("w0", 3, {"none": Gradient((Part(0, 0),), np.zeros(2))}), "to be initialised"),
        (Push("w0", 4, {"k": Gradient((), np.zeros(2))}), "expected parts"),
        (Init("w0", 5, {"k": np.zeros(5)}), "workers disagree"),
        (Configure("w0", 6, "colour", {}), "expected a known name"),
        (Place("w0", 7, {}), "first server only"),
        (Configure("w0", 8, "rescale", {"value": 1}), "call set_optimizer"),
    ]
    for message, text in bad:
        found = answers(server.handle(message, 0), Failed)
        assert len(found) == 1 and text in found[0].text, text
    assert server.slots["k"].value.tolist() == [0, 0]


def test_copies_of_old_news_do_not_bring_back_a_worker():
    server = shard()
    joined = Join("w1", 1, 1, 0, epoch=0)
    server.handle(joined, 0)
    server.handle(Leave("w1", 2, 1, epoch=1), 0)
    assert answers(server.handle(joined, 0), Done)
    assert 1 not in server.members


def test_an_asynchronous_store_needs_an_optimizer():
    server = Shard("s", policy.Async(), Optimizing(needs_optimizer=True), workers=1)
    server.handle(Init("w0", 1, {"k": np.zeros(1, "float32")}), 0)
    found = server.handle(push(0, 0, [1.0]), 0)
    assert "call set_optimizer" in answers(found, Failed)[0].text


def test_policies_are_checked():
    with pytest.raises(UnknownNameError, match="dist_sync"):
        policy.named("dist_sink")
    with pytest.raises(ParamError, match="staleness >= 0"):
        policy.named("dist_ssp", staleness=-1)
    with pytest.raises(ParamError, match="take >= 1"):
        policy.named("dist_backup", take=0)
    with pytest.raises(ParamError, match=r"no options, got \['staleness'\]; of dist_ssp"):
        policy.named("dist_sync", staleness=1)
    with pytest.raises(ParamError, match=r"options of \['take'\], got \['staleness'\]"):
        policy.named("dist_backup", staleness=1, take=1)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([4, 4, 3], [[0, 1], [2]]),
        ([20, 1, 1, 20, 1], [[0], [1, 2], [3], [4]]),
        ([10, 1], [[0], [1]]),
    ],
)
def test_neighbours_that_are_small_together_make_a_group(sizes, expected):
    assert in_groups(range(len(sizes)), sizes, limit=10) == expected


def test_what_a_server_has_not_answered_is_said_again_when_it_is_at_another_place():
    worker = Client("worker0", 0, lambda key: "s", policy.Sync(), repeat=1.0)
    worker.pull(["k"], 0.0)
    for now in (1.0, 3.0):
        worker.tick(now)
    assert len(worker.take_outgoing()) == 3 and worker.next_time() > 3.5
    worker.repeat_soon("other", 3.5)
    assert worker.next_time() > 3.5
    worker.repeat_soon("s", 3.5)
    worker.tick(3.5)
    assert len(worker.take_outgoing()) == 1
