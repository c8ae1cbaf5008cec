"""The merger of one host, and how workers find it; `serve_host` is its process.

Workers start it when their servers are on other hosts and they have neighbours; several may try,
and the one whose process binds the name wins. It ends by itself some seconds after its last worker
has gone, and whoever sees it end starts another: nobody has to look after it.

Its task comes as JSON on standard input, like a server's.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import MixflowError
from ..options import StoreOptions
from ..protocol.client import Client
from ..transport import local
from ..transport.zeromq import Call, Link, Server
from .merger import MERGE_SECONDS, Merger, Order

#: What workers call it.
NAME = "merger"
START_SECONDS = 20.0
KILLED_SECONDS = 5.0
#: It ends when it has been without a worker for so long.
ALONE_SECONDS = 3.0


def address_of(job: str, host: str) -> str:
    """Where the merger of a job's host is."""
    return f"ipc://@mixflow-merger:{job}:{host}"


class HostMerger:
    """A `Merger` between the workers of this host and the servers. `run` blocks until `stop`.

    Args:
        address: see `address_of`.
        servers: where each server is.
        options: of the job's store.
        host: name of this host.
        find: asks where the servers are now.
        seconds: see `Merger`.
        token: of the job.
    """

    def __init__(
        self,
        address: str,
        servers: Mapping[str, str],
        options: StoreOptions,
        host: str = "",
        find: Callable[[], Mapping[str, str]] | None = None,
        seconds: float = MERGE_SECONDS,
        token: str = "",
    ) -> None:
        self.merger = Merger(NAME, options.policy, incarnation=time.time_ns(), seconds=seconds)
        client = Client(
            f"merger-{uuid.uuid4().hex}",
            -1,
            self.merger.where,
            options.policy,
            repeat=options.repeat,
            deadline=2 * options.deadline,
        )
        self.server = Server(self.merger, address, options.faults, host, self._carry_out, token)
        self.link = Link(client, servers, options.faults, find, host, token=token)

    def _carry_out(self) -> None:
        for order in self.merger.take_orders():
            call = self.link.call("merged push", order.start, settled=True)
            call.then(lambda call, order=order: self._end(order, call))  # type: ignore[misc]

    def _end(self, order: Order, call: Call) -> None:
        ticket = call.ticket
        assert ticket is not None
        self.server.post(lambda now: self.merger.ended(order, ticket, now))

    def run(self) -> None:
        """Serves until `stop`."""
        try:
            self.server.run()
        finally:
            self.link.close()

    def stop(self) -> None:
        """Ends `run` soon."""
        self.server.stop()

    def stop_when_alone(self) -> None:
        """Blocks until no worker has been connected for `ALONE_SECONDS`, then stops."""
        alone = time.monotonic() + START_SECONDS
        while time.monotonic() < alone:
            time.sleep(0.1)
            if self.server.peers:
                alone = time.monotonic() + ALONE_SECONDS
        self.stop()


def ensure(task: Mapping[str, Any]) -> None:
    """Starts the merger of this host, unless it is there; waits until it is.

    Raises:
        MixflowError: it does not come up in time.
    """
    name, end = local.name_of(task["address"], task["host"]), time.monotonic() + START_SECONDS
    if local.is_there(name):
        return
    child = subprocess.Popen(
        [sys.executable, "-m", "mixflow.kvstore.host.serve_host"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended: its code tells
        child.stdin.write(json.dumps(dict(task)).encode() + b"\n")
        child.stdin.close()
    while not local.is_there(name):
        code = child.poll()  # 0: another has the name
        if code or time.monotonic() > end:
            child.kill()
            child.wait(KILLED_SECONDS)
            raise MixflowError(
                f"[kvstore] expected the merger of host '{task['host']}' to start within "
                f"{START_SECONDS:g} s, got " + (f"its end with code {code}" if code else "none")
            )
        time.sleep(0.02)
