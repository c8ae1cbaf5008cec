"""Kinds of sources that a partition can name, and how their samples become arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...arguments import a, check, checked, choice, flag, number, optional, several, whole
from ...arguments import path as name_of_file
from ...errors import FormatError, ParamError, ShapeError, UnknownNameError, describe_unknown
from ...files import open_regular
from ..decode import Decoder, begin_thread
from ..draws import epoch_generator
from ..images import Normalise, Pictures
from ..order import BatchPlan
from ..recipe import make_recipe
from ..remote import RemoteRecordSource, is_address
from ..sources import FileSource, FolderSource, RecordSource, Source, read_list
from ..tar import TarSource

Array = np.ndarray[Any, Any]
_SOURCE = "partition source"
#: Name -> (shape of one sample, dtype), in order.
Layout = dict[str, tuple[tuple[int, ...], Any]]


class Data(Protocol):
    """A source that is open. Not thread-safe; `fill` depends on its arguments alone."""

    def __len__(self) -> int:
        """Number of samples."""

    def layout(self) -> Layout:
        """The arrays of a sample: 'data', 'label'."""

    def fill(self, indices: Sequence[int], epochs: Sequence[int], to: Mapping[str, Array]) -> None:
        """Writes samples, each as its epoch has it, into arrays (len(indices), *shape)."""

    def close(self) -> None:
        """Gives files back."""


class _Memory(NamedTuple):
    """What `Pictures.fill` writes into."""

    plan: BatchPlan
    rows: Array
    labels: Array
    keys: list[Any]


class PictureData:
    """Encoded pictures, decoded and augmented."""

    def __init__(self, source: Source, pictures: Pictures) -> None:
        begin_thread()
        self._source, self._pictures = source, pictures

    def __len__(self) -> int:
        """Number of pictures."""
        return len(self._source)

    def layout(self) -> Layout:
        """Pixels (channels, height, width) and labels."""
        width = self._pictures.label_width
        label: tuple[int, ...] = () if width == 1 else (width,)
        return {
            "data": (tuple(self._pictures.shape[1:]), self._pictures.dtype),
            "label": (label, np.dtype(np.float32)),
        }

    def fill(self, indices: Sequence[int], epochs: Sequence[int], to: Mapping[str, Array]) -> None:
        """Decodes and augments."""
        plan = BatchPlan(list(indices), list(epochs), 0)
        labels = to["label"].reshape(len(plan.indices), -1)
        memory = _Memory(plan, to["data"], labels, [None] * len(plan.indices))
        for position in range(len(plan.indices)):
            self._pictures.fill(memory, position)

    def close(self) -> None:
        """Closes the source."""
        self._source.close()


class ArrayData:
    """Rows of two arrays; the data times `scale`, as float32."""

    def __init__(self, data: Array, label: Array, scale: float, name: str) -> None:
        if data.ndim < 1 or label.shape[:1] != data.shape[:1]:
            raise ShapeError(
                f"[{name}] expected one label per sample, got {label.shape} and {data.shape}"
            )
        for array in (data, label):
            if array.dtype.kind not in "biuf":
                raise FormatError(f"[{name}] expected an array of numbers, got {array.dtype}")
        self._data, self._label, self._scale = data, label, np.float32(scale)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._data)

    def layout(self) -> Layout:
        """Shapes of a row."""
        float32 = np.dtype(np.float32)
        return {
            "data": (self._data.shape[1:], float32),
            "label": (self._label.shape[1:], float32),
        }

    def fill(self, indices: Sequence[int], epochs: Sequence[int], to: Mapping[str, Array]) -> None:
        """Copies rows."""
        rows = np.asarray(indices, np.int64)
        to["data"][...] = self._data[rows]
        if self._scale != 1:
            np.multiply(to["data"], self._scale, out=to["data"])
        to["label"][...] = self._label[rows]

    def close(self) -> None:
        """Nothing stays open."""


@checked(
    _SOURCE,
    shape=several(whole(1, 1 << 30), 3),
    label_width=whole(1, 1 << 30),
    mean=optional(several(number())),
    std=optional(several(number(above=0))),
    scale=number(),
    dtype=choice("float32", "uint8"),
    augment=optional(a(Mapping)),
)
def _pictures(
    source: Source,
    seed: int,
    shape: Sequence[int],
    label_width: int = 1,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    scale: float = 1.0,
    dtype: str = "float32",
    decode: str = "auto",
    max_random_contrast: float = 0.0,
    max_random_illumination: float = 0.0,
    augment: Mapping[str, Any] | None = None,
) -> PictureData:
    channels, height, width = shape
    recipe = make_recipe((channels, height, width), augment or {})
    normalise = None
    if dtype == "float32":
        means, deviations = mean or [0.0] * channels, std or [1.0] * channels
        if len(means) != channels or len(deviations) != channels:
            raise ParamError(
                f"[{_SOURCE}] expected {channels} numbers for mean and std each, got {means} and "
                f"{deviations}"
            )
        light = max_random_contrast, max_random_illumination
        normalise = Normalise(means, deviations, scale, None, *light)
    decoder = Decoder(channels, decode)
    made = Pictures(source, decoder, recipe, normalise, 1, dtype, label_width, seed)
    return PictureData(source, made)


@checked(_SOURCE, path=name_of_file, index=name_of_file, labels=name_of_file)
def _records(seed: int, path: str, index: str = "", labels: str = "", **rest: Any) -> Data:
    chosen = {k: v[0] for k, v in read_list(labels).items()} if labels else None
    opened: Source = (
        RemoteRecordSource(path, index or None, chosen)
        if is_address(path)
        else RecordSource(path, index or None, chosen)
    )
    return _pictures(opened, seed, **rest)


@checked(_SOURCE, path=name_of_file, root=name_of_file)
def _list(seed: int, path: str, root: str = "", **rest: Any) -> Data:
    return _pictures(FileSource.from_list(path, root), seed, **rest)


@checked(_SOURCE, path=name_of_file)
def _folder(seed: int, path: str, **rest: Any) -> Data:
    return _pictures(FolderSource(path), seed, **rest)


@checked(_SOURCE, paths=several(name_of_file))
def _tar(seed: int, paths: Sequence[str], **rest: Any) -> Data:
    return _pictures(TarSource(list(paths)), seed, **rest)


@checked(_SOURCE, data=name_of_file, label=name_of_file, scale=number())
def _npy(seed: int, data: str, label: str, scale: float = 1.0) -> Data:
    arrays = []
    for path in (data, label):
        open_regular(path, "npy").close()
        try:
            arrays.append(np.lib.format.open_memmap(path, mode="r"))
        except ValueError as error:
            raise FormatError(
                f"[npy] expected an array of numbers in {path}, got {error}"
            ) from None
    return ArrayData(arrays[0], arrays[1], scale, "npy")


@checked(_SOURCE, data=name_of_file, label=name_of_file, scale=number(), flat=flag)
def _idx(seed: int, data: str, label: str, scale: float = 1.0, flat: bool = False) -> Data:
    from ...io.mnist import read_idx

    images, labels = read_idx(Path(data)), read_idx(Path(label))
    shape = (len(images), -1) if flat else (len(images), 1, *images.shape[1:])
    return ArrayData(images.reshape(shape), labels, scale, "idx")


#: Kind -> how to open a source of it. Its keyword parameters are the keys of the description.
KINDS: dict[str, Callable[..., Data]] = {
    "records": _records,
    "list": _list,
    "folder": _folder,
    "tar": _tar,
    "npy": _npy,
    "idx": _idx,
}
#: Keys that every description may have beside those of its kind.
COMMON = ("kind", "shuffle", "samples")


def open_source(source: Mapping[str, Any], seed: int) -> Data:
    """Opens a described source.

    Args:
        source: 'kind', and the keys of that kind:
            'records': path, index, labels (an image list in place of the labels stored);
            'list': path, root; 'folder': path; 'tar': paths (see `mx.pipeline`'s sources);
            these four also shape (channels, height, width), label_width, mean, std, scale, dtype
            ('float32' or 'uint8'), decode, max_random_contrast, max_random_illumination, and
            augment: parameters of `DefaultRecipe` and `ColourJitter`;
            'npy': data, label (files of one array each), scale;
            'idx': data, label (MNIST's files), scale, flat.
            Every kind has 'shuffle' (a new order in each epoch; default: false) and 'samples' (how
            many there must be, so that an executor with other data is found out).
        seed: of the draws.

    Raises:
        UnknownNameError: another kind, or a key that it does not have.
        ParamError: a key that is missing, or a bad value.
        FormatError, FileError: files that cannot be used.
    """
    kind = str(source.get("kind", ""))
    if kind not in KINDS:
        raise UnknownNameError(describe_unknown(_SOURCE, kind, list(KINDS)))
    given = {k: v for k, v in source.items() if k not in COMMON}
    known = _keys(kind)
    for key in given:
        if key not in known:
            raise UnknownNameError(describe_unknown(f"source '{kind}'", key, sorted(known)))
    missing = [key for key, must in known.items() if must and key not in given]
    if missing:
        raise ParamError(f"[source '{kind}'] expected also {', '.join(missing)}, got {source}")
    is_shuffled(source)
    opened = KINDS[kind](seed, **given)
    samples = len(opened)
    wanted = source.get("samples", samples)
    if samples != wanted or not samples:
        opened.close()
        raise FormatError(f"[source '{kind}'] expected {wanted or 'some'} samples, got {samples}")
    return opened


def _keys(kind: str) -> dict[str, bool]:
    """The keys of a kind's description, and whether it must have them."""
    found = dict(inspect.signature(KINDS[kind]).parameters)
    if found.pop("rest", None) is not None:
        found.update(inspect.signature(_pictures).parameters)
    return {k: p.default is p.empty for k, p in found.items() if k not in ("source", "seed")}


def is_shuffled(source: Mapping[str, Any]) -> bool:
    """Whether each epoch has an order of its own."""
    return bool(check(_SOURCE, "shuffle", source.get("shuffle", False), flag))


def order_of(source: Mapping[str, Any], samples: int, seed: int, epoch: int) -> Array:
    """(samples,) int64: the order of an epoch."""
    if not is_shuffled(source):
        return np.arange(samples, dtype=np.int64)
    order: Array = epoch_generator(seed, epoch).permutation(samples)
    return order
