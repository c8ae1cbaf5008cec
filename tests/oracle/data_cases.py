"""Inputs of the data files that are compared with MXNet 1.9.1; needs neither package."""

import random
import struct

MAGIC = struct.pack("<I", 0xCED7230A)


def payloads(count, seed):
    """Random records: with and without the magic number, some with headers of image records."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        pieces = []
        for _ in range(rng.randrange(6)):
            pieces.append(bytes(rng.randrange(256) for _ in range(rng.randrange(24))))
            if rng.random() < 0.4:
                pieces.append(MAGIC)
        if rng.random() < 0.05:
            pieces.append(bytes(rng.randrange(400, 2000)))
        content = b"".join(pieces)
        if number % 3 == 0:
            content = struct.pack("<IfQQ", 0, rng.random(), number, 0) + content
        found.append(content)
    return found


def labels(seed):
    """(label, id, id2) of headers."""
    rng = random.Random(seed)
    found = [(3, 7, 0), (2.5, 2**40, 5), ([1.0], 1, 0), ([0.5, -2.0, 1e6], 2**63, 1), ([], 0, 0)]
    return found + [([rng.random() for _ in range(n)], 100 + n, 0) for n in range(2, 9)]


def numbers(count, columns, seed):
    """Lines of numbers in several notations."""
    rng = random.Random(seed)

    def one():
        value = rng.choice((rng.uniform(-1, 1), rng.uniform(-1e4, 1e4), rng.randrange(-99, 99)))
        return rng.choice((f"{value}", f"{value:.3f}", f"{value:.2e}"))

    return "".join(",".join(one() for _ in range(columns)) + "\n" for _ in range(count))


def sparse(count, columns, seed):
    """Lines of LibSVM's form."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        chosen = sorted(rng.sample(range(columns), rng.randrange(columns)))
        pairs = " ".join(f"{c}:{rng.uniform(-9, 9):.4f}" for c in chosen)
        lines.append(f"{rng.randrange(5)} {pairs}\n")
    return "".join(lines)


def idx(count, rows, columns, seed):
    """(images, labels) in the idx format."""
    rng = random.Random(seed)
    pixels = bytes(rng.randrange(256) for _ in range(count * rows * columns))
    image = struct.pack(">IIII", 2051, count, rows, columns) + pixels
    return image, struct.pack(">II", 2049, count) + bytes(i % 10 for i in range(count))


FILES = {
    "a.csv": numbers(23, 6, 1),
    "l.csv": numbers(23, 1, 2),
    "l3.csv": numbers(23, 3, 3),
    "int.csv": "".join(f"{i},{-i * 1000}\n" for i in range(7)),
    "a.svm": sparse(19, 8, 4),
    "l.svm": sparse(19, 3, 5),
    "images": idx(37, 5, 4, 6)[0],
    "labels": idx(37, 5, 4, 6)[1],
}
_CSV = {"data_csv": "a.csv", "data_shape": (6,)}
_SVM = {"data_libsvm": "a.svm", "data_shape": (8,)}
_IDX = {"image": "images", "label": "labels", "silent": True}
#: (iterator, its arguments)
ITERATORS = [
    ("CSVIter", {**_CSV, "batch_size": 5}),
    ("CSVIter", {**_CSV, "batch_size": 5, "label_csv": "l.csv"}),
    ("CSVIter", {**_CSV, "batch_size": 5, "label_csv": "l.csv", "round_batch": False}),
    ("CSVIter", {**_CSV, "batch_size": 4, "label_csv": "l3.csv", "label_shape": (3,)}),
    ("CSVIter", {"data_csv": "a.csv", "data_shape": (2, 3), "batch_size": 23}),
    ("CSVIter", {**_CSV, "batch_size": 30}),
    ("CSVIter", {"data_csv": "int.csv", "data_shape": (2,), "batch_size": 3, "dtype": "int32"}),
    ("CSVIter", {"data_csv": "int.csv", "data_shape": (2,), "batch_size": 3, "dtype": "int64"}),
    ("LibSVMIter", {**_SVM, "batch_size": 4}),
    ("LibSVMIter", {**_SVM, "batch_size": 19}),
    ("LibSVMIter", {**_SVM, "batch_size": 3, "label_libsvm": "l.svm", "label_shape": (3,)}),
    ("MNISTIter", {**_IDX, "batch_size": 5}),
    ("MNISTIter", {**_IDX, "batch_size": 5, "seed": 11, "flat": True}),
    ("MNISTIter", {**_IDX, "batch_size": 4, "shuffle": False, "num_parts": 3, "part_index": 2}),
    ("MNISTIter", {**_IDX, "batch_size": 4, "num_parts": 3, "part_index": 1, "seed": 2}),
]
EPOCHS = 3


def write_files():
    """Puts the files into the current folder."""
    for name, content in FILES.items():
        with open(name, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())


def batches(io, kind, options):
    """Per epoch and batch: data, label and pad, of an iterator of either package."""
    iterator = getattr(io, kind)(**options)
    found = []
    for _ in range(EPOCHS):
        for batch in iterator:
            data, label = batch.data[0], batch.label[0]
            found.append((data.stype, data.asnumpy(), label.asnumpy(), batch.pad))
        found.append(None)
        iterator.reset()
    return found
