"""What workers and servers say to each other.

Every request has a number that is unique within its sender; its answers carry the same number. A
request may arrive twice, late or not at all: handling one again must change nothing, and the
sender repeats it until it is answered. Arrays are flat NumPy arrays; `wire.py` gives the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .policy import Part

Array = np.ndarray[Any, Any]
#: Bytes per second of a link that is slow but works: what is repeated is given the time to arrive.
SLOW_LINK = 10e6


@dataclass(slots=True)
class Message:
    """Base: who sent it, and the number of the request that it is or answers."""

    sender: str
    number: int


#: Messages to be sent, each with the name of whom it is for.
Outgoing = list[tuple[str, Message]]


@dataclass(slots=True)
class Place(Message):
    """Asks the first server where keys live: by key, elements, dtype and bytes per element, and
    maybe elements per row, where slices have to begin at rows. Answered by `Placed`."""

    keys: dict[str, tuple[int | str, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Placed(Message):
    """Entries of the directory by key, as `sharding.Entry.to_json` writes them."""

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class Init(Message):
    """Sets the first value of slices; the first `Init` of a slice counts, later ones change
    nothing. Answered by `Done`."""

    values: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class Gradient:
    """One slice of a push: its parts, its values (or their code), and the code's name: '' for
    plain values, else see `compression.decode`."""

    parts: tuple[Part, ...]
    values: Array
    code: str = ""


@dataclass(slots=True)
class Push(Message):
    """Gradients by slice. Answered by `Received`, then by `Applied` when they are durable, or by
    `Refused`. With `pull`, the new values follow as `Values` when the policy allows a read."""

    gradients: dict[str, Gradient] = field(default_factory=dict)
    pull: bool = False
    priority: int = 0
    #: To a merger only: where each slice lives.
    homes: dict[str, str] = field(default_factory=dict)
    #: Whether the sender would go on by a board (see `lanes`).
    lane: bool = False


@dataclass(slots=True)
class Query(Message):
    """Asks what became of the push of this number: by slice, the parts that it held. Answered like
    the push, or by `Unknown`. So a repeated push costs no values once it has been `Received`."""

    parts: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    pull: bool = False


@dataclass(slots=True)
class Pull(Message):
    """Asks for slices at the worker's clocks. Answered by one or more `Values`; a slice that is
    not initialised yet is waited for. `rows` asks for rows of a slice only: int64, the values per
    row, then rising row numbers of the slice; the answer holds their values one after the other."""

    worker: int = 0
    clocks: dict[str, int] = field(default_factory=dict)
    priority: int = 0
    homes: dict[str, str] = field(default_factory=dict)
    rows: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class Join(Message):
    """A worker takes part from step `first` on (at every slice). `epoch` counts the changes of
    the worker's membership; older ones are ignored. Answered by `Done`."""

    worker: int = 0
    first: int = 0
    epoch: int = 0


@dataclass(slots=True)
class Leave(Message):
    """Nothing more is expected of a worker: it was lost, or all that it pushed is applied and it
    ends. Answered by `Done`."""

    worker: int = 0
    epoch: int = 0


@dataclass(slots=True)
class Enter(Message):
    """A worker is at its barrier number `count` of this life: the `turn`-th one after it has pushed
    `step` steps, earlier lives included. Answered by `Done` when all live workers are."""

    worker: int = 0
    count: int = 0
    step: int = 0
    turn: int = 1


@dataclass(slots=True)
class Configure(Message):
    """Sets the optimizer (its registered name and typed parameters), multipliers, learning rate
    or compression on a server: `setting` names which. Answered by `Done`."""

    setting: str = ""
    value: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Ask(Message):
    """Asks for a server's `Report`: what it has of each worker and slice. In `brief`, only how
    often its members have changed."""

    brief: bool = False


@dataclass(slots=True)
class FetchStates(Message):
    """Asks for the optimizer's states of slices. Answered by `States`."""

    slices: tuple[str, ...] = ()


@dataclass(slots=True)
class PutStates(Message):
    """Sets the optimizer's states of slices; names as in `States`. Answered by `Done`."""

    values: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class Lend(Message):
    """A worker that is alone asks to hold the state and to update it itself, under a name for this
    lease. Answered by `Done`, or by `Failed` where it is not alone."""

    worker: int = 0
    lease: str = ""


@dataclass(slots=True)
class Deposit(Message):
    """The state that a lone worker holds, as it is after `step` of its steps: values under
    `join_name(slice, '')`, optimizer states under their names; empty: it is as it was. `last`: the
    lease ends. Answered by `Kept`."""

    worker: int = 0
    lease: str = ""
    step: int = 0
    last: bool = False
    values: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class Kept(Message):
    """The deposit is durable; `recalled`: somebody waits for the state, the lease must end."""

    recalled: bool = False


@dataclass(slots=True)
class Received(Message):
    """The push arrived; its gradients need not be sent again unless the server restarts."""

    incarnation: int = 0


@dataclass(slots=True)
class Applied(Message):
    """These slices of the push are applied and durable (or came too late and were dropped)."""

    slices: tuple[str, ...] = ()
    incarnation: int = 0


@dataclass(slots=True)
class Refused(Message):
    """A merged gradient overlaps what was taken: `seen` lists, by slice, the parts that the
    server has. The sender sends the others by themselves."""

    seen: dict[str, tuple[Part, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Unknown(Message):
    """The server does not have the push of these slices: it must be sent again."""

    slices: tuple[str, ...] = ()
    incarnation: int = 0


@dataclass(slots=True)
class States(Message):
    """An optimizer's states; each stands under `join_name(slice, name)`."""

    values: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class Values(Message):
    """Values of slices with their versions."""

    values: dict[str, Array] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    incarnation: int = 0


@dataclass(slots=True)
class Done(Message):
    """A request without a result was carried out (or had been before)."""


@dataclass(slots=True)
class Report(Message):
    """A server's state in figures: versions, clocks by worker, applied and dropped parts; its
    members with their first steps; and of those that were, the first step and by slice the step up
    to which their parts count. `changes` counts all that is said of members."""

    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    incarnation: int = 0
    changes: int = 0
    members: list[tuple[int, int]] = field(default_factory=list)
    tenures: list[tuple[int, int, dict[str, int]]] = field(default_factory=list)


@dataclass(slots=True)
class Failed(Message):
    """The request can't be served: an error text, and the workers that are missing, if any."""

    text: str = ""
    missing: tuple[int, ...] = ()


@dataclass(slots=True)
class Replicate(Message):
    """A shard's committed record for the shard that stands by for it; the number orders a
    process's records. `key` '' is the roster. Answered by `Replicated`.

    With `base` it is a difference to the record of that number: arrays are given in full or as the
    rows in `rows`, int64: the values per row, then rising row numbers."""

    key: str = ""
    incarnation: int = 0
    record: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    rows: dict[str, Array] = field(default_factory=dict)
    base: int = 0


@dataclass(slots=True)
class Replicated(Message):
    """The record of this key and number, or a later one, is kept here too. Number 0: a difference
    came to a record that is not here; the whole is needed."""

    key: str = ""
    incarnation: int = 0


@dataclass(slots=True)
class Fetch(Message):
    """A shard that starts in the place of a lost one asks for its records: without a key, which
    there are. From then on records of older incarnations are refused. Answered by `Fetched`."""

    incarnation: int = 0
    key: str | None = None


@dataclass(slots=True)
class Fetched(Message):
    """One record, or (`key` None) the keys of all."""

    key: str | None = None
    keys: tuple[str, ...] = ()
    record: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class Opened(Message):
    """A board (see `lanes`), to each of its workers on this host: slices with bytes, dtypes and
    versions, workers in the order of its columns; `values` holds the memory of the 'board' and of
    the server's 'desk'. `own`: its worker's own, whose steps are its versions. Not answered: a
    worker that can't use it goes on by messages."""

    slices: tuple[str, ...] = ()
    sizes: list[int] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    values: dict[str, Array] = field(default_factory=dict)
    own: bool = False


def arrival(query: Query, sender: str, unknown: list[str], incarnation: int) -> Message:
    """The answer to a `Query`, of which some slices are not known."""
    if unknown:
        return Unknown(sender, query.number, tuple(unknown), incarnation)
    return Received(sender, query.number, incarnation)


def join_name(key: str, name: str) -> str:
    """One text for a slice and the name of a state of it."""
    return f"{key}|{name}"


def split_name(text: str) -> tuple[str, str]:
    """What `join_name` has joined."""
    key, _, name = text.rpartition("|")
    return key, name
