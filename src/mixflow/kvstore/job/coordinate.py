"""The coordinator of a detached job as a process: ``python -m mixflow.kvstore.job.coordinate``.

The command's options come as JSON on standard input. What it prints is the job's log.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from ...errors import MixflowError
from .running import options_of, run_job

#: Seconds for which a job that has ended still answers those who look at it.
LINGER_SECONDS = 0.5


def main() -> int:
    """Runs the job; its exit code."""
    args = argparse.Namespace(**json.load(sys.stdin))
    try:
        code = run_job(
            args, options_of(args), args.name, linger=lambda _: time.sleep(LINGER_SECONDS)
        )
    except MixflowError:  # it stands in the log
        return 1
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
