"""A forked child of a test, which must end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

SECONDS = 60.0


def run_child(work: Callable[[], int]) -> int:
    """Exit code of a fork that runs `work`; -1 where it was killed after a minute."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)  # also after an error: no second pytest goes on from here
    end = time.monotonic() + SECONDS
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return -1
    return os.waitstatus_to_exitcode(ended[1])
