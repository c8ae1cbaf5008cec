"""Messages between a pool and its executors, and the memory that travels with them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from mixflow.errors import FileError, FormatError, MixflowError
from mixflow.extras import MissingExtraError
from mixflow.pipeline.partitions import executors, framing
from mixflow.pipeline.partitions.compute import Computer
from mixflow.pipeline.partitions.executor import answer
from mixflow.pipeline.partitions.local import Memories
from mixflow.recordio import TornRecordError

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(5)
    yield ends
    for end in ends:
        end.close()


def test_a_message_brings_memory(pair: Pair) -> None:
    layout = {"data": ((3, 4), np.float32), "index": ((3,), np.int64), "none": ((0, 2), "u1")}
    places, nbytes = framing.planned(layout)
    handle = framing.new_memory()
    arrays = framing.arrays_in(framing.mapped(handle, nbytes, write=True), places)
    arrays["data"][...] = 7
    arrays["index"][...] = 8
    framing.send(pair[0], {"places": places, "bytes": nbytes}, handle)
    framing.send(pair[0], {"next": 1})
    os.close(handle)
    received = framing.receive(pair[1])
    assert received is not None and received[1] is not None
    message, got = received
    found = framing.arrays_in(framing.mapped(got, message["bytes"], write=False), message["places"])
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {
        "data": ((3, 4), np.float32),
        "index": ((3,), np.int64),
        "none": ((0, 2), np.uint8),
    }
    assert (found["data"] == 7).all() and (found["index"] == 8).all()
    assert not found["data"].flags.writeable
    assert framing.receive(pair[1]) == ({"next": 1}, None)
    with pytest.raises(OSError, match="bytes of memory, not 1000"):
        framing.mapped(got, 1000, write=False)
    with pytest.raises(OSError, match="arrays that do not fit"):
        framing.arrays_in(framing.mapped(got, 64, write=False), [("data", [99], "<f4", 0)])
    with pytest.raises(OSError, match="arrays that do not fit"):
        framing.arrays_in(framing.mapped(got, 64, write=False), [("data", [1], "|O", 0)])
    os.close(got)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x05", "ended within a message"),
        (b"\x05\0\0\0{", "ended within a message"),
        (b"\xff\xff\xff\xff", "a message of 4294967295 bytes"),
        (b"\x02\0\0\0[]", "a message of another form"),
        (b"\x02\0\0\0{]", "Expecting property name"),
    ],
)
def test_messages_that_are_none(pair: Pair, raw: bytes, text: str) -> None:
    pair[0].sendall(raw)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(OSError, match=text):
        framing.receive(pair[1])


def test_the_end(pair: Pair) -> None:
    pair[0].shutdown(socket.SHUT_WR)
    assert framing.receive(pair[1]) is None


def test_an_executor_answers_with_its_errors() -> None:
    reply, memory = answer(Computer(), {"number": 3, "partition": "{}"}, None)
    assert memory is None and reply["failed"] == 3
    assert reply["error"]["final"] and "FormatError" in reply["error"]["names"]


def test_errors_of_the_data_and_of_the_place() -> None:
    for error, final, kind in [
        (FormatError("bad"), True, FormatError),
        (TornRecordError("torn", 3), True, FormatError),
        (FileError("gone"), False, FileError),
        (MissingExtraError("no cv2"), False, MixflowError),
        (MemoryError(), False, MixflowError),
        (KeyError("x"), False, MixflowError),
    ]:
        described = executors.describe_error(error)
        assert described["final"] is final
        assert type(executors.rebuilt_error(described["names"], "text")) is kind


def test_memory_is_kept_up_to_a_number() -> None:
    memories = Memories(1)
    first, second, third = (framing.new_memory() for _ in range(3))
    memories.give(first, True)
    memories.give(second, True)  # one too many
    memories.give(third, False)  # may still be written into
    for closed in (second, third):
        with pytest.raises(OSError):
            os.fstat(closed)
    assert memories.take() == first and memories.take() is None
    memories.give(first, True)
    memories.close()
    with pytest.raises(OSError):
        os.fstat(first)
