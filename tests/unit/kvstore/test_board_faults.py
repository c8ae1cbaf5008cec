"""Faults that are put into boards on purpose: the schedules of `test_boards.py` find each."""

import pytest
from boards_support import PlacedMemory, TwinDesk, TwinLane, Words
from boards_world import Own, Torn, TornOwn, World, assert_all_counted_once

from mixflow import _rt
from mixflow.kvstore.server.appliers import Optimizing
from mixflow.kvstore.server.lanes import Lanes
from mixflow.kvstore.transport.lane import Lane

pytestmark = pytest.mark.skipif(
    not hasattr(_rt.core, "ServerDesk"), reason="the plain core has no boards"
)
#: Schedules within which each is found; all of them together take the time of a few.
SEEDS = 60


def one_is_enough(patch):
    """A round is closed before all workers have put their gradients."""
    patch.setattr(Words, "complete", lambda w, i: max(w.staged[i]) > w.version[i])


def shown_half_written(patch):
    """The version is stored when only part of the value is."""
    made = TwinDesk._round

    def turned(desk, *args):
        stores = made(desk, *args)
        show = next(store for store in stores if store.__name__ == "show")
        stores.remove(show)
        return [stores[0], show, *stores[1:]]

    patch.setattr(TwinDesk, "_round", turned)


def confirmed_before_kept(patch):
    """`durable` is stored before the ledger has the round."""
    made = TwinDesk._round

    def turned(desk, *args):
        stores = made(desk, *args)
        commit = next(store for store in stores if store.__name__ == "commit")
        stores.remove(commit)
        return [*stores, commit]

    patch.setattr(TwinDesk, "_round", turned)


def asleep_at_once(patch):
    """The server does not look again after it has said that it sleeps."""
    patch.setattr(TwinDesk, "looks_again", lambda desk: False)


def nobody_rings(patch):
    """The last worker of a round does not wake the server."""
    patch.setattr(TwinLane, "_ring", lambda lane, exchange, boards: setattr(exchange, "rung", True))


def kept_without_a_count(patch):
    """The ledger has a round's value, but not that the round was closed: it is made once more after
    a restart."""
    made = PlacedMemory.add_rounds
    patch.setattr(
        PlacedMemory,
        "add_rounds",
        lambda ledger, key, value, states, rounds, *counts: made(
            ledger, key, value, states, rounds - 1, *counts
        ),
    )


def states_not_kept(patch):
    """The ledger has a round's value, but the states of the one before."""
    made = PlacedMemory.add_rounds

    def forgetful(ledger, key, value, states, *counts):
        made(ledger, key, value, ledger._slices[key][1], *counts)

    patch.setattr(PlacedMemory, "add_rounds", forgetful)


def texts_stay_behind(patch):
    """What the desk has closed is not written anew before it closes more: the ledger then tells of
    the rounds since, and not of those before."""

    def arm(lanes, name):
        lanes._told.add(name)
        made(lanes, name)

    made = Lanes._arm
    patch.setattr(Lanes, "_arm", arm)


def shown_is_taken_for_kept(patch):
    """A worker whose board has ended sends what was not shown again, not what was not durable."""
    made = TwinLane.words
    patch.setattr(
        TwinLane, "words", lambda lane, board: [(s, v, v) for s, _, v in made(lane, board)]
    )


def a_board_outlives_a_push(patch):
    """A worker pushes by message and does not end its own use of the board."""
    patch.setattr(Lane, "retire", lambda lane, slices: None)


def ended_before_followed(patch):
    """A board is closed before its last rounds are counted."""
    patch.setattr(Lanes, "_follow", lambda lanes: None)


def updates_not_counted(patch):
    """Rounds of the desk are none of the optimizer's."""
    patch.setattr(Optimizing, "followed", lambda applier, key, rounds: None)


def foreseen_for_ever(patch):
    """The numbers of the last round that was foreseen are used on and on."""
    patch.setattr("boards_world.AHEAD", (2,))
    patch.setattr("boards_support.Armed.takes", lambda armed: True)


def nobody_asks(patch):
    """What only reads takes the value of its worker's last step."""
    made = TwinLane._ask

    def ask(lane, exchange, boards):
        asked = [board.words.asked[index] for board, index in boards]
        ended = made(lane, exchange, boards)
        for (board, index), before in zip(boards, asked, strict=True):
            board.words.asked[index] = before
        return ended

    patch.setattr(TwinLane, "_ask", ask)


def clocks_not_kept(patch):
    """The ledger has the number of updates, and not whose they were."""
    made = PlacedMemory.add_rounds
    patch.setattr(
        PlacedMemory,
        "add_rounds",
        lambda ledger, key, value, states, rounds, parts, steps: made(
            ledger, key, value, states, rounds, parts, {}
        ),
    )


def shown_too_far_ahead(patch):
    """A worker gets a value before the slowest one is within the staleness."""
    made = TwinDesk._track
    patch.setattr(TwinDesk, "_track", lambda desk, home, bound: made(desk, home, None))


def those_by_messages_are_forgotten(patch):
    """The slowest worker that has no board is not waited for."""
    patch.setattr(Lanes, "_set_floor", lambda lanes, key: None)


FAULTS = [
    one_is_enough,
    shown_half_written,
    confirmed_before_kept,
    asleep_at_once,
    nobody_rings,
    kept_without_a_count,
    states_not_kept,
    texts_stay_behind,
    shown_is_taken_for_kept,
    a_board_outlives_a_push,
    ended_before_followed,
    updates_not_counted,
    foreseen_for_ever,
    nobody_asks,
    clocks_not_kept,
    shown_too_far_ahead,
    those_by_messages_are_forgotten,
]


def found(kind, seed):
    """Whether a schedule fails."""
    try:
        world = kind(seed)
        world.run(turns=20_000)
        assert_all_counted_once(world)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_schedules_find_a_fault(fault, monkeypatch):
    assert not found(World, 0)
    fault(monkeypatch)
    kinds = (World, Torn, Own, TornOwn)
    assert any(found(kind, seed) for seed in range(SEEDS) for kind in kinds)
