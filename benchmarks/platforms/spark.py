"""Spark: gradients of the whole set by partition, the model at the driver; local mode, as many
threads and Python processes as partitions."""

from importlib.metadata import version

from programs import jobs, tasks

VERSION = f"pyspark {version('pyspark')}"
WARM_UP = 0


def processes(cell, out):
    return jobs.Processes([(jobs.program("train_spark.py", cell, out), {})], 1, 1, cell.threads)


RUNNER = jobs.Runner(processes, [c for c in tasks.all_cells() if c.batch == tasks.WHOLE])
CASES, FIGURES = RUNNER.cases, RUNNER.figures
