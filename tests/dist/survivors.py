"""Processes that outlive the tests that started them.

Every process inherits a name from this one, whoever started it and whatever group it is in; so the
check sees those, too, whose parents are gone.
"""

import contextlib
import os
import time

import psutil

MARK = "DIST_TESTS_RUN"
#: A merger without workers, and a server whose launcher is gone, take some seconds to end; on a
#: machine that is busy, more.
GONE_SECONDS = 60.0


def marked():
    """Living processes that this one, or one that it has started, has started."""
    found, me = set(), os.getpid()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            # What has ended and is only not yet asked for its exit code has no environment.
            if process.pid != me and process.environ().get(MARK) == os.environ[MARK]:
                found.add(process)
    return found


def left_behind(before):
    """Processes that have come since and do not go; what they are, in words."""
    # Not by a clock: a machine may stop this process and those that it waits for.
    for _ in range(int(10 * GONE_SECONDS)):
        left = marked() - before
        if not left:
            return []
        time.sleep(0.1)
    found = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            found.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
    return found
