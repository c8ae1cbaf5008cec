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
from collections.abc import Sequence
from typing import Any

from ..errors import MixflowError
from ..extras import load
from .spawner import LocalProcess, MemoryFolder, start_server, start_worker

LOST = -9
PLACE_SECONDS = 60.0
#: Seconds in which the keeper of a node's state answers, or is taken for lost.
KEEPER_SECONDS = 10.0


class Holder:
    """The actor's class: one child process of a job on the actor's node."""

    def __init__(self) -> None:
        self._child: Any = None

    def address(self) -> str:
        """The node's address for the others."""
        return str(load("ray", "launch").util.get_node_ip_address())

    def server(self, task: dict[str, Any]) -> int:
        """Starts a shard; its process number."""
        self._child = LocalProcess(start_server(task), "")
        return int(self._child.pid)

    def worker(self, command: Sequence[str], env: dict[str, str], folder: str) -> int:
        """Starts a worker in the driver's working folder; its process number."""
        self._child = LocalProcess(start_worker(command, env, folder), "")
        return int(self._child.pid)

    def exit_code(self) -> int | None:
        """The child's exit code, or None while it runs."""
        return None if self._child is None else self._child.exit_code()

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

    def __init__(self, actor: Any, pid: int, host: str) -> None:
        self._ray = load("ray", "launch")
        self._actor = actor
        self.pid = pid
        self.host = host
        self._code: int | None = None
        self._question: Any = None

    def exit_code(self) -> int | None:
        """Its code, or None while it runs. Asks and returns at once."""
        if self._code is not None:
            return self._code
        if self._question is None:
            self._question = self._actor.exit_code.remote()
        ready, _ = self._ray.wait([self._question], timeout=0)
        if ready:
            try:
                self._code = self._ray.get(self._question)
            except self._ray.exceptions.RayError:
                self._code = LOST
            self._question = None
        return self._code

    def kill(self) -> None:
        """Ends the child and its actor."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self._actor.close.remote(), timeout=5)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)


class RaySpawner:
    """Starts a job's processes as actors' children.

    Hosts are Ray's nodes. A node on which the job's keeper has died counts as lost: its state is.

    Args:
        address: of a cluster ('auto', 'host:port'); None starts Ray here.
        cpus: CPUs that each worker and server reserves (0: none).
        folder: working folder of the workers (must exist on their nodes).

    Raises:
        MissingExtraError: Ray is not installed.
        MixflowError: the cluster has no room within `PLACE_SECONDS`.
    """

    def __init__(
        self, address: str | None = None, cpus: float = 0.0, folder: str | None = None
    ) -> None:
        self._ray = load("ray", "launch")
        self._own = not self._ray.is_initialized()
        if self._own:
            here = {"include_dashboard": False} if address is None else {"address": address}
            self._ray.init(log_to_driver=True, **here)
        self._cpus, self._folder = cpus, folder or os.getcwd()
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

    def server(self, task: dict[str, Any], host: str) -> RayProcess:
        """See `spawner.Spawner`."""
        if host not in self._keepers:
            keeper = self._actor(self._keeper, host, cpus=0.0)
            folder = self._get(keeper.folder.remote(), "a place for a server's state")
            self._keepers[host] = (keeper, str(folder))
        actor = self._actor(self._holder, host)
        address = self._get(actor.address.remote(), "a place for a server")
        folder = f"{self._keepers[host][1]}/{task['folder']}"
        task = {**task, "folder": folder, "bind": f"tcp://{address}:*"}
        return self._keep(actor, actor.server.remote(task), host)

    def worker(self, rank: int, command: Sequence[str], env: dict[str, str]) -> RayProcess:
        """See `spawner.Spawner`."""
        hosts = self.hosts()
        host = hosts[rank % len(hosts)]
        actor = self._actor(self._holder, host)
        return self._keep(actor, actor.worker.remote(list(command), env, self._folder), host)

    def _actor(self, kind: Any, host: str, cpus: float | None = None) -> Any:
        """An actor on a node; where CPUs are reserved and it has none left, on another."""
        cpus = self._cpus if cpus is None else cpus
        chosen = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            host, soft=cpus > 0
        )
        # The number of CPUs is always given: an actor without any resource needs one to be placed.
        options = {"num_cpus": cpus, "max_restarts": 0, "scheduling_strategy": chosen}
        return kind.options(**options).remote()

    def _keep(self, actor: Any, started: Any, host: str) -> RayProcess:
        made = RayProcess(actor, self._get(started, "a process to start"), host)
        self._all.append(made)
        return made

    def _get(self, reference: Any, what: str) -> Any:
        try:
            return self._ray.get(reference, timeout=PLACE_SECONDS)
        except self._ray.exceptions.GetTimeoutError:
            raise MixflowError(
                f"[launch] expected {what} within {PLACE_SECONDS:g} s, got none: the cluster has "
                f"no room for {self._cpus:g} more CPUs"
            ) from None
        except self._ray.exceptions.RayError as error:
            raise MixflowError(f"[launch] expected {what}, got {error}") from None

    def forget(self, folder: str) -> None:
        """See `spawner.Spawner`."""
        for keeper, _ in self._keepers.values():
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(keeper.forget.remote(folder), timeout=KEEPER_SECONDS)

    def close(self) -> None:
        """Ends every process; Ray too if it was started here."""
        for process in self._all:
            process.kill()
        for keeper, _ in self._keepers.values():
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(keeper.close.remote(), timeout=KEEPER_SECONDS)
                self._ray.kill(keeper)
        if self._own:
            self._ray.shutdown()
