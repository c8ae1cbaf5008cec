"""Rounds that a server's desk closes without Python: a slice's update, made ready for some of them.

The hazard: two ways to update a slice that differ in the last bit, or in what they count. So what
runs is the operator that the optimizer's rule names, over the arrays that the updater has; and the
numbers of each round are what the optimizer says when it is asked ahead, after which its counts
stand where they stood (`FusedUpdate.foresee`). They move on when the rounds are known to be closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .messages import Array

#: Rounds that are foreseen at once where numbers change from round to round.
ROUNDS = 128


@dataclass(frozen=True)
class Foreseen:
    """What closes the next rounds of a slice; without `bound` their sum replaces the value.

    Attributes:
        bound: a plan over the value, `total` and the states, that changes them in place.
        total: where the sum goes: an array of the plan, as long as the value.
        numbers: of the plan, by round; the last ones stay.
        states: views of what the ledger has of the slice beside its value, by name.
        count: the one of them that counts updates: whoever closes a round adds 1.
        rounds: how many are foreseen; None: all.
    """

    bound: Any = None
    total: Any = None
    numbers: Sequence[Sequence[float]] = ()
    states: Mapping[str, Array] = field(default_factory=dict)
    count: Array | None = None
    rounds: int | None = None
