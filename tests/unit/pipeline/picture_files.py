"""Small record files of pictures for the tests of the pipeline."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from mixflow import recordio


def picture(number: int, height: int = 60, width: int = 80) -> np.ndarray:
    """Smooth noise (height, width, 3), so that JPEG keeps it."""
    import cv2

    coarse = np.random.RandomState(number).randint(0, 256, (6, 8, 3)).astype(np.uint8)
    return np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC))


def write_records(
    folder: Path, count: int, ending: str = ".png", labels: int = 1, **size: int
) -> dict[str, Any]:
    """Writes `count` pictures with labels 0, 1, ...; gives the paths as ImageRecordIter's."""
    paths = {"path_imgrec": str(folder / "set.rec"), "path_imgidx": str(folder / "set.idx")}
    writer = recordio.MXIndexedRecordIO(paths["path_imgidx"], paths["path_imgrec"], "w")
    for i in range(count):
        label = float(i) if labels == 1 else [float(i + k) for k in range(labels)]
        header = recordio.IRHeader(0, label, i, 0)
        quality = 3 if ending == ".png" else 95
        writer.write_idx(i, recordio.pack_img(header, picture(i, **size), quality, ending))
    writer.close()
    return paths


def data_threads() -> list[str]:
    """Names of the pipeline's threads that live."""
    return [t.name for t in threading.enumerate() if "Iter-" in t.name or "pipe-" in t.name]
