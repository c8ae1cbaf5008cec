"""Detection batches, tar shards and the bridge to Ray Data."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_files import picture

import mixflow as mx
from mixflow import recordio
from mixflow.errors import FormatError, MixflowError, ParamError
from mixflow.pipeline import TarSource, ray_batches

SHAPE = (3, 40, 50)


def write_boxes(folder: Path, label: Any = None) -> str:
    path = str(folder / "boxes.rec")
    writer = recordio.MXIndexedRecordIO(str(folder / "boxes.idx"), path, "w")
    for i in range(6):
        boxes = [[k, 0.1 + 0.1 * k, 0.2, 0.5 + 0.1 * k, 0.7] for k in range(1 + i % 3)]
        labels = label or [4, 5, 60, 80, *np.ravel(boxes).tolist()]
        header = recordio.IRHeader(0, labels, i, 0)
        writer.write_idx(i, recordio.pack_img(header, picture(i), 3, ".png"))
    writer.close()
    return path


def first(path: str, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    options = {"data_shape": SHAPE, "batch_size": 2} | options
    with mx.io.ImageDetRecordIter(path, **options) as iterator:
        batch = iterator.next()
        assert iterator.provide_label[0].shape == batch.label[0].shape
    return batch.data[0].asnumpy(), batch.label[0].asnumpy()


def test_boxes_follow_the_picture(tmp_path: Path) -> None:
    """Values of MXNet 1.9.1 for the same file."""
    path = write_boxes(tmp_path)
    data, label = first(path)
    assert label.shape == (2, 23)
    np.testing.assert_allclose(
        label[0], [3, 40, 50, 9, 4, 5, 60, 80, 0, 0.1, 0.2, 0.5, 0.7, *[-1] * 10], atol=1e-6
    )
    mirrored, boxes = first(path, rand_mirror_prob=1.0)
    np.testing.assert_allclose(boxes[0, 9:13], [0.5, 0.2, 0.9, 0.7], atol=1e-6)
    assert np.abs(mirrored - data[..., ::-1]).max() <= 1
    assert first(path, label_pad_width=30)[1].shape == (2, 34)
    assert first(path, resize_mode="fit")[1][0, :3].tolist() == [3, 37, 50]
    small, label = first(path, resize_mode="shrink", data_shape=(3, 100, 100))
    assert label[0, :3].tolist() == [3, 60, 80] and (small[:, :, 60:] == 0).all()
    np.testing.assert_array_equal(small[0, :, :60, :80], picture(0)[:, :, ::-1].transpose(2, 0, 1))


def test_crops_and_borders_keep_boxes_on_their_pixels(tmp_path: Path) -> None:
    path = write_boxes(tmp_path)
    padded = first(path, rand_pad_prob=1.0, max_pad_scale=2.0, fill_value=9)[1][0, 9:13]
    wide, tall = padded[2] - padded[0], padded[3] - padded[1]
    assert 0.2 <= wide <= 0.4 and 0.25 <= tall <= 0.5 and abs(wide / tall - 0.8) < 0.05
    options = {"rand_crop_prob": 1.0, "min_crop_scales": 0.4, "max_crop_trials": (50,)}
    for emit in ("center", "overlap"):
        label = first(path, crop_emit_mode=emit, min_crop_object_coverages=0.9, **options)[1]
        boxes = label[0, 8:13]
        assert (boxes[1:] >= 0).all() and (boxes[1:] <= 1).all() and boxes[3] - boxes[1] > 0.35
    one, two = (first(path, preprocess_threads=n, **options) for n in (1, 3))
    np.testing.assert_array_equal(one[0], two[0])
    coloured = first(
        path, max_random_hue=9, random_hue_prob=1.0, max_random_contrast=0.5,
        random_contrast_prob=1.0,
    )[0]  # fmt: skip
    assert (coloured != first(path)[0]).any()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"label_pad_width": 10}, "label_pad_width of at least 19, got 10"),
        ({"label_width": 14}, r"label_width 14 numbers, got \[9, 14, 19\]"),
        ({"resize_mode": "x"}, "resize_mode to be one of"),
        ({"max_pad_scale": 0.5}, "max_pad_scale to be a finite number of at least 1"),
        ({"min_crop_scales": (0.9,), "max_crop_scales": (0.1,)}, "min_crop_scales <= max_crop"),
        ({"num_crop_sampler": 3, "min_crop_scales": (0.1, 0.2)}, "3 numbers in min_crop_scales"),
        ({"rand_crop": True}, "got 'rand_crop'; did you mean rand_crop_prob"),
        ({"mean_img": "x"}, "mean_img to be one of '', got 'x'"),
    ],
)
def test_detection_errors(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ParamError, match=text):
        first(write_boxes(tmp_path), **options)


def test_a_label_of_another_form(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"header width >= 2.*got 3 numbers.*sample 0"):
        first(write_boxes(tmp_path, [2.0, 5.0, 1.0]))


def write_tar(path: Path, labels: list[bytes], ending: str = "cls") -> None:
    with tarfile.open(path, "w") as tar:
        for i, label in enumerate(labels):
            image = recordio.encode_image(picture(i), 3, ".png")
            for name, content in ((f"a/{i:03}.png", image), (f"a/{i:03}.{ending}", label)):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def test_tar_shards(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    write_tar(tmp_path / "0.tar", [b"7", b"3\n"])
    write_tar(tmp_path / "1.tar", [b"1", b"2", b"0"])
    source = TarSource([str(tmp_path / "0.tar"), str(tmp_path / "1.tar")])
    assert len(source) == 5
    assert [float(source[i].label[0]) for i in range(5)] == [7, 3, 1, 2, 0]
    assert source[1].content == recordio.encode_image(picture(1), 3, ".png")
    assert source[1].key == "a/001" and source.sizes()[1] == len(source[1].content)
    write_tar(tmp_path / "2.tar", [b"[1, 2.5]", b"{}"], "json")
    listed = TarSource(str(tmp_path / "2.tar"), ".json")
    assert listed[0].label.tolist() == [1, 2.5]
    with pytest.raises(FormatError, match=r"numbers in a/001.json of .*2.tar, got b'{}'"):
        listed[1]
    with pytest.raises(FormatError, match=r"an image and a '.cls' of sample a/000"):
        TarSource(str(tmp_path / "2.tar"))
    (tmp_path / "3.tar").write_bytes(b"not a tar file" * 100)
    with pytest.raises(FormatError, match="expected a tar file"):
        TarSource(str(tmp_path / "3.tar"))
    with pytest.raises(MixflowError, match="expected a file at"):
        TarSource(str(tmp_path / "4.tar"))


class FakeDataset:
    """Ray Data's `iter_batches`, without a cluster."""

    def iter_batches(self, batch_size: int, **_: Any) -> Any:
        for i in range(2):
            yield {"data": np.full((batch_size, 2), i, np.uint8), "label": np.arange(batch_size)}


def test_ray_batches() -> None:
    made = list(ray_batches(FakeDataset(), 3, transform=lambda b: {**b, "data": b["data"] + 1}))
    assert next((d.asnumpy().tolist(), lab.shape) for d, lab in made) == ([[1, 1]] * 3, (3,))
    assert len(made) == 2 and made[0][0].dtype == np.uint8
    with pytest.raises(ParamError, match="a column 'x', got data, label"):
        next(ray_batches(FakeDataset(), 3, "x"))
    with pytest.raises(ParamError, match=r"expected a ray.data.Dataset, got list"):
        next(ray_batches([], 3))
