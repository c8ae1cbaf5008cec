"""Iterator over images with boxes (``mx.image.ImageDetIter``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import extras
from ..arguments import checked, choice
from ..errors import DTypeError, MixflowError, ShapeError
from ..io.base import DataDesc
from ..ndarray import NDArray
from . import functions as F
from .augment import IMAGENET_MEAN, IMAGENET_STD, ForceResizeAug
from .detection import CreateDetAugmenter, DetBorrowAug, run_det_host
from .iterator import KINDS, LAST_BATCH, ImageIter, Rest, SkippedSampleError

Array = np.ndarray[Any, Any]
#: Least numbers of a label: two of a header, five of a box.
_LEAST_LABEL = 7


class ImageDetIter(ImageIter):
    """Batches of images with boxes, for detection.

    A sample's label is flat: size of the header, size of a box, other numbers of the header, then
    the boxes (class, left, top, right, bottom, ...), edges as parts of the image's width and
    height. A batch's labels are (batch, boxes, size of a box), filled up with -1; the number of
    boxes is the largest of the data set. Samples without a valid box are left out (and logged at
    level debug).

    Args:
        batch_size: samples per batch.
        data_shape: (3, height, width) of a sample.
        path_imgrec, path_imglist, path_root, path_imgidx, shuffle, part_index, num_parts, imglist,
            data_name, last_batch_handle: as `ImageIter`.
        aug_list: detection augmenters; None = `CreateDetAugmenter(data_shape, **kwargs)`.
        label_name: name in `provide_label`.
        **kwargs: arguments of `CreateDetAugmenter`.

    Attributes:
        label_shape: (boxes, size of a box).

    Raises:
        ShapeError: a label of another form.
        ParamError, FileError, FormatError: as `ImageIter`.
    """

    @checked(**KINDS, last_batch_handle=choice(*LAST_BATCH))
    def __init__(
        self,
        batch_size: int,
        data_shape: Sequence[int],
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
        label_name: str = "label",
        last_batch_handle: str = "pad",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            data_shape=data_shape,
            path_imgrec=path_imgrec,
            path_imglist=path_imglist,
            path_root=path_root,
            path_imgidx=path_imgidx,
            shuffle=shuffle,
            part_index=part_index,
            num_parts=num_parts,
            aug_list=[],
            imglist=imglist,
            data_name=data_name,
            label_name=label_name,
            last_batch_handle=last_batch_handle,
        )
        made = CreateDetAugmenter(data_shape, **kwargs) if aug_list is None else aug_list
        self.auglist = list(made)
        self._set_label_shape(self._largest_label())

    # -- labels

    def _set_label_shape(self, shape: Sequence[int]) -> None:
        self.label_shape = (int(shape[0]), int(shape[1]))
        self.provide_label = [  # type: ignore[misc]
            DataDesc(self.provide_label[0].name, (self.batch_size, *self.label_shape))
        ]

    def _largest_label(self) -> tuple[int, int]:
        """(boxes, size of a box) from a pass over all labels."""
        most, width = 0, 5
        self.reset()  # as MXNet does, so that shuffling draws alike
        while True:
            try:
                label, _ = self.next_sample()
            except StopIteration:
                break
            try:
                boxes = self._parse_label(label)
            except SkippedSampleError:
                continue
            most, width = max(most, len(boxes)), boxes.shape[1]
        self.reset()
        if most == 0:
            raise ShapeError("[ImageDetIter] expected samples with valid boxes, got none")
        return most, width

    def _parse_label(self, label: Any) -> Array:
        """(n, size of a box) of a flat label, without boxes of no area.

        Raises:
            ShapeError: a label of another form.
            SkippedSampleError: no valid box.
        """
        values = label.asnumpy() if isinstance(label, NDArray) else np.asarray(label)
        raw = values.reshape(-1)
        header, size = (int(raw[0]), int(raw[1])) if raw.size >= _LEAST_LABEL else (0, 0)
        if header < 2 or size < 5 or header >= raw.size or (raw.size - header) % size:
            raise ShapeError(
                "[ImageDetIter] expected a label of (size of the header >= 2, size of a box >= 5, "
                f"..., boxes), got {raw.size} numbers: {raw[:8].tolist()}; {self._place()}"
            )
        boxes = raw[header:].reshape(-1, size)
        valid = (boxes[:, 3] > boxes[:, 1]) & (boxes[:, 4] > boxes[:, 2])
        if not valid.any():
            raise SkippedSampleError("[ImageDetIter] expected a box with an area, got none")
        return boxes[valid]

    def check_label_shape(self, label_shape: Sequence[int]) -> None:
        """Raises ShapeError where a label shape does not hold the labels there are.

        Args:
            label_shape: (boxes, size of a box).
        """
        fits = len(label_shape) == 2 and label_shape[0] >= self.label_shape[0]
        if not fits or label_shape[1] != self.label_shape[1]:
            raise ShapeError(
                f"[ImageDetIter] expected a label shape of at least {self.label_shape[0]} boxes of "
                f"{self.label_shape[1]} numbers, got {tuple(label_shape)}"
            )

    # -- shapes

    def reshape(
        self, data_shape: Sequence[int] | None = None, label_shape: Sequence[int] | None = None
    ) -> None:
        """Another size of images, or room for more boxes, from the next batch on.

        A `ForceResizeAug` among the augmenters that gave the old size gives the new one.

        Args:
            data_shape: (3, height, width); None = as it is.
            label_shape: (boxes, size of a box); None = as it is.

        Raises:
            ShapeError: fewer boxes than there are, or shapes of another form.
        """
        if data_shape is not None:
            self.check_data_shape(data_shape)
            old = (self.data_shape[2], self.data_shape[1])
            for augmenter in self.auglist:
                inner = augmenter.augmenter if isinstance(augmenter, DetBorrowAug) else None
                if isinstance(inner, ForceResizeAug) and tuple(inner.size) == old:
                    inner.size = (data_shape[2], data_shape[1])
            self.data_shape = tuple(data_shape)
            self.provide_data = [  # type: ignore[misc]
                DataDesc(self.provide_data[0].name, (self.batch_size, *self.data_shape))
            ]
        if label_shape is not None:
            self.check_label_shape(label_shape)
            self._set_label_shape(label_shape)
        self._rest = None if data_shape is not None or label_shape is not None else self._rest

    def sync_label_shape(self, it: ImageDetIter, verbose: bool = False) -> ImageDetIter:
        """Gives this iterator and another the larger number of boxes of both.

        Args:
            it: e.g. the iterator of the validation data.
            verbose: log what changes.

        Returns:
            The other iterator.

        Raises:
            DTypeError: no ImageDetIter.
            ShapeError: boxes of another size.
        """
        if not isinstance(it, ImageDetIter):
            raise DTypeError(
                f"[sync_label_shape] expected an ImageDetIter, got {type(it).__name__}"
            )
        if it.label_shape[1] != self.label_shape[1]:
            raise ShapeError(
                f"[sync_label_shape] expected boxes of {self.label_shape[1]} numbers, got "
                f"{it.label_shape[1]}"
            )
        most = max(self.label_shape[0], it.label_shape[0])
        for one in (self, it):
            if one.label_shape[0] < most:
                if verbose:
                    logging.info("boxes per sample: %d, now %d", one.label_shape[0], most)
                one.reshape(None, (most, one.label_shape[1]))
        return it

    # -- one sample

    def augmentation_transform(  # type: ignore[override]
        self, data: Any, label: Array
    ) -> tuple[NDArray, Array]:
        """The image and its boxes after all augmenters.

        Args:
            data: (height, width, channels).
            label: (n, size of a box).
        """
        image, boxes = self._augment_boxes(F.host(data, "ImageDetIter"), label)
        return F.device(image), boxes

    def _augment_boxes(self, image: Array, boxes: Array) -> tuple[Array, Array]:
        for augmenter in self.auglist:
            image, boxes = run_det_host(augmenter, image, boxes)
        return image, boxes

    def _prepared(self, label: Any, encoded: Any) -> tuple[Array, Any]:
        boxes = self._parse_label(label)
        if self._on_host:
            image, boxes = self._augment_boxes(self._decode(encoded), boxes)
            planes = image.transpose(2, 0, 1)
        else:
            data = self.imdecode(encoded)
            self.check_valid_image([data])
            data, boxes = self.augmentation_transform(data, boxes)
            planes = self.postprocess_data(data).asnumpy()
        _check_boxes(boxes)
        return planes, boxes

    def _put(self, batch: Rest, planes: Array, label: Any) -> None:
        room, size = batch.label.shape[1:]
        if label.shape[1] != size or len(label) > room:
            raise ShapeError(
                f"[ImageDetIter] expected at most {room} boxes of {size} numbers, got "
                f"{label.shape}; {self._place()}; reshape makes room for more"
            )
        full = np.full((room, size), -1, batch.label.dtype)
        full[: len(label)] = label
        super()._put(batch, planes, full)

    def draw_next(
        self,
        color: Sequence[float] | None = None,
        thickness: int = 2,
        mean: Any = None,
        std: Any = None,
        clip: bool = True,
        waitKey: int | None = None,
        window_name: str = "draw_next",
        id2labels: dict[int, str] | None = None,
    ) -> Iterator[Array]:
        """Augmented images with their boxes drawn, one after the other, for a look at the data.

        Args:
            color: (red, green, blue) of the boxes; None = a random one for each.
            thickness: of the lines, pixels.
            mean, std: what `CreateDetAugmenter` was given, to take the normalisation back.
            clip: cut levels to 0 to 255.
            waitKey: also show each image in a window and wait so many milliseconds for a key
                (0 = for ever); needs an OpenCV with windows.
            window_name: title of the window.
            id2labels: dict class -> text.

        Yields:
            (height, width, 3) uint8, channels in the order BGR, as OpenCV writes and shows them.

        Raises:
            MixflowError: `waitKey` with an OpenCV without windows.
        """
        while True:
            try:
                label, encoded = self.next_sample()
            except StopIteration:
                return
            try:
                boxes = self._parse_label(label)
            except SkippedSampleError:
                continue
            image, boxes = self._augment_boxes(self._decode(encoded), boxes)
            drawn = _restored(image, mean, std, clip)
            for box in boxes:
                _draw_box(drawn, box, color, thickness, id2labels or {})
            if waitKey is not None:
                _show(drawn, window_name, waitKey)
            yield drawn


def _check_boxes(boxes: Array) -> None:
    """Raises SkippedSampleError where an augmenter left no valid box."""
    if boxes.ndim != 2 or boxes.shape[1] < 5:
        raise ShapeError(f"[ImageDetIter] expected boxes (n, 5 or more), got {boxes.shape}")
    valid = (boxes[:, 0] >= 0) & (boxes[:, 3] > boxes[:, 1]) & (boxes[:, 4] > boxes[:, 2])
    if not valid.any():
        raise SkippedSampleError("[ImageDetIter] expected a valid box after augmenting, got none")


def _restored(image: Array, mean: Any, std: Any, clip: bool) -> Array:
    """BGR levels of a normalised RGB image."""
    levels = image.astype(np.float32)
    if std is not None and std is not False:
        levels = levels * np.asarray(IMAGENET_STD if std is True else F.constant(std), np.float32)
    if mean is not None and mean is not False:
        centre = IMAGENET_MEAN if mean is True else F.constant(mean)
        levels = levels + np.asarray(centre, np.float32)
    if clip:
        levels = np.clip(levels, 0, 255)
    return np.ascontiguousarray(levels[:, :, ::-1]).astype(np.uint8)


def _draw_box(
    image: Array, box: Array, color: Sequence[float] | None, thickness: int, names: dict[int, str]
) -> None:
    cv2 = extras.load("cv2", "draw_next")
    height, width = image.shape[:2]
    left, top = int(box[1] * width), int(box[2] * height)
    right, bottom = int(box[3] * width), int(box[4] * height)
    chosen = np.random.rand(3) * 255 if color is None else np.asarray(color)[::-1]
    bgr = tuple(float(x) for x in chosen)
    cv2.rectangle(image, (left, top), (right, bottom), bgr, thickness)
    text = names.get(int(box[0]))
    if text is not None:
        place = (left + 5, top + 15)
        cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.5, bgr, 1)


def _show(image: Array, window: str, milliseconds: int) -> None:
    cv2 = extras.load("cv2", "draw_next")
    try:
        cv2.imshow(window, image)
        cv2.waitKey(milliseconds)
    except (cv2.error, AttributeError):
        raise MixflowError(
            "[draw_next] expected an OpenCV with windows for waitKey, got one without; leave "
            "waitKey None and use the images that are given"
        ) from None
