"""PyTorch's DataLoader; its worker processes decode and resize with OpenCV and normalise."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path[:] = [p for p in sys.path if Path(p).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

import picture_set as pictures  # noqa: E402

VERSION = f"torch {torch.__version__}, opencv {cv2.__version__}"
MEAN = np.array(pictures.MEAN, np.float32)
FACTOR = 1 / np.array(pictures.STD, np.float32)


class Pictures(Dataset):
    def __init__(self, folder):
        self.files = sorted(str(p) for p in Path(folder).iterdir())

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        pixels = cv2.imread(self.files[number], cv2.IMREAD_COLOR_RGB)
        height, width = pixels.shape[:2]
        scale = pictures.RESIZE / min(height, width)
        pixels = cv2.resize(pixels, (int(width * scale), int(height * scale)))
        top = np.random.randint(pixels.shape[0] - pictures.CROP + 1)
        left = np.random.randint(pixels.shape[1] - pictures.CROP + 1)
        pixels = pixels[top : top + pictures.CROP, left : left + pictures.CROP]
        if np.random.rand() < 0.5:
            pixels = pixels[:, ::-1]
        values = (pixels.astype(np.float32) - MEAN) * FACTOR
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1))), number % 10


def begin(_):
    cv2.setNumThreads(0)
    torch.set_num_threads(1)


def build():
    _, _, folder = pictures.paths()
    batches = DataLoader(
        Pictures(folder),
        batch_size=pictures.BATCH,
        shuffle=True,
        num_workers=int(os.environ["BENCH_THREADS"]),
        prefetch_factor=4,
        persistent_workers=True,
        worker_init_fn=begin,
    )

    def measure():
        began = time.perf_counter()
        count = 0
        for data, _ in batches:
            count += len(data)
        return (time.perf_counter() - began) / count

    return measure


CASES = {"seconds per image": build}
