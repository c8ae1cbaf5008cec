"""The core's two sides of a board: each against words that the test stores, then both together."""

import itertools
import os
import socket
import struct
import threading
import time

import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt
from mixflow.dtype import code
from mixflow.kvstore.server.slice_file import HEADER, SliceFile
from mixflow.kvstore.transport.boards import address_of

pytestmark = pytest.mark.skipif(
    not hasattr(_rt.core, "ServerDesk"), reason="the plain core has no boards"
)
FLOAT = np.dtype(np.float32)
COLUMNS, SIZE, BELLS = 3, 5, 4
LINE = 64
#: Elements of a slice that goes past the caches, with some more than whole lines.
LARGE = (1 << 22) + 13


class Memory:
    """A board of one slice, and its words as the test sees them."""

    def __init__(self, size=SIZE):
        self.size = size
        total, (value,), (gradients,) = _rt.core.lane_layout([size * FLOAT.itemsize], COLUMNS)
        whole = np.zeros(total + 4096, np.uint8)
        begin = -address_of(whole) % 4096
        self.bytes = whole[begin : begin + total]
        self.words = self.bytes[: LINE * (2 + COLUMNS)].view(np.int64).reshape(-1, 8)
        self.value = self._floats(value)
        self.gradients = [self._floats(place) for place in gradients]

    def _floats(self, at):
        return self.bytes[at : at + self.size * FLOAT.itemsize].view(FLOAT)

    @property
    def version(self):
        return int(self.words[1, 0])

    @property
    def durable(self):
        return int(self.words[1, 1])

    def show(self, version):
        self.words[1, 0] = version

    def confirm(self, version):
        self.words[1, 1] = version

    def staged(self, column):
        return int(self.words[2 + column, 0])

    def stage(self, column, values):
        self.gradients[column][...] = values
        self.words[2 + column, 0] += 1


@pytest.fixture
def board():
    return Memory()


@pytest.fixture
def desk_memory():
    return np.zeros(LINE * (BELLS + 2), np.uint8)[: LINE * (BELLS + 1)]


@pytest.fixture
def desk(desk_memory):
    return _rt.core.ServerDesk(address_of(desk_memory), BELLS)


def opened(desk, board):
    return desk.open([board.size * FLOAT.itemsize], address_of(board.bytes), [0, 1, 2], [0])


@pytest.mark.parametrize("missing", range(COLUMNS))
def test_a_desk_closes_a_round_when_the_last_one_has_put_its_gradient(desk, board, missing):
    number = opened(desk, board)
    desk.arm(number, 0, code(FLOAT))
    for round_ in range(3):
        for column in set(range(COLUMNS)) - {missing}:
            board.stage(column, 10 * column + round_)
            assert desk.serve([], [], 0) == []
            assert (board.version, board.durable, desk.rounds) == (round_, round_, round_)
        board.stage(missing, 10 * missing + round_)
        assert desk.serve([], [], 0) == []
        assert (board.version, board.durable, desk.rounds) == (round_ + 1,) * 3
        assert desk.bytes == desk.rounds * COLUMNS * SIZE * FLOAT.itemsize
        assert board.value.tolist() == [30 + 3 * round_] * SIZE


def test_a_desk_shows_a_round_when_it_is_whole(desk):
    board, wrong = Memory(1 << 18), []  # long enough to be seen half written
    number = opened(desk, board)
    desk.arm(number, 0, code(FLOAT))
    ready = threading.Barrier(2)

    def read():
        for round_ in range(1, 21):
            ready.wait(30)
            while board.version < round_:
                pass
            found = board.value[-1], board.value[0]
            if found != (3 * round_,) * 2:
                wrong.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    for round_ in range(1, 21):
        for column in range(COLUMNS):
            board.stage(column, round_)
        ready.wait(30)
        desk.serve([], [], 0)
    reader.join(30)
    assert wrong == []


def test_a_desk_tells_of_rounds_that_it_may_not_close(desk, board):
    number = opened(desk, board)
    for column in range(COLUMNS):
        board.stage(column, 1)
    assert desk.serve([], [], 0) == [(number, 0)]
    assert (board.version, board.durable, desk.rounds) == (0, 0, 0)


@pytest.mark.parametrize("size", [SIZE, LARGE])
def test_a_desk_commits_rounds_to_a_ledger_file(desk, size, tmp_path):
    board = Memory(size)
    file, record = SliceFile(tmp_path / "a"), {"key": "a"}
    file.write(record, [board.value])
    number = opened(desk, board)
    desk.arm(number, 0, code(FLOAT), file.place([board.value]))
    for round_ in range(4):
        for column in range(COLUMNS):
            board.stage(column, np.arange(size, dtype=FLOAT) % 5 + column * round_)
        desk.serve([], [], 0)
        kept = SliceFile(tmp_path / "a")
        found, (value,) = kept.read()
        assert found == record
        assert np.array_equal(value, np.arange(size, dtype=FLOAT) % 5 * COLUMNS + 3 * round_)
        assert np.array_equal(value, board.value)
        assert (board.version, board.durable) == (round_ + 1,) * 2
        assert kept.since == (round_ + 1, COLUMNS * (round_ + 1), {})
        # The round before is whole beside it: a process may die in the middle of the next one.
        content = (tmp_path / "a").read_bytes()
        capacity = struct.unpack_from("<Q", content, 8)[0]
        areas = [struct.unpack_from("<Q", content, HEADER + n * capacity)[0] for n in (0, 1)]
        assert sorted(areas) == [round_ + 1, round_ + 2]


def test_other_arrays_than_those_of_the_file_have_no_place(tmp_path):
    file = SliceFile(tmp_path / "a")
    value, state = np.zeros(3, np.float32), np.zeros(3, np.float32)
    assert file.place([value]) is None
    file.write({}, [value])
    assert file.place([value, state]) is None
    assert file.place([value]) is not None


@pytest.fixture
def lane():
    made = _rt.core.WorkerLane(-1, 600_000)
    yield made
    made.close()


def joined(lane, desk, desk_memory, board):
    """Worker 1 takes part in a board of the desk; gives the board as it has it, and a route."""
    opened(desk, board)
    seen = lane.add_desk(address_of(desk_memory), 1, -1, desk_memory)
    native = lane.open(
        seen, [SIZE * FLOAT.itemsize], COLUMNS, address_of(board.bytes), 1, False, board.bytes
    )
    return native, _rt.core.LaneRoute([(native, 0, 0, 0)])


def seen_of(array):
    """Values as they stand, whatever is pending."""
    return np.from_dlpack(_rt.core.fresh_handle(array)).tolist()


def serve_until(done, desk, wake, channels):
    while not done():
        desk.serve([wake], [channel.fileno() for channel in channels], 600_000)


def until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("nothing happens")


def test_a_lane_reads_what_is_whole_and_keeps_its_gradient_until_that_is_durable(
    lane, desk, desk_memory, board
):
    _, route = joined(lane, desk, desk_memory, board)
    out, tag = mx.nd.zeros((SIZE,)), _rt.core.Tag()

    def exchange(value):
        gradient = mx.nd.ones((SIZE,)) * value
        lane.exchange(route, [gradient], [[out]], [tag], "pushpull", 0, True, False, ())

    exchange(1)
    until(lambda: board.staged(1) == 1)
    assert board.gradients[1].tolist() == [1] * SIZE
    board.value[:2] = 7  # the server is in the middle of it
    exchange(2)
    time.sleep(0.1)
    assert (board.staged(1), lane.steps) == (1, 1)
    board.value[:] = 7
    board.show(1)
    until(lambda: seen_of(out) == [7] * SIZE)
    time.sleep(0.1)  # the second step's gradient waits: the first one's is not durable
    assert board.staged(1) == 1
    assert board.gradients[1].tolist() == [1] * SIZE
    board.confirm(1)
    until(lambda: board.staged(1) == 2)
    assert board.gradients[1].tolist() == [2] * SIZE
    board.show(2)
    board.confirm(2)
    out.wait_to_read()


@pytest.mark.parametrize("end", ["retired by the worker", "closed by the server"])
def test_a_board_that_is_over_is_not_read(lane, desk, desk_memory, board, end):
    """A worker's later steps went by messages; a read by the board would miss them."""
    native, route = joined(lane, desk, desk_memory, board)
    out, tag = mx.nd.zeros((SIZE,)), _rt.core.Tag()
    board.value[:] = 7

    def read():
        lane.exchange(route, [], [[out]], [tag], "pull", 0, True, False, ())

    read()
    out.wait_to_read()
    assert out.asnumpy().tolist() == [7] * SIZE
    board.value[:] = 8
    if end == "retired by the worker":
        lane.retire(native)
    else:
        board.words[0, 0] = 0
    read()
    until(lambda: lane.has_failed)
    (failed,) = lane.take_failed()
    assert seen_of(out) == [7] * SIZE and failed.staged
    failed.done(None)
    out.wait_to_read()


def test_a_desk_looks_again_before_it_sleeps(desk, desk_memory):
    """A worker is done while the desk looks at other slices: it sees nobody asleep, and rings no
    one."""
    slices, rounds = 4000, 500
    total, *_ = _rt.core.lane_layout([FLOAT.itemsize] * slices, 1)
    memory = np.zeros(total + LINE, np.uint8)
    memory = memory[-address_of(memory) % LINE :]
    words = memory[: LINE * (1 + 2 * slices)].view(np.int64).reshape(-1, 8)
    sleeps, fence = desk_memory[:4].view(np.uint32), threading.Lock()
    number = desk.open([FLOAT.itemsize] * slices, address_of(memory), [0], [0] * slices)
    desk.arm(number, 0, code(FLOAT))
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wake_out, wake_in = os.pipe()
    ends = threading.Event()
    server = threading.Thread(target=serve_until, args=(ends.is_set, desk, wake_out, [theirs]))
    with mine, theirs, os.fdopen(wake_out), os.fdopen(wake_in, "wb", 0) as wake:
        server.start()
        try:
            for round_ in range(rounds):
                words[1 + slices, 0] = round_ + 1
                with fence:  # as the core does: the word is there before the other one is read
                    pass
                if sleeps[0]:
                    sleeps[0] = 0
                    mine.send(b"!")
                for _ in range(1000):  # most often it is closed at once, and the desk still awake
                    if words[1, 0] > round_:
                        break
                until(lambda expected=round_ + 1: words[1, 0] == expected)
        finally:
            ends.set()
            wake.write(b"x")
            server.join(30)


def test_no_wake_is_lost(desk, desk_memory, board):
    """A desk that sleeps until it is rung, and workers that wait for nothing else."""
    rounds = 1500
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(COLUMNS)]
    lanes = [_rt.core.WorkerLane(-1, 600_000) for _ in range(COLUMNS)]
    number = opened(desk, board)
    desk.arm(number, 0, code(FLOAT))
    done = [0] * COLUMNS
    wake_out, wake_in = os.pipe()

    def work(column):
        lane = lanes[column]
        channel = pairs[column][1].fileno()
        seen = lane.add_desk(address_of(desk_memory), column, channel, desk_memory)
        native = lane.open(
            seen,
            [SIZE * FLOAT.itemsize],
            COLUMNS,
            address_of(board.bytes),
            column,
            False,
            board.bytes,
        )
        route = _rt.core.LaneRoute([(native, 0, 0, 0)])
        out, gradient, tag = mx.nd.zeros((SIZE,)), mx.nd.ones((SIZE,)), _rt.core.Tag()
        for _ in range(rounds):
            lane.exchange(route, [gradient], [[out]], [tag], "pushpull", 0, True, True, ())
            out.wait_to_read()
            done[column] += 1
            assert out.asnumpy().tolist() == [COLUMNS] * SIZE

    threads = [threading.Thread(target=work, args=(c,), daemon=True) for c in range(COLUMNS)]
    mine = [one for one, _ in pairs]
    server = threading.Thread(
        target=lambda: serve_until(lambda: min(done) == rounds, desk, wake_out, mine), daemon=True
    )
    for thread in (*threads, server):
        thread.start()
    idle, before = 0, list(done)
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.1)
        idle = 0 if done != before else idle + 1
        before = list(done)
        assert idle < 100, f"nothing happens after {done} rounds"
    os.write(wake_in, b"x")
    server.join(30)
    assert done == [rounds] * COLUMNS
    assert desk.rounds == rounds
    for lane, descriptor in itertools.zip_longest(lanes, [wake_out, wake_in]):
        lane.close()
        if descriptor is not None:
            os.close(descriptor)
    for channel in itertools.chain(*pairs):
        channel.close()
