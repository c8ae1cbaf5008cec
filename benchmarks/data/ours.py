"""ImageRecordIter at its default: JPEGs are decoded in part where TurboJPEG is installed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mixflow as mx
import picture_set as pictures

VERSION = f"mixflow {mx.__version__}"


def iterate(decode="auto"):
    def build():
        record, index, _ = pictures.paths()
        names = [*"rgb"]
        batches = mx.io.ImageRecordIter(
            path_imgrec=str(record),
            path_imgidx=str(index),
            data_shape=(3, pictures.CROP, pictures.CROP),
            batch_size=pictures.BATCH,
            resize=pictures.RESIZE,
            rand_crop=True,
            rand_mirror=True,
            shuffle=True,
            preprocess_threads=int(os.environ["BENCH_THREADS"]),
            decode=decode,
            **{f"mean_{k}": v for k, v in zip(names, pictures.MEAN, strict=True)},
            **{f"std_{k}": v for k, v in zip(names, pictures.STD, strict=True)},
        )

        def measure():
            began = time.perf_counter()
            batches.reset()
            count = 0
            for batch in batches:
                batch.data[0].wait_to_read()
                count += pictures.BATCH - batch.pad
            return (time.perf_counter() - began) / count

        for batch in batches:  # so that the first reset begins an epoch too
            batch.data[0].wait_to_read()
        return measure

    return build


CASE = "seconds per image"
CASES = {CASE: iterate()}
