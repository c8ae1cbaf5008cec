"""Augmenters: errors, users' own classes, arguments that stay as they are."""

import numpy as np
import pytest

import mixflow as mx
from mixflow import image, nd
from mixflow.errors import DTypeError, ParamError, ShapeError

pytest.importorskip("cv2")
BOXES = np.array([[0, 0.1, 0.2, 0.6, 0.7], [1, 0.3, 0.3, 0.9, 0.8]])


@pytest.fixture
def levels():
    return np.random.default_rng(0).integers(0, 256, (12, 15, 3)).astype(np.float32)


class Twice(image.Augmenter):
    """A user's augmenter, written for NDArray."""

    def __call__(self, src):
        assert isinstance(src, nd.NDArray)
        return src * 2


def test_users_augmenters_mix_with_ours(levels):
    made = image.SequentialAug([Twice(a=1), image.CastAug("float64"), Twice()])
    np.testing.assert_allclose(made(nd.array(levels)).asnumpy(), levels * 4)
    assert made.dumps()[1][0] == '["twice", {"a": 1}]'


def test_a_subclass_may_replace_a_call_of_ours(levels):
    class Marked(image.CastAug):
        def __call__(self, src):
            return super().__call__(src) + 1

    made = image.SequentialAug([Marked()])
    np.testing.assert_array_equal(made(nd.array(levels)).asnumpy(), levels + 1)


def test_arguments_keep_their_values(levels):
    array = nd.array(levels)
    chosen = image.CreateAugmenter(
        (3, 12, 15), rand_mirror=True, mean=True, std=True, brightness=0.5, contrast=0.5,
        saturation=0.5, hue=0.5, pca_noise=0.5, rand_gray=1.0,
    )  # fmt: skip
    for augmenter in chosen:
        before = levels.copy()
        augmenter(array)
        augmenter.apply(levels)
        np.testing.assert_array_equal(array.asnumpy(), before)
        np.testing.assert_array_equal(levels, before)
    boxes = BOXES.copy()
    image.DetHorizontalFlipAug(1.0)(array, boxes)
    np.testing.assert_array_equal(boxes, BOXES)


def test_bases_have_no_call():
    with pytest.raises(NotImplementedError, match="Augmenter gives no __call__"):
        image.Augmenter()(nd.ones((2, 2, 3)))
    with pytest.raises(NotImplementedError, match="DetAugmenter gives no __call__"):
        image.DetAugmenter()(nd.ones((2, 2, 3)), BOXES)


@pytest.mark.parametrize(
    "make",
    [
        lambda: image.BrightnessJitterAug(0.1),
        lambda: image.ContrastJitterAug(0.1),
        lambda: image.SaturationJitterAug(0.1),
        lambda: image.HueJitterAug(0.1),
        lambda: image.LightingAug(0.1, np.ones(3), np.eye(3)),
        lambda: image.RandomGrayAug(1.0),
        lambda: image.ColorNormalizeAug(np.ones(3), None),
    ],
)
def test_whole_numbers_must_be_cast_first(make):
    with pytest.raises(DTypeError, match="expected a float image, got uint8; cast it first"):
        make()(nd.ones((4, 5, 3), dtype="uint8"))


@pytest.mark.parametrize(
    "make", [lambda: image.HueJitterAug(0.1), lambda: image.RandomGrayAug(1.0)]
)
def test_colour_needs_three_channels(make):
    with pytest.raises(ShapeError, match=r"\(height, width, 3\), got shape \(4, 5, 1\)"):
        make()(nd.ones((4, 5, 1)))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: image.CreateAugmenter((3, 5, 5), rand_resize=True), ParamError, "rand_crop=True"),
        (lambda: image.CreateAugmenter((3, 5, 5), mean=np.ones(2)), ParamError, "1 or 3 numbers"),
        (lambda: image.DetBorrowAug(3), DTypeError, "Augmenter, got int"),
        (lambda: image.DetRandomSelectAug([3]), DTypeError, "only DetAugmenter"),
        (lambda: image.DetRandomCropAug(0.1, (2, 1)), ParamError, "aspect_ratio_range"),
        (lambda: image.DetRandomCropAug(0.1, 1.0, (0.9, 0.1)), ParamError, "area_range"),
        (lambda: image.DetRandomCropAug(0.1, "x"), ParamError, "rising order"),
        (lambda: image.DetRandomPadAug((1, 2), (-1, -0.5)), ParamError, "area_range"),
        (
            lambda: image.CreateMultiRandCropAugmenter([0.1, 0.2], max_attempts=[1, 2, 3]),
            ParamError,
            "lists of one length",
        ),
        (
            lambda: image.RandomSizedCropAug((2, 2), 0.1, (1, 1), foo=1),
            ParamError,
            "no options but min_area",
        ),
    ],
)
def test_errors_at_construction(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_crop_that_is_impossible_leaves_the_image(levels):
    strict = image.DetRandomCropAug(2.0, max_attempts=3)  # more than the whole object
    made, boxes = strict(nd.array(levels), BOXES)
    np.testing.assert_array_equal(made.asnumpy(), levels)
    np.testing.assert_array_equal(boxes, BOXES)
    made, _ = image.DetRandomPadAug((1, 1), (1, 1), 3)(nd.array(levels), BOXES)
    assert made.shape == levels.shape


def test_boxes_follow_their_object():
    """A bright object stays inside of its box, whatever crop, mirror and padding do."""
    picture = np.zeros((60, 80, 3), np.uint8)
    picture[20:40, 30:50] = 255
    box = np.array([[0, 30 / 80, 20 / 60, 50 / 80, 40 / 60]])
    steps = image.CreateDetAugmenter(
        (3, 50, 70), rand_crop=1, rand_pad=1, rand_mirror=True, min_object_covered=0.99,
        area_range=(0.3, 2.0), inter_method=0,
    )  # fmt: skip
    for _ in range(20):
        made, boxes = nd.array(picture, dtype="uint8"), box
        for step in steps:
            made, boxes = step(made, boxes)
        rows, columns = np.nonzero(made.asnumpy()[:, :, 0] == 255)
        found = [columns.min() / 70, rows.min() / 50, (columns.max() + 1) / 70]
        np.testing.assert_allclose(boxes[0, 1:4], found, atol=0.03)


def test_names_of_mxnet():
    assert mx.img is mx.image
    assert image.det is image.detection
