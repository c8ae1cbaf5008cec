"""Tar files in WebDataset's form: files of one sample share the name up to the first dot.

`0001.jpg` and `0001.cls` are one sample: image and class. The heads are read once, so that any
sample can be read at any time; that needs no unpacking, locally or at an address.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import FormatError
from .remote import RemoteFile
from .sources import IMAGE_ENDINGS, Array, Sample, as_label

_BLOCK = 1 << 16


class _Reader(io.RawIOBase):
    """A seekable stream over ranges of a file, for tarfile's reading of heads."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, self._file.nbytes)[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._file.nbytes, self._at + len(buffer))
        if end <= self._at:
            return 0
        found = self._file.read(self._at, end)
        buffer[: len(found)] = found
        self._at = end
        return len(found)


class TarSource:
    """Samples of tar files, local or at addresses.

    Args:
        paths: one file or several, e.g. 'train-{0..9}.tar' written out.
        label: ending of the file with the label: '.cls' (a number), '.txt' (numbers), '.json' (a
            number or a list of them).
        endings: of image files.

    Raises:
        FormatError: no tar file, or a sample without image or label.
        FileError: no such file.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        label: str = ".cls",
        endings: Sequence[str] = IMAGE_ENDINGS,
    ) -> None:
        listed = [paths] if isinstance(paths, str) else list(paths)
        self.name = listed[0] if len(listed) == 1 else f"{len(listed)} tar files"
        self._label, self._endings = label, tuple(endings)
        self._files = [RemoteFile(p) for p in listed]
        self._samples: list[tuple[int, str, tuple[int, int], tuple[int, int]]] = []
        for number, file in enumerate(self._files):
            self._index(number, file)

    def _index(self, number: int, file: RemoteFile) -> None:
        found: dict[str, dict[str, tuple[int, int]]] = {}
        try:
            with tarfile.open(fileobj=io.BufferedReader(_Reader(file), _BLOCK), mode="r:") as tar:
                for member in tar:
                    if member.isfile():
                        folder, _, base = member.name.rpartition("/")
                        stem, _, ending = base.partition(".")
                        parts = found.setdefault(f"{folder}/{stem}".lstrip("/"), {})
                        at = member.offset_data
                        parts["." + ending.lower()] = (at, at + member.size)
        except tarfile.TarError as error:
            raise FormatError(
                f"[TarSource] expected a tar file at {file.name}, got: {error}"
            ) from None
        for key, parts in found.items():
            image = next((parts[e] for e in self._endings if e in parts), None)
            if image is None or self._label not in parts:
                raise FormatError(
                    f"[TarSource] expected an image and a '{self._label}' of sample {key} in "
                    f"{file.name}, got {', '.join(sorted(parts))}"
                )
            self._samples.append((number, key, image, parts[self._label]))

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._samples)

    def __getitem__(self, number: int) -> Sample:
        """The sample of a number.

        Raises:
            FormatError: a label that is no number.
        """
        file, key, image, label = self._samples[number]
        text = self._files[file].read(*label)
        try:
            value = json.loads(text) if self._label == ".json" else text.decode().split()
            labels = as_label(np.array(value, np.float32))
        except (ValueError, TypeError, UnicodeDecodeError):
            raise FormatError(
                f"[TarSource] expected numbers in {key}{self._label} of {self.name}, got "
                f"{text[:40]!r}"
            ) from None
        return Sample(self._files[file].read(*image), labels, key)

    def sizes(self) -> Array:
        """(samples,) int64: bytes of each image."""
        return np.array([image[1] - image[0] for _, _, image, _ in self._samples], np.int64)

    def close(self) -> None:
        """Nothing stays open."""
