"""Wall-clock of a fresh process that imports the package, less that of an empty one."""

import subprocess
import sys
import time

VERSION = "torch"


def process(code):
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.perf_counter() - began


def imported():
    return lambda: process("import torch") - process("pass")


CASES = {"import": imported}
