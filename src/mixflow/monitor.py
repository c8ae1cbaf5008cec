"""Monitor: statistics of arguments, auxiliary states and outputs while a network runs."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from typing import Any

from . import ndarray as nd
from .ndarray import NDArray

Statistic = Callable[[NDArray], Any]


def _root_mean_square(array: NDArray) -> Any:
    return nd.norm(array) / math.sqrt(array.size)


class Monitor:
    """Collects a statistic of each array whose name fits, every `interval` batches.

    Outputs of operators come from the forward pass; arguments and auxiliary states are read at
    `toc`. Gradients of intermediate values are not seen; those of arguments are in `grad_dict`.

    Args:
        interval: batches between two collections.
        stat_func: NDArray to NDArray (or a list of them); None = norm / sqrt(size).
        pattern: regular expression that the beginning of a name must match.
        sort: results by name.
        monitor_all: inputs of the operators during the forward pass too.
    """

    def __init__(
        self,
        interval: int,
        stat_func: Statistic | None = None,
        pattern: str = ".*",
        sort: bool = False,
        monitor_all: bool = False,
    ) -> None:
        self.interval = interval
        self.stat_func = stat_func or _root_mean_square
        self.re_prog = re.compile(pattern)
        self.sort = sort
        self.monitor_all = monitor_all
        self.activated = False
        self.step = 0
        self.exes: list[Any] = []
        self.queue: list[tuple[int, str, Any]] = []

    def stat_helper(self, name: str, array: NDArray) -> None:
        """What an executor calls with each array."""
        if self.activated and self.re_prog.match(name):
            self.queue.append((self.step, name, self.stat_func(array)))

    def install(self, exe: Any) -> None:
        """Attaches to an executor; several are possible."""
        exe.set_monitor_callback(self.stat_helper, self.monitor_all)
        self.exes.append(exe)

    def tic(self) -> None:
        """Begins a batch; call it before forward."""
        if self.step % self.interval == 0:
            self.queue = []
            self.activated = True
        self.step += 1

    def toc(self) -> list[tuple[int, str, str]]:
        """Ends a batch.

        Returns:
            (batch, name, statistic as text); empty if this batch was not collected.
        """
        if not self.activated:
            return []
        for exe in self.exes:
            for name, array in (*exe.arg_dict.items(), *exe.aux_dict.items()):
                self.stat_helper(name, array)
        self.activated = False
        found = sorted(self.queue, key=lambda entry: entry[1]) if self.sort else self.queue
        self.queue = []
        return [(step, name, _text(value)) for step, name, value in found]

    def toc_print(self) -> None:
        """Ends a batch and logs the results."""
        for step, name, text in self.toc():
            logging.info("Batch: %7d %-30s %s", step, name, text)


def _text(value: Any) -> str:
    parts = value if isinstance(value, (list, tuple)) else [value]
    return "".join(f"{_plain(part)!s}\t" for part in parts)


def _plain(value: Any) -> Any:
    if not isinstance(value, NDArray):
        return value
    values = value.asnumpy()
    return values.reshape(-1)[0] if values.size == 1 else values
