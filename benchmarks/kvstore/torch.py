"""The same on PyTorch: an all-reduce over gloo of two processes."""

import sys
from pathlib import Path

here = sys.path.pop(0)
sys.path.append(str(Path(__file__).resolve().parent.parent))
import crew  # noqa: E402 - beside this folder


def member():
    """A process of the group."""
    import torch
    import torch.distributed as group

    torch.set_num_threads(1)
    group.init_process_group("gloo")

    def prepare(size):
        gradient = torch.zeros(size)

        def trip(step):
            gradient.fill_(step)
            group.all_reduce(gradient)

        return trip

    crew.serve(prepare)
    group.destroy_process_group()


def start(environment):
    """Two processes."""
    base = {
        **environment,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(crew.free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": "2",
    }
    return [crew.python(__file__, {**base, "RANK": str(rank)}) for rank in range(2)]


if __name__ == "__main__":
    member()
else:
    import torch

    sys.path.insert(0, here)
    VERSION = f"torch {torch.__version__} gloo"
    WARM_UP = 1
    CASES = crew.cases(lambda: crew.Crew(2, start))
