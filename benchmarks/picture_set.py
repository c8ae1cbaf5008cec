"""The generated JPEG images that the question `data` reads: 500 x 375 pixels, about 60 kB each.

Noise of several scales, so that the size of a file is that of a photograph. Written once to
.bench/pictures/: one record file for MXNet and ours, single files for PyTorch. BENCH_PICTURES sets
their number (2,000).
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".bench" / "pictures"
COUNT = int(os.environ.get("BENCH_PICTURES", "2000"))
HEIGHT, WIDTH, QUALITY = 375, 500, 86
#: What all rivals do: resize the shorter side, random crop, mirror, normalise; batches of 64.
RESIZE, CROP, BATCH = 256, 224, 64
MEAN, STD = (123.68, 116.28, 103.53), (58.4, 57.12, 57.38)


def picture(number):
    """(375, 500, 3) uint8."""
    import cv2
    import numpy as np

    random = np.random.RandomState(number)
    made = random.randn(HEIGHT, WIDTH, 3).astype(np.float32) * 4 + 128
    for cells, strength in ((4, 60), (16, 40), (64, 25), (200, 14)):
        size = (HEIGHT * cells // 400 + 2, WIDTH * cells // 400 + 2, 3)
        coarse = random.randn(*size).astype(np.float32)
        made += strength * cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    return np.clip(made, 0, 255).astype(np.uint8)


def paths():
    """Record file, index, folder of single files; made by our own process, which is first."""
    folder = FOLDER / str(COUNT)
    record, index = folder / "set.rec", folder / "set.idx"
    if not (folder / ".ready").exists():
        from mixflow import recordio

        (folder / "files").mkdir(parents=True, exist_ok=True)
        writer = recordio.MXIndexedRecordIO(str(index), str(record), "w")
        for i in range(COUNT):
            encoded = recordio.encode_image(picture(i), QUALITY, ".jpg")
            writer.write_idx(i, recordio.pack(recordio.IRHeader(0, float(i % 10), i, 0), encoded))
            (folder / "files" / f"{i:05}.jpg").write_bytes(encoded)
        writer.close()
        (folder / ".ready").touch()
    return record, index, folder / "files"
