"""Lists of images and labels: `.lst` files, and lists in memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np

from ..errors import FormatError, ParamError, UnknownNameError, describe_unknown
from ..files import open_file
from ..recordio import DuplicateKeyWarning

Array = np.ndarray[Any, Any]
#: key -> (labels (n,), name of the image's file).
Listing = dict[Any, tuple[Array, str]]

LABEL_DTYPES = ("int32", "float32", "int64", "float64")


def label_dtype(name: Any) -> np.dtype[Any]:
    """The dtype of labels.

    Raises:
        UnknownNameError: not one of `LABEL_DTYPES`.
    """
    try:
        text = np.dtype(name).name if isinstance(name, (type, np.dtype)) else str(name)
    except TypeError:
        text = repr(name)
    if text not in LABEL_DTYPES:
        raise UnknownNameError(describe_unknown("ImageIter dtype", text, list(LABEL_DTYPES)))
    return np.dtype(text)


def read_list(path: str, dtype: Any = "float32") -> Listing:
    """A `.lst` file: lines of key, labels and file name, with tabs between them.

    Args:
        path: the file.
        dtype: of the labels.

    Raises:
        FileError: it cannot be read.
        FormatError: a line of another form; names it.
    """
    found: Listing = {}
    try:
        with open_file(path, "ImageIter", "r", encoding="utf-8", newline="\n") as file:
            lines = file.read().split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"[ImageIter] expected UTF-8 text in {path}, got {error}") from None
    twins = 0
    for number, line in enumerate(lines, 1):
        fields = line.strip().split("\t")
        if fields == [""]:
            continue
        try:
            if len(fields) < 3:
                raise ValueError(f"{len(fields)} fields")
            twins += int(fields[0]) in found
            found[int(fields[0])] = (np.array(fields[1:-1], np.float64).astype(dtype), fields[-1])
        except (ValueError, OverflowError) as error:
            raise FormatError(
                "[ImageIter] expected a key, labels and a file name with tabs between them in line "
                f"{number} of {path}, got {line[:80]!r} ({error})"
            ) from None
    if twins:
        warnings.warn(
            f"[ImageIter] expected a new key in each line of {path}, got {twins} that "
            "stood before; the last line of a key counts",
            DuplicateKeyWarning,
            stacklevel=5,
        )
    return found


def from_memory(entries: Sequence[Any], dtype: Any = "float32") -> Listing:
    """A list of [labels..., name] or [(labels), name]; keys are '1', '2', ...

    Raises:
        ParamError: an entry of another form.
    """
    found: Listing = {}
    for number, entry in enumerate(entries, 1):
        try:
            *labels, name = entry
            if len(labels) == 1 and not isinstance(labels[0], Number):
                labels = labels[0]
            values = np.array(labels, dtype).reshape(-1)
            if any(isinstance(label, str) for label in labels):
                raise ValueError("a text as label")
            if not isinstance(name, str) or values.size == 0:
                raise ValueError("no labels or no name")
        except (TypeError, ValueError) as error:
            raise ParamError(
                f"[ImageIter] expected labels and a file name in entry {number} of imglist, got "
                f"{entry!r:.80} ({error})"
            ) from None
        found[str(number)] = (values, name)
    return found
