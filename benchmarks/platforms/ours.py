"""mixflow: `mixflow launch`, one server, `Module` with the job's store."""

import sys

from programs import jobs, tasks

import mixflow

VERSION = f"mixflow {mixflow.__version__}"
ROUNDS, WARM_UP, TOGETHER = 5, 0, True
CONSISTENCY = {
    "sync": ["dist_sync"],
    "async": ["dist_async"],
    "staleness 3": ["dist_ssp", "--staleness", "3"],
}


def processes(cell, out):
    command = [sys.executable, "-m", "mixflow.cli", "launch", "-n", str(cell.workers), "-s", "1"]
    command += ["--restarts", "0", "--consistency", *CONSISTENCY[cell.mode]]
    command += jobs.program("train_module.py", cell, out, "mixflow")
    return jobs.Processes([(command, {})], waited=1, watches=cell.workers, threads=cell.threads)


tasks.prepare()
RUNNER = jobs.Runner(processes, tasks.all_cells())
CASES, FIGURES = RUNNER.cases, RUNNER.figures
