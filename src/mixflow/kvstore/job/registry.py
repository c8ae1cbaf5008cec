"""The jobs of this user, as other terminals find them: one folder for each.

The hazard: a file that says that a job runs outlives a job that was killed, and its token must not
be read by others. So whoever coordinates a job holds a lock on its folder, which the kernel takes
back with the process; the folders are their owner's alone.

    JOBS/NAME/job.json     its control endpoint and the token of that, what it is; how it ended
    JOBS/NAME/log          what a detached job and its workers have said
    JOBS/NAME/report.json  what happened in a detached job
    JOBS/NAME/lock         held while it runs

JOBS is `mixflow/jobs` below `XDG_CACHE_HOME` (`~/.cache`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ...errors import FormatError, ParamError, UnknownNameError, describe_unknown
from ...files import file_error, lock, unlock, write_atomically

#: Detached jobs that have ended and are still listed.
KEPT = 20
#: Seconds that a name is waited for whose job has just ended, or that somebody looks at.
ENDING_SECONDS = 5.0
LOOKED_AT_SECONDS = 1.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def place() -> Path:
    """The folder of all jobs of this user."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "mixflow" / "jobs"


def checked_name(name: str) -> str:
    """A job's name.

    Raises:
        ParamError: not letters, digits, '_', '.' and '-', at most 64 of them.
    """
    if not _NAME.fullmatch(name):
        raise ParamError(
            "[launch] expected a job's name of at most 64 letters, digits, '_', '.' and '-', got "
            f"{name!r:.80}"
        )
    return name


def name_for(command: Sequence[str]) -> str:
    """A new name for a job that was given none: its program's, and a few letters."""
    programs = [word for word in command if word.endswith(".py")] or list(command[:1])
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(programs[0]).stem).strip("-_")[:40] or "job"
    return f"{stem}-{secrets.token_hex(2)}"


class Claim:
    """A job's folder, held by this process until `end`.

    Args:
        name: see `checked_name`.
        clear: remove what an ended job of this name has left.

    Raises:
        ParamError: a bad name, or a job of this name runs.
        FileError: the folder can't be made.
    """

    def __init__(self, name: str, clear: bool = True) -> None:
        self.name = checked_name(name)
        self.folder = place() / self.name
        try:
            self._lock = self._claim()
        except OSError as error:
            text = f"[launch] expected a folder for the job '{name}'"
            raise file_error(text, str(self.folder), error) from None
        for old in ("job.json", "log", "report.json") if clear else ():
            (self.folder / old).unlink(missing_ok=True)
        _forget_old(self.name)

    def _claim(self) -> IO[bytes]:
        began = time.monotonic()
        while True:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chmod(self.folder, 0o700)
            file = open(self.folder / "lock", "ab")  # noqa: SIM115  # held until `end`
            if not lock(file):
                file.close()
                patience = ENDING_SECONDS if "code" in _card(self.folder) else LOOKED_AT_SECONDS
                if time.monotonic() < began + patience:
                    time.sleep(0.05)
                    continue
                raise ParamError(
                    f"[launch] expected a name that no running job has, got '{self.name}'; see "
                    "'mixflow jobs'"
                )
            with contextlib.suppress(FileNotFoundError):
                at = os.stat(self.folder / "lock")
                if os.path.samestat(os.fstat(file.fileno()), at):
                    return file
            file.close()  # somebody has removed the folder meanwhile

    def write(self, card: Mapping[str, Any]) -> None:
        """Says what the job is and where its control endpoint is.

        Raises:
            FileError: the folder is not writable.
        """
        write_atomically(self.folder / "job.json", json.dumps(dict(card), indent=1).encode())

    def end(self, keep: bool) -> None:
        """Gives the folder back; removes it unless it is to `keep`. Safe to call twice."""
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        if not self._lock.closed:
            unlock(self._lock)
            self._lock.close()


def is_held(folder: Path) -> bool:
    """Whether the job of a folder still has its coordinator."""
    try:
        with open(folder / "lock", "rb") as file:
            if not lock(file):
                return True
            unlock(file)
    except OSError:
        pass
    return False


def read(folder: Path) -> dict[str, Any]:
    """The card of a folder, with 'state': 'running', 'ended', or 'lost' where the coordinator was
    killed.

    Raises:
        FormatError: no card.
    """
    held = is_held(folder)  # before the card is read, which says at the end how it went
    card = _card(folder)
    if not _is_whole(card) or card["name"] != folder.name:
        raise FormatError(f"[jobs] expected a job in {folder}, got none")
    state = "ended" if "code" in card else "running" if held else "lost"
    return {**card, "state": state, "folder": str(folder)}


def _is_whole(card: Mapping[str, Any]) -> bool:
    """Whether a card has what commands read of it, whoever has written it."""
    texts = all(isinstance(card.get(key), str) for key in ("name", "control", "token"))
    numbers = all(isinstance(card.get(key), int) for key in ("workers", "servers"))
    began = card.get("began")
    dated = isinstance(began, (int, float)) and 0 <= began < 1e11
    command = card.get("command")
    words = isinstance(command, list) and all(isinstance(word, str) for word in command)
    return texts and numbers and dated and words and isinstance(card.get("code", 0), int)


def _card(folder: Path) -> dict[str, Any]:
    """What stands in a folder's card; nothing where there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        card = json.loads((folder / "job.json").read_bytes())
        if isinstance(card, dict):
            return card
    return {}


def known() -> list[dict[str, Any]]:
    """The cards of all jobs, the oldest first. What killed launchers have left is removed."""
    found = []
    folders = place().iterdir() if place().is_dir() else iter(())
    for folder in folders:
        with contextlib.suppress(FormatError):
            card = read(folder)
            if card["state"] == "lost" and not card.get("detached"):
                _remove(folder)
            else:
                found.append(card)
    return sorted(found, key=lambda card: (card["began"], card["name"]))


def find(name: str | None) -> dict[str, Any]:
    """The card of a job; without a name that of the only one that runs.

    Raises:
        UnknownNameError: no such job; the text lists the known ones.
        ParamError: no name, and not one running job.
    """
    cards = known()
    if name is None:
        running = [card for card in cards if card["state"] == "running"]
        if len(running) == 1:
            return running[0]
        if not running:
            raise ParamError("[jobs] expected a running job, got none; 'mixflow jobs' lists all")
        names = ", ".join(card["name"] for card in running)
        raise ParamError(f"[jobs] expected the name of one of the running jobs ({names}), got none")
    for card in cards:
        if card["name"] == name:
            return card
    raise UnknownNameError(describe_unknown("job", name, [card["name"] for card in cards]))


def _forget_old(but: str) -> None:
    """Removes the oldest of the jobs that have ended."""
    over = [c for c in known() if c["state"] != "running" and c["name"] != but]
    for card in over[: max(0, len(over) - KEPT)]:
        _remove(Path(card["folder"]))


def _remove(folder: Path) -> None:
    """Removes the folder of a job that is over, unless a new one of its name has it by now."""
    with contextlib.suppress(OSError), open(folder / "lock", "rb") as file:
        if lock(file):
            shutil.rmtree(folder, ignore_errors=True)
            unlock(file)


def card_of(name: str, command: Sequence[str], **more: Any) -> dict[str, Any]:
    """The card of a job that begins now."""
    return {
        "name": name,
        "command": list(command),
        "began": time.time(),
        "pid": os.getpid(),
        "host": os.uname().nodename if hasattr(os, "uname") else "",
        **more,
    }
