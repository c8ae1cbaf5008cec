"""Records values of MXNet 1.9.1 into tests/oracle/data, then runs the tests that need MXNet itself.

    make oracle

Sets up MXNet in .bench/mxnet (Python 3.11), runs every tests/oracle/record_*.py there, and
compares with this tree's package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from run import interpreter  # noqa: E402 - the one place that knows the rivals' environments

RECORD_SECONDS = 1800


def main() -> int:
    """Runs the recorders, then the oracle tests; returns the tests' exit status."""
    python = interpreter("mxnet")
    for script in sorted((ROOT / "tests" / "oracle").glob("record_*.py")):
        print(f"recording: {script.name}", flush=True)
        subprocess.run([python, str(script)], check=True, timeout=RECORD_SECONDS, cwd=ROOT)
    tests = [sys.executable, "-m", "pytest", "-q", "tests/oracle", "tests/contract"]
    environment = {**os.environ, "MIXFLOW_MXNET_PYTHON": python}
    return subprocess.run(tests, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
