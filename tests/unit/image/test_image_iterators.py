"""ImageIter and ImageDetIter: what the oracle does not show (errors, hooks, shapes, drawing)."""

from pathlib import Path

import numpy as np
import pytest

import mixflow as mx
from mixflow import image, nd
from mixflow.errors import (
    DTypeError,
    FileError,
    FormatError,
    MixflowError,
    ParamError,
    ShapeError,
    UnknownNameError,
)

pytest.importorskip("cv2")
FOLDER = Path(__file__).parents[2] / "oracle" / "data" / "images"
NAMES = ["a.png", "pal.png", "alpha.png", "one.png", "la.png"]
SHAPE = (3, 8, 9)
BOX = [2, 5, 0, 0.1, 0.2, 0.6, 0.7]
TWO = [*BOX, 1, 0.3, 0.3, 0.9, 0.8]


def pictures(batch=2, names=NAMES, **options):
    entries = [[float(i), name] for i, name in enumerate(names)]
    options = {"path_root": str(FOLDER), "imglist": entries, **options}
    return image.ImageIter(batch, options.pop("data_shape", SHAPE), **options)


def boxes(batch=2, labels=(BOX, TWO, BOX), **options):
    entries = [[*label, name] for label, name in zip(labels, NAMES, strict=False)]
    options = {"path_root": str(FOLDER), "imglist": entries, **options}
    return image.ImageDetIter(batch, SHAPE, **options)


def test_the_epoch_ends_until_reset():
    iterator = pictures()
    assert [b.pad for b in iterator] == [0, 0, 1]
    with pytest.raises(StopIteration):
        iterator.next()
    iterator.reset()
    assert len(list(iterator)) == 3


def test_padding_of_a_batch_larger_than_the_data():
    iterator = pictures(12)
    batch = iterator.next()
    assert batch.pad == 7
    np.testing.assert_array_equal(batch.label[0].asnumpy(), [0, 1, 2, 3, 4] * 2 + [0, 1])
    with pytest.raises(StopIteration):
        iterator.next()


def test_rolling_over_and_forgetting():
    iterator = pictures(last_batch_handle="roll_over")
    assert len(list(iterator)) == 2
    iterator.reset()
    first = iterator.next()
    np.testing.assert_array_equal(first.label[0].asnumpy(), [4, 0])
    assert first.pad == 0
    assert len(list(iterator)) == 2
    iterator.hard_reset()
    np.testing.assert_array_equal(iterator.next().label[0].asnumpy(), [0, 1])


def test_descriptions():
    iterator = pictures(data_name="x", label_name="y", dtype=np.int64)
    assert iterator.provide_data == [("x", (2, *SHAPE))]
    assert iterator.provide_label == [("y", (2,))]
    batch = iterator.next()
    assert batch.label[0].dtype == np.int64
    assert batch.data[0].dtype == np.float32


def test_module_trains_from_it():
    net = mx.sym.FullyConnected(mx.sym.Flatten(mx.sym.Variable("data")), num_hidden=5)
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.fit(mx.io.PrefetchingIter(pictures(mean=True, std=True)), num_epoch=2)
    assert module.predict(pictures()).shape == (5, 5)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"imglist": None}, ParamError, "path_imgrec, path_imglist or a list"),
        ({"last_batch_handle": "wrap"}, ParamError, "'roll_over', got 'wrap'"),
        ({"batch": 0}, ParamError, "at least 1"),
        ({"data_shape": (1, 8, 8)}, ShapeError, r"\(3, height, width\)"),
        ({"dtype": "float31"}, UnknownNameError, "float32"),
        ({"part_index": 2, "num_parts": 2}, ParamError, "part_index < num_parts"),
        ({"imglist": [["a.png"]]}, ParamError, "entry 1 of imglist"),
        ({"imglist": [[1.0, 5]]}, ParamError, "no name"),
        ({"resise": 5}, TypeError, "resise"),
        (
            {"imglist": None, "path_imglist": "/nowhere.lst"},
            FileError,
            "expected to read .*nowhere.lst",
        ),
        (
            {"path_imgrec": str(FOLDER / "few.rec"), "shuffle": True},
            ParamError,
            "path_imgidx.*rebuild_index",
        ),
    ],
)
def test_errors_at_construction(options, error, text):
    with pytest.raises(error, match=text):
        pictures(**options)


@pytest.mark.parametrize("line", ["0\ta.png", "x\t1\ta.png", "0\ty\ta.png", "nothing", "\x00"])
def test_lines_of_a_list_that_are_none(line, tmp_path):
    path = tmp_path / "bad.lst"
    path.write_text(f"7\t1\ta.png\n\n{line}\n")
    with pytest.raises(FormatError, match=r"in line 3 of .*bad.lst"):
        pictures(imglist=None, path_imglist=str(path))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="UTF-8"):
        pictures(imglist=None, path_imglist=str(path))


def test_bad_samples_are_named(tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(FormatError, match=r"\[ImageIter\].*key 1, file bad.jpg"):
        pictures(names=["bad.jpg"], path_root=str(tmp_path)).next()
    with pytest.raises(FileError, match=r"nowhere\.jpg"):
        pictures(names=["nowhere.jpg"]).next()
    records = mx.recordio.MXRecordIO(str(tmp_path / "bad.rec"), "w")
    records.write(mx.recordio.pack(mx.recordio.IRHeader(0, 1.0, 0, 0), b"no image"))
    records.close()
    with pytest.raises(FormatError, match="record 0 of the epoch"):
        pictures(imglist=None, path_imgrec=str(tmp_path / "bad.rec")).next()


def test_labels_and_images_of_another_size():
    with pytest.raises(ShapeError, match=r"expected 1 labels, got 2; key 1, file a\.png"):
        pictures(imglist=[[1.0, 2.0, "a.png"]]).next()
    with pytest.raises(ShapeError, match=r"augmented images of \(3, 8, 9\), got \(3, 37, 53\)"):
        pictures(aug_list=[image.CastAug()]).next()


def test_records_without_a_line_in_the_list(tmp_path):
    path = tmp_path / "short.lst"
    path.write_text("0\t5\ta.png\n")
    iterator = pictures(
        imglist=None,
        path_imglist=str(path),
        path_imgrec=str(FOLDER / "few.rec"),
        path_imgidx=str(FOLDER / "few.idx"),
    )
    with pytest.raises(ParamError, match="a line for record 1"):
        iterator.next()


def test_hooks_of_a_subclass_get_arrays():
    class Counting(image.ImageIter):
        def __init__(self, *args, **kwargs):
            self.calls = []
            super().__init__(*args, **kwargs)

        def imdecode(self, s):
            self.calls.append("imdecode")
            return super().imdecode(s)

        def augmentation_transform(self, data):
            assert isinstance(data, nd.NDArray)
            self.calls.append("augment")
            return super().augmentation_transform(data) * 0 + 7

        def postprocess_data(self, datum):
            self.calls.append("postprocess")
            return super().postprocess_data(datum)

    entries = [[0.0, name] for name in NAMES]
    iterator = Counting(2, SHAPE, imglist=entries, path_root=str(FOLDER))
    np.testing.assert_array_equal(iterator.next().data[0].asnumpy(), np.full((2, *SHAPE), 7.0))
    assert iterator.calls == ["imdecode", "augment", "postprocess"] * 2


def test_hooks_give_what_the_host_path_gives():
    class Hooked(image.ImageIter):
        def postprocess_data(self, datum):
            return super().postprocess_data(datum)

    entries = [[0.0, name] for name in NAMES]
    hooked = Hooked(5, SHAPE, imglist=entries, path_root=str(FOLDER), mean=True)
    plain = pictures(5, mean=True)
    np.testing.assert_array_equal(hooked.next().data[0].asnumpy(), plain.next().data[0].asnumpy())
    with pytest.raises(ShapeError, match="no dimensions"):
        plain.check_valid_image([np.array(3.0)])


def test_unaligned_parts_are_apart():
    seen = []
    for part in range(2):
        iterator = pictures(1, part_index=part, num_parts=2)
        seen += [b.label[0].asscalar() for b in iterator]
    assert seen == [0, 1, 2, 3]


# -- boxes


def test_labels_are_filled_up():
    iterator = boxes()
    assert iterator.label_shape == (2, 5)
    assert iterator.provide_label == [("label", (2, 2, 5))]
    label = iterator.next().label[0].asnumpy()
    np.testing.assert_allclose(label[0], [BOX[2:], [-1] * 5], rtol=1e-6)
    np.testing.assert_allclose(label[1], np.reshape(TWO[2:], (2, 5)), rtol=1e-6)


def test_more_room_and_other_sizes():
    iterator = boxes()
    iterator.reshape((3, 6, 5), (4, 5))
    batch = iterator.next()
    assert batch.data[0].shape == (2, 3, 6, 5)
    assert batch.label[0].shape == (2, 4, 5)
    assert iterator.provide_label[0].shape == (2, 4, 5)
    for wrong in ((1, 5), (4, 6), (4,)):
        with pytest.raises(ShapeError, match="label shape of at least 4 boxes of 5"):
            iterator.reshape(label_shape=wrong)
    with pytest.raises(ShapeError, match=r"\(3, height, width\)"):
        iterator.reshape((1, 6, 5))


def test_sync_of_two(caplog):
    one, two = boxes(labels=(BOX,)), boxes()
    with caplog.at_level("INFO"):
        assert one.sync_label_shape(two, verbose=True) is two
    assert "boxes per sample: 1, now 2" in caplog.text
    assert one.label_shape == two.label_shape == (2, 5)
    assert one.next().label[0].shape == (2, 2, 5)
    with pytest.raises(DTypeError, match="ImageDetIter, got ImageIter"):
        one.sync_label_shape(pictures())
    wide = boxes(labels=([2, 6, 0, 0.1, 0.2, 0.6, 0.7, 1],))
    with pytest.raises(ShapeError, match="boxes of 5 numbers, got 6"):
        one.sync_label_shape(wide)


@pytest.mark.parametrize(
    "label", [[1.0], [2, 5, 0, 0.1, 0.2, 0.6], [2, 4, 0, 0.1, 0.2, 0.6, 0.7], [1, 5, *BOX[2:], 0]]
)
def test_labels_of_another_form(label):
    with pytest.raises(ShapeError, match=r"\[ImageDetIter\] expected a label of .*key 1"):
        boxes(labels=(label,))


def test_samples_without_boxes_are_left_out(caplog):
    flat = [2, 5, 0, 0.5, 0.5, 0.5, 0.9]
    iterator = boxes(1, labels=(BOX, flat, TWO))
    with caplog.at_level("DEBUG", logger="mixflow.image.iterator"):
        assert len(list(iterator)) == 2
    assert "a box with an area, got none; key 2, file pal.png" in caplog.text
    with pytest.raises(ShapeError, match="samples with valid boxes, got none"):
        boxes(labels=(flat,))


def test_a_user_augmenter_that_loses_every_box():
    class Lost(image.DetAugmenter):
        def __call__(self, src, label):
            return src, label * 0

    with pytest.raises(StopIteration):
        boxes(aug_list=[Lost()]).next()

    class Broken(image.DetAugmenter):
        def __call__(self, src, label):
            return src, label[:, :3]

    with pytest.raises(ShapeError, match=r"boxes \(n, 5 or more\)"):
        boxes(aug_list=[Broken()]).next()


def test_more_boxes_than_room():
    class Twice(image.DetAugmenter):
        def __call__(self, src, label):
            return src, np.vstack([label, label])

    resize = image.DetBorrowAug(image.ForceResizeAug((9, 8)))
    with pytest.raises(ShapeError, match=r"at most 2 boxes of 5 numbers, got \(4, 5\)"):
        boxes(aug_list=[resize, Twice()]).next()


def test_hooks_of_a_detection_subclass():
    class Dark(image.ImageDetIter):
        def augmentation_transform(self, data, label):
            data, label = super().augmentation_transform(data, label)
            return data * 0, label

    iterator = Dark(2, SHAPE, imglist=[[*TWO, "a.png"]], path_root=str(FOLDER))
    batch = iterator.next()
    assert not batch.data[0].asnumpy().any()
    assert batch.label[0].asnumpy()[0, 1, 0] == 1


def test_drawing():
    iterator = boxes(mean=True, std=True)
    drawn = list(iterator.draw_next((255, 0, 0), 1, mean=True, std=True, id2labels={0: "cat"}))
    assert [x.shape for x in drawn] == [(8, 9, 3)] * 3
    assert all(x.dtype == np.uint8 for x in drawn)
    np.testing.assert_array_equal(drawn[0][5, 5], [0, 0, 255])  # lower right corner, BGR
    iterator.reset()
    assert len(list(iterator.draw_next())) == 3
    iterator.reset()
    with pytest.raises(MixflowError, match="OpenCV with windows"):
        next(iterator.draw_next(waitKey=1))
