"""MLlib's LogisticRegression (L-BFGS) on a cached data frame. Arguments: cell, folder, parquet
files.

Its `PASSES` iterations are one pass each or more, and it looks through the data once before.
"""

import sys

import numpy as np
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.functions import array_to_vector
from pyspark.sql import SparkSession
from tasks import Cell, Watch

PASSES = 5


def main():
    cell, out = Cell.from_json(sys.argv[1]), sys.argv[2]
    session = (
        SparkSession.builder.master(f"local[{cell.workers}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "5g")
        .getOrCreate()
    )
    rows = session.read.parquet(sys.argv[3]).coalesce(cell.workers)
    data = rows.select(array_to_vector("features").alias("features"), "label").cache()
    data.count()

    def fit(iterations):
        family = "binomial" if cell.outputs == 1 else "multinomial"
        method = LogisticRegression(
            maxIter=iterations, tol=0.0, regParam=0.0, standardization=False, family=family
        )
        return method.fit(data)

    watch = Watch(out, 0)
    fit(1)
    while watch.begin():
        model = fit(PASSES)
        watch.end(passes=model.summary.totalIterations)
    weights = [model.coefficientMatrix.toArray(), model.interceptVector.toArray()]
    watch.write([np.array(w) for w in weights])
    session.stop()


if __name__ == "__main__":
    main()
