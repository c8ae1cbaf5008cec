"""Fills batches with pictures: read, decode what is needed, and write into the batch's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .. import _rt
from .. import ndarray as nd
from ..arguments import check_bytes, check_fields, checked, number, seed, several, whole
from ..errors import MixflowError, ShapeError
from ..ndarray import NDArray
from .decode import Decoder
from .draws import Draws
from .order import BatchPlan
from .recipe import View
from .sources import Sample, Source

Array = np.ndarray[Any, Any]
#: Epoch numbers of the draws that make contrast and brightness of a sample, apart from the others.
_LIGHT = 1 << 40


class Recipe(Protocol):
    """What `Pictures` asks of a recipe; `DefaultRecipe` is one."""

    @property
    def one_pass(self) -> bool:
        """Whether `view` says all there is to do."""

    @property
    def height(self) -> int:
        """Of the result."""

    @property
    def width(self) -> int:
        """Of the result."""

    def view(self, height: int, width: int, draws: Draws) -> View | None:
        """For `one_pass`; None: `apply` after all."""

    def apply(self, image: Array, draws: Draws) -> tuple[Array, bool]:
        """For the others."""


@dataclass(frozen=True)
class Normalise:
    """out = ((pixel - mean) * contrast + illumination) * scale / std, per channel.

    Attributes:
        mean, std: one number per channel.
        scale: factor.
        mean_image: (channels, height, width) float32 in place of `mean`, or None.
        max_random_contrast, max_random_illumination: largest changes, drawn per sample.

    Raises:
        ParamError: a number that is none, or a deviation that is not above 0.
    """

    mean: Sequence[float]
    std: Sequence[float]
    scale: float = 1.0
    mean_image: Array | None = None
    max_random_contrast: float = 0.0
    max_random_illumination: float = 0.0
    _factor: Any = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        check_fields(
            "ImageRecordIter",
            self,
            mean=several(number()),
            std=several(number(above=0)),
            scale=number(),
            max_random_contrast=number(0),
            max_random_illumination=number(0),
        )
        object.__setattr__(self, "_factor", tuple(self.scale / s for s in self.std))

    def numbers(self, draws: Draws) -> tuple[Any, Any]:
        """(factor, bias) per channel for one sample."""
        factor = self._factor
        if not self.max_random_contrast and not self.max_random_illumination:
            return factor, None
        limit = self.max_random_contrast
        contrast = 1.0 + draws.uniform(-limit, limit)
        light = draws.uniform(-self.max_random_illumination, self.max_random_illumination)
        return tuple(f * contrast for f in factor), tuple(f * light for f in factor)


class Target(Protocol):
    """What `Pictures.fill` writes into: `Buffers` is one."""

    @property
    def plan(self) -> BatchPlan:
        """Which samples."""

    @property
    def rows(self) -> Any:
        """(samples, channels, height, width)."""

    @property
    def labels(self) -> Array:
        """(samples, label width) float32."""

    @property
    def keys(self) -> list[Any]:
        """Of the samples."""


class Buffers:
    """Memory of one batch while it is filled.

    Attributes:
        data: NDArray (batch, channels, height, width).
        rows: the same memory as NumPy sees it.
        labels: (batch, label width) float32.
        keys: of the samples.
        plan: which samples.
    """

    def __init__(self, plan: BatchPlan, shape: Sequence[int], dtype: Any, label_width: int) -> None:
        self.plan = plan
        self.data: NDArray = nd.empty(shape, dtype=dtype)
        self.rows = _rt.core.writable_view(self.data)
        self.labels = np.zeros((len(plan.indices), label_width), np.float32)
        self.keys: list[Any] = [None] * len(plan.indices)


def window_of(view: View, height: int, width: int) -> tuple[range, range]:
    """Rows and columns of the picture that a view reads (at most one too many on each side)."""
    top, left, rows, columns = view.window

    def taken(start: int, length: int, whole: int, resized: int, offset: int) -> range:
        scale = whole / resized
        first = int((start + 0.5) * scale - 0.5)
        last = int((start + length - 0.5) * scale - 0.5) + 2
        return range(offset + max(0, first), offset + min(whole, last))

    return (
        taken(view.corner[0], height, rows, view.resized[0], top),
        taken(view.corner[1], width, columns, view.resized[1], left),
    )


class Pictures:
    """Makes and fills the memory of image batches. Thread-safe.

    Args:
        source: encoded images.
        decoder: how to decode; its channels are the result's.
        recipe: augmentation; gives height and width.
        normalise: after it; None keeps the pixels (uint8).
        batch_size: samples per batch.
        dtype: of the memory: float32, uint8 or int8.
        label_width: labels per sample; 0: none are kept.
        seed: of the draws.

    Raises:
        ParamError: a number out of range, or batches larger than the memory.
    """

    @checked(batch_size=whole(1), label_width=whole(0), seed=seed)
    def __init__(
        self,
        source: Source,
        decoder: Decoder,
        recipe: Recipe,
        normalise: Normalise | None,
        batch_size: int,
        dtype: Any = np.float32,
        label_width: int = 1,
        seed: int = 0,
    ) -> None:
        self.source, self.decoder, self.recipe = source, decoder, recipe
        self.normalise, self.dtype, self.label_width = normalise, np.dtype(dtype), label_width
        self.seed = seed
        self.shape = (batch_size, decoder.channels, recipe.height, recipe.width)
        sample = decoder.channels * recipe.height * recipe.width * self.dtype.itemsize
        nbytes = batch_size * (sample + 4 * label_width)
        check_bytes("image pipeline", "a batch", nbytes, "choose a smaller batch_size")

    def begin(self, plan: BatchPlan) -> Buffers:
        """Memory for a batch."""
        return Buffers(plan, self.shape, self.dtype, self.label_width)

    def fill(self, buffers: Target, position: int) -> None:
        """Writes one sample of a batch.

        Raises:
            MixflowError: of the sample's, naming it.
        """
        index, epoch = buffers.plan.indices[position], buffers.plan.epochs[position]
        sample = self.source[index]
        try:
            self._set_label(buffers.labels[position], sample)
            self._draw(sample, buffers.rows[position], Draws(self.seed, epoch, index), epoch, index)
        except MixflowError as error:
            error.args = (f"{error.args[0]} (sample {sample.key!r} of {self.source.name})",)
            raise
        buffers.keys[position] = sample.key

    def _set_label(self, to: Array, sample: Sample) -> None:
        if to.size == 0:
            return
        if sample.label.size != to.size:
            raise ShapeError(
                f"[image pipeline] expected {to.size} labels, got {sample.label.size}; "
                "set label_width"
            )
        to[:] = sample.label

    def _draw(self, sample: Sample, out: Array, draws: Draws, epoch: int, index: int) -> None:
        size = self.decoder.size(sample.content)
        view = self.recipe.view(size[0], size[1], draws) if self.recipe.one_pass else None
        if view is not None:
            pixels, geometry = self._decoded(sample.content, size, view)
        else:
            pixels, mirror = self.recipe.apply(self.decoder.whole(sample.content), draws)
            shape = pixels.shape[:2]
            geometry = (0, 0, *shape, *shape, 0, 0, int(mirror))
        if self.normalise is None:
            _rt.core.picture(pixels, out, geometry)
            return
        factor, bias = self.normalise.numbers(Draws(self.seed, epoch + _LIGHT, index))
        mean, image = self.normalise.mean, self.normalise.mean_image
        _rt.core.picture(pixels, out, geometry, None, mean, factor, bias, image)

    def _decoded(self, content: Any, size: Any, view: View) -> tuple[Array, tuple[int, ...]]:
        """Pixels of at least what the view needs, and the geometry for `core.picture`."""
        top, left, rows, columns = view.window
        tail = (*view.resized, *view.corner, int(view.mirror))
        scale = max(view.resized[0] / rows, view.resized[1] / columns)
        small = self.decoder.reduced(content, size, scale)
        if small is not None:
            by_rows, by_columns = small.shape[0] / size[0], small.shape[1] / size[1]
            at = (round(top * by_rows), round(left * by_columns))
            reach = (max(1, round(rows * by_rows)), max(1, round(columns * by_columns)))
            at = (min(at[0], small.shape[0] - 1), min(at[1], small.shape[1] - 1))
            reach = (min(reach[0], small.shape[0] - at[0]), min(reach[1], small.shape[1] - at[1]))
            return small, (-at[0], -at[1], *reach, *tail)
        needed = window_of(view, self.recipe.height, self.recipe.width)
        found = self.decoder.part(content, size, *needed)
        return found.array, (found.top - top, found.left - left, rows, columns, *tail)
