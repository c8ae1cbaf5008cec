"""A server's desk: the memory of its boards, and who sees it. `lane` is the workers' side.

The hazard: memory that is given to somebody else while a worker still writes into it. A board lies
in a block of the server's on which every worker has a lease, as long as it has the board; so its
memory is used again only when all of them have let go, or are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ... import _rt
from ...dtype import code
from ..protocol.foreseen import Foreseen
from ..protocol.messages import Array, Opened
from ..server.lanes import Opened as Board
from .local import Channel
from .segments import BIG_BYTES, Blocks

#: Workers that a desk has bells for: those with a rank below.
BELLS = 255
#: One line of 64 bytes for the server and each bell.
DESK_BYTES = 64 * (BELLS + 1)


def available() -> bool:
    """Whether the core knows boards."""
    return hasattr(_rt.core, "ServerDesk")


def address_of(array: Array) -> int:
    """Where an array's bytes begin."""
    return int(array.__array_interface__["data"][0])


class ServerBoards:
    """The desk of a server (see `lanes.Desk`).

    Args:
        name: of the server.
        blocks: its shared memory.
        channel_of: the channel of a sender, or None.
    """

    def __init__(
        self, name: str, blocks: Blocks, channel_of: Callable[[str], Channel | None]
    ) -> None:
        self._name, self._blocks, self._channel_of = name, blocks, channel_of
        self._memory = blocks.empty(DESK_BYTES, np.uint8)
        self._memory[...] = 0
        self._core = cast(_rt.NativeCore, _rt.core)
        self._native = self._core.ServerDesk(address_of(self._memory), BELLS)
        self._boards: dict[int, Array] = {}

    @property
    def rounds(self) -> int:
        """Rounds that were closed natively."""
        return int(self._native.rounds)

    @property
    def nbytes(self) -> int:
        """Bytes of gradients that have come by boards, and of values that were read there."""
        return int(self._native.bytes)

    def serve(
        self, others: list[int], channels: list[int], milliseconds: int
    ) -> list[tuple[int, int]]:
        """Closes rounds until a descriptor has something to say, a round is to be closed by the
        caller (it is among the result), or the time is over."""
        found: list[tuple[int, int]] = self._native.serve(others, channels, milliseconds)
        return found

    def reaches(self, senders: Mapping[int, str]) -> bool:
        """See `lanes.Desk`."""
        return max(senders) < BELLS and all(map(self._channel_of, senders.values()))

    def home(self, value: Array) -> Array:
        """See `lanes.Desk`."""
        memory = self._blocks.empty(max(value.nbytes, BIG_BYTES), np.uint8)
        made = _view(memory, 0, value)
        made[...] = value
        return made

    def open(
        self,
        values: Mapping[str, Array],
        versions: Mapping[str, int],
        senders: Mapping[int, str],
        bounds: Sequence[int | None] | None = None,
    ) -> Board | None:
        """See `lanes.Desk`."""
        channels = [self._channel_of(sender) for sender in senders.values()]
        names, workers = tuple(values), tuple(senders)
        sizes = [value.nbytes for value in values.values()]
        total, places, gradients = self._core.lane_layout(sizes, len(workers))
        memory = self._blocks.empty(max(total, BIG_BYTES), np.uint8)
        views = [
            _view(memory, at, value) for at, value in zip(places, values.values(), strict=True)
        ]
        for view, value in zip(views, values.values(), strict=True):
            view[...] = value
        first = [versions[name] for name in names]
        own = bounds is not None
        places_of = [address_of(value) for value in values.values()]
        homes = list(zip(places_of, bounds, strict=True)) if bounds is not None else []
        number = self._native.open(sizes, address_of(memory), list(workers), first, homes)
        made = Board(
            number,
            names,
            workers,
            tuple(senders.values()),
            views,
            [
                [_view(memory, at, value) for at in columns]
                for columns, value in zip(gradients, values.values(), strict=True)
            ],
            own,
        )
        self._boards[number] = memory
        arrays = {"board": memory, "desk": self._memory}
        dtypes = [value.dtype.str for value in values.values()]
        said = Opened(self._name, 0, names, sizes, dtypes, first, list(workers), arrays, own)
        if not all(channel is not None and channel.send([said]) for channel in channels):
            self.close(made)
            return None
        return made

    def close(self, board: Board) -> None:
        """See `lanes.Desk`."""
        self._native.close(board.number)
        del self._boards[board.number]

    def arm(self, board: Board, index: int, ledger: Sequence[Any], foreseen: Foreseen) -> None:
        """See `lanes.Desk`."""
        dtype = code(board.values[index].dtype)
        self._native.arm(board.number, index, dtype, ledger or None, _update(foreseen))

    def disarm(self, board: Board, index: int) -> None:
        """See `lanes.Desk`."""
        self._native.disarm(board.number, index)

    def publish(self, board: Board, index: int, version: int, durable: bool) -> None:
        """See `lanes.Desk`."""
        self._native.publish(board.number, index, version, durable)

    def set_floor(self, board: Board, index: int, steps: int) -> None:
        """See `lanes.Desk`."""
        self._native.set_floor(board.number, index, steps)

    def closed(self, board: Board, index: int) -> int:
        """See `lanes.Desk`."""
        version, durable = self._native.words(board.number, index)
        return int(durable if board.own else version)

    def ring(self) -> None:
        """See `lanes.Desk`."""
        self._native.ring()


def _update(foreseen: Foreseen) -> tuple[Any, ...] | None:
    """What the core takes for an update; None for a sum."""
    if foreseen.bound is None:
        return None
    assert foreseen.count is not None
    states = [foreseen.states[name] for name in sorted(foreseen.states)]
    return (
        foreseen.bound,
        foreseen.total,
        foreseen.numbers,
        [(address_of(state), state.nbytes) for state in states],
        address_of(foreseen.count),
        foreseen.rounds,
        states,
    )


def _view(memory: Array, at: int, like: Array) -> Array:
    """Part of a board as an array. Not one of the block's own: its readers hold no leases, and the
    board itself is always held."""
    return np.frombuffer(memory.data, like.dtype, like.size, at)
