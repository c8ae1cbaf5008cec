"""Which slices a shard has and by which rules they are treated: directory, first values, settings,
the optimizer's states. All of it changes rarely, and each change is committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import MixflowError
from ..protocol.merging import copied
from ..protocol.messages import (
    Array,
    Ask,
    Configure,
    Done,
    FetchStates,
    Init,
    Place,
    Placed,
    PutStates,
    Report,
    States,
    join_name,
    split_name,
)
from ..protocol.program import is_awaited, numbered, repeats, same
from ..protocol.sharding import Directory
from .books import Books
from .reads import Reads
from .rules import Rules
from .slots import Slot

#: Settings that go with the optimizer that they were made for.
OF_OPTIMIZER = ("learning_rate", "multipliers", "rescale")


class Catalog:
    """A shard's slices and settings.

    Args:
        books: what the shard's roles share; slices are added here alone.
        reads: told of slices that are initialised.
        rules: policy and applier by slice.
        directory: of all keys of the job, at the first server only.
    """

    def __init__(
        self, books: Books, reads: Reads, rules: Rules, directory: Directory | None
    ) -> None:
        self._books = books
        self._reads = reads
        self._rules = rules
        self.directory = directory
        self._configured: dict[str, int] = {}
        self._settings: list[tuple[str, dict[str, Any]]] = []

    def restore(self, roster: Mapping[str, Any]) -> None:
        """Takes back what `to_json` gave, and the slices of the ledger."""
        self._configured = dict(roster["configured"])
        for setting, value in roster["settings"]:
            self._set(str(setting), value)
        if self.directory is not None:
            self.directory.restore(roster["directory"])

    def restore_slices(self) -> None:
        """Takes over the slices that the ledger holds."""
        books = self._books
        for key, value, states, progress in books.ledger.slices():
            slot = Slot(copied(books.arena, value), *self._rules.of(key), progress)
            books.slots[key] = slot
            slot.applier.restore(key, states)

    def to_json(self) -> dict[str, Any]:
        """Its part of the roster."""
        return {
            "configured": sorted(self._configured.items()),
            "settings": list(self._settings),
            "directory": self.directory.to_json() if self.directory else None,
        }

    def place(self, message: Place) -> None:
        """Tells where keys live; new ones get their places."""
        books = self._books
        if self.directory is None:
            raise MixflowError(
                f"[kvstore server {books.name}] expected 'Place' at the first server only, got one"
            )
        known = len(self.directory.entries)
        entries = self.directory.place(message.keys)
        if len(self.directory.entries) > known:
            books.commit_roster()
        found = {key: entry.to_json() for key, entry in entries.items()}
        books.send(message.sender, Placed(books.name, message.number, found))

    def init(self, message: Init) -> None:
        """Sets the first values of slices that have none."""
        books = self._books
        for key, value in message.values.items():
            if key not in books.slots:
                slot = Slot(copied(books.arena, value), *self._rules.of(key))
                self._reads.initialised(key, slot)
                books.slots[key] = slot
                books.commit(key, slot)
            elif books.slots[key].value.size != value.size:
                raise MixflowError(
                    f"[kvstore server {books.name}] expected {books.slots[key].value.size} values "
                    f"for key '{key}', got {value.size}: workers disagree on its shape"
                )
        books.send(message.sender, Done(books.name, message.number))

    def configure(self, message: Configure) -> None:
        """Takes a setting; one that comes after a later one of its sender changes nothing."""
        books = self._books
        if message.number > self._configured.get(message.sender, -1):
            self._set(message.setting, message.value)
            self._configured[message.sender] = message.number
            books.commit_roster()
        books.send(message.sender, Done(books.name, message.number))

    def _set(self, setting: str, value: dict[str, Any]) -> None:
        """Takes a setting; of several for the same thing the last one is kept.

        The same again changes nothing: a restarted worker sets the optimizer that is set, and must
        not lose its states (`program.repeats`). Only code that a snapshot did not have is taken.
        """
        known = dict(self._settings).get(setting)
        asked = repeats if setting == "optimizer" else same
        if known is not None and asked(known, value):
            if is_awaited(known) and not is_awaited(value) and same(known, value):
                self._rules.configure(setting, value)
                self._settings[self._settings.index((setting, known))] = (setting, value)
            return
        self._rules.configure(setting, value)
        if setting == "optimizer":
            value = numbered(known, value)
        replaced = {setting, *(OF_OPTIMIZER if setting == "optimizer" else ())}
        self._settings = [kept for kept in self._settings if kept[0] not in replaced]
        self._settings.append((setting, value))

    def ask(self, message: Ask, members: dict[str, Any]) -> None:
        """Reports how far every slice has come, and what is known of the members."""
        books, report = self._books, {}
        if not message.brief:
            report = {key: slot.progress.to_json() for key, slot in books.slots.items()}
        found = Report(books.name, message.number, report, books.incarnation, **members)
        books.send(message.sender, found)

    def states(self, key: str) -> dict[str, Array]:
        """Optimizer states of a slice, by name."""
        return self._books.slot(key).applier.states(key)

    def fetch_states(self, message: FetchStates) -> None:
        """Sends the optimizer's states of slices."""
        found = {
            join_name(key, name): state
            for key in message.slices
            for name, state in self.states(key).items()
        }
        self._books.send(message.sender, States(self._books.name, message.number, found))

    def put_states(self, message: PutStates) -> None:
        """Sets the optimizer's states of slices."""
        books = self._books
        grouped: dict[str, dict[str, Array]] = {}
        for text, state in message.values.items():
            key, name = split_name(text)
            books.slot(key)
            grouped.setdefault(key, {})[name] = np.array(state, copy=True)
        for key, states in grouped.items():
            books.slots[key].applier.restore(key, states)
            books.commit(key, books.slots[key])
        books.send(message.sender, Done(books.name, message.number))
