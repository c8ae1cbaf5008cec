"""`ImageDetRecordIter`: batches of pictures with boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..arguments import check, checked, choice, either, number, whole
from ..errors import ParamError, describe_unknown
from ..pipeline import Decoder, Loader, Normalise, Schedule
from ..pipeline.decode import begin_thread
from ..pipeline.detection import CropSampler, DetectionPictures, DetectionRecipe
from ..pipeline.images import Buffers
from .image_records import KINDS, PictureIter, _check_fixed, _open, _order, _shape, check_room

_LIMITS = ("scales", "aspect_ratios", "overlaps", "sample_coverages", "object_coverages")
_DEFAULTS = {
    "scales": (0.0, 1.0),
    "aspect_ratios": (1.0, 1.0),
    "overlaps": (0.0, 1.0),
    "sample_coverages": (0.0, 1.0),
    "object_coverages": (0.0, 1.0),
}


_LIMIT = number(0)


def _listed(value: Any, count: int, name: str) -> list[float]:
    """One number per sampler: a single one serves all."""
    found = list(value) if isinstance(value, (list, tuple)) else [value]
    found = [check("ImageDetRecordIter", name, x, _LIMIT) for x in found]
    if len(found) == 1:
        found *= count
    if len(found) != count:
        raise ParamError(
            f"[ImageDetRecordIter] expected {count} numbers in {name} (num_crop_sampler), got "
            f"{len(found)}"
        )
    return found


def _samplers(options: dict[str, Any]) -> Sequence[CropSampler]:
    """The crop samplers of an iterator's parameters, which are taken out of `options`."""
    given = options.pop("num_crop_sampler", 1)
    count = check("ImageDetRecordIter", "num_crop_sampler", given, whole(0, 1 << 16))
    limits: dict[str, list[Any]] = {}
    for what in _LIMITS:
        names = f"min_crop_{what}", f"max_crop_{what}"
        ends = [options.pop(n, d) for n, d in zip(names, _DEFAULTS[what], strict=True)]
        low, high = (_listed(e, count, n) for e, n in zip(ends, names, strict=True))
        if any(a > b for a, b in zip(low, high, strict=True)):
            raise ParamError(
                f"[ImageDetRecordIter] expected {names[0]} <= {names[1]}, got {low} and {high}"
            )
        limits[what] = list(zip(low, high, strict=True))
    trials = _listed(options.pop("max_crop_trials", (25,)), count, "max_crop_trials")
    return [
        CropSampler(**{k: v[i] for k, v in limits.items()}, trials=int(trials[i]))
        for i in range(count)
    ]


def make_recipe(shape: Sequence[int], augmentation: Mapping[str, Any]) -> DetectionRecipe:
    """The augmenter of an iterator's parameters.

    Raises:
        ParamError: an unknown or impossible one.
    """
    options = dict(augmentation)
    samplers = _samplers(options)
    known = set(DetectionRecipe.__dataclass_fields__) - {"height", "width", "samplers", "one_pass"}
    for name in options:
        if name not in known:
            crops = {f"{end}_crop_{what}" for end in ("min", "max") for what in _LIMITS}
            raise ParamError(describe_unknown("ImageDetRecordIter", name, sorted(known | crops)))
    return DetectionRecipe(shape[1], shape[2], samplers=samplers, **options)


class ImageDetRecordIter(PictureIter):
    """Batches of pictures with boxes from a record file.

    A sample's label is `[channels, height, width, length, label..., label_pad_value...]`, where
    height and width are those of the picture in the batch (smaller than the batch's with
    `resize_mode` 'fit' and 'shrink'; the rest is 0).

    Args:
        path_imgrec, data_shape, batch_size, path_imgidx, path_imglist, shuffle, seed, num_parts,
            part_index, shuffle_chunk_size, shuffle_chunk_seed, preprocess_threads, prefetch_buffer,
            round_batch, dtype, deadline, data_name, label_name: as of `ImageRecordIter`.
        label_width: numbers in a record's label; -1: any.
        label_pad_width: numbers per label at least; 0: as many as the longest has.
        label_pad_value: of the padding.
        mean_r, mean_g, mean_b, std_r, std_g, std_b, scale: normalisation; std 0: none.
        augmentation: see `mx.pipeline.DetectionRecipe` and MXNet's names of the crop limits.
        mean_img, mean_a, std_a, verbose, ctx: without effect; a `mean_img` is refused.

    Raises:
        ParamError: an unknown or impossible parameter.
        FormatError: a missing or damaged file, or a label of another form.
    """

    @checked(
        **KINDS,
        label_width=either(choice(-1), whole(1, 1 << 30)),
        label_pad_width=whole(0, 1 << 30),
        label_pad_value=number(),
        **{f"std_{c}": number(0) for c in "rgb"},
    )
    def __init__(
        self,
        path_imgrec: str = "./data/imgrec.rec",
        data_shape: Any = None,
        batch_size: int = 0,
        *,
        path_imgidx: str = "",
        path_imglist: str = "",
        aug_seq: str = "det_aug_default",
        label_width: int = -1,
        label_pad_width: int = 0,
        label_pad_value: float = -1.0,
        preprocess_threads: int = 4,
        verbose: bool = True,
        num_parts: int = 1,
        part_index: int = 0,
        shuffle_chunk_size: int = 0,
        shuffle_chunk_seed: int = 0,
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
        std_r: float = 0.0,
        std_g: float = 0.0,
        std_b: float = 0.0,
        std_a: float = 0.0,
        scale: float = 1.0,
        deadline: float = 300.0,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **augmentation: Any,
    ) -> None:
        _check_fixed(aug_seq=(aug_seq, ["det_aug_default"]), mean_img=(mean_img, [""]))
        shape = _shape(data_shape)
        recipe = make_recipe(shape, augmentation)
        check_room(type(self).__name__, shape, 4 * batch_size, prefetch_buffer)
        decoder = Decoder(shape[0], "whole")
        source = _open(path_imgrec, path_imgidx, path_imglist)
        order = _order(
            source, seed, shuffle, num_parts, part_index, shuffle_chunk_size, shuffle_chunk_seed
        )
        schedule = Schedule(order, int(batch_size), "wrap" if round_batch else "pad")
        std = [s if s > 0 else 1.0 for s in (std_r, std_g, std_b)[: shape[0]]]
        normalise = Normalise((mean_r, mean_g, mean_b)[: shape[0]], std, float(scale))
        width = 4 + _label_width(source, label_width, label_pad_width)
        filler = DetectionPictures(
            source, decoder, recipe, normalise, schedule.batch_size, np.float32, width, seed
        )
        filler.pad_value = label_pad_value
        identity = {
            "samples": len(source),
            "batch_size": schedule.batch_size,
            "seed": seed,
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
        super().__init__(loader, filler, source, (data_name, label_name), dtype)


def _label_width(source: Any, exact: int, least: int) -> int:
    """Numbers of the longest label; reads every record once, as MXNet does."""
    widths = {source[i].label.size for i in range(len(source))}
    if exact > 0 and widths != {exact}:
        raise ParamError(
            f"[ImageDetRecordIter] expected labels of label_width {exact} numbers, got "
            f"{sorted(widths)}"
        )
    longest = max(widths, default=0)
    if 0 < least < longest:
        raise ParamError(
            f"[ImageDetRecordIter] expected label_pad_width of at least {longest}, got {least}"
        )
    return int(max(longest, least))
