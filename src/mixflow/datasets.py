"""Image sets by name: digits, MNIST, Fashion-MNIST, CIFAR-10; and folders of their files.

A set is looked for in the folder given, in the places of system packages, and in the cache; only
then it is downloaded. What is downloaded must have the checksum that its publisher gives.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .arguments import checked, optional
from .arguments import path as name_of_file
from .errors import FormatError, MixflowError
from .files import open_regular, write_atomically
from .io import read_idx

Array = np.ndarray[Any, Any]
_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
_TIMEOUT_SECONDS = 20
_BLOCK = 1 << 20


class _Source(NamedTuple):
    """Where a set comes from: folders of system packages, address, files with their MD5 sums."""

    title: str
    places: tuple[str, ...]
    url: str
    files: dict[str, str]
    hint: str


_MNIST = _Source(
    "MNIST",
    ("/usr/share/datasets/mnist",),
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "pass the folder of its four files",
)
_FASHION = _Source(
    "Fashion-MNIST",
    ("/usr/share/datasets/fashion-mnist", "/usr/share/dataset-fashion-mnist"),
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    "install Debian's package 'dataset-fashion-mnist' (apt-get install dataset-fashion-mnist), or "
    "pass the folder of its four files",
)
_CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
_CIFAR = _Source(
    "CIFAR-10",
    ("/usr/share/datasets/cifar-10", "/usr/share/datasets/cifar10"),
    "https://www.cs.toronto.edu/~kriz/",
    {_CIFAR_ARCHIVE: "c32a1d4ab5d03f1284b67883e8d87530"},
    "pass the folder of its binary files (data_batch_1.bin ... test_batch.bin) or of the archive "
    f"{_CIFAR_ARCHIVE}",
)
_CIFAR_TRAIN = tuple(f"data_batch_{n}.bin" for n in range(1, 6))
_CIFAR_TEST = "test_batch.bin"
_CIFAR_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_CIFAR_RECORD = 1 + 3 * 32 * 32
_CIFAR_MOST_RECORDS = 100_000


class ImageSet(NamedTuple):
    """Images (N, C, H, W) float32 in [0, 1] and labels (N,) float32, in two parts."""

    name: str
    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array
    classes: tuple[str, ...]


def digits() -> ImageSet:
    """The 1,797 packaged digits, enlarged to 28x28; every fifth image in file order is test.

    Source: UCI optical recognition of handwritten digits, CC BY 4.0 (see data/ATTRIBUTION.md).
    """
    path = Path(__file__).parent / "data" / "digits.npz"
    with np.load(path, allow_pickle=False) as archive:
        images, labels = archive["images"], archive["labels"]
    pixels = enlarge(images.astype(np.float32) / 16.0, 28)[:, None]
    test = np.arange(len(labels)) % 5 == 4
    answers = labels.astype(np.float32)
    names = tuple(str(d) for d in range(10))
    return ImageSet("digits", pixels[~test], answers[~test], pixels[test], answers[test], names)


def enlarge(images: Array, size: int) -> Array:
    """Bilinear enlargement with pixel centres aligned (half-pixel rule, edges repeated).

    Args:
        images: (N, H, W) float.
        size: side of the result.

    Returns:
        (N, size, size) float32.
    """
    rows, columns = (_weights(n, size) for n in images.shape[1:3])
    large = np.einsum("sh,nhw,tw->nst", rows, images, columns, optimize=True)
    return np.asarray(large, np.float32)


def _weights(source: int, target: int) -> Array:
    """(target, source) interpolation matrix of one axis."""
    centre = (np.arange(target) + 0.5) * source / target - 0.5
    low = np.floor(centre).astype(int)
    share = (centre - low).astype(np.float32)
    matrix = np.zeros((target, source), np.float32)
    rows = np.arange(target)
    np.add.at(matrix, (rows, low.clip(0, source - 1)), 1 - share)
    np.add.at(matrix, (rows, (low + 1).clip(0, source - 1)), share)
    return matrix


@checked("datasets", folder=name_of_file)
def from_folder(folder: str | Path, name: str = "") -> ImageSet:
    """MNIST's four idx files (plain or .gz) of a folder.

    Raises:
        FormatError: a file is missing or damaged; the text names it.
    """
    parts = {key: read_idx(_find(Path(folder), file)) for key, file in _FILES.items()}
    for kind in ("train", "test"):
        images, labels = parts[f"{kind}_images"], parts[f"{kind}_labels"]
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise FormatError(
                f"[datasets] expected (N, H, W) images and N labels in {folder}, got "
                f"{images.shape} and {labels.shape}"
            )
    scaled = {
        key: (value[:, None].astype(np.float32) / 255 if value.ndim == 3 else value.astype("f4"))
        for key, value in parts.items()
    }
    count = int(parts["train_labels"].max(initial=0)) + 1
    return ImageSet(name or Path(folder).name, **scaled, classes=tuple(map(str, range(count))))


def _find(folder: Path, file: str) -> Path:
    for candidate in (folder / f"{file}.gz", folder / file, folder / file.replace("-idx", ".idx")):
        if candidate.exists():
            return candidate
    raise FormatError(f"[datasets] expected {file} or {file}.gz in {folder}, found neither")


@checked("datasets", folder=optional(name_of_file))
def mnist(folder: str | Path | None = None) -> ImageSet:
    """MNIST (LeCun, Cortes and Burges): 70,000 handwritten digits (1, 28, 28).

    Args:
        folder: of its four files; None: a system package, the cache, or a download.

    Raises:
        FormatError: a file is missing in `folder`, or damaged.
        MixflowError: not found and no network, or a download with another checksum.
    """
    return _idx_set("mnist", _MNIST, folder)


@checked("datasets", folder=optional(name_of_file))
def fashion_mnist(folder: str | Path | None = None) -> ImageSet:
    """Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 70,000 pieces of clothing (1, 28, 28).

    Args:
        folder: of its four files; None: Debian's package, the cache, or a download.

    Raises:
        FormatError: a file is missing in `folder`, or damaged.
        MixflowError: not found and no network, or a download with another checksum.
    """
    return _idx_set("fashion-mnist", _FASHION, folder)


def _idx_set(name: str, source: _Source, folder: str | Path | None) -> ImageSet:
    if folder is None:
        folder = _obtain(
            name, source, lambda place: all((place / f).exists() for f in source.files)
        )
    return from_folder(folder, name)


@checked("datasets", folder=optional(name_of_file))
def cifar10(folder: str | Path | None = None) -> ImageSet:
    """CIFAR-10 (Krizhevsky, 2009): 60,000 colour images (3, 32, 32) of ten classes.

    Args:
        folder: of its binary files or their archive; None: a system package, the cache, or a
            download (162 MB).

    Raises:
        FormatError: a file is missing in `folder`, or damaged.
        MixflowError: not found and no network, or a download with another checksum.
    """
    names = (*_CIFAR_TRAIN, _CIFAR_TEST)

    def complete(place: Path) -> bool:
        return (place / _CIFAR_ARCHIVE).exists() or all((place / n).exists() for n in names)

    place = Path(folder) if folder is not None else _obtain("cifar-10", _CIFAR, complete)
    below = place / "cifar-10-batches-bin"
    place = below if not complete(place) and complete(below) else place
    if not complete(place):
        raise FormatError(
            f"[datasets] expected {', '.join(names)} or {_CIFAR_ARCHIVE} in {place}, got neither"
        )
    if all((place / n).exists() for n in names):
        parts = {n: _cifar_part(_cifar_bytes(place / n), f"{place / n}") for n in names}
    else:
        parts = _cifar_archive(place / _CIFAR_ARCHIVE, names)
    train = [parts[n] for n in _CIFAR_TRAIN]
    return ImageSet(
        "cifar-10",
        np.concatenate([images for images, _ in train]),
        np.concatenate([labels for _, labels in train]),
        *parts[_CIFAR_TEST],
        _CIFAR_CLASSES,
    )


def _cifar_archive(path: Path, names: tuple[str, ...]) -> dict[str, tuple[Array, Array]]:
    """The parts in an archive; nothing is unpacked to the disk."""
    parts: dict[str, tuple[Array, Array]] = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                name = Path(member.name).name
                if name not in names or not member.isfile() or name in parts:
                    continue
                _check_cifar_size(member.size, f"{name} of {path}")
                content = archive.extractfile(member)
                parts[name] = _cifar_part(content.read() if content else b"", f"{name} of {path}")
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise FormatError(f"[datasets] expected a whole archive at {path}, got: {error}") from None
    missing = [n for n in names if n not in parts]
    if missing:
        raise FormatError(f"[datasets] expected {', '.join(missing)} in {path}, got none")
    return parts


def _cifar_bytes(path: Path) -> bytes:
    """The content of a binary file that is not too long for one."""
    with open_regular(path, "datasets") as file:
        _check_cifar_size(os.fstat(file.fileno()).st_size, str(path))
        return file.read()


def _check_cifar_size(size: int, source: str) -> None:
    if size > _CIFAR_MOST_RECORDS * _CIFAR_RECORD:
        raise FormatError(
            f"[datasets] expected at most {_CIFAR_MOST_RECORDS} images in {source}, got {size} "
            "bytes"
        )


def _cifar_part(raw: bytes, source: str) -> tuple[Array, Array]:
    """Images and labels of a binary file: per image its class and the planes red, green, blue."""
    if not raw or len(raw) % _CIFAR_RECORD:
        raise FormatError(
            f"[datasets] expected whole records of {_CIFAR_RECORD} bytes in {source}, got "
            f"{len(raw)} bytes"
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, _CIFAR_RECORD)
    labels = records[:, 0]
    if labels.max() >= len(_CIFAR_CLASSES):
        raise FormatError(
            f"[datasets] expected classes from 0 to {len(_CIFAR_CLASSES) - 1} in {source}, got "
            f"{labels.max()}"
        )
    images = records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32)
    images /= 255
    return images, labels.astype(np.float32)


def _obtain(name: str, source: _Source, complete: Callable[[Path], bool]) -> Path:
    """The first folder that holds a set; downloads it to the cache where there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mixflow" / name
    for place in (*map(Path, source.places), cache):
        if complete(place):
            return place
    try:
        for file, checksum in source.files.items():
            _download(source.url + file, cache / file, checksum)
    except (urllib.error.URLError, OSError) as error:
        raise MixflowError(
            f"[datasets] expected {source.title} on this machine, got none and no download "
            f"({error}); {source.hint}: --data DIR"
        ) from None
    return cache


def _download(url: str, target: Path, checksum: str) -> None:
    """Downloads a file, unless it is there; another content than the published one is not kept.

    Raises:
        FormatError: another checksum.
        OSError: no network, or the file cannot be written.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as reply:
        write_atomically(target, _checked(reply, url, checksum))


def _checked(reply: Any, url: str, checksum: str) -> Iterator[bytes]:
    digest = hashlib.md5(usedforsecurity=False)
    while block := reply.read(_BLOCK):
        digest.update(block)
        yield block
    if digest.hexdigest() != checksum:
        raise FormatError(
            f"[datasets] expected the checksum {checksum} of {url}, got {digest.hexdigest()}; the "
            "download is damaged or the file was changed"
        )


_SETS: dict[str, Callable[[], ImageSet]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar-10": cifar10,
    "cifar10": cifar10,
}


@checked("datasets", data=name_of_file)
def load(data: str) -> ImageSet:
    """The set of a name (digits, mnist, fashion-mnist, cifar10) or of a folder of its files.

    Raises:
        MixflowError: neither; the text lists what there is.
    """
    if data in _SETS:
        return _SETS[data]()
    if Path(data).is_dir():
        is_cifar = any(Path(data).glob("*.bin")) or (Path(data) / _CIFAR_ARCHIVE).exists()
        return cifar10(data) if is_cifar else from_folder(data)
    raise MixflowError(
        "[datasets] expected digits, mnist, fashion-mnist, cifar10 or a folder of files of MNIST "
        f"or CIFAR-10, got '{data}'"
    )
