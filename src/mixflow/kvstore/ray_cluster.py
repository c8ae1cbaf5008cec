"""Processes of a job started by Ray: on a laptop or on a cluster that is there.

Ray places processes, sees deaths and restarts nodes; tensors never pass through it. Each process
of the job is a child of an actor on its node (so that it dies with the node, and the actor can say
how it ended). Actors are not restarted by Ray: the job decides, since it knows what each process
was and where its state lies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ..errors import MixflowError
from ..extras import load
from .spawner import LocalSpawner

LOST = -9
PLACE_SECONDS = 60.0


class Holder:
    """The actor's class: one child process of a job on the actor's node."""

    def __init__(self) -> None:
        self._spawner = LocalSpawner()
        self._process: Any = None

    def address(self) -> str:
        """The node's address for the others."""
        return str(load("ray", "launch").util.get_node_ip_address())

    def node(self) -> str:
        """The node's identity."""
        return str(load("ray", "launch").get_runtime_context().get_node_id())

    def server(self, task: dict[str, Any]) -> int:
        """Starts a shard; its process number."""
        self._process = self._spawner.server(task)
        return int(self._process.pid)

    def worker(self, rank: int, command: Sequence[str], env: dict[str, str], folder: str) -> int:
        """Starts a worker in the driver's working folder; its process number."""
        self._process = self._spawner.worker(rank, command, env, folder)
        return int(self._process.pid)

    def exit_code(self) -> int | None:
        """The child's exit code, or None while it runs."""
        return None if self._process is None else self._process.exit_code()

    def close(self) -> None:
        """Ends the child."""
        self._spawner.close()


class RayProcess:
    """A process that an actor holds. A lost actor or node counts as killed."""

    def __init__(self, actor: Any, pid: int, node: str) -> None:
        self._ray = load("ray", "launch")
        self._actor = actor
        self.pid = pid
        self.node = node
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
        self._cpus, self._folder = cpus, folder
        self._holder = self._ray.remote(Holder)
        self._all: list[RayProcess] = []

    @property
    def host(self) -> str:
        """This node's address for the others."""
        return str(self._ray.util.get_node_ip_address())

    def server(self, task: dict[str, Any]) -> RayProcess:
        """See `cluster.Spawner`: servers are spread over the nodes."""
        actor = self._actor(int(task["number"]))
        host = self._get(actor.address.remote(), "a place for a server")
        task = {**task, "bind": f"tcp://{host}:*"}
        return self._keep(actor, actor.server.remote(task))

    def worker(self, rank: int, command: Sequence[str], env: dict[str, str]) -> RayProcess:
        """See `cluster.Spawner`."""
        actor = self._actor(rank)
        return self._keep(actor, actor.worker.remote(rank, list(command), env, self._folder))

    def _actor(self, number: int) -> Any:
        """An actor on the node whose turn it is; where CPUs are reserved and that node has none
        left, on another."""
        nodes = sorted(node["NodeID"] for node in self._ray.nodes() if node["Alive"])
        chosen = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            nodes[number % len(nodes)], soft=self._cpus > 0
        )
        # The number of CPUs is always given: an actor without any resource needs one to be placed.
        options = {"num_cpus": self._cpus, "max_restarts": 0, "scheduling_strategy": chosen}
        return self._holder.options(**options).remote()

    def _keep(self, actor: Any, started: Any) -> RayProcess:
        pid = self._get(started, "a process to start")
        node = self._get(actor.node.remote(), "a node")
        made = RayProcess(actor, pid, node)
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

    def close(self) -> None:
        """Ends every process; Ray too if it was started here."""
        for process in self._all:
            process.kill()
        if self._own:
            self._ray.shutdown()
