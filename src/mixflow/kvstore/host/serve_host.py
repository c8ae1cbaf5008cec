"""A host's merger as a process: ``python -m mixflow.kvstore.host.serve_host``; see `host_merger`.

Its task comes as JSON on standard input, like a server's.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping

from ...extras import load
from ..options import StoreOptions
from ..transport.rendezvous import Enquirer
from .host_merger import NAME, HostMerger


def main() -> None:
    """Runs the merger of the task on standard input; where another has its name, ends at once."""
    task = json.loads(sys.stdin.readline())
    options = StoreOptions.from_json(task["options"])
    enquirer = Enquirer(task["rendezvous"], task["token"], f"{NAME}-{task['host']}")

    def find() -> Mapping[str, str]:
        found: Mapping[str, str] = enquirer.wait_for_servers("servers", options.deadline)["servers"]
        return found

    try:
        made = HostMerger(
            task["address"], task["servers"], options, task["host"], find, token=task["token"]
        )
    except (OSError, load("zmq", "kvstore").ZMQError):
        return
    threading.Thread(target=made.stop_when_alone, daemon=True).start()
    made.run()


if __name__ == "__main__":
    main()
