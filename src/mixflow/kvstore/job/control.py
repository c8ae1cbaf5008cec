"""What a user may ask of a running job from another terminal: how it is, more or fewer workers, its
end. A job's control endpoint stays the same when the job goes back to a snapshot.

The hazard: an answer that waits for the job, which may wait itself. So a control endpoint only
looks and leaves orders; whoever asked looks again until they are carried out, or a deadline has
passed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ...errors import MixflowError, ParamError
from ..transport.rendezvous import Enquirer, Rendezvous
from . import registry

if TYPE_CHECKING:
    from .cluster import Job

#: Bytes of a job's log in one answer.
PIECE = 1 << 16
#: Seconds in which a control endpoint answers.
ANSWER_SECONDS = 10.0
LOOK_SECONDS = 0.2


class Control:
    """A job's control endpoint: answers on the thread of a `Rendezvous` of its own. Never blocks.

    Args:
        job: the job.
        name: its name.
        log: its log, where it has one.
    """

    def __init__(self, job: Job, name: str, log: Path | None = None) -> None:
        self.job, self._name, self._log = job, name, log
        #: The exit code, once the job has ended, and what it said.
        self.result: tuple[int, str] | None = None
        #: Whether somebody has asked for the job's end, or has seen it.
        self.stopped = False

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request; a bad one gets an 'error'."""
        kinds = {
            "status": self._status,
            "scale": self._scale,
            "stop": self._stop,
            "log": self._read_log,
        }
        what = str(request.get("what"))
        if what not in kinds:
            return {"error": f"[jobs] expected one of {sorted(kinds)}, got {what!r}"}
        try:
            return kinds[what](request)
        except MixflowError as error:
            return {"error": str(error)}
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            return {"error": f"[jobs] expected a whole '{what}', got {error!r}"}

    def _status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": self._name, **self.job.status(), **self._ended()}

    def _ended(self) -> dict[str, Any]:
        if self.result is None:
            return {"state": "running"}
        return {"state": "ended", "code": self.result[0], "said": self.result[1]}

    def _scale(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self.result is not None:
            raise ParamError(f"[scale] expected a running job, got '{self._name}', which has ended")
        self.job.scale(int(request["workers"]))
        return {}

    def _stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.stopped = True
        self.job.stop()
        return {}

    def _read_log(self, request: Mapping[str, Any]) -> dict[str, Any]:
        ended = self._ended()  # before the log is read: all of it is there then
        text = read_log(self._log, int(request["offset"])) if self._log else b""
        return {"text": text.decode("latin-1"), **ended}


def read_log(path: Path, offset: int) -> bytes:
    """A piece of a log; b'' at its end, or where there is none."""
    if offset < 0:
        raise ValueError("a negative offset")
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(offset)
        return file.read(PIECE)
    return b""


def open_control(control: Control, address: str) -> Rendezvous:
    """Serves a control endpoint at a host until it is closed."""
    return Rendezvous(control, f"tcp://{address}:*")


class ControlClient:
    """Asks the control endpoint of a job.

    Args:
        card: of the job (see `registry`).

    Raises:
        MixflowError: by each method, if there is no answer within `ANSWER_SECONDS`.
    """

    def __init__(self, card: Mapping[str, Any]) -> None:
        self.name = str(card["name"])
        self._folder = "" if card.get("far") else str(card.get("folder", ""))
        address, token = str(card["control"]), str(card["token"])
        self._enquirer = Enquirer(address, token, "client", self._lives)

    def _lives(self) -> bool:
        """Whether the job's coordinator does, as far as can be seen from here."""
        return not self._folder or self._is_held()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._enquirer.close()

    def _is_held(self) -> bool:
        """Whether a coordinator of this host still has the job."""
        return bool(self._folder) and registry.is_held(Path(self._folder))

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        """One question.

        Raises:
            MixflowError: refused, or no answer.
        """
        return self._enquirer.ask(what, ANSWER_SECONDS, **fields)

    def scale(self, workers: int, deadline: float) -> dict[str, Any]:
        """Orders another number of workers and waits until they are at work, and nobody else.

        Args:
            workers: at least one.
            deadline: seconds to wait; 0: none.

        Returns:
            The job's status.

        Raises:
            ParamError: less than one worker.
            MixflowError: no room for them, the job ended, or they are not there within the
                deadline; the text names who is missing and who has not left.
        """
        if workers < 1:
            raise ParamError(f"[scale] expected at least one worker, got {workers}")
        self.ask("scale", workers=workers)
        end = time.monotonic() + deadline
        while True:
            found = self.ask("status")
            if found["refused"]:
                raise MixflowError(str(found["refused"]))
            if found["state"] != "running":
                raise MixflowError(
                    f"[scale] expected job '{self.name}' to go on with {workers} workers, got its "
                    f"end with code {found['code']}"
                )
            states = [str(w["state"]) for w in found["workers"]]
            if found["obeyed"] and states == ["at work"] * workers:
                return found
            if time.monotonic() > end:
                if not deadline:
                    return found
                raise MixflowError(_missed(workers, deadline, found["workers"]))
            time.sleep(LOOK_SECONDS)

    def stop(self, deadline: float) -> dict[str, Any]:
        """Ends the job and waits until it has ended.

        Raises:
            MixflowError: it has not within the deadline.
        """
        self.ask("stop")
        end = time.monotonic() + deadline
        while True:
            try:
                found = self.ask("status")
            except MixflowError:
                if not self._is_held():  # its coordinator has gone with it
                    return {"state": "ended"}
                if time.monotonic() > end:
                    raise MixflowError(
                        f"[stop] expected job '{self.name}' to end within {deadline:g} s, got its "
                        "coordinator, which lives and does not answer"
                    ) from None
                continue
            if found["state"] != "running":
                return found
            if time.monotonic() > end:
                raise MixflowError(
                    f"[stop] expected job '{self.name}' to end within {deadline:g} s, got workers "
                    f"{[w['rank'] for w in found['workers']]} that still run"
                )
            time.sleep(LOOK_SECONDS)


def _missed(workers: int, deadline: float, found: list[dict[str, Any]]) -> str:
    others = [f"worker{w['rank']} {w['state']}" for w in found if w["state"] != "at work"]
    at_work = len(found) - len(others)
    hint = (
        "; a worker leaves when its program calls store.step_done (Module.fit does)"
        if any(w["state"] == "leaving" for w in found)
        else ""
    )
    return (
        f"[scale] expected {workers} workers within {deadline:g} s, got "
        f"{', '.join([f'{at_work} at work', *others])}{hint}"
    )
