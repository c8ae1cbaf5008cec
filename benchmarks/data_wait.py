"""Share of its time that training LeNet from record files waits for data.

    python benchmarks/data_wait.py [--threads 1] [--images 1500] [--epochs 3]

Writes JPEG records of 32 x 32 pixels, trains with random crops and mirroring while the pipeline
decodes, and prints seconds per step and the share that `next` waited (the iterator counts it).
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import mixflow as mx
from mixflow import models, recordio


def write(folder, count):
    draw = np.random.default_rng(0)
    paths = {"path_imgrec": str(folder / "set.rec"), "path_imgidx": str(folder / "set.idx")}
    file = recordio.MXIndexedRecordIO(paths["path_imgidx"], paths["path_imgrec"], "w")
    for number in range(count):
        image = draw.integers(0, 256, (32, 32, 3)).astype(np.uint8)
        header = recordio.IRHeader(0, number % 10, number, 0)
        file.write_idx(number, recordio.pack_img(header, image, img_fmt=".jpg"))
    file.close()
    return paths


def epoch(module, data):
    steps = 0
    for batch in data:
        module.forward_backward(batch)
        module.update()
        module.get_outputs()[0].wait_to_read()
        steps += 1
    data.reset()
    return steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1, help="decoding threads")
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = mx.io.ImageRecordIter(
            **write(Path(folder), args.images),
            data_shape=(3, 28, 28),
            batch_size=64,
            shuffle=True,
            rand_crop=True,
            rand_mirror=True,
            scale=1 / 255,
            preprocess_threads=args.threads,
        )
        module = mx.mod.Module(models.NETWORKS["lenet"]())
        module.bind(data.provide_data, data.provide_label)
        module.init_params(mx.init.Xavier())
        module.init_optimizer(optimizer_params={"learning_rate": 0.01})
        epoch(module, data)  # kernels are chosen in the first
        waited, began, steps = data.seconds_waited, time.perf_counter(), 0
        for _ in range(args.epochs):
            steps += epoch(module, data)
        seconds = time.perf_counter() - began
        share = (data.seconds_waited - waited) / seconds
        print(
            f"{1e3 * seconds / steps:.2f} ms per step, {100 * share:.2f} % of it waiting for data"
        )
        data.close()


if __name__ == "__main__":
    main()
