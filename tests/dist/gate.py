"""A gate in the programs of workers: a job does not pass a step until its test lets it.

The hazard: a blow that is meant for the middle of a job, struck by a thread that the machine has
kept waiting until the job was over.
"""

import contextlib
import time
from pathlib import Path

from mixflow.files import write_atomically

#: Looks at the gate, 10 ms apart; a test has a limit of its own.
LOOKS = 30_000


def close(folder, step):
    """Holds workers before that step; replaces what held them before."""
    write_atomically(Path(folder) / "gate", str(step).encode())


def open_(folder):
    """Lets them go on."""
    (Path(folder) / "gate").unlink(missing_ok=True)


def wait(folder, step):
    """In a worker: returns when it may do this step."""
    for _ in range(LOOKS):
        held = None
        with contextlib.suppress(FileNotFoundError):
            held = int((Path(folder) / "gate").read_text())
        if held is None or step < held:
            return
        time.sleep(0.01)
    raise AssertionError(f"the gate before step {held} has not opened")
