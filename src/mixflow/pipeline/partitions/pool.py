"""Computes partitions ahead of their consumer on executors that may be slow, hang or die.

One thread of the pool tells the scheduler (`scheduler.py`) what happens and carries out what it
says. Hazard: a thread that keeps its pool alive. So it knows the `_Driver` alone; it ends at
`close`, when the pool is collected, and at the interpreter's exit, and its executors with it.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
import weakref
from typing import Any

from ...arguments import a, checked, number, optional, text
from ...errors import MixflowError, UnknownNameError, describe_unknown
from .executors import Done, Event, Executors, Failed, Lost, Ready, Result, rebuilt_error
from .local import LocalExecutors
from .on_ray import RayExecutors
from .partition import Partition
from .scheduler import Compute, Counts, Rules, Scheduler, Spawn, Stop

_CLOSE_SECONDS = 20.0
_MOST_SECONDS = 10.0

#: Where executors can be.
PLACES: dict[str, Any] = {"local": LocalExecutors, "ray": RayExecutors}


def executors_at(where: str, **options: Any) -> Executors:
    """Executors by the name of their place: 'local' (processes of this host) or 'ray' (actors).

    Raises:
        UnknownNameError: another name, or an option that these do not have.
        MissingExtraError: Ray is not installed.
    """
    if where not in PLACES:
        raise UnknownNameError(describe_unknown("partitions", where, list(PLACES)))
    known = list(inspect.signature(PLACES[where]).parameters)
    for name in options:
        if name not in known:
            raise UnknownNameError(describe_unknown(f"executors '{where}'", name, known))
    made: Executors = PLACES[where](**options)
    return made


class _Driver:
    """What the pool and its thread share. `changed` guards all but the executors."""

    def __init__(self, executors: Executors, scheduler: Scheduler) -> None:
        self.changed = threading.Condition()
        self.executors, self.scheduler = executors, scheduler
        self.wanted: dict[int, Partition] = {}
        self.results: dict[int, Result] = {}
        self.errors: dict[int, Any] = {}
        self.stopped = False
        self.failure: Exception | None = None

    def run(self) -> None:
        """Body of the thread."""
        try:
            while not self.stopped:
                self._act()
                for event in self.executors.wait(self._timeout()):
                    self._note(event)
        except Exception as error:
            self.failure = error
        try:
            self.executors.close()
        except Exception as error:
            self.failure = self.failure or error
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def stop(self) -> None:
        """Tells the thread to end."""
        self.stopped = True
        self.executors.wake()

    def _timeout(self) -> float:
        with self.changed:
            found = self.scheduler.wake(time.monotonic())
        return _MOST_SECONDS if found is None else min(found, _MOST_SECONDS)

    def _act(self) -> None:
        with self.changed:
            actions = self.scheduler.step(time.monotonic())
            texts = {
                a.number: self.wanted[a.number].to_json() for a in actions if isinstance(a, Compute)
            }
        for action in actions:
            match action:
                case Spawn(place, life):
                    self._spawn(place, life)
                case Stop(place, _):
                    self.executors.stop(place)
                case Compute(place, _, number):
                    self.executors.compute(place, number, texts[number])

    def _spawn(self, place: int, life: int) -> None:
        try:
            self.executors.spawn(place, life)
        except OSError as error:  # no process or no memory: the place is lost for a while
            self._note(Lost(place, life, f"it could not be started: {error}"))
            self.executors.wake()

    def _note(self, event: Event) -> None:
        now = time.monotonic()
        with self.changed:
            match event:
                case Ready(place, life):
                    self.scheduler.ready(place, life, now)
                case Done(place, life, number, result):
                    if self.scheduler.done(place, life, number, now):
                        self.results[number] = result
                    else:
                        result.release()
                case Failed(place, life, number, error):
                    if number in self.wanted:
                        self.errors[number] = error
                    text, final = error["text"], error["final"]
                    self.scheduler.failed(place, life, number, text, final, now)
                case Lost(place, life, reason):
                    self.scheduler.lost(place, life, reason, now)
            self.changed.notify_all()


class Pool:
    """Executors that compute partitions; for one consumer.

    What is submitted is computed in this order, several at a time. Memory is bounded by the
    consumer: as many results wait as were submitted and not taken, and each executor may hold one
    more.

    Args:
        executors: how many.
        where: 'local' or 'ray'; see `executors_at`. Further options are those of its class.
        rules: of the schedule.
        deadline: seconds that `take` waits at most.
        name: for errors.

    Raises:
        ParamError, UnknownNameError: numbers or names that are none.
    """

    @checked(where=text, rules=optional(a(Rules)), deadline=number(above=0), name=text)
    def __init__(
        self,
        executors: int = 2,
        where: str = "local",
        rules: Rules | None = None,
        deadline: float = 300.0,
        name: str = "partitions",
        **options: Any,
    ) -> None:
        self.name, self.deadline = name, deadline
        scheduler = Scheduler(executors, rules)
        self._driver = _Driver(executors_at(where, **options), scheduler)
        self._next = 0
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._driver.run, name=name, daemon=True)
        self._stop = weakref.finalize(self, _stop, self._driver, self._thread)
        self._thread.start()

    @property
    def counts(self) -> Counts:
        """What happened so far."""
        return self._driver.scheduler.counts

    @property
    def executors(self) -> Executors:
        """The executors, to look at."""
        return self._driver.executors

    def report(self) -> str:
        """What each executor does, as text."""
        with self._driver.changed:
            return self._driver.scheduler.report(time.monotonic())

    def submit(self, partition: Partition) -> int:
        """Has a partition computed; returns its number at once.

        Raises:
            MixflowError: closed, or made by another process.
        """
        self._check()
        driver = self._driver
        with driver.changed:
            number, self._next = self._next, self._next + 1
            driver.wanted[number] = partition
            driver.scheduler.submit(number)
        driver.executors.wake()
        return number

    def take(self, number: int) -> Result:
        """The result of a submitted partition; waits for it.

        Raises:
            MixflowError: the error of its data, naming the partition; it was lost too often; no
                executor can live; or it took longer than the deadline.
        """
        self._check()
        driver = self._driver
        end = time.monotonic() + self.deadline
        with driver.changed:
            while True:
                if number in driver.results:
                    del driver.wanted[number]
                    driver.errors.pop(number, None)
                    return driver.results.pop(number)
                self._raise_if_hopeless(number)
                left = end - time.monotonic()
                if left <= 0:
                    raise MixflowError(
                        f"[{self.name}] expected {driver.wanted.get(number, number)} within "
                        f"{self.deadline:g} s, got: {driver.scheduler.report(time.monotonic())}"
                    )
                driver.changed.wait(left)

    def settled(self, number: int) -> bool:
        """Whether a number's result or error has been taken."""
        return number not in self._driver.wanted

    def cancel(self) -> None:
        """Nothing that was submitted is wanted any more."""
        driver = self._driver
        with driver.changed:
            for number in driver.wanted:
                driver.scheduler.forget(number)
            for result in driver.results.values():
                result.release()
            driver.wanted, driver.results, driver.errors = {}, {}, {}

    def close(self) -> None:
        """Ends the executors and the thread.

        Raises:
            MixflowError: they do not end.
        """
        if self._process != os.getpid():
            self._stop.detach()
            return
        self._stop()
        self.cancel()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            raise MixflowError(
                f"[{self.name}] expected the executors to end within {_CLOSE_SECONDS:g} s, got: "
                f"{self.report()}"
            )

    def _check(self) -> None:
        if self._process != os.getpid():
            raise MixflowError(
                f"[{self.name}] expected a call by the process that made the pool, got one by a "
                "fork of it; make another pool there"
            )
        if self._driver.stopped and self._driver.failure is None:
            raise MixflowError(f"[{self.name}] expected an open pool, got one after close")

    def _raise_if_hopeless(self, number: int) -> None:
        driver = self._driver
        partition = driver.wanted.get(number)
        if partition is None:
            raise MixflowError(f"[{self.name}] expected a submitted number, got {number}")
        text = driver.scheduler.errors.get(number)
        if text is not None:
            driver.scheduler.forget(number)
            del driver.wanted[number]
            found = driver.errors.pop(number, {"names": [], "final": False})
            if found["final"]:
                raise rebuilt_error(found["names"], f"{text} ({partition})")
            raise rebuilt_error(
                found["names"], f"[{self.name}] expected {partition} to be computed, got: {text}"
            )
        if driver.failure is not None:
            raise MixflowError(
                f"[{self.name}] expected a running pool, got {driver.failure!r}"
            ) from driver.failure
        if driver.scheduler.broken:
            raise MixflowError(
                f"[{self.name}] expected executors that live, got {driver.scheduler.broken}"
            )


def _stop(driver: _Driver, thread: threading.Thread) -> None:
    driver.stop()
    if threading.current_thread() is not thread:
        thread.join(_CLOSE_SECONDS)
