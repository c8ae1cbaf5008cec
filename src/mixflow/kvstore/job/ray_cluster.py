"""Processes of a job started by Ray: on a laptop or on a cluster that is there.

Ray places processes, sees deaths and restarts nodes; tensors never pass through it. Each process
of the job is a child of an actor on its node (so that it dies with the node, and the actor can say
how it ended). Actors are not restarted by Ray: the job decides, since it knows what each process
was and where its state lies.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import MixflowError
from ...extras import load
from .places import Places, Room
from .spawner import LocalProcess, MemoryFolder, start_server, start_worker

LOST = -9
#: Bytes of a worker's output that travel at once.
PIECE = 1 << 18
#: Seconds in which the keeper of a node's state answers, or is taken for lost.
KEEPER_SECONDS = 10.0
#: Seconds in which a cluster's port answers.
CONNECT_SECONDS = 10.0


class Holder:
    """The actor's class: one child process of a job on the actor's node."""

    def __init__(self) -> None:
        self._child: Any = None
        self._output: Any = None

    def address(self) -> tuple[str, str]:
        """The node's address for the others, and its name."""
        ray = load("ray", "launch")
        return str(ray.util.get_node_ip_address()), str(ray.get_runtime_context().get_node_id())

    def server(self, task: dict[str, Any]) -> int:
        """Starts a shard; its process number."""
        self._child = LocalProcess(start_server(task), "")
        return int(self._child.pid)

    def worker(
        self, command: Sequence[str], env: dict[str, str], folder: str, keep_output: bool
    ) -> int:
        """Starts a worker in the driver's working folder; its process number."""
        if keep_output:
            # Open for as long as the actor lives.
            self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._child = LocalProcess(start_worker(command, env, folder, self._output), "")
        return int(self._child.pid)

    def look(self, offset: int) -> tuple[int | None, bytes]:
        """The child's exit code, or None while it runs; and what it has said from there on, a
        piece of it. A child's end is told when all of it is told."""
        code = None if self._child is None else self._child.exit_code()
        said = os.pread(self._output.fileno(), PIECE, offset) if self._output else b""
        return (None if said else code), said

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.kill()


class Keeper:
    """The actor that holds a job's state on a node: while it lives, what servers have committed
    there is kept; when it ends, for whatever reason, its janitor removes it."""

    def __init__(self) -> None:
        self._memory = MemoryFolder()

    def folder(self) -> str:
        """Where servers of this node keep their state."""
        return str(self._memory.path)

    def forget(self, folder: str) -> None:
        """Removes what lies below."""
        shutil.rmtree(self._memory.path / folder, ignore_errors=True)

    def close(self) -> None:
        """Removes everything."""
        self._memory.close()


class RayProcess:
    """A process that an actor holds. A lost actor or node counts as killed."""

    def __init__(
        self, actor: Any, pid: int, host: str, listen: Callable[[bytes], None] | None = None
    ) -> None:
        self._ray = load("ray", "launch")
        self._actor = actor
        self.pid = pid
        self.host = host
        self._listen = listen
        self._heard = 0
        self._code: int | None = None
        self._question: Any = None

    def exit_code(self) -> int | None:
        """Its code, or None while it runs. Asks and returns at once."""
        if self._code is not None or self._actor is None:
            self._code = LOST if self._code is None else self._code
            return self._code
        if self._question is None:
            self._question = self._actor.look.remote(self._heard)
        ready, _ = self._ray.wait([self._question], timeout=0)
        if ready:
            try:
                self._code, said = self._ray.get(self._question)
            except self._ray.exceptions.RayError:
                self._code, said = LOST, b""
            self._question = None
            self._heard += len(said)
            if said and self._listen:
                self._listen(said)
            if self._code is not None:
                self._end_actor()  # its place is wanted for the next one
        return self._code

    def kill(self) -> None:
        """Ends the child and its actor."""
        if self._actor is not None:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(self._actor.close.remote(), timeout=5)
            self._end_actor()

    def _end_actor(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)
        self._actor = None
        self._code = LOST if self._code is None else self._code


class RaySpawner:
    """Starts a job's processes as actors' children, in placement groups (see `places`).

    Hosts are Ray's nodes. A node on which the job's keeper has died counts as lost: its state is.

    Args:
        address: of a cluster ('auto', 'host:port'); None starts Ray here.
        room: what each process reserves, and for how long there may be no room.
        folder: working folder of the workers (must exist on their nodes).
        least_cpus: a Ray that is started here has at least as many.

    `listen` is set to be called with (rank, bytes) of what workers say; else it goes where Ray
    sends it.

    Raises:
        MissingExtraError: Ray is not installed.
        MixflowError: there is no such cluster; by the other methods: it has no room within the
            deadline.
    """

    listen: Callable[[int, bytes], None] | None = None

    def __init__(
        self,
        address: str | None = None,
        room: Room | None = None,
        folder: str | None = None,
        least_cpus: float = 0.0,
    ) -> None:
        self._ray = load("ray", "launch")
        self._own = not self._ray.is_initialized()
        if self._own:
            connect(address, least_cpus)
        self._places, self._folder = Places(room or Room()), folder or os.getcwd()
        self._holder, self._keeper = self._ray.remote(Holder), self._ray.remote(Keeper)
        self._all: list[RayProcess] = []
        self._keepers: dict[str, tuple[Any, str]] = {}
        self._dead: set[str] = set()

    @property
    def address(self) -> str:
        """This node's address for the others."""
        return str(self._ray.util.get_node_ip_address())

    def hosts(self) -> list[str]:
        """The nodes that live and have not lost the job's state."""
        nodes = sorted(node["NodeID"] for node in self._ray.nodes() if node["Alive"])
        for node, (keeper, _) in list(self._keepers.items()):
            if node not in nodes or not self._lives(keeper):
                self._dead.add(node)
                del self._keepers[node]
        return [node for node in nodes if node not in self._dead]

    def _lives(self, keeper: Any) -> bool:
        try:
            self._ray.get(keeper.folder.remote(), timeout=KEEPER_SECONDS)
        except self._ray.exceptions.RayError:
            return False
        return True

    def reserve(self, workers: int, servers: int) -> list[str]:
        """See `spawner.Spawner`."""
        return self._places.reserve(workers, servers)

    def server(self, task: dict[str, Any], host: str) -> RayProcess:
        """See `spawner.Spawner`. One whose node is lost meanwhile counts as ended."""
        try:
            return self._server(task, host)
        except self._ray.exceptions.RayTaskError as error:
            raise MixflowError(f"[launch] expected {task['name']}, got {error}") from None
        except self._ray.exceptions.RayError:
            return RayProcess(None, 0, host)

    def _server(self, task: dict[str, Any], host: str) -> RayProcess:
        cpus = self._places.room.cpus_per_server
        if host not in self._keepers:
            keeper = self._actor(self._keeper, self._near(host), 0.0)
            folder = self._get(keeper.folder.remote(), "a server's state", cpus)
            self._keepers[host] = (keeper, str(folder))
        place = self._places.of_server(task["number"], host)
        actor = self._actor(self._holder, place or self._near(host), cpus if place else 0.0)
        address, _ = self._get(actor.address.remote(), "a server", cpus)
        folder = f"{self._keepers[host][1]}/{task['folder']}"
        task = {**task, "folder": folder, "bind": f"tcp://{address}:*"}
        return self._keep(actor, self._get(actor.server.remote(task), "a server", cpus), host)

    def worker(self, rank: int, command: Sequence[str], env: dict[str, str]) -> RayProcess:
        """See `spawner.Spawner`. A node that is lost meanwhile is no end: its place moves."""
        end = time.monotonic() + self._places.room.deadline
        while True:
            try:
                return self._worker(rank, command, env)
            except self._ray.exceptions.RayError as error:
                gone = isinstance(error, self._ray.exceptions.RayActorError)
                if not gone or time.monotonic() > end:
                    raise MixflowError(f"[launch] expected worker{rank}, got {error}") from None
                time.sleep(0.2)

    def _worker(self, rank: int, command: Sequence[str], env: dict[str, str]) -> RayProcess:
        cpus, what = self._places.room.cpus_per_worker, f"worker{rank}"
        actor = self._actor(self._holder, self._places.of_worker(rank), cpus)
        try:
            _, host = self._get(actor.address.remote(), what, cpus)
            started = actor.worker.remote(list(command), env, self._folder, bool(self.listen))
            pid = self._get(started, what, cpus)
        except BaseException:
            self._ray.kill(actor)
            raise
        listen = self.listen
        return self._keep(actor, pid, host, None if listen is None else lambda b: listen(rank, b))

    def left(self, rank: int) -> None:
        """See `spawner.Spawner`."""
        self._places.leave(rank)

    def _near(self, host: str) -> Any:
        return self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(host, soft=False)

    def _actor(self, kind: Any, place: Any, cpus: float) -> Any:
        # The number of CPUs is always given: an actor without any resource needs one to be placed.
        options = {"num_cpus": cpus, "max_restarts": 0, "scheduling_strategy": place}
        return kind.options(**options).remote()

    def _keep(
        self, actor: Any, pid: int, host: str, listen: Callable[[bytes], None] | None = None
    ) -> RayProcess:
        made = RayProcess(actor, pid, host, listen)
        self._all.append(made)
        return made

    def _get(self, reference: Any, what: str, cpus: float) -> Any:
        """An actor's answer.

        Raises:
            MixflowError: it has no place within the deadline.
            RayError: it is lost.
        """
        try:
            return self._ray.get(reference, timeout=self._places.room.deadline)
        except self._ray.exceptions.GetTimeoutError:
            raise self._places.lacking(what, cpus) from None

    def forget(self, folder: str) -> None:
        """See `spawner.Spawner`."""
        for keeper, _ in self._keepers.values():
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(keeper.forget.remote(folder), timeout=KEEPER_SECONDS)

    def close(self) -> None:
        """Ends every process; Ray too if it was started here. Safe to call twice."""
        for process in self._all:
            process.kill()
        for keeper, _ in self._keepers.values():
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(keeper.close.remote(), timeout=KEEPER_SECONDS)
                self._ray.kill(keeper)
        self._keepers.clear()
        if self._ray.is_initialized():
            self._places.close()
        if self._own:
            self._ray.shutdown()


def connect(address: str | None, least_cpus: float = 0.0, **more: Any) -> Any:
    """Ray, connected to a cluster, or started here (None) with at least so many CPUs.

    Raises:
        MissingExtraError: Ray is not installed.
        MixflowError: there is no such cluster.
    """
    ray = load("ray", "launch")
    here: dict[str, Any] = {"address": address}
    if address is None:  # 'local': a Ray of its own, though another one may run here
        cpus = max(os.cpu_count() or 1, int(-(-least_cpus // 1)))
        here = {"address": "local", "include_dashboard": False, "num_cpus": cpus}
    try:
        if address is not None:
            _knock(address)
        ray.init(**{"log_to_driver": True, **here, **more})
    except (OSError, RuntimeError, ValueError) as error:
        if address is None:
            raise MixflowError(f"[launch] expected to start Ray here, got {error}") from None
        raise MixflowError(
            f"[launch] expected a Ray cluster at '{address}', got {error}; start one with "
            "'ray start --head', or leave --address out"
        ) from None
    return ray


def _knock(address: str) -> None:
    """Raises OSError where nobody listens: Ray itself tries for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
