"""Making record files of images (``mixflow im2rec``)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..errors import FormatError
from .convert import Converted, Progress, convert_list
from .encode import Options, check_options
from .lists import EXTENSIONS, SEED, Lists, find_images, find_lists, make_list, read_list

__all__ = [
    "Converted",
    "Lists",
    "Options",
    "convert_list",
    "find_images",
    "find_lists",
    "im2rec",
    "make_list",
    "read_list",
]


def im2rec(
    prefix: str | os.PathLike[str],
    root: str | os.PathLike[str],
    recursive: bool = False,
    exts: Sequence[str] = EXTENSIONS,
    chunks: int = 1,
    train_ratio: float = 1.0,
    test_ratio: float = 0.0,
    shuffle: bool = True,
    seed: int = SEED,
    pass_through: bool = False,
    resize: int = 0,
    center_crop: bool = False,
    quality: int = 95,
    num_thread: int = 0,
    color: int = 1,
    encoding: str = ".jpg",
    pack_label: bool = False,
    resume: bool = True,
    progress: Progress | None = None,
) -> list[Converted]:
    """Record files of the lists that start with `prefix`; where there are none, of a folder.

    Args:
        prefix: start of the paths of lists and records.
        root: folder of the images.
        recursive, exts, chunks, train_ratio, test_ratio, shuffle, seed: as of `make_list`, for the
            lists that are made where there are none.
        pass_through, resize, center_crop, quality, color, encoding, pack_label: as of `Options`.
        num_thread, resume, progress: as of `convert_list`.

    Raises:
        ParamError: an option that is none, or no images.
        FileError: a file cannot be written, a list cannot be read, or another run is at work on it.
    """
    options = check_options(
        Options(pass_through, resize, center_crop, quality, color, encoding, pack_label)
    )
    try:
        lists = find_lists(prefix)
    except FormatError:
        made = make_list(
            prefix, root, recursive, exts, chunks, train_ratio, test_ratio, shuffle, seed
        )
        lists = sorted(made.files)
    return [convert_list(path, root, options, num_thread, resume, progress) for path in lists]
