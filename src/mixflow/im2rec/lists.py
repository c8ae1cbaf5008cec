"""Lists of images: one line `id<TAB>label...<TAB>path` per image."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..arguments import a, checked, flag, number, path, several, text, whole
from ..errors import FormatError, ParamError
from ..files import file_error, open_file, write_atomically

EXTENSIONS = (".jpeg", ".jpg", ".png")
#: What MXNet's tool seeds its shuffle with, so that both make the same lists.
SEED = 100


class Item(NamedTuple):
    """One image of a list.

    Attributes:
        id: its number.
        labels: one or several numbers.
        path: below the root folder.
    """

    id: int
    labels: tuple[float, ...]
    path: str


class BadLine(NamedTuple):
    """A line of a list that is none.

    Attributes:
        text: the line.
        reason: why.
    """

    text: str
    reason: str


class Lists(NamedTuple):
    """What `make_list` wrote.

    Attributes:
        files: paths of the lists.
        images: number of images in all of them.
        labels: folder below the root -> label, where folders are labels.
        left_out: paths that a list cannot hold; they stand in the table `bad` of the first list.
        bad: path of that table; '' where there is none.
    """

    files: tuple[str, ...]
    images: int
    labels: dict[str, int]
    left_out: tuple[str, ...] = ()
    bad: str = ""


_WHERE: dict[str, Any] = {"root": path, "recursive": flag, "exts": several(text)}


@checked("im2rec", left_out=a(list), **_WHERE)
def find_images(
    root: str | os.PathLike[str],
    recursive: bool = False,
    exts: Sequence[str] = EXTENSIONS,
    left_out: list[str] | None = None,
) -> tuple[list[Item], dict[str, int]]:
    """Images below a folder in the order of their paths.

    Args:
        root: folder.
        recursive: also in its subfolders, each folder with images being a label; else label 0.
        exts: endings in lower case, with the dot.
        left_out: takes the paths that a list cannot hold: with a tab, a line end, or white space
            at an end.

    Returns:
        Items, and folder -> label.

    Raises:
        ParamError: no folder; without `left_out` also a path that a list cannot hold.
    """
    if not os.path.isdir(root):
        raise ParamError(f"[im2rec] expected a folder of images, got {os.fspath(root)!r}")
    items: list[Item] = []
    labels: dict[str, int] = {}
    for folder, names in _walk(os.fspath(root)) if recursive else [_listed(os.fspath(root))]:
        for name in names:
            path = os.path.join(folder, name)
            if os.path.splitext(name)[1].lower() not in exts or not os.path.isfile(path):
                continue
            below = os.path.relpath(path, root)
            if any(c in below for c in "\t\r\n") or below != below.strip():
                if left_out is None:
                    raise ParamError(
                        f"[im2rec] expected a path without tab or line end, got {below!r}"
                    )
                left_out.append(below)
                continue
            label = labels.setdefault(os.path.relpath(folder, root), len(labels))
            items.append(Item(len(items), (float(label),), below))
    return items, labels if recursive else {}


def _listed(folder: str) -> tuple[str, list[str]]:
    try:
        return folder, sorted(os.listdir(folder))
    except OSError as error:
        raise file_error(f"[im2rec] expected to read the folder {folder}", folder, error) from None


def _walk(root: str) -> Iterator[tuple[str, list[str]]]:
    """Folders and their files in order; a link back to a folder above is not followed."""
    for folder, below, names in os.walk(root, followlinks=True):
        here = os.path.realpath(folder)
        below[:] = [d for d in sorted(below) if not _leads_back(os.path.join(folder, d), here)]
        yield folder, sorted(names)


def _leads_back(path: str, here: str) -> bool:
    target = os.path.realpath(path)
    return os.path.islink(path) and (here == target or here.startswith(target.rstrip("/") + "/"))


@checked(
    "im2rec",
    prefix=path,
    chunks=whole(1),
    train_ratio=number(0, 1),
    test_ratio=number(0, 1),
    shuffle=flag,
    seed=whole(),
    **_WHERE,
)
def make_list(
    prefix: str | os.PathLike[str],
    root: str | os.PathLike[str],
    recursive: bool = False,
    exts: Sequence[str] = EXTENSIONS,
    chunks: int = 1,
    train_ratio: float = 1.0,
    test_ratio: float = 0.0,
    shuffle: bool = True,
    seed: int = SEED,
) -> Lists:
    """Writes the list(s) of the images below a folder, as MXNet's tool names and orders them.

    Images whose path a list cannot hold are left out. They stand in the table `name.bad.tsv` of the
    first list, with 0 as number of the line; `convert_list` keeps these rows.

    Args:
        prefix: start of the lists' paths: `prefix.lst`, or `prefix_train.lst`, `prefix_val.lst`,
            `prefix_test.lst`; with several chunks `prefix_0.lst` and so on.
        root, recursive, exts: as of `find_images`.
        chunks: number of parts.
        train_ratio, test_ratio: shares; what is left is for validation.
        shuffle: random order.
        seed: of the order.

    Raises:
        ParamError: ratios or chunks out of range, no folder, or no image in it.
        FileError: a list cannot be written.
    """
    if train_ratio + test_ratio > 1 + 1e-9:
        raise ParamError(
            "[im2rec] expected ratios of at least 0 and together at most 1, got "
            f"{train_ratio} for training and {test_ratio} for testing"
        )
    left_out: list[str] = []
    items, labels = find_images(root, recursive, exts, left_out)
    if not items:
        hint = "" if recursive else "; subfolders need --recursive"
        raise ParamError(
            f"[im2rec] expected images ({' '.join(exts)}) in {os.fspath(root)}, got none{hint}"
        )
    if shuffle:
        random.Random(seed).shuffle(items)
    size = -(-len(items) // chunks)
    lists: dict[str, list[Item]] = {}
    for part in range(chunks):
        stem = os.fspath(prefix) + (f"_{part}" if chunks > 1 else "")
        taken = items[part * size : (part + 1) * size]
        for ending, chosen in _split(taken, size, train_ratio, test_ratio):
            lists[f"{stem}{ending}"] = chosen
    bad = f"{next(iter(lists))}.bad.tsv"
    if left_out:  # before the lists: whoever finds a list finds what it lacks
        write_atomically(bad, "".join(map(_left_out_row, left_out)).encode(*_ENCODING))
    else:
        with contextlib.suppress(OSError):
            os.unlink(bad)
    for stem, chosen in lists.items():
        write_list(f"{stem}.lst", chosen)
    files = tuple(f"{stem}.lst" for stem in lists)
    return Lists(files, len(items), labels, tuple(left_out), bad if left_out else "")


_ENCODING = ("utf-8", "surrogateescape")
_ESCAPES = str.maketrans({"\t": "\\t", "\r": "\\r", "\n": "\\n"})


def escaped(name: str) -> str:
    """A path for a row of a table: tabs and line ends as in Python's texts."""
    return name.translate(_ESCAPES)


def _left_out_row(name: str) -> str:
    why = "a path with a tab, a line end or white space at an end, which a list cannot hold"
    return f"0\t{escaped(name)}\t[im2rec] expected another name, got {why}\n"


def left_out_rows(table: str) -> list[bytes]:
    """The rows that `make_list` has written into a table of bad images."""
    try:
        raw = Path(table).read_bytes()
    except OSError:
        return []
    return [row + b"\n" for row in raw.split(b"\n") if row.startswith(b"0\t")]


def _split(
    part: list[Item], size: int, train_ratio: float, test_ratio: float
) -> list[tuple[str, list[Item]]]:
    """(ending of the name, items) of the lists of one chunk."""
    if train_ratio == 1.0:
        return [("", part)]
    test = int(size * test_ratio)
    train = test + int(size * train_ratio)
    split = [("_train", part[test:train])]
    if test_ratio:
        split.append(("_test", part[:test]))
    if train_ratio + test_ratio < 1.0:
        split.append(("_val", part[train:]))
    return split


def write_list(path: str | os.PathLike[str], items: Iterable[Item]) -> None:
    """Writes a list, whole or not at all.

    Raises:
        FileError: it cannot be written.
    """
    lines = (
        "\t".join([str(i.id), *(f"{label:f}" for label in i.labels), i.path]) + "\n" for i in items
    )
    write_atomically(os.fspath(path), (line.encode(*_ENCODING) for line in lines))


def read_list(path: str | os.PathLike[str]) -> Iterator[Item | BadLine]:
    """Items of a list in order; a line that is none comes as `BadLine`.

    Raises:
        FileError: it cannot be read.
    """
    options = {"encoding": "utf-8", "errors": "surrogateescape", "newline": "\n"}
    with open_file(path, "im2rec", "r", **options) as file:
        for line in file:
            if line.strip():
                yield parse_line(line)


def parse_line(line: str) -> Item | BadLine:
    """One line of a list."""
    fields = [field.strip() for field in line.strip().split("\t")]
    if len(fields) < 3:
        return BadLine(line.strip(), f"expected id, label and path, got {len(fields)} fields")
    try:
        return Item(int(fields[0]), tuple(float(f) for f in fields[1:-1]), fields[-1])
    except (ValueError, OverflowError) as error:
        return BadLine(line.strip(), f"expected a number: {error}")


def find_lists(prefix: str | os.PathLike[str]) -> list[str]:
    """Lists whose path starts with `prefix` (all of a folder, where it is one), in order.

    Raises:
        FormatError: none; the text says how to make one.
    """
    start = os.path.abspath(prefix)
    folder = Path(start) if os.path.isdir(start) else Path(start).parent
    names = [str(p) for p in folder.glob("*.lst")] if folder.is_dir() else []
    found = sorted(name for name in names if name.startswith(start) and os.path.isfile(name))
    if not found:
        raise FormatError(
            f"[im2rec] expected a list {os.fspath(prefix)}*.lst, got none; make it with --list"
        )
    return found
