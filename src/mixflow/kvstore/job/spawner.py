"""Starts the processes of a job, here: `LocalSpawner`; by Ray: `ray_cluster.py`.

The hazard is a process that is left behind, or its state in memory. Every process is held by a
pipe or a parent-death signal, every folder in memory, and what workers start, by a janitor.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...errors import MixflowError, ParamError

PR_SET_PDEATHSIG = 1
#: Seconds in which a folder's janitor comes up.
START_SECONDS = 60.0


class Process(Protocol):
    """A process somewhere. `exit_code` does not block; None while it runs."""

    @property
    def host(self) -> str:
        """The host that it was started on."""

    @property
    def pid(self) -> int:
        """Its process number there."""

    def exit_code(self) -> int | None:
        """Its code, or None while it runs."""

    def kill(self) -> None:
        """Ends it at once."""


class Spawner(Protocol):
    """Starts the processes of a job."""

    @property
    def address(self) -> str:
        """Where the job's rendezvous can be reached (a host)."""

    def hosts(self) -> list[str]:
        """The hosts that live, in a fixed order. A lost host does not come back under its name."""

    def reserve(self, workers: int, servers: int) -> list[str]:
        """Makes room for a job that begins (again); what was reserved before is given back.

        Returns:
            The host of each server.

        Raises:
            MixflowError: there is no room; the text says what is lacking.
        """

    def server(self, task: dict[str, Any], host: str) -> Process:
        """A server shard of this task (see `serve`) on a host; its 'folder' is relative to the
        place where the host keeps the job's state.

        Raises:
            MixflowError: no place, or the host is gone.
        """

    def worker(self, rank: int, command: Sequence[str], env: dict[str, str]) -> Process:
        """A worker: the user's command with these environment names set.

        Raises:
            MixflowError: no place for it.
        """

    def left(self, rank: int) -> None:
        """A worker has ended and does not come back: its place is free."""

    def forget(self, folder: str) -> None:
        """Removes a folder of the job's state on every host."""

    def close(self) -> None:
        """Ends every process that it has started, and removes what they kept in memory."""


class LocalProcess:
    """A child of this process that leads a process group; it dies with this one. What it has
    started and left in its group ends with it: a worker's script may have a program that trains on
    while the next one of its rank begins.
    """

    def __init__(
        self, child: subprocess.Popen[Any], host: str, ended: Callable[[int], None] | None = None
    ) -> None:
        self._child = child
        self.host = host
        self._ended = ended  # told its number, once

    def exit_code(self) -> int | None:
        """Its code, or None while it runs."""
        if _has_ended(self._child):
            self._end_group()
        return self._child.poll()

    def kill(self) -> None:
        """SIGKILL; waits for the end."""
        self._end_group()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(5)
        if self._child.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()

    def _end_group(self) -> None:
        """SIGKILL to the child and its group. Until the child was waited for nobody else gets its
        number, nor the group's."""
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            ended, self._ended = self._ended, None
            if ended is not None:
                ended(self._child.pid)

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._child.pid


def _has_ended(child: subprocess.Popen[Any]) -> bool:
    """Whether a child has ended and was not waited for yet."""
    if child.returncode is not None or not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def dying_with_this() -> Callable[[], None]:
    """What a child runs first: SIGKILL when the thread that made it ends (Linux), which it may
    have done already."""
    parent = os.getpid()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def ask() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

    return ask


class MemoryFolder:
    """A new folder that lies in memory where the system has such a place; it is removed by
    `close`, or when this process ends in any way."""

    def __init__(self) -> None:
        base = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.path = Path(tempfile.mkdtemp(prefix="mixflow-", dir=base))
        script = str(Path(__file__).with_name("janitor.py"))
        self._janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", script, str(self.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._janitor.wait(START_SECONDS)  # it goes on as nobody's child

    def holds(self, group: int) -> None:
        """A process group ends with this process, if it is not let go before."""
        self._say(f"+{group}")

    def lets_go(self, group: int) -> None:
        """A process group has ended: its number may be another's soon."""
        self._say(f"-{group}")

    def _say(self, text: str) -> None:
        assert self._janitor.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it is gone, or closed
            self._janitor.stdin.write(f"{text}\n".encode())
            self._janitor.stdin.flush()

    def close(self) -> None:
        """Removes the folder. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        assert self._janitor.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._janitor.stdin.close()


class LocalSpawner:
    """Processes on this host.

    Args:
        hosts: as how many hosts this one plays (each with a place of its own for what its servers
            keep), to see what a job does when one is lost: `lose_host`.

    Raises:
        ParamError: no host.
    """

    address = "127.0.0.1"

    def __init__(self, hosts: int = 1) -> None:
        if hosts < 1:
            raise ParamError(f"[launch] expected at least one host, got {hosts}")
        self._all: list[LocalProcess] = []
        self._hosts = [f"host{number}" for number in range(hosts)]
        self._memory: MemoryFolder | None = None

    def hosts(self) -> list[str]:
        """See `Spawner`."""
        return list(self._hosts)

    def reserve(self, workers: int, servers: int) -> list[str]:
        """See `Spawner`: a host takes what it is given."""
        return [self._hosts[each % len(self._hosts)] for each in range(servers)]

    @property
    def _kept(self) -> MemoryFolder:
        if self._memory is None:
            self._memory = MemoryFolder()
        return self._memory

    @property
    def folder(self) -> Path:
        """Where servers keep their state; below it one folder per host."""
        return self._kept.path

    def server(self, task: dict[str, Any], host: str = "host0") -> LocalProcess:
        """See `Spawner`."""
        folder = str(self.folder / host / task["folder"])
        task = {**task, "folder": folder, "bind": f"tcp://{self.address}:*"}
        return self._keep(start_server(task), host)

    def worker(
        self, rank: int, command: Sequence[str], env: dict[str, str], folder: str | None = None
    ) -> LocalProcess:
        """See `Spawner`; `folder` is the working folder."""
        host = self._hosts[rank % len(self._hosts)]
        return self._keep(start_worker(command, env, folder), host)

    def _keep(self, child: subprocess.Popen[Any], host: str) -> LocalProcess:
        self._kept.holds(child.pid)
        made = LocalProcess(child, host, self._kept.lets_go)
        self._all.append(made)
        return made

    def left(self, rank: int) -> None:
        """See `Spawner`."""

    def forget(self, folder: str) -> None:
        """See `Spawner`."""
        for host in self._hosts:
            shutil.rmtree(self.folder / host / folder, ignore_errors=True)

    def lose_host(self, host: str) -> None:
        """Loses a host on purpose: its processes and what they kept are gone at once."""
        self._hosts.remove(host)
        for process in self._all:
            if process.host == host:
                process.kill()
        shutil.rmtree(self.folder / host, ignore_errors=True)

    def close(self) -> None:
        """Kills what still runs, and removes the folder."""
        for process in self._all:
            process.kill()
        if self._memory is not None:
            self._memory.close()


def start_server(task: dict[str, Any]) -> subprocess.Popen[Any]:
    """A server's process, with its task on standard input."""
    child = subprocess.Popen(
        [sys.executable, "-m", "mixflow.kvstore.job.serve"],
        stdin=subprocess.PIPE,
        preexec_fn=dying_with_this(),
        start_new_session=True,
    )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended: its code tells
        child.stdin.write(json.dumps(task).encode() + b"\n")
        child.stdin.flush()
    return child


def start_worker(
    command: Sequence[str], env: dict[str, str], folder: str | None = None, output: Any = None
) -> subprocess.Popen[Any]:
    """A worker's process; what it says goes to a file, or where this process's goes.

    Raises:
        MixflowError: there is no such program.
    """
    try:
        return subprocess.Popen(
            list(command),
            env={**os.environ, **env},
            cwd=folder,
            stdout=output,
            stderr=output,
            preexec_fn=dying_with_this(),
            start_new_session=True,
        )
    except OSError as error:
        raise MixflowError(f"[launch] expected to start {command[0]!r}, got: {error}") from None
