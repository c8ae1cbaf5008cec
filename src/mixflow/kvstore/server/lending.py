"""The server's side of a lease: a lone worker holds the state of its job and updates it itself.

The hazard: two that believe to hold the state. It is lent to a worker that is the only member,
under a name that each of its lives makes anew; a deposit under another name is refused, so that a
process that was taken for dead overwrites nothing. Whoever else wants something of the state waits
until the holder has given it back; it hears of that with its next deposit. That the state is lent
is committed with the roster: a restarted server knows it.

What is durable is the last deposit. A holder that dies goes on from there, as from any other step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import MixflowError
from ..protocol.messages import (
    Array,
    Ask,
    Deposit,
    Done,
    FetchStates,
    Init,
    Join,
    Kept,
    Lend,
    Message,
    Pull,
    Push,
    PutStates,
    split_name,
)
from .books import Books
from .reads import Wait
from .slots import Reader

#: What others can't do while the state is lent.
WAITING = (Ask, FetchStates, Init, Join, Pull, Push, PutStates)


@dataclass(slots=True)
class Waiting(Reader):
    """A message of somebody else that waits for the state."""

    message: Message | None = None


class Lending:
    """Who holds the shard's state, if anybody does, and who waits for it.

    Args:
        books: what the shard's roles share.
    """

    def __init__(self, books: Books) -> None:
        self._books = books
        self._worker, self._sender, self._lease = -1, "", ""
        self._waiting: list[Reader] = []

    @property
    def lent(self) -> bool:
        """Whether a worker holds the state."""
        return bool(self._lease)

    def to_json(self) -> dict[str, Any]:
        """Its part of the roster."""
        return {"lease": [self._worker, self._sender, self._lease]}

    def restore(self, roster: Mapping[str, Any]) -> None:
        """Takes back what `to_json` gave."""
        self._worker, self._sender, self._lease = roster.get("lease", (-1, "", ""))

    def lend(self, message: Lend) -> None:
        """Lends the state to a worker that is alone.

        Raises:
            MixflowError: it is not, or others wait for something of the state.
        """
        books = self._books
        busy = any(slot.readers or slot.progress.rounds for slot in books.slots.values())
        if set(books.members) != {message.worker} or busy:
            raise MixflowError(
                f"[kvstore server {books.name}] expected worker {message.worker} to be alone, got "
                f"members {sorted(books.members)}"
            )
        self._set(message.worker, message.sender, message.lease)
        books.send(message.sender, Done(books.name, message.number))

    def _set(self, worker: int, sender: str, lease: str) -> None:
        if (worker, sender, lease) != (self._worker, self._sender, self._lease):
            self._worker, self._sender, self._lease = worker, sender, lease
            self._books.commit_roster()

    def deposit(self, message: Deposit) -> None:
        """Takes the holder's state; an old copy, or the same again, changes nothing.

        Raises:
            MixflowError: the state is not lent under this name (any more), or does not fit.
        """
        books = self._books
        if message.lease == self._lease:
            self._take(message)
            if message.last:
                self._set(-1, "", "")
        elif not (message.last and not self._lease):  # else a copy of what has ended the lease
            raise MixflowError(
                f"[kvstore server {books.name}] expected the deposit of a lease that is held, got "
                f"one of worker {message.worker} that has ended: another process of it took over"
            )
        recalled = bool(self._waiting)
        books.send(message.sender, Kept(books.name, message.number, recalled))

    def _take(self, message: Deposit) -> None:
        books = self._books
        grouped: dict[str, dict[str, Array]] = {}
        for text, array in message.values.items():
            key, name = split_name(text)
            grouped.setdefault(key, {})[name] = array
        for key, arrays in grouped.items():  # all is checked before anything changes
            size = books.slot(key).value.size
            if "" not in arrays or arrays[""].size != size:
                raise MixflowError(
                    f"[kvstore server {books.name}] expected {size} values for key '{key}', got "
                    f"{arrays[''].size if '' in arrays else 'none'}"
                )
        for key, arrays in grouped.items():
            slot = books.slots[key]
            if slot.policy.advance(slot.progress, message.worker, message.step, books.members):
                books.writable(slot, keep=False)[...] = arrays.pop("")
                states = {name: np.array(state, copy=True) for name, state in arrays.items()}
                slot.applier.restore(key, states)
                books.commit(key, slot)
        if grouped:
            books.capture.passed(message.step)

    def holds_back(self, message: Message, now: float) -> bool:
        """Whether a message has to wait until the state is given back. The holder itself asks only
        in a new life: the old one's lease is over then."""
        if not self.lent or not isinstance(message, WAITING):
            return False
        if message.sender == self._sender:
            if isinstance(message, (Ask, Join)):
                self._set(-1, "", "")
            return False
        known = any((w.sender, w.number) == (message.sender, message.number) for w in self._waiting)
        if not known:
            worker = getattr(message, "worker", -1)
            self._waiting.append(
                Waiting(message.sender, message.number, worker, 0, now, message=message)
            )
        return True

    def freed(self) -> list[Message]:
        """What has waited, once the state is back or its holder takes no part any more."""
        if self.lent and self._worker not in self._books.members:
            self._set(-1, "", "")
        if self.lent or not self._waiting:
            return []
        found = [w.message for w in self._waiting if isinstance(w, Waiting) and w.message]
        self._waiting.clear()
        return found

    def waits(self) -> Iterable[Wait]:
        """Those that wait for the state."""
        yield "the state that a worker holds", self._waiting, lambda _: frozenset({self._worker})
