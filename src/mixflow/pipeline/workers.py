"""Threads that work through jobs in order; nobody waits without a deadline.

Hazard: a thread that outlives its iterator keeps files and memory, a wait for a thread that has
died never ends, and an error that stays in a thread is lost. So the threads know only the `_Line`
that they take work from, never the iterator: it can be collected while they run, and then they
end. Every error is kept in its job and raised by the wait for it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ..arguments import MOST_THREADS, checked, function, number, optional, text, whole
from ..errors import MixflowError

_JOIN_SECONDS = 10.0


class Job:
    """Work of numbered parts, which several threads share.

    Args:
        name: for errors.
        parts: how many, at least 1.
        work: called once per number, on any thread.
        describe: text of a part, for the error of a time-out.
    """

    def __init__(
        self,
        name: str,
        parts: int,
        work: Callable[[int], None],
        describe: Callable[[int], str] = str,
    ) -> None:
        self.name, self.parts, self.work, self.describe = name, parts, work, describe
        self.done = threading.Event()
        self.process = os.getpid()  # whose threads do it
        self._lock = threading.Lock()
        self._taken = 0
        self._ended = 0
        self._cancelled = False
        self._errors: dict[int, BaseException] = {}

    def take(self) -> int | None:
        """The next part to do; None when all are taken."""
        with self._lock:
            if self._cancelled or self._taken == self.parts:
                return None
            self._taken += 1
            return self._taken - 1

    def end(self, part: int, error: BaseException | None) -> None:
        """Notes that a part ended."""
        with self._lock:
            if error is not None:
                self._errors[part] = error
            self._ended += 1
            if self._ended == self.parts or (self._cancelled and self._ended == self._taken):
                self.done.set()

    def cancel(self) -> None:
        """No further part is taken; `done` is set when those under way have ended."""
        with self._lock:
            self._cancelled = True
            if self._ended == self._taken:
                self.done.set()

    def error(self) -> BaseException | None:
        """The error of the first part that has one: the same whatever the number of threads."""
        return self._errors[min(self._errors)] if self._errors else None


class _Line:
    """What the threads share: jobs in order, and who does what since when."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: deque[Job] = deque()
        self.stopped = False
        self.busy: dict[str, tuple[Job, int, float]] = {}

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.jobs.clear()
            self.changed.notify_all()

    def take(self) -> tuple[Job, int] | None:
        """The next part of the first job that has one; waits for a job. None: the end."""
        with self.changed:
            while True:
                while self.jobs:
                    part = self.jobs[0].take()
                    if part is not None:
                        return self.jobs[0], part
                    self.jobs.popleft()
                if self.stopped:
                    return None
                self.changed.wait()


def _run(line: _Line, begin: Callable[[], None] | None) -> None:
    """Thread body."""
    name = threading.current_thread().name
    if begin is not None:
        begin()
    while True:
        taken = line.take()
        if taken is None:
            return
        job, part = taken
        line.busy[name] = (job, part, time.monotonic())
        error: BaseException | None = None
        try:
            job.work(part)
        except BaseException as raised:
            error = raised
        line.busy.pop(name, None)
        job.end(part, error)
        del taken, job, error  # an idle thread must not keep a batch alive


class Workers:
    """Threads that do jobs in the order in which they come.

    They end at `close`, when the object is collected, and at the interpreter's exit. A forked child
    has none; its first job starts new ones.

    Args:
        threads: at least 1.
        name: of the threads.
        deadline: seconds that `wait` waits at most.
        begin: called once on each thread, before its first job.

    Raises:
        ParamError: fewer threads than 1, or a deadline that is not above 0.
    """

    @checked(
        threads=whole(1, MOST_THREADS),
        name=text,
        deadline=number(above=0),
        begin=optional(function),
    )
    def __init__(
        self,
        threads: int,
        name: str = "mixflow-data",
        deadline: float = 300.0,
        begin: Callable[[], None] | None = None,
    ) -> None:
        self.name, self.deadline, self.count, self._begin = name, deadline, threads, begin
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._line = _Line()
        self._process = os.getpid()
        self.threads = [
            threading.Thread(
                target=_run, args=(self._line, self._begin), name=f"{self.name}-{i}", daemon=True
            )
            for i in range(self.count)
        ]
        for thread in self.threads:
            thread.start()
        self._stop = weakref.finalize(self, _stop, self._line, self.threads)

    def submit(self, job: Job) -> None:
        """Adds a job behind the others; returns at once.

        Raises:
            MixflowError: after `close`.
        """
        if self._closed:
            raise MixflowError(f"[{self.name}] expected running workers, got closed ones")
        if self._process != os.getpid():
            self._stop.detach()
            self._start()
        with self._line.changed:
            self._line.jobs.append(job)
            self._line.changed.notify_all()

    def wait(self, job: Job) -> None:
        """Waits for a job and raises its error.

        Raises:
            MixflowError: it took longer than the deadline; the text says what each thread does. Or
            the process is a fork of the one that began it, and it is not done.
        """
        if job.process != os.getpid() and not job.done.is_set():
            raise MixflowError(
                f"[{self.name}] expected {job.name} in the process {job.process} that began it, "
                f"got a fork of it, {os.getpid()}, which has none of its threads; begin it anew"
            )
        if not job.done.wait(self.deadline):
            raise MixflowError(
                f"[{self.name}] expected {job.name} within {self.deadline:g} s, got "
                f"{self._report()}"
            )
        error = job.error()
        if error is not None:
            raise error

    def _report(self) -> str:
        now = time.monotonic()
        states = []
        for thread in self.threads:
            found = self._line.busy.get(thread.name)
            if found is not None:
                what = f"at {found[0].describe(found[1])} for {now - found[2]:.0f} s"
            else:
                what = "idle" if thread.is_alive() else "dead"
            states.append(f"{thread.name} {what}")
        return "; ".join(states)

    def close(self) -> None:
        """Drops jobs that have not begun and ends the threads.

        Raises:
            MixflowError: a thread does not end.
        """
        self._closed = True
        self._stop()
        left = [t for t in self.threads if t.is_alive()]
        if left and self._process == os.getpid() and threading.current_thread() not in left:
            raise MixflowError(
                f"[{self.name}] expected all threads to end within {_JOIN_SECONDS:g} s, got "
                f"{self._report()}"
            )


def _stop(line: Any, threads: list[threading.Thread]) -> None:
    line.stop()
    if threading.current_thread() in threads:
        return  # collected on a worker that may hold a lock which the others wait for
    end = time.monotonic() + _JOIN_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
