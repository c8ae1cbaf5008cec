"""A worker's words with its coordinator during a job: its step, snapshots that are wanted, and
whether it shall leave.

The hazard: a training loop that waits for a coordinator. A thread talks; the loop only looks at
what was last heard, and writes its own part of a snapshot when it comes to the number of one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import MixflowError
from ..server.plan import BEAT_SECONDS
from ..server.snapshot import folder_of, optional, write_worker
from ..transport.rendezvous import Enquirer

#: Seconds that one word may take; a coordinator that is gone is asked again.
ANSWER_SECONDS = 5.0

State = Callable[[], Mapping[str, Any]]


class Pulse:
    """Talks with the coordinator until `close`.

    Args:
        address, token: the job's rendezvous.
        rank: of the worker.
        rounds: whether snapshot numbers are steps.
        folder: where snapshots are written ('': there are none).
        every: steps between snapshots (0: those that are announced).
        step: steps that were done before.
    """

    def __init__(
        self,
        address: str,
        token: str,
        rank: int,
        *,
        rounds: bool = True,
        folder: str = "",
        every: int = 0,
        step: int = 0,
    ) -> None:
        self.rank, self.step, self.leave = rank, step, False
        self._rounds, self._folder, self._every = rounds, folder, every
        self._known: set[int] = set()
        self._marks: set[int] = set()
        self._late: set[int] = set()
        self._saved: list[int] = []
        self._states = False
        self._stopped = threading.Event()
        self._enquirer = Enquirer(address, token, f"worker{rank}")
        self._thread = threading.Thread(target=self._run, name="mixflow-pulse", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS):
            self.beat()
        if self._saved:
            self.beat()  # what was saved last
        self._enquirer.close()

    def beat(self) -> None:
        """One word. Called by the thread."""
        saved, late = list(self._saved), sorted(self._late)
        with contextlib.suppress(MixflowError):
            answer = self._enquirer.ask(
                "beat",
                ANSWER_SECONDS,
                rank=self.rank,
                step=self.step,
                saved=saved,
                late=late,
                states=self._states,
            )
            del self._saved[: len(saved)]
            self._late -= set(late)
            self.leave = bool(answer["leave"])
            for number in answer["marks"]:
                self._hear(int(number))

    def _hear(self, number: int) -> None:
        if number in self._known:
            return
        self._known.add(number)
        if self._rounds and number <= self.step:
            self._late.add(number)
        else:
            self._marks.add(number)

    @property
    def has_snapshots(self) -> bool:
        """Whether the job writes any."""
        return bool(self._folder)

    def is_due(self, step: int) -> bool:
        """Whether a snapshot of rounds belongs to a step."""
        return step in self._marks or (self._every > 0 and step % self._every == 0)

    def step_done(self, state: State | None) -> bool:
        """The worker has ended a step: writes its part of a snapshot if this is its number.

        Returns:
            Whether it is. Where it can't be written that is said on standard error.
        """
        self.step += 1
        self._states = self._states or state is not None
        due = self._due() if self._folder else []
        if state is not None:
            for number in due:
                self._marks.discard(number)
                with optional(number):
                    write_worker(folder_of(self._folder, number), self.rank, state())
                    self._saved.append(number)
        return bool(due)

    def _due(self) -> list[int]:
        """Numbers of snapshots that this step belongs to."""
        if not self._rounds:
            return sorted(self._marks)
        return [self.step] if self.is_due(self.step) else []

    def close(self) -> None:
        """Tells what was saved last, and ends. Safe to call twice."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join(2 * ANSWER_SECONDS)
