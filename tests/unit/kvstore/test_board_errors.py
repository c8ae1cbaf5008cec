"""What the core's boards refuse: each error names what was expected and what came."""

import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt
from mixflow.dtype import code
from mixflow.errors import MXNetError
from mixflow.kvstore.transport.boards import address_of

pytestmark = pytest.mark.skipif(
    not hasattr(_rt.core, "ServerDesk"), reason="the plain core has no boards"
)
SIZES, BELLS = [16], 4


def memory(nbytes):
    """Zeros from the start of a page on."""
    whole = np.zeros(nbytes + 4096, np.uint8)
    begin = -address_of(whole) % 4096
    return whole[begin : begin + nbytes]


@pytest.fixture
def board_memory():
    return memory(_rt.core.lane_layout(SIZES, 1)[0])


@pytest.fixture
def desk_memory():
    return memory(64 * (BELLS + 1))


@pytest.fixture
def desk(desk_memory):
    return _rt.core.ServerDesk(address_of(desk_memory), BELLS)


@pytest.fixture
def lane():
    made = _rt.core.WorkerLane(-1, 1000)
    yield made
    made.close()


@pytest.fixture
def board(desk, desk_memory, lane, board_memory):
    desk.open(SIZES, address_of(board_memory), [0], [0])
    seen = lane.add_desk(address_of(desk_memory), 0, -1, desk_memory)
    return lane.open(seen, SIZES, 1, address_of(board_memory), 0, False, board_memory)


@pytest.mark.parametrize(("columns", "versions"), [([BELLS], [0]), ([0], [0, 0])])
def test_a_desk_wants_a_bell_per_worker_and_a_version_per_slice(
    desk, board_memory, columns, versions
):
    with pytest.raises(MXNetError, match="expected a bell per worker and a version per slice"):
        desk.open(SIZES, address_of(board_memory), columns, versions)


def test_a_board_that_is_closed_is_none(desk, board_memory):
    number = desk.open(SIZES, address_of(board_memory), [0], [0])
    desk.close(number)
    with pytest.raises(MXNetError, match=f"expected an open board, got {number}"):
        desk.publish(number, 0, 1, True)


def test_a_desk_sums_floats_only(desk, board_memory):
    number = desk.open(SIZES, address_of(board_memory), [0], [0])
    with pytest.raises(MXNetError, match="expected float32 or float64, got int32"):
        desk.arm(number, 0, code(np.dtype(np.int32)))


def test_a_lane_opens_columns_that_are_there(lane, desk_memory, board_memory):
    seen = lane.add_desk(address_of(desk_memory), 0, -1, desk_memory)
    with pytest.raises(MXNetError, match="expected a column of the board, got 1"):
        lane.open(seen, SIZES, 1, address_of(board_memory), 1, False, board_memory)


def test_a_closed_lane_takes_no_desk(lane, desk_memory):
    lane.close()
    with pytest.raises(MXNetError, match="expected an open lane, got a closed one"):
        lane.add_desk(address_of(desk_memory), 0, -1, desk_memory)


@pytest.mark.parametrize(
    ("stop", "size", "targets", "text"),
    [
        ((0, 0, 0), 4, 0, "expected targets for each gradient"),
        ((0, 1, 0), 4, 1, "expected targets for each stop"),
        ((0, 0, 0), 3, 1, "expected 16 bytes, got 12"),
        ((0, 0, 4), 4, 1, "expected 20 bytes, got 16"),
    ],
)
def test_an_exchange_fits_its_arrays(lane, board, stop, size, targets, text):
    array = mx.nd.zeros((size,))
    route = _rt.core.LaneRoute([(board, *stop)])
    with pytest.raises(MXNetError, match=text):
        lane.exchange(route, [array], [[array]] * targets, [], "push", 0, True, False, ())
