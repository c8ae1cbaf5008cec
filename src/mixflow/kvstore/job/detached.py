"""Jobs that outlive the terminal that has started them: ``mixflow launch --detach``.

The hazard: a job whose beginning failed where nobody looks. So whoever starts one waits until its
coordinator can be found, or says with what words it has ended. Here the coordinator is a process of
its own session (`coordinate.py`); with ``--address`` it is an actor of the cluster (`ray_job.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import FormatError, MixflowError
from . import registry
from .control import ControlClient

#: Seconds in which the coordinator of a local job comes up.
START_SECONDS = 60.0
#: Bytes of the log that an error shows.
SHOWN = 2000


def start(name: str, options: Mapping[str, Any]) -> None:
    """Starts the job of some options of the command, and returns when it can be found.

    Raises:
        ParamError: a job of this name runs.
        MixflowError: its coordinator did not come up; the text has its last words.
    """
    task = {k: v for k, v in options.items() if k not in ("run", "command")}
    paths = ("events", "report", "tensorboard", "snapshot_folder")
    task |= {k: os.path.abspath(task[k]) for k in paths if task[k]}
    task |= {"name": name, "folder": os.getcwd()}
    if task["address"] is None:
        card = _start_here(name, task)
    else:
        from .ray_job import start as start_far

        card = start_far(name, task)
    _wait_until_begun(card, START_SECONDS + 3 * float(task["deadline"]))
    where = f" --address {task['address']}" if card.get("far") else ""
    print(
        f"job {name} runs; 'mixflow attach {name}{where}' shows what it says, 'mixflow status', "
        f"'scale' and 'stop' are told its name too\nlog: {card['folder']}/log"
        + (f" on node {card['host']}" if card.get("far") else "")
    )


def _start_here(name: str, task: Mapping[str, Any]) -> dict[str, Any]:
    registry.Claim(name).end(keep=True)  # a name that is in use is told at once
    log = registry.place() / name / "log"
    with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "mixflow.kvstore.job.coordinate"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    assert child.stdin is not None
    child.stdin.write(json.dumps(dict(task)).encode())
    child.stdin.close()
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(FormatError):  # there is none yet
            card = registry.read(log.parent)
            if card.get("pid") == child.pid:  # not that of another of this name
                child.returncode = 0  # it is not this process's to wait for
                return card
        if child.poll() is not None:
            raise MixflowError(
                f"[launch] expected the job '{name}' to start, got its end with code "
                f"{child.returncode}: {tail(log) or 'it has said nothing'}"
            )
        time.sleep(0.05)
    child.kill()
    raise MixflowError(
        f"[launch] expected the coordinator of '{name}' within {START_SECONDS:g} s, got none"
    )


def _wait_until_begun(card: Mapping[str, Any], seconds: float) -> None:
    """Blocks until the job's processes are started.

    Raises:
        MixflowError: they can't be, or are not within so many seconds; the text says why.
    """
    end = time.monotonic() + seconds
    with ControlClient(card) as client:
        while True:
            try:
                found = client.ask("status")
            except MixflowError:  # a job that was over at once
                found = registry.read(Path(str(card["folder"])))
            if found.get("begun") or found.get("code") == 0:
                return
            if found["state"] != "running" or time.monotonic() > end:
                said = found.get("said") or f"nothing within {seconds:g} s"
                raise MixflowError(f"[launch] expected job '{card['name']}' to begin, got: {said}")
            time.sleep(0.1)


def tail(path: Path) -> str:
    """The end of a log."""
    return path.read_bytes()[-SHOWN:].decode(errors="replace").strip() if path.exists() else ""
