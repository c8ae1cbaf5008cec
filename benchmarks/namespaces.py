"""Hosts for a job on one machine: network namespaces behind links of a given rate (Linux, root).

Each host is a network namespace with its own address; a virtual cable leads from it to a bridge,
and the kernel limits both directions of the cable (`tc`, token bucket). What runs inside sees a
real network: TCP, buffers of the kernel, nothing that is shared but processor and memory. Names
begin with `mxlink`; what a killed run has left is removed by the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from mixflow.kvstore.job.spawner import LocalProcess, LocalSpawner, start_server, start_worker

CLONE_NEWNET = 0x40000000
NAME = "mxlink"
NET = "10.87.0"
#: Bytes of a packet: the processor time of smaller ones would be taken from what is measured.
PACKET_BYTES = 9000
#: Bytes that a link takes at once after a pause, and seconds of bytes that may wait for it.
BURST_BYTES, QUEUE_SECONDS = 32 << 10, 1.0


def sh(command: str) -> None:
    """Runs a command; its error ends the program."""
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


def remove() -> None:
    """Removes every link and namespace of ours."""
    found = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True).stdout
    for line in found.splitlines():
        device = line.split(": ")[1].partition("@")[0]
        if device.startswith(NAME):  # at once: a namespace takes its time to let go of them
            subprocess.run(["ip", "link", "del", device], capture_output=True)
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for line in found.splitlines():
        if line.startswith(NAME):
            sh(f"ip netns del {line.split()[0]}")


def _limit(device: str, rate: float, inside: str = "") -> None:
    where = f"ip netns exec {inside} " if inside else ""
    bucket = f"burst {BURST_BYTES} latency {QUEUE_SECONDS * 1000:.0f}ms"
    sh(f"{where}tc qdisc add dev {device} root tbf rate {int(8 * rate)}bit {bucket}")


@contextlib.contextmanager
def links(hosts: Sequence[str], rate: float) -> Iterator[dict[str, str]]:
    """Hosts with an address each (the result), behind links of `rate` bytes per second in each
    direction; they are gone afterwards. The bridge has address `NET`.254.

    Raises:
        subprocess.CalledProcessError: not root, or no such thing in this kernel.
    """
    remove()
    try:
        sh(f"ip link add {NAME} type bridge")
        sh(f"ip addr add {NET}.254/24 dev {NAME}")
        sh(f"ip link set {NAME} up")
        addresses = {}
        for number, host in enumerate(hosts, 1):
            space, cable = f"{NAME}-{host}", f"{NAME}{number}"
            addresses[host] = f"{NET}.{number}"
            sh(f"ip netns add {space}")
            sh(f"ip link add {cable} type veth peer name eth0 netns {space}")
            sh(f"ip link set {cable} mtu {PACKET_BYTES} master {NAME} up")
            sh(f"ip -n {space} link set lo up")
            sh(f"ip -n {space} addr add {addresses[host]}/24 dev eth0")
            sh(f"ip -n {space} link set eth0 mtu {PACKET_BYTES} up")
            _limit("eth0", rate, space)
            _limit(cable, rate)
        sh(f"ip link set {NAME} mtu {PACKET_BYTES}")
        yield addresses
    finally:
        remove()


@contextlib.contextmanager
def inside(host: str) -> Iterator[None]:
    """Processes that this thread starts meanwhile live in the host's namespace."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str) -> None:
        with open(path) as space:
            if libc.setns(space.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    with open("/proc/thread-self/ns/net") as home:
        enter(f"/var/run/netns/{NAME}-{host}")
        try:
            yield
        finally:
            enter(f"/proc/self/fd/{home.fileno()}")


class NamespaceSpawner(LocalSpawner):
    """Starts each server and worker of a job on the host of its name ('server0', 'worker1')."""

    address = f"{NET}.254"

    def __init__(self, addresses: dict[str, str]) -> None:
        super().__init__()
        self._addresses = addresses

    def server(self, task: dict[str, Any], host: str = "host0") -> LocalProcess:
        """See `Spawner`."""
        name = task["name"]
        folder = str(self.folder / host / task["folder"])
        bind = f"tcp://{self._addresses[name]}:*"
        with inside(name):
            return self._keep(start_server({**task, "folder": folder, "bind": bind}), host)

    def worker(
        self, rank: int, command: Sequence[str], env: dict[str, str], folder: str | None = None
    ) -> LocalProcess:
        """See `Spawner`."""
        name = f"worker{rank}"
        with inside(name):
            named = {**env, "DMLC_NODE_HOST": name}
            return self._keep(start_worker(command, named, folder), name)
