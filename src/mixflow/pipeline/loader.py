"""Batches ahead of their consumer: schedule, workers and a bounded number of batches under way.

Memory is bounded by construction: a batch is begun only when one is taken, so that never more than
`ahead` wait or are filled. Nothing that a thread does depends on which thread does it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from ..arguments import checked, whole
from ..errors import FormatError, MixflowError
from .order import BatchPlan, Schedule
from .workers import Job, Workers

B = TypeVar("B")
_VERSION = 1


class Filler(Protocol[B]):
    """Makes the memory of a batch and fills it sample by sample, from any thread."""

    def begin(self, plan: BatchPlan) -> B:
        """Memory of a batch."""

    def fill(self, buffers: B, position: int) -> None:
        """Writes one sample."""


class Loader(Generic[B]):
    """The batches of an epoch, in order, filled by threads ahead of the consumer.

    Threads may share it: each batch goes to one of them. `close` ends a `next` of another thread
    with an error. A forked child goes on from the place of its parent with threads of its own. The
    threads end at `close`, when the loader is collected, and at exit.

    Args:
        schedule: which samples.
        filler: how to fill a batch; must not refer to the loader.
        threads: at least 1.
        ahead: batches that are filled or wait, at least 1.
        name: for errors and threads.
        deadline: seconds that `next` waits at most.
        begin_thread: called once on each thread.
        identity: facts that a saved position is only valid for.

    Attributes:
        seconds_waited: seconds that `next` has waited in total.
        batches_given: in total.

    Raises:
        ParamError: `ahead` or `threads` below 1.
    """

    @checked(ahead=whole(1))
    def __init__(
        self,
        schedule: Schedule,
        filler: Filler[B],
        threads: int,
        ahead: int,
        name: str = "image pipeline",
        deadline: float = 300.0,
        begin_thread: Callable[[], None] | None = None,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.schedule, self.filler, self.ahead, self.name = schedule, filler, ahead, name
        self.identity = dict(identity or {})
        self.seconds_waited = 0.0
        self.batches_given = 0
        self._position = 0  # batches of this epoch that were given
        self._begun = 0  # and that were begun
        self._pending: deque[tuple[Job, B]] = deque()
        self._workers = Workers(threads, name, deadline, begin_thread)
        self._closed = False
        self._make_locks()
        self._fill_up()

    def _make_locks(self) -> None:
        self._process = os.getpid()
        self._turn = threading.Lock()  # held by the one that takes a batch, also while it waits
        self._state = threading.RLock()  # of the members; never held while waiting

    def _after_fork(self) -> None:
        """In a forked child: its parent's threads, and perhaps locks, are gone for good."""
        if self._process != os.getpid():
            self._make_locks()
            if not self._closed:
                self._go_to(self.schedule.epoch, self.schedule.carried, self._position)

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, batches of it that were given)."""
        return self.schedule.epoch, self._position

    def _fill_up(self) -> None:
        total = self.schedule.batches()
        while len(self._pending) < self.ahead and self._begun < total:
            self._begin(self._begun)
            self._begun += 1

    def _begin(self, number: int) -> None:
        plan = self.schedule.batch(number)
        buffers, fill = self.filler.begin(plan), self.filler.fill
        name = f"batch {number} of epoch {self.schedule.epoch}"

        def work(part: int) -> None:
            fill(buffers, part)

        job = Job(name, len(plan.indices), work, lambda part: f"sample {plan.indices[part]}")
        self._pending.append((job, buffers))
        self._workers.submit(job)

    def next(self) -> B:
        """The next batch of the epoch.

        Raises:
            StopIteration: the epoch is over.
            MixflowError: after `close`, or past the deadline.
            Exception: what a sample of this batch raised; the batch after it can be asked for.
        """
        self._after_fork()
        with self._turn:
            with self._state:
                self._check_open()
                if not self._pending:
                    raise StopIteration
                job, buffers = self._pending[0]
            start = time.perf_counter()
            try:
                self._workers.wait(job)
            finally:
                self.seconds_waited += time.perf_counter() - start
                self._take(job)
            self.batches_given += 1
            return buffers

    def _check_open(self) -> None:
        if self._closed:
            raise MixflowError(f"[{self.name}] expected an open iterator, got one after close")

    def _take(self, job: Job) -> None:
        """Moves on behind a batch that was waited for, unless somebody ended it meanwhile."""
        with self._state:
            self._check_open()
            if not self._pending or self._pending[0][0] is not job:
                raise MixflowError(
                    f"[{self.name}] expected no reset while another thread waits in next, got one"
                )
            if job.done.is_set():
                self._pending.popleft()
                self._position += 1
                self._fill_up()

    def reset(self) -> None:
        """Begins the next epoch; changes nothing before the first batch of one."""
        self._after_fork()
        with self._state:
            if self._position:
                self._begin_next_epoch()

    def _begin_next_epoch(self) -> None:
        over = self._position >= self.schedule.batches()
        following = self.schedule.following() if over else (self.schedule.epoch + 1, 0)
        self._go_to(*following, 0)

    def restart(self) -> None:
        """Back to the first epoch."""
        self._after_fork()
        self._go_to(0, 0, 0)

    def _go_to(self, epoch: int, carried: int, position: int) -> None:
        with self._state:
            self._check_open()
            for job, _ in self._pending:
                job.cancel()
            self._pending.clear()
            self.schedule.start(epoch, carried)
            self._position = self._begun = position
            self._fill_up()

    def state_dict(self) -> dict[str, Any]:
        """The position as plain values (JSON): the batch after the last one given comes next."""
        return {
            "version": _VERSION,
            "epoch": self.schedule.epoch,
            "carried": self.schedule.carried,
            "batch": self._position,
            "identity": dict(self.identity),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved position.

        Raises:
            FormatError: no such state, one of another data set, order or batch size, or a place
                that no epoch has.
        """
        try:
            version, identity = state["version"], dict(state["identity"])
            at = [state[k] for k in ("epoch", "carried", "batch")]
        except (KeyError, TypeError, ValueError, IndexError):
            raise FormatError(
                f"[{self.name}] expected a state of state_dict(), got {str(state)[:200]}"
            ) from None
        if version != _VERSION or any(type(n) is not int for n in at) or min(at) < 0:
            raise FormatError(
                f"[{self.name}] expected a state of version {_VERSION} with whole numbers of at "
                f"least 0, got version {version!r} and {at}"
            )
        different = [
            f"{k} {self.identity.get(k)!r} (saved: {identity.get(k)!r})"
            for k in sorted({*self.identity, *identity})
            if self.identity.get(k) != identity.get(k)
        ]
        if different:
            raise FormatError(
                f"[{self.name}] expected the state of the same samples in the same order, got "
                f"{', '.join(different)}"
            )
        if not self.schedule.has(*at):
            raise FormatError(
                f"[{self.name}] expected a place that an epoch of {len(self.schedule.order)} "
                f"samples has, got batch {at[2]} of epoch {at[0]} behind {at[1]} carried samples"
            )
        self._after_fork()
        self._go_to(*at)

    def close(self) -> None:
        """Ends the threads; no batch can be asked for afterwards."""
        if self._process != os.getpid():
            self._make_locks()
        with self._state:
            self._closed = True
            for job, _ in self._pending:
                job.cancel()
            self._pending.clear()
        self._workers.close()
