"""Telling a job's servers that nothing more is expected of workers that are lost for good.

The hazard: a coordinator that waits for a server's answer can't start that server again when it
dies, and nobody else would. So it asks and goes on; what is under way follows the servers to their
new addresses.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from ..options import StoreOptions
from ..protocol.client import EPOCHS, Client
from ..transport.link import Call, Link

#: Where all servers are, or None while some are not there.
Addresses = Callable[[], Mapping[str, str] | None]


class Removals:
    """Workers to be taken out of all servers' rounds. For the coordinator's thread alone.

    Args:
        options: of the job's store.
        token: of the job.
        addresses: see `Addresses`.
    """

    def __init__(self, options: StoreOptions, token: str, addresses: Addresses) -> None:
        self._options, self._token, self._addresses = options, token, addresses
        self._wanted: dict[int, int] = {}
        self._under_way: dict[int, tuple[Link, Call]] = {}

    def add(self, rank: int, life: int) -> None:
        """Takes a worker out whose last life had this number."""
        self._wanted[rank] = EPOCHS * life + EPOCHS - 1

    def tick(self) -> list[int]:
        """Begins what can begin; the ranks that are out now.

        Raises:
            MixflowError: a server has not answered within twice the deadline.
        """
        known = self._addresses() if self._wanted else None
        if known:
            for rank, epoch in self._wanted.items():
                self._under_way[rank] = self._begin(rank, epoch, known)
            self._wanted.clear()
        done = [rank for rank, (_, call) in self._under_way.items() if call.done]
        for rank in done:
            link, call = self._under_way.pop(rank)
            link.close()
            call.wait(0.0)  # raises its error
        return done

    def _begin(self, rank: int, epoch: int, known: Mapping[str, str]) -> tuple[Link, Call]:
        client = Client(
            f"launcher{uuid.uuid4().hex}",
            rank,
            lambda key: "",
            self._options.policy,
            repeat=self._options.repeat,
            deadline=2 * self._options.deadline,
        )
        link = Link(client, known, find=self._find, token=self._token)
        return link, link.call("leave", lambda c, now: c.leave(known, epoch, now))

    def _find(self) -> Mapping[str, str]:
        return self._addresses() or {}

    def close(self) -> None:
        """Gives up what is under way. Safe to call twice."""
        for link, _ in self._under_way.values():
            link.close()
        self._under_way.clear()
        self._wanted.clear()
