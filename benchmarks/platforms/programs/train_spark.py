"""Spark as in its examples of gradient descent: the model stays at the driver, is broadcast for
each pass, and every partition gives the sum of its gradients. Arguments: cell, folder.

A partition maps its rows from the file: that is cheaper than a cached RDD, whose arrays would
travel between the JVM and Python in each pass.
"""

import os
import sys
from functools import partial

from gradients import part_sums
from pyspark.sql import SparkSession
from tasks import Cell, Watch, first_values


def main():
    cell, out = Cell.from_json(sys.argv[1]), sys.argv[2]
    here = os.path.dirname(os.path.abspath(__file__))
    os.environ["PYTHONPATH"] = here
    session = (
        SparkSession.builder.master(f"local[{cell.workers}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.executorEnv.PYTHONPATH", here)
        .getOrCreate()
    )
    context = session.sparkContext
    parts = context.parallelize(range(cell.workers), cell.workers)
    weights = first_values(cell)

    def add(a, b):
        return [u + v for u, v in zip(a, b, strict=True)]

    def train(passes):
        for _ in range(passes):
            shared = context.broadcast(weights)
            whole = parts.map(partial(part_sums, cell, shared)).treeReduce(add)
            shared.unpersist()
            for weight, gradient in zip(weights, whole, strict=True):
                weight -= (cell.rate / cell.rows) * gradient

    watch = Watch(out, 0)
    train(cell.warm)
    while watch.begin():
        train(cell.steps)
        watch.end()
    watch.write(weights)
    session.stop()


if __name__ == "__main__":
    main()
