"""What a pool asks of its executors, wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ... import errors
from ...errors import FileError, MixflowError
from ...extras import MissingExtraError

Array = np.ndarray[Any, Any]


class Result:
    """The arrays of a partition.

    Args:
        arrays: by name.
        give_back: called once, with whether the memory may be used again.

    Attributes:
        arrays: valid until `release`; one that is dropped without it keeps its memory while a view
            of it lives.
    """

    def __init__(
        self, arrays: dict[str, Array], give_back: Callable[[bool], None] | None = None
    ) -> None:
        self.arrays = arrays
        self._give_back = give_back

    def release(self) -> None:
        """Gives the memory back for another result. The arrays must not be used afterwards."""
        self._end(True)

    def __del__(self) -> None:
        self._end(False)

    def _end(self, again: bool) -> None:
        self.arrays = {}
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(again)


class Ready(NamedTuple):
    """An executor has started."""

    place: int
    life: int


class Done(NamedTuple):
    """An executor has computed a partition."""

    place: int
    life: int
    number: int
    result: Result


class Failed(NamedTuple):
    """A computation ended with an error: see `describe_error`."""

    place: int
    life: int
    number: int
    error: dict[str, Any]


class Lost(NamedTuple):
    """An executor has ended."""

    place: int
    life: int
    reason: str


Event = Ready | Done | Failed | Lost


class Executors(Protocol):
    """Executors at places 0, 1, ... All methods but `wake` belong to one thread."""

    def spawn(self, place: int, life: int) -> None:
        """Starts one; `Ready` or `Lost` follows.

        Raises:
            OSError: it cannot be started; nothing follows.
        """

    def compute(self, place: int, number: int, partition: str) -> None:
        """Has an idle one compute a partition (JSON); `Done`, `Failed` or `Lost` follows."""

    def stop(self, place: int) -> None:
        """Ends one at once, also one that hangs; `Lost` follows."""

    def wait(self, timeout: float | None) -> Sequence[Event]:
        """What happened; waits for it, for `wake`, or until the time is over."""

    def wake(self) -> None:
        """Ends a `wait`, from any thread."""

    def close(self) -> None:
        """Ends all of them."""


def describe_error(error: Exception) -> dict[str, Any]:
    """An error as plain values: 'names' of its classes, 'text', and 'final': whether it is of the
    data or of the description, so that it would come everywhere."""
    here = (FileError, MissingExtraError)
    return {
        "names": [c.__name__ for c in type(error).__mro__],
        "text": str(error)[:4000],
        "final": isinstance(error, MixflowError) and not isinstance(error, here),
    }


def rebuilt_error(names: Sequence[str], text: str) -> MixflowError:
    """An error of the nearest class of ours that has one of these names."""
    for name in names:
        found = getattr(errors, name, None)
        if isinstance(found, type) and issubclass(found, MixflowError):
            return found(text)
    return MixflowError(text)
