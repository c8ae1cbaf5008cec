"""Channels between processes of one host: datagrams, shared blocks, leases, a slow link."""

import gc
import os
import socket
import struct

import numpy as np
import pytest

from mixflow import _rt
from mixflow.errors import MXNetError, ParamError
from mixflow.kvstore.protocol.messages import Done, Init, Values
from mixflow.kvstore.transport import local
from mixflow.kvstore.transport.faults import Faults, Mangler
from mixflow.kvstore.transport.segments import (
    BIG_BYTES,
    WORDS,
    Blocks,
    Mappings,
    Reference,
    Segment,
)

pytestmark = pytest.mark.skipif(not local.available(), reason="needs memfd")


def connected():
    ours, theirs = Blocks(), Blocks()
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return local.Channel(a, ours, leases=True), local.Channel(b, theirs, leases=False), ours


def block(blocks, size, value):
    made = blocks.empty(size, "float32")
    made[...] = value
    return made


def test_messages_and_arrays_arrive():
    sender, receiver, blocks = connected()
    big, small = block(blocks, 10_000, 3), np.arange(5, dtype="int64")
    assert sender.send([Values("s", 4, {"big": big, "small": small}, {"big": 1, "small": 1}, 0)])
    assert sender.send([Done("s", 5), Done("s", 6)])
    (values,) = receiver.receive()
    assert values.values["small"].tolist() == [0, 1, 2, 3, 4]
    assert np.unique(values.values["big"]).tolist() == [3]
    big[0] = 7  # it is the same memory
    assert values.values["big"][0] == 7
    assert [m.number for m in receiver.receive()] == [5, 6]
    assert receiver.receive() is None and receiver.open
    sender.close()
    assert receiver.receive() is None and not receiver.open
    receiver.close()


def test_a_block_is_busy_until_its_reader_has_dropped_it():
    sender, receiver, blocks = connected()
    big = block(blocks, 10_000, 1)
    assert not blocks.busy(big)
    sender.send([Values("s", 1, {"k": big}, {"k": 1}, 0)])
    sender.send([Values("s", 2, {"k": big}, {"k": 1}, 0)])
    (first,), (second,) = receiver.receive(), receiver.receive()
    del first
    gc.collect()
    assert blocks.busy(big)
    part = second.values["k"][5:9]
    del second
    gc.collect()
    assert blocks.busy(big), "a view of it keeps the lease"
    del part
    gc.collect()
    assert not blocks.busy(big)
    sender.send([Values("s", 3, {"k": big}, {"k": 1}, 0)])
    assert blocks.busy(big)
    sender.close()  # the reader is gone
    assert not blocks.busy(big)
    receiver.close()


def test_what_lies_in_no_block_arrives_however_large():
    sender, receiver, blocks = connected()
    board = np.frombuffer(block(blocks, 1 << 20, 3).data, np.float32, 1 << 20)
    for _ in range(20):  # more than a block has words for leases
        assert sender.send([Values("s", 4, {"big": board}, {"big": 1}, 0)])
        (values,) = receiver.receive()
        assert np.unique(values.values["big"]).tolist() == [3]
    board[:] = 7
    assert np.unique(values.values["big"]).tolist() == [3], "a copy of its own"
    sender.close()
    receiver.close()


def test_what_many_read_at_once_arrives():
    sender, receiver, blocks = connected()
    big, kept = block(blocks, 1 << 20, 3), []
    for _ in range(WORDS + 3):
        assert sender.send([Values("s", 4, {"big": big}, {"big": 1}, 0)])
        (values,) = receiver.receive()
        kept.append(values)
    assert all((one.values["big"] == 3).all() for one in kept)
    sender.close()
    receiver.close()


def test_blocks_are_free_when_nothing_refers_to_them():
    blocks = Blocks()
    first = block(blocks, 10_000, 1)
    view = first[10:20]
    address = first.__array_interface__["data"][0]
    del first
    gc.collect()
    assert block(blocks, 10_000, 2).__array_interface__["data"][0] != address
    del view
    gc.collect()
    kept = [blocks.empty(10_000, "float32") for _ in range(2)]
    assert address in [a.__array_interface__["data"][0] for a in kept]


def test_what_a_channel_cannot_take_is_told():
    receiver, sender, _ = connected()  # who has no leases to give
    assert not sender.send([Init("w", 1, {"k": np.zeros(100_000, "float32")})])
    for _ in range(5_000):
        if not sender.send([Init("w", 1, {"k": np.zeros(BIG_BYTES // 8, "float32")})]):
            break
    else:
        raise AssertionError("a full queue was not told")
    receiver.close()
    assert not sender.send([Done("w", 2)]) and not sender.open
    sender.close()


def damaged(good):
    yield b""[:0] + b"x"
    yield good[:40]
    yield struct.pack("<q", 1) + good[8:]
    numbers = list(struct.unpack_from("<7q", good))
    for at in range(1, 7):
        for value in (-1, 1 << 40, 3):
            changed = list(numbers)
            changed[at] = value
            yield struct.pack("<7q", *changed) + good[56:]


def test_damaged_datagrams_are_dropped():
    sender, receiver, blocks = connected()
    data, _ = sender._pack([Values("s", 1, {"k": block(blocks, 10_000, 1)}, {"k": 1}, 0)], [])
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = local.Channel(b, Blocks(), leases=False)
    for bad in damaged(data):
        a.send(bad)
        assert channel.receive() == [], bad
    assert channel.open
    for one in (sender, receiver, channel):
        one.close()
    a.close()


def test_references_are_checked():
    segment, mappings = Segment(1 << 16), Mappings()
    with pytest.raises(ValueError, match="a known segment"):
        mappings.array(Reference(segment.number, 0, 8))
    with pytest.raises(ValueError, match="got a smaller one"):
        mappings.add(segment.number, 1 << 20, os.dup(segment.descriptor))
    mappings.add(segment.number, 1 << 16, os.dup(segment.descriptor))
    for bad in ((1 << 16, 8, 0), (-8, 8, 0), (0, -1, 0), (0, 8, 1 << 16)):
        with pytest.raises(ValueError, match="bytes inside of a segment"):
            mappings.array(Reference(segment.number, *bad))


def test_only_a_server_of_this_host_is_found():
    listener = local.listen("tcp://127.0.0.1:1", "here")
    blocks = Blocks()
    assert local.connect("tcp://127.0.0.1:1", blocks, "elsewhere") is None
    assert local.connect("tcp://127.0.0.1:2", blocks, "here") is None
    assert local.is_there(local.name_of("tcp://127.0.0.1:1", "here"))
    made = local.connect("tcp://127.0.0.1:1", blocks, "here")
    assert made is not None
    made.close()
    listener.close()


def test_a_slow_link_takes_its_time():
    mangler = Mangler(Faults(rate=100.0))
    assert mangler.busy_until(1.0) is None
    assert mangler.take_time("a", 50, 1.0) == [] and mangler.take_time("b", 100, 1.2) == []
    assert mangler.next_time == 1.5 and mangler.busy_until(1.3) == pytest.approx(2.498)
    assert mangler.due(1.6) == ["a"] and mangler.due(2.5) == ["b"]
    assert Mangler(Faults()).take_time("a", 50, 1.0) == ["a"]
    with pytest.raises(ParamError, match="rate >= 0"):
        Faults(rate=-1.0)


def test_only_asynchronous_callbacks_run_inline():
    if _rt.core.__name__.endswith("pure"):
        pytest.skip("the plain core runs everything inline")
    with pytest.raises(MXNetError, match="'inline_ok' for an asynchronous callback only"):
        _rt.core.push(lambda: None, [], [], "x", inline_ok=True)
