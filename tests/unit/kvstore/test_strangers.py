"""What a stranger, a broken peer or one of another version may send to a server: it lives on."""

import contextlib
import json
import random
import socket
import struct
from contextlib import ExitStack
from dataclasses import fields

import numpy as np
import psutil
import pytest
from store_support import on_threads, shard_of
from test_parts import MESSAGES

import mixflow as mx
from mixflow.errors import FormatError
from mixflow.kvstore.dist import DistKVStore
from mixflow.kvstore.job import registry
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.protocol import wire
from mixflow.kvstore.protocol.messages import Done, Enter, Join, Pull
from mixflow.kvstore.server import snapshot
from mixflow.kvstore.transport import parcels
from mixflow.kvstore.transport.doorkeeper import present
from mixflow.kvstore.transport.zeromq import Server

zmq = pytest.importorskip("zmq")
#: Values of JSON that fields do not have, or have in another place.
ODD = [None, True, -1, 1 << 70, 1e300, "", "\ud800", "x" * 300, [], [[]], [1], {}, {"a": 1}, [[1]]]


def parcel(head):
    """A parcel whose only message has this head and no arrays."""
    text = json.dumps(head).encode()
    padded = text + bytes(-len(text) % 8)
    return struct.pack("<4q", parcels.MARK, 2, len(text), 0) + padded


def odd_parcels(draw, count):
    """Parcels that are whole, of messages with odd values."""
    for _ in range(count):
        kind = draw.choice(list(wire.KINDS.values()))
        plain = kind("stranger", 1)
        head = json.loads(wire.split(plain)[0])
        for name in draw.sample([f.name for f in fields(kind)], draw.randint(1, 2)):
            head[2][name] = draw.choice(ODD)
        yield parcel(head)


def noise(draw, count):
    """Bytes that are no parcel, or the beginning of one that promises more than there is."""
    good = bytes(parcels.pack([Pull("stranger", 1, 0, {"a": 1})])[0])
    for _ in range(count):
        kind = draw.randrange(4)
        if kind == 0:
            yield draw.randbytes(draw.randrange(200))
        elif kind == 1:
            yield good[: draw.randrange(len(good))]
        elif kind == 2:
            numbers = [draw.choice([-1, 0, 1, 1 << 40, -(1 << 40)]) for _ in range(5)]
            yield struct.pack("<7q", parcels.MARK, 5, *numbers)
        else:
            cut = bytearray(good)
            cut[draw.randrange(len(cut))] ^= 1 << draw.randrange(8)
            yield bytes(cut)


def sent(address, contents, token):
    """Sends all of it from a name of its own, and waits a moment."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        present(stranger, token)
        stranger.setsockopt(zmq.IDENTITY, b"stranger")
        stranger.connect(address)
        for content in contents:
            stranger.send(content)
        stranger.setsockopt(zmq.LINGER, 500)


@pytest.mark.parametrize("token", ["", "bad", "good"])
@pytest.mark.parametrize("seed", range(3))
def test_a_server_lives_on_whatever_is_sent_to_it(seed, token):
    draw = random.Random(seed)
    options = StoreOptions(deadline=5.0, bound=100)
    with ExitStack() as stack:
        server = Server(shard_of(0, 1, 1, options), "tcp://127.0.0.1:*", host="far", token="good")
        on_threads(stack, server)
        at = {"server0": server.address}
        with DistKVStore("dist_sync", 0, 1, at, options, host="near", token="good") as store:
            store.init("a", mx.nd.zeros((3,)))
            sent(server.address, [*odd_parcels(draw, 150), *noise(draw, 150)], token)
            out = mx.nd.zeros((3,))
            store.pushpull("a", mx.nd.ones((3,)), out=out)
            assert out.asnumpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_each_field_of_a_message_has_its_type(message):
    frames = [bytes(frame) for frame in wire.encode(message)]
    version, kind, head, shapes = json.loads(frames[0])
    for name, value in head.items():
        for odd in (o for o in ODD if type(o) is not type(value) and not isinstance(o, bool)):
            if isinstance(value, (tuple, list)) and isinstance(odd, (tuple, list)):
                continue
            changed = json.dumps([version, kind, {**head, name: odd}, shapes]).encode()
            with pytest.raises(FormatError, match=r"\[kvstore wire\] expected"):
                wire.decode([changed, *frames[1:]])


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [
        (Join("w", 1, 0, 1, 2), "first", 1 << 63),
        (Join("w", 1, 0, 1, 2), "sender", "\ud800"),
        (Enter("w", 1), "count", 1.5),
        (Pull("w", 1, 0, {"a": 1}), "clocks", {"a": "1"}),
        (Pull("w", 1, 0, {"a": 1}), "homes", {"a": 1}),
    ],
)
def test_values_inside_of_fields_have_their_type(message, name, value):
    version, kind, head, shapes = json.loads(bytes(wire.encode(message)[0]))
    with pytest.raises(FormatError, match=f"expected .* in '{name}' of {kind}"):
        wire.decode([json.dumps([version, kind, {**head, name: value}, shapes]).encode()])


def test_a_server_does_not_answer_answers():
    options = StoreOptions()
    shard = shard_of(0, 1, 1, options)
    assert shard.handle(Done("stranger", 1), 0.0) == []
    assert np.array(shard.members).size


@pytest.mark.parametrize("length", [1 << 62, 1 << 40, (1 << 64) - 1])
def test_nobody_has_memory_reserved_by_a_length_that_he_names(length):
    """ZMTP 3 by hand: a greeting, then the head of a frame that is never sent."""
    options = StoreOptions(deadline=5.0)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    with ExitStack() as stack:
        server = Server(shard_of(0, 1, 1, options), "tcp://127.0.0.1:*", host="far", token="good")
        on_threads(stack, server)
        host, port = server.address.removeprefix("tcp://").split(":")
        before = psutil.Process().memory_info().rss
        stranger = stack.enter_context(socket.create_connection((host, int(port))))
        stranger.settimeout(20)
        stranger.sendall(greeting + b"\x02" + struct.pack(">Q", length))
        with contextlib.suppress(ConnectionError):
            while stranger.recv(4096):  # until it is thrown out
                pass
        assert psutil.Process().memory_info().rss - before < 100 << 20
        at = {"server0": server.address}
        with DistKVStore("dist_sync", 0, 1, at, options, host="near", token="good") as store:
            store.init("a", mx.nd.zeros((3,)))


def test_heads_that_are_nested_too_deep_are_none(tmp_path):
    with pytest.raises(FormatError, match="expected a whole message, got RecursionError"):
        wire.decode([b"[" * 100_000])
    (tmp_path / snapshot.INDEX).write_text("[" * 100_000)
    with pytest.raises(FormatError, match="expected a part of a snapshot"):
        snapshot.Snapshot(tmp_path)
    (tmp_path / "job.json").write_text("[" * 100_000)
    with pytest.raises(FormatError, match="expected a job in"):
        registry.read(tmp_path)
