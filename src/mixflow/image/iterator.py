"""Iterators over images (``mx.image.ImageIter``)."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ndarray as nd
from .. import recordio
from ..arguments import a, checked, choice, flag, optional, path, several, text, whole
from ..errors import FormatError, MixflowError, ParamError, ShapeError
from ..io.base import DataBatch, DataDesc, DataIter, check_batch
from ..ndarray import NDArray
from . import codec, listing
from . import functions as F
from .augment import Augmenter, CreateAugmenter, run_host

Array = np.ndarray[Any, Any]
#: Kinds of the arguments that image iterators have in common.
KINDS: dict[str, Any] = {
    "batch_size": whole(1),
    **dict.fromkeys(("path_imgrec", "path_imglist", "path_root", "path_imgidx"), optional(path)),
    "shuffle": flag,
    "part_index": whole(0),
    "num_parts": whole(1),
    "aug_list": optional(a(list, tuple)),
    "imglist": optional(a(list, tuple)),
    "data_name": text,
    "label_name": text,
}
#: What to do with a batch that the epoch cannot fill.
LAST_BATCH = ("pad", "discard", "roll_over")


_SHAPE = several(whole(1, 1 << 30))


class Rest:
    """Samples that lie in an unfinished batch until the next epoch.

    Attributes:
        data, label: arrays of a whole batch.
        count: how many of the first rows are filled.
    """

    def __init__(self, data: Array, label: Array, count: int = 0) -> None:
        self.data, self.label, self.count = data, label, count


class ImageIter(DataIter):
    """Batches of images from a record file, a `.lst` file or a list, decoded and augmented.

    Works on the calling thread; `mx.io.PrefetchingIter` around it fetches ahead. Shuffles and
    augments with Python's `random` and `numpy.random`, so that their seeds repeat an epoch.

    Args:
        batch_size: samples per batch.
        data_shape: (3, height, width) of a sample.
        label_width: labels per sample.
        path_imgrec: record file.
        path_imglist: `.lst` file; with `path_imgrec` it gives the labels only.
        path_root: folder of the images of a list.
        path_imgidx: index of the record file; needed to shuffle or to share it.
        shuffle: a new order at each reset.
        part_index, num_parts: this worker's share; the same number of samples for each.
        aug_list: augmenters; None = `CreateAugmenter(data_shape, **kwargs)`.
        imglist: list of [labels..., name] in place of a file.
        data_name, label_name: names in `provide_data` and `provide_label`.
        dtype: of the labels: float32, float64, int32, int64.
        last_batch_handle: 'pad' (fill up from the start), 'discard', or 'roll_over' (the rest opens
            the next epoch).
        **kwargs: arguments of `CreateAugmenter`.

    Raises:
        ParamError: no source, an unknown mode, a share out of range, shuffling without an index.
        ShapeError: a data shape of another form.
        FileError, FormatError: the list or the record file cannot be read, or an image in it.

    A subclass may replace `imdecode`, `check_valid_image`, `augmentation_transform` and
    `postprocess_data`; they then work on NDArray.
    """

    #: Methods that a subclass may replace; if it does, arrays pass as NDArray.
    _HOOKS = ("imdecode", "check_valid_image", "augmentation_transform", "postprocess_data")

    @checked(**KINDS, label_width=whole(1, 1 << 30), last_batch_handle=choice(*LAST_BATCH))
    def __init__(
        self,
        batch_size: int,
        data_shape: Sequence[int],
        label_width: int = 1,
        path_imgrec: str | None = None,
        path_imglist: str | None = None,
        path_root: str | None = None,
        path_imgidx: str | None = None,
        shuffle: bool = False,
        part_index: int = 0,
        num_parts: int = 1,
        aug_list: list[Any] | None = None,
        imglist: list[Any] | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: Any = "float32",
        last_batch_handle: str = "pad",
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size)
        self.check_data_shape(data_shape)
        self._label_dtype = listing.label_dtype(dtype)
        self._open(path_imgrec, path_imglist, path_root, path_imgidx, imglist)
        self.shuffle, self.label_width = shuffle, label_width
        self.last_batch_handle = last_batch_handle
        self.data_shape = tuple(data_shape)
        self._describe(data_name, label_name)
        check_batch(type(self).__name__, (*self.provide_data, *self.provide_label))
        self.seq = self._share(part_index, num_parts)
        if self.seq is not None and not self.seq:
            raise ParamError(
                f"[{type(self).__name__}] expected at least one sample, got none in part "
                f"{part_index} of {num_parts} of an empty list or index, or one with fewer samples"
            )
        self.num_image = None if self.seq is None else len(self.seq)
        self.auglist = self._augmenters(aug_list, kwargs)
        self._on_host = self._has_no_hooks()
        self._rest: Rest | None = None
        self.reset()
        if self.seq is None:
            self._check_not_empty()

    def _check_not_empty(self) -> None:
        """Raises ParamError where a record file without an index has no record."""
        assert self.imgrec is not None
        if self.imgrec.read_view() is None:
            raise ParamError(
                f"[{type(self).__name__}] expected at least one record in {self.imgrec.uri}, got "
                "none"
            )
        self.imgrec.reset()

    # -- construction

    def _open(
        self,
        path_imgrec: str | None,
        path_imglist: str | None,
        path_root: str | None,
        path_imgidx: str | None,
        imglist: list[Any] | None,
    ) -> None:
        """Opens the sources: `imgrec` and `imgidx`, `imglist`."""
        if not path_imgrec and not path_imglist and imglist is None:
            raise ParamError(
                "[ImageIter] expected path_imgrec, path_imglist or a list as imglist, got none"
            )
        self.imgrec: recordio.MXRecordIO | None = None
        self.imgidx: list[Any] | None = None
        self.imglist: listing.Listing | None = None
        self.path_root = path_root
        if path_imgrec and path_imgidx:
            self.imgrec = recordio.MXIndexedRecordIO(path_imgidx, path_imgrec, "r")
            self.imgidx = list(self.imgrec.keys)
        elif path_imgrec:
            self.imgrec = recordio.MXRecordIO(path_imgrec, "r")
        if path_imglist:
            self.imglist = listing.read_list(path_imglist, self._label_dtype)
        elif imglist is not None:
            self.imglist = listing.from_memory(imglist, self._label_dtype)

    def _describe(self, data_name: str, label_name: str) -> None:
        labels = (self.label_width,) if self.label_width > 1 else ()
        self.provide_data = [  # type: ignore[misc]
            DataDesc(data_name, (self.batch_size, *self.data_shape))
        ]
        self.provide_label = [  # type: ignore[misc]
            DataDesc(label_name, (self.batch_size, *labels), self._label_dtype)
        ]

    def _share(self, part_index: int, num_parts: int) -> list[Any] | None:
        """Keys of this worker; None where records are read in their order."""
        if part_index >= num_parts:
            raise ParamError(
                f"[ImageIter] expected 0 <= part_index < num_parts, got {part_index} of {num_parts}"
            )
        keys = self.imgidx
        if self.imgrec is None:
            assert self.imglist is not None
            keys = list(self.imglist)
        if keys is None and (self.shuffle or num_parts > 1):
            raise ParamError(
                "[ImageIter] expected path_imgidx with shuffle or num_parts, got none; "
                "mx.recordio.rebuild_index makes the index of a record file"
            )
        if keys is None or num_parts == 1:
            return keys
        share = len(keys) // num_parts
        return keys[part_index * share : (part_index + 1) * share]

    def _augmenters(self, aug_list: list[Any] | None, kwargs: dict[str, Any]) -> list[Any]:
        if aug_list is not None:
            return aug_list
        made: list[Augmenter] = CreateAugmenter(self.data_shape, **kwargs)
        return made

    def _has_no_hooks(self) -> bool:
        package = __name__.rpartition(".")[0]
        return all(getattr(type(self), n).__module__.startswith(package) for n in self._HOOKS)

    # -- order

    def reset(self) -> None:
        """Next epoch; under 'roll_over' it opens with the rest of this one."""
        if self.seq is not None and self.shuffle:
            random.shuffle(self.seq)
        self._rewind()
        self._ended = False

    def hard_reset(self) -> None:
        """Next epoch, forgetting what would roll over."""
        self._rest = None
        self.reset()

    def _rewind(self) -> None:
        self.cur = 0
        if self.imgrec is not None and self.seq is None:
            self.imgrec.reset()

    def next_sample(self) -> tuple[Any, bytes]:
        """Label and encoded image of the next sample.

        Raises:
            StopIteration: the epoch is over.
            FileError, FormatError: the sample cannot be read.
        """
        if self.seq is None:
            return self._next_record()
        if self.cur >= len(self.seq):
            raise StopIteration
        key = self.seq[self.cur]
        self.cur += 1
        if self.imgrec is None:
            assert self.imglist is not None
            label, name = self.imglist[key]
            return label, self.read_image(name)
        record = self.imgrec.read_idx(key)  # type: ignore[attr-defined]
        header, image = recordio.unpack(record)
        return self._listed_label(key, header.label), image

    def _next_record(self) -> tuple[Any, bytes]:
        assert self.imgrec is not None
        record = self.imgrec.read()
        if record is None:
            raise StopIteration
        self.cur += 1
        header, image = recordio.unpack(record)
        return self._listed_label(header.id, header.label), image

    def _listed_label(self, key: Any, label: Any) -> Any:
        if self.imglist is None:
            return label
        if key not in self.imglist:
            raise ParamError(f"[ImageIter] expected a line for record {key} in the list, got none")
        return self.imglist[key][0]

    # -- one sample

    def check_data_shape(self, data_shape: Sequence[int]) -> None:
        """Raises ShapeError where a data shape is not (3, height, width)."""
        try:
            good = len(_SHAPE.convert(data_shape)) == 3 and data_shape[0] == 3
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            raise ShapeError(
                f"[ImageIter] expected a data shape (3, height, width), got {data_shape!r:.200}"
            )

    def check_valid_image(self, data: Any) -> None:
        """Raises ShapeError where decoding gave no image.

        Args:
            data: list of one image.
        """
        if len(data[0].shape) == 0:
            raise ShapeError("[ImageIter] expected an image, got an array of no dimensions")

    def imdecode(self, s: Any) -> NDArray:
        """The image of encoded bytes; see `mx.image.imdecode`.

        Raises:
            FormatError: corrupt; names the sample.
        """
        return F.device(self._decode(s))

    def _decode(self, s: Any) -> Array:
        try:
            return codec.decode(s, operator="ImageIter")
        except FormatError as error:
            raise FormatError(f"{error}; {self._place()}") from None

    def _place(self) -> str:
        """Where the sample that was read last stands."""
        if self.seq is None:
            return f"record {self.cur - 1} of the epoch"
        key = self.seq[self.cur - 1]
        listed = self.imglist[key][1] if self.imglist is not None and key in self.imglist else ""
        return f"key {key}{f', file {listed}' if listed else ''}"

    def read_image(self, fname: str) -> bytes:
        """The content of an image file below `path_root`.

        Raises:
            FileError: it cannot be read.
        """
        return codec.read_file(os.path.join(self.path_root or "", fname), "ImageIter")

    def augmentation_transform(self, data: Any) -> NDArray:
        """The image after all augmenters.

        Args:
            data: (height, width, channels).
        """
        return F.device(self._augment(F.host(data, "ImageIter")))

    def _augment(self, image: Array) -> Array:
        for augmenter in self.auglist:
            image = run_host(augmenter, image)
        return image

    def postprocess_data(self, datum: Any) -> NDArray:
        """(height, width, channels) as (channels, height, width)."""
        return nd.transpose(datum, axes=(2, 0, 1))

    def _prepared(self, label: Any, encoded: Any) -> tuple[Array, Any]:
        """The planes (channels, height, width) and the label of a sample."""
        if self._on_host:
            return self._augment(self._decode(encoded)).transpose(2, 0, 1), label
        data = self.imdecode(encoded)
        self.check_valid_image([data])
        return self.postprocess_data(self.augmentation_transform(data)).asnumpy(), label

    # -- batches

    def _empty_batch(self) -> Rest:
        data = np.zeros(self.provide_data[0].shape, np.float32)
        label = np.zeros(self.provide_label[0].shape, self.provide_label[0].dtype)
        return Rest(data, label)

    def _fill(self, batch: Rest) -> None:
        """Adds samples until the batch is full or the epoch over."""
        while batch.count < self.batch_size:
            try:
                sample = self.next_sample()
            except StopIteration:
                return
            prepared = self._prepared_or_skipped(*sample)
            if prepared is not None:
                self._put(batch, *prepared)

    def _prepared_or_skipped(self, label: Any, encoded: Any) -> tuple[Array, Any] | None:
        try:
            return self._prepared(label, encoded)
        except SkippedSampleError as error:
            logging.getLogger(__name__).debug("%s; %s", error, self._place())
            return None

    def _put(self, batch: Rest, planes: Array, label: Any) -> None:
        if planes.shape != batch.data.shape[1:]:
            raise ShapeError(
                f"[ImageIter] expected augmented images of {batch.data.shape[1:]}, got "
                f"{planes.shape}; {self._place()}"
            )
        batch.data[batch.count] = planes
        values = label.asnumpy() if isinstance(label, NDArray) else np.asarray(label)
        wanted = batch.label.shape[1:]
        if values.size != int(np.prod(wanted)):
            raise ShapeError(
                f"[ImageIter] expected {self.label_width} labels, got {values.size}; "
                f"{self._place()}"
            )
        batch.label[batch.count] = values.reshape(wanted)
        batch.count += 1

    def next(self) -> DataBatch:
        """The next batch.

        Raises:
            StopIteration: the epoch is over.
            FileError, FormatError, ShapeError: a sample cannot be read, decoded or augmented.
        """
        if self._ended:
            raise StopIteration
        batch, self._rest = self._rest or self._empty_batch(), None
        self._fill(batch)
        missing = self.batch_size - batch.count
        if missing:
            self._ended = True
            if self.last_batch_handle == "roll_over" and batch.count:
                self._rest = batch
            if self.last_batch_handle != "pad" or batch.count == 0:
                raise StopIteration
            self._fill_from_start(batch)
        return DataBatch([nd.array(batch.data)], [F.device(batch.label)], pad=missing)

    def _fill_from_start(self, batch: Rest) -> None:
        while batch.count < self.batch_size:
            self._rewind()
            before = batch.count
            self._fill(batch)
            if batch.count == before:
                raise MixflowError("[ImageIter] expected samples to fill up a batch, got none")


class SkippedSampleError(ShapeError):
    """A sample that an iterator leaves out, e.g. one without a valid box."""
