"""The same on MXNet 1.9.1: its own parameter server, with its scheduler, server and workers."""

import sys
from pathlib import Path

here = sys.path.pop(0)
sys.path.append(str(Path(__file__).resolve().parent.parent))
import crew  # noqa: E402 - beside this folder


def member():
    """A worker of the job; in the other roles the import does not return."""
    import mxnet as mx

    store = mx.kv.create("dist_sync")
    crew.serve(crew.store_trips(mx, store))


def start(environment):
    """A scheduler, a server and two workers."""
    base = {
        **environment,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(crew.free_port()),
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_INTERFACE": "lo",
    }
    roles = ("scheduler", "server", "worker", "worker")
    return [crew.python(__file__, {**base, "DMLC_ROLE": role}) for role in roles]


if __name__ == "__main__":
    member()
else:
    VERSION = "mxnet 1.9.1"
    WARM_UP = 1
    CASES = crew.cases(lambda: crew.Crew(2, start))
