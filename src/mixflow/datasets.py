"""Image sets by name: the packaged digits, (Fashion-)MNIST files, folders."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import FormatError, MixflowError
from .files import write_atomically
from .io import read_idx

Array = np.ndarray[Any, Any]
_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
_FASHION_PLACES = ("/usr/share/datasets/fashion-mnist", "/usr/share/dataset-fashion-mnist")
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_TIMEOUT_SECONDS = 20


class ImageSet(NamedTuple):
    """Images (N, 1, 28, 28) float32 in [0, 1] and labels (N,) float32, in two parts."""

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


def fashion_mnist() -> ImageSet:
    """Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): Debian's package, the cache, or a download.

    Raises:
        MixflowError: not found and no network; the text says how to get it.
    """
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mixflow" / "fashion-mnist"
    )
    for place in (*_FASHION_PLACES, cache):
        if all((Path(place) / f"{f}.gz").exists() for f in _FILES.values()):
            return from_folder(place, "fashion-mnist")
    try:
        _download(cache)
    except (urllib.error.URLError, OSError) as error:
        raise MixflowError(
            "[datasets] expected Fashion-MNIST on this machine, got none and no download "
            f"({error}); install Debian's package 'dataset-fashion-mnist' (apt-get install "
            f"dataset-fashion-mnist), or pass the folder of its four files: --data DIR"
        ) from None
    return from_folder(cache, "fashion-mnist")


def _download(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in _FILES.values():
        target = folder / f"{file}.gz"
        if target.exists():
            continue
        with urllib.request.urlopen(f"{_FASHION_URL}{file}.gz", timeout=_TIMEOUT_SECONDS) as reply:
            write_atomically(target, reply.read())


def load(data: str) -> ImageSet:
    """The set of a name ('digits', 'fashion-mnist') or of a folder of idx files.

    Raises:
        MixflowError: neither; the text lists what there is.
    """
    if data == "digits":
        return digits()
    if data == "fashion-mnist":
        return fashion_mnist()
    if Path(data).is_dir():
        return from_folder(data)
    raise MixflowError(
        f"[datasets] expected digits, fashion-mnist or a folder of MNIST's idx files, got '{data}'"
    )
