"""What a partition is: samples by source, range and seed, as plain values.

A partition holds no data and no code, so that it can be sent anywhere, computed twice, and computed
again when its first computer is lost (Zaharia et al., "Resilient Distributed Datasets", NSDI 2012).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...arguments import check_fields, whole
from ...arguments import seed as any_seed
from ...errors import FormatError, ParamError

_POSITION = whole(0)


@dataclass(frozen=True)
class Partition:
    """A run of samples of an endless sequence of epochs.

    Position p of the sequence is sample p % n of epoch p // n in that epoch's order, n being the
    samples of the source.

    Attributes:
        source: description of the data and of what is done to them; see `KINDS`.
        first, end: positions; 0 <= first < end.
        seed: of the order and of all draws.

    Raises:
        ParamError: an empty range, no numbers, or values that JSON does not have.
    """

    source: Mapping[str, Any]
    first: int
    end: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields("Partition", self, first=_POSITION, end=_POSITION, seed=any_seed)
        if self.first >= self.end:
            raise ParamError(
                f"[Partition] expected 0 <= first < end, got {self.first} and {self.end}"
            )
        self.to_json()

    def __len__(self) -> int:
        """Samples."""
        return self.end - self.first

    def __str__(self) -> str:
        return f"the partition of positions {self.first} to {self.end}"

    def to_json(self) -> str:
        """The partition as text."""
        values = {
            "source": canonical(self.source),
            "first": self.first,
            "end": self.end,
            "seed": self.seed,
        }
        return json.dumps(values, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Partition:
        """The partition that `to_json` wrote.

        Raises:
            FormatError: anything else.
        """
        try:
            found = json.loads(text)
            source, numbers = found["source"], [found[k] for k in ("first", "end", "seed")]
            if not isinstance(source, dict) or not all(type(n) is int for n in numbers):
                raise TypeError("wrong types")
            return Partition(source, *numbers)
        except (ValueError, KeyError, TypeError):
            raise FormatError(
                f"[Partition] expected a partition as JSON, got {text[:200]!r}"
            ) from None


def canonical(source: Mapping[str, Any]) -> dict[str, Any]:
    """A source's description as JSON has it: equal ones become equal texts.

    Raises:
        ParamError: a value that JSON does not have.
    """
    try:
        made: dict[str, Any] = json.loads(json.dumps(dict(source), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ParamError(
            f"[Partition] expected a source of plain values (numbers, texts, lists), got {error}"
        ) from None
    return made
