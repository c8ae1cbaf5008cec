"""MXNet's ImageRecordIter, C++ threads."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path[:] = [p for p in sys.path if Path(p).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mxnet as mx  # noqa: E402

import picture_set as pictures  # noqa: E402

VERSION = f"mxnet {mx.__version__}"


def build():
    record, index, _ = pictures.paths()
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
        mean_r=pictures.MEAN[0],
        mean_g=pictures.MEAN[1],
        mean_b=pictures.MEAN[2],
        std_r=pictures.STD[0],
        std_g=pictures.STD[1],
        std_b=pictures.STD[2],
        verbose=False,
    )

    def measure():
        began = time.perf_counter()
        batches.reset()
        count = 0
        for batch in batches:
            batch.data[0].wait_to_read()
            count += pictures.BATCH - batch.pad
        return (time.perf_counter() - began) / count

    for batch in batches:
        batch.data[0].wait_to_read()
    return measure


CASES = {"seconds per image": build}
