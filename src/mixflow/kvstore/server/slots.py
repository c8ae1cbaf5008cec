"""What a shard is made of: its slices, its optimizer, and where their state is kept.

The hazard: state that is confirmed but not kept. `Ledger.commit` is the one place at which a
slice's value, the optimizer's states and the progress become durable, all or none.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..protocol.foreseen import Foreseen
from ..protocol.merging import Sum
from ..protocol.messages import Array
from ..protocol.policy import Policy, Progress
from ..protocol.touched import Touched, patch
from .lateness import Lateness


class Applier(Protocol):
    """Turns a merged gradient into a new value. Owned by one shard."""

    @property
    def replaces(self) -> bool:
        """Whether a merged gradient is the new value, whatever the old one was."""

    def apply(self, key: str, value: Array, merged: Any, count: int) -> bool:
        """Updates `value` (flat, in place) with `merged` (same shape, or `RowGradient`), a sum of
        `count` parts. True: the rest of the value and of the states than the gradient's rows is as
        it was at the last `apply` (states that are not as long as the value aside)."""

    def configure(self, setting: str, value: dict[str, Any]) -> None:
        """Takes a setting of `Configure`.

        Raises:
            MixflowError: unknown setting or bad value.
        """

    def states(self, key: str, touched: Touched | None = None) -> dict[str, Array]:
        """What it keeps for a slice (momentum and the like) by name; its own arrays. Of states
        that are as long as the slice, only the rows that were touched, if given."""

    def restore(self, key: str, states: dict[str, Array]) -> None:
        """Takes back what `states` gave; it may keep the arrays."""

    def foresee(self, key: str, value: Array) -> Foreseen | None:
        """What closes the next rounds of dense gradients of a slice as `apply` would, until
        anything else is called for it; None where only `apply` can."""

    def followed(self, key: str, rounds: int) -> None:
        """So many rounds that were foreseen are closed."""


class Ledger(Protocol):
    """Keeps a shard's committed state; `Memory` forgets it with the process."""

    #: Whether anything is kept: else a shard need not collect the states of its optimizer.
    durable: bool

    def commit(self, key: str, value: Array, states: dict[str, Array], progress: Progress) -> None:
        """Makes value, optimizer states and progress of a slice the durable ones, all or none."""

    def commit_rows(
        self,
        key: str,
        touched: Touched,
        value: Array,
        states: dict[str, Array],
        progress: Progress,
    ) -> bool:
        """`commit` of which value and states are given as the rows that were touched since the
        last one (`Touched.of`), states of other sizes in full. False: it takes a `commit`."""

    def place(self, key: str, value: Array, states: Mapping[str, Array], workers: int = 0) -> Any:
        """Where such values and states may be committed from now on by who knows the form
        (`ledger.SliceFile.place`), until the next `commit`, with the steps of so many workers; None
        where that can't be."""

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

    def commit_rows(
        self,
        key: str,
        touched: Touched,
        value: Array,
        states: dict[str, Array],
        progress: Progress,
    ) -> bool:
        """Changes the rows of what is kept."""
        if not self.durable:
            return True
        if key not in self._slices:
            return False
        kept, kept_states, _ = self._slices[key]
        given = {"": value, **{f".{name}": state for name, state in states.items()}}
        places = {"": kept, **{f".{name}": state for name, state in kept_states.items()}}
        if not patch(places, touched, given, kept.size):
            return False
        self._slices[key] = (kept, kept_states, progress.to_json())
        return True

    def place(self, key: str, value: Array, states: Mapping[str, Array], workers: int = 0) -> Any:
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


class Readers:
    """Reads that wait. They are found by the clock that they wait for: of a thousand workers at one
    clock, a push that opens nothing must not walk over all."""

    def __init__(self) -> None:
        self._at: dict[int, dict[tuple[str, int], Reader]] = {}
        self._clocks: dict[tuple[str, int], int] = {}

    def add(self, reader: Reader) -> bool:
        """Adds a reader; False for a copy of its request, which changes nothing, its waiting time
        included."""
        request = (reader.sender, reader.number)
        if request in self._clocks:
            return False
        self._clocks[request] = reader.clock
        self._at.setdefault(reader.clock, {})[request] = reader
        return True

    def remove(self, reader: Reader) -> None:
        """Takes a reader out."""
        clock = self._clocks.pop((reader.sender, reader.number))
        del self._at[clock][reader.sender, reader.number]
        if not self._at[clock]:
            del self._at[clock]

    def clocks(self) -> list[int]:
        """The clocks that are waited for."""
        return list(self._at)

    def at(self, clock: int) -> list[Reader]:
        """Who waits for a clock, in the order of their coming."""
        return list(self._at[clock].values())

    def __iter__(self) -> Iterator[Reader]:
        """All of them."""
        return itertools.chain.from_iterable(waiting.values() for waiting in self._at.values())

    def __len__(self) -> int:
        """How many wait."""
        return len(self._clocks)


@dataclass(slots=True)
class Slot:
    """A slice: value, its rule, progress, the sums of open rounds, and who waits for what."""

    value: Array
    policy: Policy
    applier: Applier
    progress: Progress = field(default_factory=Progress)
    sums: dict[int, Sum] = field(default_factory=dict)
    pushes: dict[int, dict[tuple[str, int], None]] = field(default_factory=dict)
    readers: Readers = field(default_factory=Readers)
    lateness: Lateness = field(default_factory=Lateness)
    #: Why no more rounds are closed: an update has failed, and may have been made in part.
    failed: str = ""
