"""Records batches of MXNet 1.9.1's image record iterators into data/image_records/.

Run by `make oracle`, or with a Python that has ``mxnet==1.9.1 numpy==1.23.5``.
"""

import os
import struct
import zlib

import mxnet as mx
import numpy as np
from image_record_cases import BASE, CASES, DETECTION

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "image_records")
COUNT, HEIGHT, WIDTH = 6, 32, 42


def png(pixels):
    """A PNG of (h, w, 3) uint8, without any library."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(rows, 9))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + data + chunk(b"IEND", b"")


def picture(number):
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [np.sin((k + 1) * 0.2 * x + number) * np.cos((3 - k) * 0.15 * y) for k in range(3)]
    noise = np.random.RandomState(number).randint(-20, 20, (HEIGHT, WIDTH, 3))
    return np.clip(128 + 100 * np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)


def write(name, label):
    path = os.path.join(OUT, name)
    writer = mx.recordio.MXIndexedRecordIO(path + ".idx", path + ".rec", "w")
    for i in range(COUNT):
        header = mx.recordio.IRHeader(0, label(i), i, 0)
        writer.write_idx(i, mx.recordio.pack(header, png(picture(i))))
    writer.close()


def boxes(i):
    found = [[k, 0.1 + 0.1 * k, 0.2, 0.5 + 0.1 * k, 0.7] for k in range(1 + i % 3)]
    return [4, 5, HEIGHT, WIDTH, *np.ravel(found).tolist()]


def main():
    os.makedirs(OUT, exist_ok=True)
    write("plain", float)
    write("boxes", boxes)
    saved = {}
    for name, (kind, options, _) in CASES.items():
        path = os.path.join(OUT, "boxes" if kind == DETECTION else "plain")
        batches = list(
            getattr(mx.io, kind)(path_imgrec=path + ".rec", verbose=False, **{**BASE, **options})
        )
        last = batches[-1]
        data = last.data[0].asnumpy()
        whole = data.astype(np.int16) if np.array_equal(data, np.rint(data)) else data
        saved[name + ":data"] = whole[:2]
        saved[name + ":label"] = last.label[0].asnumpy()
        saved[name + ":pads"] = np.array([b.pad for b in batches])
    np.savez_compressed(os.path.join(OUT, "values.npz"), **saved)
    with open(os.path.join(OUT, "VERSION"), "w") as handle:
        handle.write(f"mxnet {mx.__version__}, numpy {np.__version__}\n")


if __name__ == "__main__":
    main()
