"""What tests of whole jobs share: programs of workers, what goes on beside a job, its traces."""

import contextlib
import json
import os
import threading
import time
from pathlib import Path

import gate
import psutil

COUNTER = str(Path(__file__).with_name("counter.py"))
FIT = str(Path(__file__).with_name("fit.py"))
#: Deadlines that no test measures. A machine may keep any process waiting for half a minute, so
#: they are there only that a job which hangs is told in words.
STORE_SECONDS, JOB_SECONDS = 100.0, 240.0
#: Random moments of each kind.
COUNT = 20 if os.environ.get("MIXFLOW_FULL_COUNTS") else 1


def until(what, seconds=120, pause=0.05):
    """Waits until something is true, and returns it."""
    # Not by a clock: a machine may stop this process and those that it waits for.
    for _ in range(int(seconds / pause)):
        if found := what():
            return found
        time.sleep(pause)
    raise AssertionError("it did not come true")


def beside(job, act, held=None):
    """Runs a job while `act(job)` is done to it; its exit code.

    `held` (folder, step): no worker does that step before `act` has returned.
    """
    failed = []
    if held:
        gate.close(*held)

    def watched():
        try:
            act(job)
        except BaseException as error:
            failed.append(error)
            job.stop()
        finally:
            if held:
                gate.open_(held[0])

    thread = threading.Thread(target=watched, daemon=True)
    thread.start()
    code = job.run()  # ends soon where the other side has failed
    thread.join(60)
    assert not failed and not thread.is_alive(), failed
    return code


def done_steps(folder, rank="*"):
    """Steps that a worker of that rank has done; without a rank, whoever did the most."""
    done = [path.read_text().count("\n") for path in folder.glob(f"steps{rank}")]
    return max(done, default=0)


def progressed(folder, steps, rank="*"):
    """Waits until some worker, or that of a rank, has done so many steps."""
    until(lambda: done_steps(folder, rank) >= steps, pause=0.005)


def steps_more(folder, steps, rank):
    """Waits until a worker has begun and done so many steps more: what was pushed before is in what
    it has read then."""
    progressed(folder, done_steps(folder, rank) + 1 + steps, rank)


def counted(folder):
    """Steps of all workers together, from the lines that they have written."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob("steps*"))


def enough(folder):
    """Lets the workers of a counting job end, each after its step."""
    (folder / "enough").touch()


def last_values(folder):
    """What the worker that has ended last has read: the largest values."""
    found = [json.loads(path.read_text()) for path in folder.glob("end*")]
    return max(found, key=lambda end: end["small"])


def ends(folder, workers=2):
    """What each worker has left."""
    return [json.loads((folder / f"end{rank}").read_text()) for rank in range(workers)]


def gone(pids):
    """Whether processes have ended."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
    return True
