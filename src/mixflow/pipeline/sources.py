"""Where samples come from: anything with a length that gives the sample of a number.

Random access is what makes shuffling, sharding and resuming exact, so every source gives it; a
stream has to be indexed first (`tar.py`) or is a bridge of its own (`ray_data.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..arguments import checked, optional, several, text
from ..arguments import path as name_of_file
from ..errors import FormatError, ParamError
from ..files import file_error, open_file, read_regular
from ..recordio import RecordFile, unpack

Array = np.ndarray[Any, Any]
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class Sample(NamedTuple):
    """One sample as it is stored.

    Attributes:
        content: encoded image: bytes, a view, or an array of uint8.
        label: (k,) float32.
        key: number or name, for `DataBatch.index` and errors.
    """

    content: Any
    label: Array
    key: Any


class Source(Protocol):
    """Samples by number. Thread-safe; a sample stays valid after others were read.

    Attributes:
        name: address, for errors.
    """

    name: str

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, number: int) -> Sample:
        """The sample of a number in [0, len)."""

    def sizes(self) -> Array:
        """(samples,) int64: bytes of each."""

    def close(self) -> None:
        """Gives files back."""


def as_label(value: Any) -> Array:
    """(k,) float32 of a number or of an array of numbers."""
    return np.array(value, np.float32).reshape(-1)


def read_list(path: str | os.PathLike[str]) -> dict[int, tuple[Array, str]]:
    """A list of images: id, labels and path per line, separated by tabs.

    Returns:
        id -> (labels (k,) float32, path), in the order of the file.

    Raises:
        FormatError: a line of another form, or an id that comes twice.
        FileError: it cannot be read.
    """
    found: dict[int, tuple[Array, str]] = {}
    options = {"encoding": "utf-8", "errors": "surrogateescape", "newline": "\n"}
    with open_file(path, "image list", "r", **options) as file:
        for number, line in enumerate(file, 1):
            parts = line.rstrip("\r\n").split("\t")
            if parts == [""]:
                continue
            try:
                key = int(float(parts[0]))
                labels = np.array([float(x) for x in parts[1:-1]], np.float32)
            except (ValueError, OverflowError):
                labels, key = np.empty(0, np.float32), -1
            if labels.size == 0 or key in found:
                raise FormatError(
                    f"[image list] expected 'id, labels, path' with tabs between and a new id in "
                    f"line {number} of {path}, got {line[:100]!r}"
                )
            found[key] = (labels, parts[-1])
    return found


class RecordSource:
    """Image records of a record file, local and memory-mapped.

    Args:
        path: record file.
        index: its .idx file; None: the heads of all records are read once.
        labels: id of the image -> labels, in place of those in the records (an image list).

    Raises:
        FormatError: damaged file or index; a record whose id is missing in `labels`.
        FileError: a file cannot be opened.
    """

    @checked(path=name_of_file, index=optional(name_of_file))
    def __init__(
        self,
        path: str | os.PathLike[str],
        index: str | os.PathLike[str] | None = None,
        labels: Mapping[int, Array] | None = None,
    ) -> None:
        self.name = os.fspath(path)
        self._file = RecordFile(path, index)
        self._labels = labels

    def __len__(self) -> int:
        """Number of records."""
        return len(self._file)

    def __getitem__(self, number: int) -> Sample:
        """The record of a number."""
        return from_record(self._file[number], self._labels, self.name)

    def sizes(self) -> Array:
        """(records,) int64: bytes of each."""
        return self._file.lengths()

    def close(self) -> None:
        """Gives the mapping back."""
        self._file.close()


def from_record(record: Any, labels: Mapping[int, Array] | None, name: str) -> Sample:
    """The sample of an image record.

    Raises:
        FormatError: shorter than its header says, or an id that `labels` lacks.
    """
    header, content = unpack(record)
    if labels is None:
        return Sample(content, as_label(header.label), header.id)
    if header.id not in labels:
        raise FormatError(
            f"[image list] expected labels of every record of {name}, got none of id {header.id}"
        )
    return Sample(content, labels[header.id], header.id)


class FileSource:
    """Image files, one per sample.

    Args:
        files: (path, labels) per sample.
        root: folder that relative paths start from.
        name: for errors.

    Raises:
        ParamError: no pairs of a path and numbers.
    """

    @checked(root=name_of_file, name=text)
    def __init__(
        self,
        files: Sequence[tuple[str | os.PathLike[str], Any]],
        root: str | os.PathLike[str] = "",
        name: str = "files",
    ) -> None:
        self.name = name
        try:
            self._files = [(os.path.join(root, path), as_label(label)) for path, label in files]
        except (TypeError, ValueError) as error:
            raise ParamError(
                f"[FileSource] expected pairs of a path and labels, got {files!r:.200} ({error})"
            ) from None

    @classmethod
    def from_list(
        cls, path: str | os.PathLike[str], root: str | os.PathLike[str] = ""
    ) -> FileSource:
        """The files of an image list (`read_list`)."""
        entries = read_list(path).values()
        return cls([(file, labels) for labels, file in entries], root, os.fspath(path))

    def __len__(self) -> int:
        """Number of files."""
        return len(self._files)

    def __getitem__(self, number: int) -> Sample:
        """The file of a number, read whole.

        Raises:
            FormatError, FileError: no regular file, or it cannot be read.
        """
        path, label = self._files[number]
        return Sample(read_regular(path, "image file"), label, path)

    def sizes(self) -> Array:
        """(files,) int64: bytes of each.

        Raises:
            FileError: one is missing.
        """
        try:
            return np.array([os.path.getsize(path) for path, _ in self._files], np.int64)
        except OSError as error:
            path = error.filename
            raise file_error(f"[image file] expected a file {path}", path, error) from None

    def close(self) -> None:
        """Nothing stays open."""


class FolderSource(FileSource):
    """Images of a folder whose subfolders are the classes, by name in alphabetical order.

    Args:
        root: folder of folders.
        endings: of image files, in small letters.

    Attributes:
        classes: names; a label is the place in it.

    Raises:
        ParamError: no image below it.
        FileError: no such folder.
    """

    @checked(root=name_of_file, endings=several(text))
    def __init__(
        self, root: str | os.PathLike[str], endings: Sequence[str] = IMAGE_ENDINGS
    ) -> None:
        top = Path(root)
        try:
            self.classes = sorted(p.name for p in top.iterdir() if p.is_dir())
        except OSError as error:
            what = f"[FolderSource] expected a folder at {root}"
            raise file_error(what, os.fspath(root), error) from None
        files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((top / name).rglob("*"))
            if path.suffix.lower() in endings
        ]
        if not files:
            raise ParamError(
                f"[FolderSource] expected a folder per class with images in {root}, got no file "
                f"that ends in {', '.join(endings)}"
            )
        super().__init__(files, "", os.fspath(root))
