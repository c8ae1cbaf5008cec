"""MXNet 1.9.1 with its own parameter server: a scheduler, a server, `Module` in the workers."""

from importlib.metadata import version

from programs import jobs, tasks

from crew import free_port

VERSION = f"mxnet {version('mxnet')}"
WARM_UP = 0


def processes(cell, out):
    common = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(cell.workers),
    }
    command = jobs.program("train_module.py", cell, out, "mxnet")
    roles = ["scheduler", "server", *["worker"] * cell.workers]
    commands = [(command, {**common, "DMLC_ROLE": role}) for role in roles]
    return jobs.Processes(commands, cell.workers, cell.workers, cell.threads)


CELLS = [c for c in tasks.all_cells() if not c.mode.startswith("staleness")]
RUNNER = jobs.Runner(processes, CELLS)
CASES, FIGURES = RUNNER.cases, RUNNER.figures
