"""What a shard is made of: its slices, its optimizer, and where their state is kept.

The hazard: state that is confirmed but not kept. `Ledger.commit` is the one place at which a
slice's value, the optimizer's states and the progress become durable, all or none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .lateness import Lateness
from .merging import Sum
from .messages import Array
from .policy import Policy, Progress


class Applier(Protocol):
    """Turns a merged gradient into a new value. Owned by one shard."""

    @property
    def replaces(self) -> bool:
        """Whether a merged gradient is the new value, whatever the old one was."""

    def apply(self, key: str, value: Array, merged: Any, count: int) -> None:
        """Updates `value` (flat, in place) with `merged` (same shape, or `RowGradient`), a sum of
        `count` parts."""

    def configure(self, setting: str, value: dict[str, Any]) -> None:
        """Takes a setting of `Configure`.

        Raises:
            MixflowError: unknown setting or bad value.
        """

    def states(self, key: str) -> dict[str, Array]:
        """What it keeps for a slice (momentum and the like) by name; its own arrays."""

    def restore(self, key: str, states: dict[str, Array]) -> None:
        """Takes back what `states` gave; it may keep the arrays."""


class Ledger(Protocol):
    """Keeps a shard's committed state; `Memory` forgets it with the process."""

    #: Whether anything is kept: else a shard need not collect the states of its optimizer.
    durable: bool

    def commit(self, key: str, value: Array, states: dict[str, Array], progress: Progress) -> None:
        """Makes value, optimizer states and progress of a slice the durable ones, all or none."""

    def place(self, key: str) -> Any:
        """Where values of a slice without states may be committed from now on by who knows the
        form (`ledger.SliceFile.place`), until the next `commit`; None where that can't be."""

    def commit_roster(self, roster: dict[str, Any]) -> None:
        """Makes the membership and the settings the durable ones (plain JSON values)."""

    def slices(self) -> Iterable[tuple[str, Array, dict[str, Array], Progress]]:
        """What `commit` has kept: key, value, states, progress."""

    def roster(self) -> dict[str, Any] | None:
        """What `commit_roster` has kept, or None."""


class Memory:
    """A ledger in this process's memory; it outlives a shard only in the simulator.

    `keep=False` keeps nothing: the shard's own arrays are then all there is.
    """

    def __init__(self, keep: bool = False) -> None:
        self.durable = keep
        self._slices: dict[str, tuple[Array, dict[str, Array], dict[str, Any]]] = {}
        self._roster: dict[str, Any] | None = None

    def commit(self, key: str, value: Array, states: dict[str, Array], progress: Progress) -> None:
        """Copies the slice's state."""
        if self.durable:
            copied = {name: state.copy() for name, state in states.items()}
            self._slices[key] = (value.copy(), copied, progress.to_json())

    def place(self, key: str) -> Any:
        """Nowhere."""
        return None

    def commit_roster(self, roster: dict[str, Any]) -> None:
        """Keeps the roster."""
        if self.durable:
            self._roster = copy.deepcopy(roster)

    def slices(self) -> Iterable[tuple[str, Array, dict[str, Array], Progress]]:
        """Copies of what was committed."""
        for key, (value, states, progress) in self._slices.items():
            kept = {name: state.copy() for name, state in states.items()}
            yield key, value.copy(), kept, Progress.from_json(progress)

    def roster(self) -> dict[str, Any] | None:
        """What was committed, or None."""
        return copy.deepcopy(self._roster)


@dataclass(slots=True)
class Reader:
    """A read that waits: who asked, under which number, at which clock, since when, for which
    rows (None: all). Until `until` it waits for the version `after`, if it could read before."""

    sender: str
    number: int
    worker: int
    clock: int
    since: float
    rows: Array | None = None
    after: int = 0
    until: float = 0.0


@dataclass(slots=True)
class Slot:
    """A slice: value, its rule, progress, the sums of open rounds, and who waits for what."""

    value: Array
    policy: Policy
    applier: Applier
    progress: Progress = field(default_factory=Progress)
    sums: dict[int, Sum] = field(default_factory=dict)
    pushes: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    lateness: Lateness = field(default_factory=Lateness)


def add_reader(readers: list[Reader], reader: Reader) -> bool:
    """Adds a reader. A copy of its request changes nothing, its waiting time included."""
    new = all((r.sender, r.number) != (reader.sender, reader.number) for r in readers)
    if new:
        readers.append(reader)
    return new
