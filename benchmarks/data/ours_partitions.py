"""PartitionedIter: processes that decode ahead, one thread each."""

from __future__ import annotations

import os
import time

from ours import CASE, VERSION  # noqa: F401

import mixflow as mx
import picture_set as pictures


def build():
    record, index, _ = pictures.paths()
    source = {
        "kind": "records",
        "path": str(record),
        "index": str(index),
        "shape": [3, pictures.CROP, pictures.CROP],
        "shuffle": True,
        "mean": list(pictures.MEAN),
        "std": list(pictures.STD),
        "augment": {"resize": pictures.RESIZE, "rand_crop": True, "rand_mirror": True},
    }
    executors = int(os.environ["BENCH_THREADS"])
    batches = mx.io.PartitionedIter(source, pictures.BATCH, executors, memory="1G")

    def measure():
        began = time.perf_counter()
        count = 0
        for batch in batches:
            batch.data[0].wait_to_read()
            count += pictures.BATCH - batch.pad
        batches.reset()
        return (time.perf_counter() - began) / count

    measure()
    return measure


CASES = {CASE: build}
