"""Only decoding and resizing, by OpenCV in threads of our process: the measure of the rest."""

from __future__ import annotations

import os
import threading
import time

import cv2
import numpy as np
from ours import CASE, VERSION

import picture_set as pictures
from mixflow import recordio


def build():
    cv2.setNumThreads(0)
    record, index, _ = pictures.paths()
    file = recordio.RecordFile(record, index)
    size = (pictures.RESIZE * pictures.WIDTH // pictures.HEIGHT, pictures.RESIZE)
    threads = int(os.environ["BENCH_THREADS"])

    def work(first):
        for i in range(first, len(file), threads):
            content = recordio.unpack(file[i])[1]
            pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
            cv2.resize(pixels, size)

    def measure():
        began = time.perf_counter()
        workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return (time.perf_counter() - began) / len(file)

    return measure


CASES = {CASE: build}
__all__ = ["CASES", "VERSION"]
