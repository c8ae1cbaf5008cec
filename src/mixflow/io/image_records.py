"""Iterators over images in record files: `ImageRecordIter` and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import dtype as dtypes
from .. import ndarray as nd
from ..arguments import (
    MOST_THREADS,
    check,
    check_bytes,
    checked,
    choice,
    flag,
    number,
    optional,
    path,
    seed,
    several,
    text,
    whole,
)
from ..errors import FormatError, ParamError
from ..ndarray import NDArray
from ..pipeline import (
    Decoder,
    DefaultRecipe,
    Loader,
    Normalise,
    Order,
    Pictures,
    RecordSource,
    Schedule,
    Source,
    chunks_of,
    shard,
)
from ..pipeline.decode import begin_thread
from ..pipeline.images import Buffers
from ..pipeline.recipe import make_recipe
from ..pipeline.remote import RemoteRecordSource, is_address
from ..pipeline.sources import read_list
from .base import BatchIter, DataBatch, DataDesc

Array = np.ndarray[Any, Any]
_MEGABYTE = 1 << 20
#: Parameters that the iterators over record files have in common.
KINDS: dict[str, Any] = {
    "path_imgrec": path,
    "path_imgidx": path,
    "path_imglist": path,
    "batch_size": whole(1),
    "preprocess_threads": whole(1, MOST_THREADS),
    "num_parts": whole(1),
    "part_index": whole(0),
    "shuffle_chunk_size": whole(0, 1 << 40),
    "shuffle_chunk_seed": seed,
    "shuffle": flag,
    "seed": seed,
    "round_batch": flag,
    "prefetch_buffer": whole(0, 1 << 20),
    "mean_img": path,
    **{f"mean_{c}": number() for c in "rgba"},
    "scale": number(),
    "deadline": number(above=0),
    "data_name": text,
    "label_name": text,
}


class PictureIter(BatchIter):
    """Batches of a `Loader` of pictures; base of the image record iterators.

    An iterator over a data set of any kind is made with `make` from the pieces of `mx.pipeline`.

    Attributes:
        seconds_waited: seconds that `next` has waited for the threads, in total.
        batches_given: batches in total.
    """

    def __init__(
        self,
        loader: Loader[Buffers],
        filler: Pictures,
        source: Source,
        names: tuple[str, str] = ("data", "softmax_label"),
        dtype: Any = None,
    ) -> None:
        super().__init__(filler.shape[0])
        self._loader, self._filler, self._source = loader, filler, source
        self._names = names
        self._dtype = filler.dtype if dtype is None else dtypes.canonical(dtype)

    @property
    def provide_data(self) -> list[DataDesc]:
        """Name, shape (batch, channels, height, width) and dtype of the data."""
        return [DataDesc(self._names[0], self._filler.shape, self._dtype, "NCHW")]

    @property
    def provide_label(self) -> list[DataDesc]:
        """Name, shape (batch,) or (batch, labels) and dtype of the labels."""
        width = self._filler.label_width
        shape = (self.batch_size,) if width == 1 else (self.batch_size, width)
        return [DataDesc(self._names[1], shape, np.float32, "N" if width == 1 else "NC")]

    def __len__(self) -> int:
        """Batches of the current epoch."""
        return self._loader.schedule.batches()

    @property
    def seconds_waited(self) -> float:
        """Seconds that `next` has waited for a batch, in total: 0 when data keeps up."""
        return self._loader.seconds_waited

    @property
    def batches_given(self) -> int:
        """Batches given in total."""
        return self._loader.batches_given

    def next(self) -> DataBatch:
        """The next batch; `index` holds the samples' ids.

        Raises:
            StopIteration: the epoch is over.
            MixflowError: a sample of this batch that cannot be used, or no batch in time.
        """
        filled = self._loader.next()
        labels = filled.labels[:, 0] if self._filler.label_width == 1 else filled.labels
        data: NDArray = filled.data
        if self._dtype != self._filler.dtype:
            data = data.astype(self._dtype)
        index = np.array(filled.keys)
        self.current_batch = DataBatch([data], [nd.array(labels)], filled.plan.pad, index)
        return self.current_batch

    def reset(self) -> None:
        """Next epoch, from its first batch. Before the first batch was taken nothing changes."""
        self.current_batch = None
        self._loader.reset()

    def state_dict(self) -> dict[str, Any]:
        """The position as plain values that JSON holds; the next batch is part of it."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved position: the batches after it are those of the uninterrupted run.

        Raises:
            FormatError: a state of other data, another order, batch size or seed.
        """
        self.current_batch = None
        self._loader.load_state_dict(state)

    def close(self) -> None:
        """Ends the threads and gives the file back; the iterator cannot be used afterwards."""
        self._loader.close()
        self._source.close()

    def __enter__(self) -> PictureIter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(
    path: str, index: str, image_list: str, labels: Callable[[str], Any] = read_list
) -> Source:
    """The source of a record file, local or at an address that fsspec knows."""
    if not path:
        raise ParamError("[ImageRecordIter] expected path_imgrec, got none")
    chosen = {k: v[0] for k, v in labels(image_list).items()} if image_list else None
    if is_address(path):
        return RemoteRecordSource(path, index or None, chosen)
    for kind, file in (("path_imgrec", path), ("path_imgidx", index)):
        if file and not Path(file).exists():
            raise FormatError(f"[ImageRecordIter] expected {kind} {file}, found no such file")
    return RecordSource(path, index or None, chosen)


def _check_fixed(**fixed: tuple[Any, Sequence[Any]]) -> None:
    for name, (value, known) in fixed.items():
        check("ImageRecordIter", name, value, choice(*known))


_SHAPE = several(whole(1, 1 << 30), 3)


def _shape(data_shape: Any) -> tuple[int, int, int]:
    try:
        shape: tuple[int, ...] = _SHAPE.convert(data_shape)
    except (TypeError, ValueError, OverflowError):
        shape = ()
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ParamError(
            "[ImageRecordIter] expected data_shape (channels, height, width) with 1 or 3 channels, "
            f"got {data_shape!r}"
        )
    return shape[0], shape[1], shape[2]


class ImageRecordIter(PictureIter):
    """Batches of images from a record file, decoded and augmented by threads ahead of their use.

    Parameters have MXNet 1.9.1's names, defaults and meanings. The order and the random draws are a
    function of the seeds alone: the number of threads changes nothing, and `state_dict` resumes
    exactly.

    Args:
        path_imgrec: record file, or an address that fsspec knows (extra `remote`).
        data_shape: (channels, height, width) of a sample; 1 (grey) or 3 (RGB) channels.
        batch_size: samples per batch.
        path_imgidx: index of the record file; without it the records' heads are read once.
        path_imglist: list whose labels replace those in the records.
        label_width: labels per sample.
        shuffle: a new order in each epoch, drawn from `seed`.
        seed, seed_aug: of the order, and of the augmentation (None: `seed`).
        num_parts, part_index: this worker's share of the records.
        shuffle_chunk_size, shuffle_chunk_seed: with a size above 0 (MB) runs of records of about
            this size stay together and their order is shuffled in each epoch.
        preprocess_threads, prefetch_buffer: threads, and batches that are ready or being filled.
        round_batch: a rest is filled up with the first samples of the next epoch, which then begins
            after them; False: with the last sample of the rest. `pad` says how many in both cases.
        resize, rand_crop, random_resized_crop, max_rotate_angle, rotate, max_aspect_ratio,
            min_aspect_ratio, max_shear_ratio, max_crop_size, min_crop_size, max_random_scale,
            min_random_scale, max_random_area, min_random_area, max_img_size, min_img_size, pad,
            fill_value, inter_method, mirror, rand_mirror: see `mx.pipeline.DefaultRecipe`.
        brightness, contrast, saturation, pca_noise, random_h, random_s, random_l: see
            `mx.pipeline.ColourJitter`.
        mean_r, mean_g, mean_b, std_r, std_g, std_b, scale, max_random_contrast,
            max_random_illumination: see `mx.pipeline.Normalise`; a grey image takes those of r.
        mean_img: file of the mean image; computed from all records (cropped in the middle) and
            written where there is none.
        dtype: of the data; None: float32.
        decode: 'auto', 'whole', 'part' or 'reduced'; see `mx.pipeline.Decoder`.
        deadline: seconds that a batch may take.
        data_name, label_name: names in `provide_data` and `provide_label`.
        mean_a, std_a, verbose, ctx, device_id: without effect.

    Raises:
        ParamError: an unknown or impossible parameter.
        FormatError: a missing or damaged file.
    """

    @checked(
        **KINDS,
        label_width=whole(1, 1 << 30),
        seed_aug=optional(seed),
        max_random_contrast=number(0),
        max_random_illumination=number(0),
        **{f"std_{c}": number(above=0) for c in "rgb"},
    )
    def __init__(
        self,
        path_imgrec: str = "",
        data_shape: Any = None,
        batch_size: int = 0,
        *,
        path_imgidx: str = "",
        path_imglist: str = "",
        aug_seq: str = "aug_default",
        label_width: int = 1,
        preprocess_threads: int = 4,
        verbose: bool = True,
        num_parts: int = 1,
        part_index: int = 0,
        device_id: int = 0,
        shuffle_chunk_size: int = 0,
        shuffle_chunk_seed: int = 0,
        seed_aug: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        round_batch: bool = True,
        prefetch_buffer: int = 4,
        ctx: str = "gpu",
        dtype: Any = None,
        mean_img: str = "",
        mean_r: float = 0.0,
        mean_g: float = 0.0,
        mean_b: float = 0.0,
        mean_a: float = 0.0,
        std_r: float = 1.0,
        std_g: float = 1.0,
        std_b: float = 1.0,
        std_a: float = 1.0,
        scale: float = 1.0,
        max_random_contrast: float = 0.0,
        max_random_illumination: float = 0.0,
        decode: str = "auto",
        deadline: float = 300.0,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **augmentation: Any,
    ) -> None:
        _check_fixed(aug_seq=(aug_seq, ["aug_default"]))
        shape = _shape(data_shape)
        recipe = make_recipe(shape, augmentation)
        check_room(type(self).__name__, shape, batch_size, prefetch_buffer)
        decoder = Decoder(shape[0], decode)
        stored, delivered = self._types(dtype)
        source = _open(path_imgrec, path_imgidx, path_imglist)
        schedule = Schedule(
            _order(source, seed, shuffle, num_parts, part_index, shuffle_chunk_size,
                   shuffle_chunk_seed),
            int(batch_size),
            "wrap" if round_batch else "pad",
        )  # fmt: skip
        normalise = None
        if stored != np.uint8:
            normalise = Normalise(
                (mean_r, mean_g, mean_b)[: shape[0]],
                (std_r, std_g, std_b)[: shape[0]] if stored != np.int8 else (1.0,) * 3,
                float(scale) if stored != np.int8 else 1.0,
                mean_image(mean_img, source, recipe, decoder) if mean_img else None,
                float(max_random_contrast),
                float(max_random_illumination),
            )
        filler = Pictures(
            source,
            decoder,
            recipe,
            normalise,
            schedule.batch_size,
            stored,
            int(label_width),
            seed if seed_aug is None else seed_aug,
        )
        identity = {
            "samples": len(source),
            "batch_size": schedule.batch_size,
            "seed": seed,
            "seed_aug": filler.seed,
            "shuffle": bool(shuffle),
            "part": [part_index, num_parts],
            "chunk": [shuffle_chunk_size, shuffle_chunk_seed],
            "last": schedule.last,
        }
        loader: Loader[Buffers] = Loader(
            schedule,
            filler,
            int(preprocess_threads),
            max(1, int(prefetch_buffer)),
            type(self).__name__,
            deadline,
            begin_thread,
            identity,
        )
        super().__init__(loader, filler, source, (data_name, label_name), delivered)

    _fixed_type: Any = None

    def _types(self, dtype: Any) -> tuple[Any, Any]:
        """(dtype of the batch's memory, dtype of the batches)."""
        if self._fixed_type is not None:
            _check_fixed(dtype=(dtype, [None, np.dtype(self._fixed_type).name]))
            return np.dtype(self._fixed_type), np.dtype(self._fixed_type)
        wanted = dtypes.canonical(dtype)
        return (wanted if wanted in (np.uint8, np.int8) else np.dtype(np.float32)), wanted


class ImageRecordUInt8Iter(ImageRecordIter):
    """`ImageRecordIter` whose batches hold the pixels as they are (uint8), not normalised."""

    _fixed_type = np.uint8


class ImageRecordInt8Iter(ImageRecordIter):
    """`ImageRecordIter` whose batches are int8: pixels less the mean, saturated.

    As in MXNet, std and scale have no effect.
    """

    _fixed_type = np.int8


def _order(
    source: Source,
    seed: int,
    shuffle: bool,
    num_parts: int,
    part_index: int,
    chunk_megabytes: int,
    chunk_seed: int,
) -> Order:
    chunks = None
    if chunk_megabytes > 0:
        first, end = shard(len(source), num_parts, part_index)
        chunks = chunks_of(source.sizes()[first:end], chunk_megabytes * _MEGABYTE)
    return Order(len(source), seed, bool(shuffle), num_parts, part_index, chunks, chunk_seed)


def check_room(operator: str, shape: Sequence[int], batch_size: int, ahead: int) -> None:
    """Raises ParamError where the batches that are under way at a time exceed the memory."""
    nbytes = int(np.prod(shape, dtype=object)) * batch_size * (max(1, ahead) + 1)
    hint = "choose a smaller batch_size, data_shape or prefetch_buffer"
    check_bytes(operator, "batches under way", nbytes, hint)


def mean_image(path: str, source: Source, recipe: DefaultRecipe, decoder: Decoder) -> Array:
    """(channels, height, width) float32: the mean image of a file, made where there is none.

    Args:
        path: file of one array, as MXNet writes it.
        source, recipe, decoder: what it is computed from: all samples, resized as the recipe says
            and cropped in the middle.

    Raises:
        FormatError: a file of something else.
    """
    shape = (decoder.channels, recipe.height, recipe.width)
    if Path(path).exists():
        loaded = nd.load(path)
        arrays = list(loaded.values()) if isinstance(loaded, dict) else list(loaded)
        if len(arrays) != 1 or arrays[0].shape != shape:
            shapes = [a.shape for a in arrays]
            raise FormatError(f"[mean_img] expected one array {shape} in {path}, got {shapes}")
        found: Array = arrays[0].asnumpy().astype(np.float32)
        return found
    plain = DefaultRecipe(
        recipe.height, recipe.width, recipe.resize, pad=recipe.pad, fill_value=recipe.fill_value
    )
    filler = Pictures(source, decoder, plain, None, 1, np.uint8, 0)
    total = np.zeros(shape, np.float64)
    schedule = Schedule(Order(len(source)), 1)
    for i in range(len(source)):
        buffers = filler.begin(schedule.batch(i))
        filler.fill(buffers, 0)
        total += buffers.rows[0]
    mean = (total / len(source)).astype(np.float32)
    nd.save(path, {"mean_img": nd.array(mean)})
    return mean
