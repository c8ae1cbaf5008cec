"""What an iterator gives: descriptions, batches, and the base class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import dtype as dtypes
from ..arguments import check_bytes, checked, whole
from ..errors import MixflowError, ParamError, ShapeError
from ..ndarray import NDArray


class _Desc(NamedTuple):
    name: str
    shape: tuple[int, ...]


class DataDesc(_Desc):
    """Name and shape of one input, with its dtype and layout.

    Unpacks as (name, shape), as MXNet programs expect.
    """

    dtype: Any
    layout: str

    def __new__(
        cls,
        name: str,
        shape: Sequence[int],
        dtype: Any = np.float32,
        layout: str = "NCHW",
    ) -> DataDesc:
        """A pair with two more attributes.

        Raises:
            ParamError: no shape.
            DTypeError: no dtype.
        """
        try:
            made = super().__new__(cls, name, tuple(shape))
        except TypeError:
            raise ParamError(
                f"[DataDesc] expected a shape for '{name}', got {shape!r:.100}"
            ) from None
        try:
            made.dtype = np.dtype(dtype)
        except (TypeError, ValueError):
            made.dtype = dtypes.canonical(dtype)
        made.layout = layout
        return made

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """Position of 'N' in a layout; 0 without one."""
        if layout is not None and not isinstance(layout, str):
            raise ParamError(f"[DataDesc] expected a layout such as 'NCHW', got {layout!r:.100}")
        return 0 if layout is None else layout.find("N")

    @staticmethod
    def get_list(
        shapes: Sequence[tuple[str, Sequence[int]]],
        types: Sequence[tuple[str, Any]] | None = None,
    ) -> list[DataDesc]:
        """Descriptions from (name, shape) pairs and optional (name, dtype) pairs."""
        try:
            chosen = dict(types or ())
            return [DataDesc(n, s, chosen.get(n, np.float32)) for n, s in shapes]
        except (TypeError, ValueError) as error:
            if isinstance(error, MixflowError):
                raise
            raise ParamError(
                f"[DataDesc] expected (name, shape) and (name, dtype) pairs, got {shapes!r:.100} "
                f"and {types!r:.100}"
            ) from None


class DataBatch:
    """One batch.

    Attributes:
        data, label: lists of arrays, batch axis first.
        pad: number of samples at the end that only fill up the batch.
        index: sample numbers.
        bucket_key, provide_data, provide_label: for BucketingModule.
    """

    def __init__(
        self,
        data: Sequence[NDArray],
        label: Sequence[NDArray] | None = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: Sequence[Any] | None = None,
        provide_label: Sequence[Any] | None = None,
    ) -> None:
        for name, value in (("data", data), ("label", label)):
            if value is not None and not isinstance(value, (list, tuple)):
                raise ShapeError(f"[DataBatch] expected a list for '{name}', got {type(value)}")
        self.data = data
        self.label = label
        self.pad = pad
        self.index = index
        self.bucket_key = bucket_key
        self.provide_data = provide_data
        self.provide_label = provide_label

    def __str__(self) -> str:
        shapes = [d.shape for d in self.data]
        labels = [lab.shape for lab in self.label] if self.label else None
        return f"DataBatch: data shapes: {shapes} label shapes: {labels}"


def batch_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype of an iterator's argument; None (also as a text) is float32."""
    return dtypes.canonical(None if isinstance(dtype, str) and dtype == "None" else dtype)


def check_batch(operator: str, descriptions: Sequence[DataDesc]) -> None:
    """Raises ParamError where a batch of these arrays exceeds the memory."""
    nbytes = sum(
        int(np.prod(d.shape, dtype=object)) * np.dtype(d.dtype).itemsize for d in descriptions
    )
    check_bytes(operator, "a batch", nbytes, "choose a smaller batch_size")


class DataIter:
    """Base of the iterators. A subclass gives either `next`, or `iter_next` with the getters.

    Args:
        batch_size: samples per batch.

    Raises:
        ParamError: a batch size that is no number.
    """

    if TYPE_CHECKING:  # programs set them as attributes or define properties

        @property
        def provide_data(self) -> list[DataDesc]:
            """Descriptions of the data of a batch."""

        @property
        def provide_label(self) -> list[DataDesc]:
            """Descriptions of the labels of a batch."""

    @checked(batch_size=whole(0))
    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[DataBatch]:
        return self

    def __next__(self) -> DataBatch:
        return self.next()

    def reset(self) -> None:
        """Back to the first batch."""

    def next(self) -> DataBatch:
        """The next batch.

        Raises:
            StopIteration: the epoch is over.
        """
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad() or 0, self.getindex())

    def iter_next(self) -> bool:
        """Moves on; False at the end."""
        raise NotImplementedError(f"{type(self).__name__} gives neither next nor iter_next")

    def getdata(self) -> Sequence[NDArray]:
        """Data of the current batch."""
        raise NotImplementedError

    def getlabel(self) -> Sequence[NDArray]:
        """Labels of the current batch."""
        raise NotImplementedError

    def getindex(self) -> Any:
        """Sample numbers of the current batch, or None."""
        return None

    def getpad(self) -> int | None:
        """Filling samples of the current batch."""
        raise NotImplementedError


class BatchIter(DataIter):
    """Base of iterators that make whole batches: `next` keeps each as `current_batch`, from which
    the getters answer."""

    def __init__(self, batch_size: int = 0) -> None:
        super().__init__(batch_size)
        self.current_batch: DataBatch | None = None

    def iter_next(self) -> bool:
        """Moves to the next batch, which the getters give; False at the end."""
        try:
            self.next()
        except StopIteration:
            return False
        return True

    def _current(self) -> DataBatch:
        if self.current_batch is None:
            name = type(self).__name__
            raise MixflowError(f"[{name}] expected a current batch, got none; call next")
        return self.current_batch

    def getdata(self) -> Sequence[NDArray]:
        """Data of the current batch."""
        return self._current().data

    def getlabel(self) -> Sequence[NDArray]:
        """Labels of the current batch."""
        return self._current().label or []

    def getindex(self) -> Any:
        """Sample numbers of the current batch, or None."""
        return self._current().index

    def getpad(self) -> int | None:
        """Filling samples of the current batch."""
        return self._current().pad
