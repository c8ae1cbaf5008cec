"""An executor's process: ``python -c START SOCKET PARENT``; START is that of `local.py`.

It computes the partitions that come over the socket, one after the other, and ends when the other
side closes it or the process PARENT is gone.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from . import framing
from .compute import Computer
from .executors import describe_error
from .partition import Partition


def answer(
    computer: Computer, message: dict[str, Any], handle: int | None
) -> tuple[dict[str, Any], int | None]:
    """Computes the partition of a message into the memory that came with it, or into new memory."""
    memory = handle
    places: list[Any] = []
    nbytes = 0

    def allocate(layout: Any) -> Any:
        nonlocal memory, places, nbytes
        memory = framing.new_memory() if memory is None else memory
        places, nbytes = framing.planned(layout)
        return framing.arrays_in(framing.mapped(memory, nbytes, write=True), places)

    try:
        computer.compute(Partition.from_json(message["partition"]), allocate)
    except Exception as error:
        return {"failed": message["number"], "error": describe_error(error)}, memory
    return {"done": message["number"], "places": places, "bytes": nbytes}, memory


def serve(connection: socket.socket) -> None:
    """Answers until the other side closes."""
    computer = Computer()
    framing.send(connection, {"ready": os.getpid()})
    while True:
        received = framing.receive(connection)
        if received is None:
            return
        reply, memory = answer(computer, *received)
        framing.send(connection, reply, memory if "done" in reply else None)
        framing.closed([memory] if memory is not None else [])


def main() -> None:
    """Serves the pool that started this process."""
    if os.getppid() != int(sys.argv[2]):
        raise SystemExit(1)  # it ended before this process asked to end with it
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        try:
            serve(connection)
        except OSError:
            raise SystemExit(1) from None  # the pool is gone
