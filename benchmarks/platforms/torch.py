"""PyTorch: DistributedDataParallel on gloo, fused SGD."""

from importlib.metadata import version

from programs import jobs, tasks

from crew import free_port

VERSION = f"torch {version('torch')}"
WARM_UP = 0


def processes(cell, out):
    port = str(free_port())
    command = jobs.program("train_torch.py", cell, out)
    commands = [([*command, str(rank), port], {}) for rank in range(cell.workers)]
    return jobs.Processes(commands, cell.workers, cell.workers, cell.threads)


RUNNER = jobs.Runner(processes, [c for c in tasks.all_cells() if c.mode == "sync"])
CASES, FIGURES = RUNNER.cases, RUNNER.figures
