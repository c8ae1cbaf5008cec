"""Removes a job's folder in memory once whoever made it is gone, and ends what its workers have
left: ``python janitor.py FOLDER``.

The hazard: a process that is killed cleans nothing up, and what lies in `/dev/shm` takes memory
until the machine is restarted. So the folder's owner starts this process and holds the other end
of its standard input; when that closes, for whatever reason, the folder goes. The owner says there
which process groups are a worker's ('+5') and which are no more ('-5'): those that are left get
SIGKILL, since the kernel ends a worker with its owner, but not what the worker has started. It runs
as a plain script, without the library, so that it costs next to nothing.
"""

import contextlib
import os
import shutil
import signal
import sys
import time


def groups_left() -> set[int]:
    """Process groups that are still a worker's when standard input ends."""
    groups: set[int] = set()
    with open(0, "rb") as said:
        for line in said:
            if line.endswith(b"\n") and line[1:-1].isdigit():  # else it was cut off
                known = groups.add if line.startswith(b"+") else groups.discard
                known(int(line[1:-1]))
    return groups


def main() -> None:
    """Waits for the end of standard input, then ends the groups and removes the folder."""
    folder = sys.argv[1]
    # Nobody's child: Ray's workers kill theirs when they end with their node.
    if os.fork():
        os._exit(0)
    for number in groups_left():
        with contextlib.suppress(OSError):
            os.killpg(number, signal.SIGKILL)
    # The owner's other children end at the same time; what they still write goes too.
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)
        if not os.path.exists(folder):
            break


if __name__ == "__main__":
    main()
