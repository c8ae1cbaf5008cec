"""`ImageRecordIter` and its relatives: batches, order, resuming, errors, threads."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_files import data_threads, picture, write_records

import mixflow as mx
from mixflow import _rt, recordio
from mixflow.errors import FormatError, MixflowError, MXNetError, ParamError, ShapeError

SHAPE = (3, 40, 50)


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Any]:
    return write_records(tmp_path, 10)


def batches(iterator: Any) -> list[tuple[Any, ...]]:
    return [
        (b.data[0].asnumpy(), b.label[0].asnumpy().tolist(), b.pad, b.index.tolist())
        for b in iterator
    ]


def run(paths: dict[str, Any], epochs: int = 1, **options: Any) -> list[tuple[Any, ...]]:
    options = {"data_shape": SHAPE, "batch_size": 4, "preprocess_threads": 2} | options
    with mx.io.ImageRecordIter(**paths, **options) as iterator:
        made = []
        for _ in range(epochs):
            made += batches(iterator)
            iterator.reset()
    return made


def assert_same(first: list[Any], second: list[Any]) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        assert a[1:] == b[1:]


def test_a_rest_opens_the_next_epoch(paths: dict[str, Any]) -> None:
    labels = [(b[1], b[2]) for b in run(paths, epochs=2)]
    assert labels == [
        ([0, 1, 2, 3], 0),
        ([4, 5, 6, 7], 0),
        ([8, 9, 0, 1], 2),
        ([2, 3, 4, 5], 0),
        ([6, 7, 8, 9], 0),
    ]
    assert [(b[1], b[2]) for b in run(paths, round_batch=False)][2] == ([8, 9, 9, 9], 2)


def test_values_of_a_centre_crop(paths: dict[str, Any]) -> None:
    (data, *_), *_ = run(paths, mean_r=10, mean_g=20, mean_b=30, std_r=2, std_g=4, std_b=5, scale=3)
    rgb = picture(0)[10:50, 15:65, ::-1].transpose(2, 0, 1).astype(np.float32)
    mean, std = (np.array(v, np.float32)[:, None, None] for v in ([10, 20, 30], [2, 4, 5]))
    np.testing.assert_allclose(data[0], (rgb - mean) * 3 / std, rtol=1e-5)


AUGMENTED = {
    "shuffle": True,
    "rand_crop": True,
    "rand_mirror": True,
    "resize": 55,
    "seed": 5,
    "max_random_contrast": 0.2,
    "max_random_illumination": 9.0,
}
HEAVY = {"max_rotate_angle": 20, "brightness": 0.3, "pca_noise": 0.1, "random_h": 9, "pad": 2}


@pytest.mark.parametrize("options", [AUGMENTED, AUGMENTED | HEAVY], ids=["one pass", "steps"])
def test_threads_and_depth_change_nothing(paths: dict[str, Any], options: dict[str, Any]) -> None:
    one = run(paths, 2, preprocess_threads=1, prefetch_buffer=1, **options)
    assert_same(one, run(paths, 2, preprocess_threads=5, prefetch_buffer=3, **options))
    assert one[0][1] != [0, 1, 2, 3]
    other = run(paths, 2, **(options | {"seed_aug": 6}))
    assert other[0][1] == one[0][1] and (other[0][0] != one[0][0]).any()


def test_jpegs_in_part_are_the_whole_ones(tmp_path: Path) -> None:
    paths = write_records(tmp_path, 6, ".jpg", height=90, width=120)
    options = AUGMENTED | {"resize": 70}
    whole, auto = (run(paths, decode=mode, **options) for mode in ("whole", "auto"))
    for a, b in zip(whole, auto, strict=True):
        assert np.abs(a[0] - b[0]).max() <= 1.3  # one level times the contrast
        assert a[1:] == b[1:]
    reduced = run(paths, decode="reduced", data_shape=(3, 20, 20), **(AUGMENTED | {"resize": 22}))
    assert np.isfinite(reduced[0][0]).all()


@pytest.mark.parametrize("shuffle", [False, True])
def test_resuming_gives_the_same_batches(paths: dict[str, Any], shuffle: bool) -> None:
    options = AUGMENTED | {"shuffle": shuffle, "data_shape": SHAPE, "batch_size": 3}
    with mx.io.ImageRecordIter(**paths, **options) as iterator:
        saved, made = [], []
        for _ in range(3):
            for batch in iterator:
                made.append((batch.data[0].asnumpy(), batch.index.tolist()))
                saved.append(json.dumps(iterator.state_dict()))
            iterator.reset()
    for k in range(len(made) - 1):
        with mx.io.ImageRecordIter(**paths, **options, preprocess_threads=1) as again:
            again.load_state_dict(json.loads(saved[k]))
            try:
                batch = again.next()
            except StopIteration:
                again.reset()
                batch = again.next()
            np.testing.assert_array_equal(batch.data[0].asnumpy(), made[k + 1][0])
            assert batch.index.tolist() == made[k + 1][1]


def test_a_state_of_something_else_is_refused(paths: dict[str, Any]) -> None:
    with (
        mx.io.ImageRecordIter(**paths, data_shape=SHAPE, batch_size=3) as first,
        mx.io.ImageRecordIter(**paths, data_shape=SHAPE, batch_size=4, seed=1) as second,
    ):
        with pytest.raises(FormatError, match=r"batch_size 4 \(saved: 3\), seed 1 \(saved: 0\)"):
            second.load_state_dict(first.state_dict())
        with pytest.raises(FormatError, match="state of state_dict"):
            second.load_state_dict({"epoch": 1})
        with pytest.raises(FormatError, match="version 9"):
            second.load_state_dict(second.state_dict() | {"version": 9})


def test_reset_in_mid_epoch_and_before_the_first_batch(paths: dict[str, Any]) -> None:
    with mx.io.ImageRecordIter(**paths, **AUGMENTED, data_shape=SHAPE, batch_size=4) as iterator:
        iterator.reset()
        first = iterator.next().index.tolist()
        assert first == run(paths, **AUGMENTED)[0][3]
        iterator.reset()
        assert iterator.state_dict()["epoch"] == 1 and iterator.state_dict()["batch"] == 0
        assert len(batches(iterator)) == len(iterator) == 3
        assert not iterator.iter_next()


def test_parts_and_chunks(paths: dict[str, Any]) -> None:
    seen = [
        [i for b in run(paths, batch_size=1, num_parts=3, part_index=k) for i in b[3]]
        for k in range(3)
    ]
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    chunked = run(paths, shuffle_chunk_size=1, shuffle_chunk_seed=3)
    assert sorted(i for b in chunked[:2] for i in b[3]) == list(range(8))


def test_types_and_channels(paths: dict[str, Any]) -> None:
    plain = run(paths)[0][0]
    for kind, options, expected in (
        (mx.io.ImageRecordUInt8Iter, {"mean_r": 9}, plain),
        (mx.io.ImageRecordInt8Iter, {"mean_r": 9, "scale": 2}, None),
        (mx.io.ImageRecordIter, {"dtype": "float16"}, plain),
        (mx.io.ImageRecordIter, {"dtype": "uint8"}, plain),
    ):
        with kind(**paths, data_shape=SHAPE, batch_size=4, **options) as iterator:
            data = iterator.next().data[0].asnumpy()
            assert iterator.provide_data[0].dtype == data.dtype
        if expected is None:
            shift = np.array([9, 0, 0], np.float32)[:, None, None]
            expected = np.clip(plain - shift, -128, 127)
        np.testing.assert_array_equal(data, expected.astype(data.dtype))
    grey = run(paths, data_shape=(1, 40, 50))[0][0]
    assert grey.shape == (4, 1, 40, 50)
    weights = np.array([0.299, 0.587, 0.114], np.float32)[:, None, None]
    assert np.abs(grey[:, 0] - (plain * weights).sum(1)).max() <= 1.01


def test_labels(tmp_path: Path, paths: dict[str, Any]) -> None:
    (tmp_path / "x.lst").write_text("".join(f"{i}\t{i * 10}\tx.png\n" for i in range(10)))
    assert run(paths, path_imglist=str(tmp_path / "x.lst"))[1][1] == [40, 50, 60, 70]
    (tmp_path / "y.lst").write_text("0\t1\tx.png\n")
    with pytest.raises(FormatError, match=r"labels of every record of .* got none of id 1"):
        run(paths, path_imglist=str(tmp_path / "y.lst"))
    (tmp_path / "many").mkdir()
    many = write_records(tmp_path / "many", 4, labels=3)
    with mx.io.ImageRecordIter(**many, data_shape=SHAPE, batch_size=4, label_width=3) as iterator:
        assert iterator.provide_label[0].shape == (4, 3)
        assert iterator.next().label[0].asnumpy()[1].tolist() == [1, 2, 3]
    with pytest.raises(ShapeError, match=r"expected 1 labels, got 3; set label_width \(sample 0"):
        run(many)


def test_mean_image_is_computed_and_kept(tmp_path: Path, paths: dict[str, Any]) -> None:
    file = tmp_path / "mean.nd"
    first = run(paths, mean_img=str(file))
    mean = mx.nd.load(str(file))["mean_img"].asnumpy()
    whole = np.concatenate([b[0] for b in run(paths)])[:10]
    np.testing.assert_allclose(mean, whole.mean(0), atol=1e-3)
    np.testing.assert_allclose(first[0][0], whole[:4] - mean, atol=1e-4)
    assert_same(first, run(paths, mean_img=str(file)))
    mx.nd.save(str(file), [mx.nd.zeros((2,))])
    with pytest.raises(FormatError, match="expected one array"):
        run(paths, mean_img=str(file))


def test_a_broken_image_is_raised_by_its_batch(tmp_path: Path) -> None:
    record, index = str(tmp_path / "b.rec"), str(tmp_path / "b.idx")
    writer = recordio.MXIndexedRecordIO(index, record, "w")
    for i in range(8):
        head = recordio.IRHeader(0, float(i), i, 0)
        content = recordio.encode_image(picture(i), 3, ".png") if i != 5 else b"no image at all"
        writer.write_idx(i, recordio.pack(head, content))
    writer.close()
    with mx.io.ImageRecordIter(record, SHAPE, 2, path_imgidx=index) as iterator:
        assert [iterator.next().index.tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(FormatError, match=r"sample 5 of .*b.rec"):
            iterator.next()
        assert iterator.next().index.tolist() == [6, 7]  # the consumer chose to go on


def test_threads_end_with_the_iterator(paths: dict[str, Any]) -> None:
    for how in ("close", "collected", "mid-epoch", "error"):
        iterator = mx.io.ImageRecordIter(**paths, data_shape=SHAPE, batch_size=2)
        threads = iterator._loader._workers.threads
        assert all(t.is_alive() for t in threads)
        if how == "close":
            iterator.close()
            iterator.close()
            with pytest.raises(MixflowError, match="after close"):
                iterator.next()
            with pytest.raises(MixflowError, match="after close"):
                iterator.load_state_dict(iterator.state_dict())
        elif how == "mid-epoch":
            for _ in iterator:
                break
        del iterator
        gc.collect()
        for thread in threads:
            thread.join(20)
        assert not data_threads()


def test_memory_is_flat_over_epochs(paths: dict[str, Any]) -> None:
    with mx.io.ImageRecordIter(**paths, **AUGMENTED, data_shape=SHAPE, batch_size=4) as iterator:
        held = []
        for _ in range(10):
            for _ in iterator:
                pass
            iterator.reset()
            gc.collect()
            held.append(_rt.core.storage_statistics()["live_bytes"])
        size = 4 * 3 * 40 * 50 * 4
        assert max(held) - min(held) <= 5 * size  # what is filled ahead, more or less
        assert iterator.batches_given >= 25 and iterator.seconds_waited > 0


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rand_crip": True}, ParamError, "got 'rand_crip'; did you mean rand_crop"),
        ({"data_shape": (4, 8, 8)}, ParamError, "1 or 3 channels, got"),
        ({"aug_seq": "x"}, ParamError, "aug_seq to be one of 'aug_default', got 'x'"),
        ({"std_g": 0.0}, ParamError, "std_g to be a finite number above 0"),
        ({"path_imgrec": ""}, ParamError, "path_imgrec, got none"),
        ({"path_imgrec": "/no/such.rec"}, FormatError, "found no such file"),
        ({"path_imgidx": "/no/such.idx"}, FormatError, "path_imgidx /no/such.idx, found"),
        ({"preprocess_threads": 0}, ParamError, "preprocess_threads to be a whole number from 1"),
        ({"batch_size": 0}, ParamError, "batch_size to be a whole number of at least 1"),
        ({"part_index": 3}, ParamError, "part_index"),
        ({"min_crop_size": 70, "max_crop_size": 70}, ShapeError, "at least 70 x 70 pixels"),
    ],
)
def test_errors(paths: dict[str, Any], options: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        run(
            paths | {k: options[k] for k in options if k in paths},
            **{k: v for k, v in options.items() if k not in paths},
        )


def test_a_fixed_type_refuses_another(paths: dict[str, Any]) -> None:
    with pytest.raises(ParamError, match="dtype to be one of None, 'uint8', got 'float32'"):
        mx.io.ImageRecordUInt8Iter(**paths, data_shape=SHAPE, batch_size=4, dtype="float32")
    with mx.io.ImageRecordIter(**paths, data_shape=SHAPE, batch_size=4) as iterator:
        with pytest.raises(MXNetError, match="current batch, got none"):
            iterator.getdata()
        assert iterator.iter_next() and iterator.getpad() == 0
        assert iterator.getlabel()[0].shape == (4,) and len(iterator.getindex()) == 4


def test_every_parameter_of_mxnet_is_known(paths: dict[str, Any]) -> None:
    """The names of `compat/python_api.json`, each at its default."""
    defaults = {
        "path_imglist": "", "aug_seq": "aug_default", "label_width": 1, "verbose": True,
        "num_parts": 1, "part_index": 0, "device_id": 0, "shuffle_chunk_size": 0,
        "shuffle_chunk_seed": 0, "seed_aug": None, "shuffle": False, "seed": 0,
        "round_batch": True, "prefetch_buffer": 4, "ctx": "gpu", "dtype": None, "resize": -1,
        "rand_crop": False, "random_resized_crop": False, "max_rotate_angle": 0,
        "max_aspect_ratio": 0.0, "min_aspect_ratio": None, "max_shear_ratio": 0.0,
        "max_crop_size": -1, "min_crop_size": -1, "max_random_scale": 1.0,
        "min_random_scale": 1.0, "max_random_area": 1.0, "min_random_area": 1.0,
        "max_img_size": 1e10, "min_img_size": 0.0, "brightness": 0.0, "contrast": 0.0,
        "saturation": 0.0, "pca_noise": 0.0, "random_h": 0, "random_s": 0, "random_l": 0,
        "rotate": -1, "fill_value": 255, "inter_method": 1, "pad": 0, "mirror": False,
        "rand_mirror": False, "mean_img": "", "mean_r": 0.0, "mean_g": 0.0, "mean_b": 0.0,
        "mean_a": 0.0, "std_r": 1.0, "std_g": 1.0, "std_b": 1.0, "std_a": 1.0, "scale": 1.0,
        "max_random_contrast": 0.0, "max_random_illumination": 0.0,
    }  # fmt: skip
    assert_same(run(paths, **defaults), run(paths))


def test_a_record_file_at_an_address(paths: dict[str, Any]) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name, key in (("/set.rec", "path_imgrec"), ("/set.idx", "path_imgidx")):
        memory.pipe(name, Path(paths[key]).read_bytes())
    remote = {"path_imgrec": "memory://set.rec", "path_imgidx": "memory://set.idx"}
    assert_same(run(remote, **AUGMENTED), run(paths, **AUGMENTED))
    assert_same(run({"path_imgrec": "memory://set.rec"}), run(paths))
    with pytest.raises(OSError, match=r"expected a file at memory://none\.rec"):
        run({"path_imgrec": "memory://none.rec"})
    memory.pipe("/bad.idx", b"0\t0\n1\t99999999\n")
    with pytest.raises(FormatError, match="positions inside of"):
        run(remote | {"path_imgidx": "memory://bad.idx"})
