"""What a partition is and holds: the same bits wherever it is computed."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from picture_files import picture, write_records

import mixflow as mx
from mixflow.errors import FormatError, MixflowError, ParamError, ShapeError, UnknownNameError
from mixflow.pipeline.partitions import Computer, Partition, compute

AUGMENT = {"resize": 40, "rand_crop": True, "rand_mirror": True, "brightness": 0.3}


def pictures(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    source = {"kind": "records", "path": paths["path_imgrec"], "index": paths["path_imgidx"]}
    return {**source, "shape": [3, 32, 24], "shuffle": True, "augment": AUGMENT, **more}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        v.dtype == other[k].dtype
        and v.shape == other[k].shape
        and v.tobytes() == other[k].tobytes()
        for k, v in one.items()
    )


def test_a_partition_is_a_function_of_its_description(tmp_path: Path) -> None:
    source = pictures(write_records(tmp_path, 10), std=[2, 3, 4], scale=0.5)
    whole = compute(Partition(source, 0, 30, 5))
    assert whole["data"].shape == (30, 3, 32, 24) and whole["data"].dtype == np.float32
    # Any cut gives the same, in any order, through any text.
    computer = Computer()
    for first, end in [(7, 13), (0, 7), (25, 30), (13, 25)]:
        sent = Partition.from_json(Partition(source, first, end, 5).to_json())
        part = computer.compute(sent)
        assert same(part, {k: v[first:end] for k, v in whole.items()})
    computer.close()
    for epoch in range(3):
        assert sorted(whole["index"][epoch * 10 : epoch * 10 + 10]) == list(range(10))
    assert whole["label"].tolist() == whole["index"].tolist()
    other = compute(Partition(source, 0, 30, 6))
    assert not same(whole, other)


def test_partitions_hold_what_the_record_iterator_gives(tmp_path: Path) -> None:
    paths = write_records(tmp_path, 10, labels=2)
    numbers = {"mean_r": 9.0, "mean_g": 8.0, "mean_b": 7.0, "std_r": 2.0, "scale": 0.5}
    iterator = mx.io.ImageRecordIter(
        data_shape=(3, 32, 24), batch_size=5, shuffle=True, seed=4, label_width=2, **paths,
        **AUGMENT, **numbers, max_random_contrast=0.2,
    )  # fmt: skip
    source = pictures(
        paths, mean=[9, 8, 7], std=[2, 1, 1], scale=0.5, label_width=2, max_random_contrast=0.2
    )
    for epoch in range(2):
        for number, batch in enumerate(iterator):
            first = epoch * 10 + number * 5
            part = compute(Partition(source, first, first + 5, 4))
            assert part["data"].tobytes() == batch.data[0].asnumpy().tobytes()
            assert part["label"].tobytes() == batch.label[0].asnumpy().tobytes()
        iterator.reset()
    iterator.close()


def folder_of(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """One description per kind, of six samples 0 to 5 whose labels are 0, 0, 0, 1, 1, 1."""
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (6, 28, 28)).astype(np.uint8)
    labels = np.array([0, 0, 0, 1, 1, 1], np.uint8)
    np.save(tmp_path / "data.npy", pixels)
    np.save(tmp_path / "label.npy", labels)
    for name, array in (("images", pixels), ("labels", labels)):
        head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(head + array.tobytes()))
    lines = []
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        for i, label in enumerate(labels):
            place = tmp_path / "classes" / f"c{label}" / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(cv2.imencode(".png", picture(i))[1].tobytes())
            lines.append(f"{i}\t{label}\tc{label}/{i}.png\n")
            for ending, content in ((".png", place.read_bytes()), (".cls", b"%d" % label)):
                entry = tarfile.TarInfo(f"{i}{ending}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    (tmp_path / "set.lst").write_text("".join(lines))
    shape = {"shape": [3, 60, 80], "dtype": "uint8"}
    at = str(tmp_path / "x")[:-1]
    return {
        "npy": {"data": at + "data.npy", "label": at + "label.npy", "scale": 0.5},
        "idx": {"data": at + "images.gz", "label": at + "labels.gz", "flat": True},
        "list": {"path": at + "set.lst", "root": at + "classes", **shape},
        "folder": {"path": at + "classes", **shape},
        "tar": {"paths": [at + "set.tar"], **shape},
    }


@pytest.mark.parametrize("kind", ["npy", "idx", "list", "folder", "tar"])
def test_every_kind_of_source(tmp_path: Path, kind: str) -> None:
    source = {"kind": kind, **folder_of(tmp_path)[kind]}
    found = compute(Partition(source, 1, 5))
    assert found["index"].tolist() == [1, 2, 3, 4] and found["label"].tolist() == [0, 0, 1, 1]
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28)).astype(np.uint8)[1:5]
    expected = {
        "npy": pixels * np.float32(0.5),
        "idx": pixels.reshape(4, 784).astype(np.float32),
    }.get(kind, np.stack([picture(i)[..., ::-1].transpose(2, 0, 1) for i in range(1, 5)]))
    assert found["data"].dtype == expected.dtype
    assert np.array_equal(found["data"], expected)


def wrong(tmp_path: Path) -> list[tuple[dict[str, Any], type[Exception], str]]:
    known = folder_of(tmp_path)
    npy, images = {"kind": "npy", **known["npy"]}, {"kind": "folder", **known["folder"]}
    np.save(tmp_path / "short.npy", np.zeros(5))
    np.save(tmp_path / "texts.npy", np.array(["a"] * 6))
    (tmp_path / "none.npy").write_bytes(b"nothing")
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "several.npz", one=np.zeros(6))
    at = str(tmp_path / "x")[:-1]
    return [
        ({"kind": "npz"}, UnknownNameError, "did you mean npy"),
        ({}, UnknownNameError, "expected a known name, got ''; known: folder, idx"),
        ({**npy, "skale": 2}, UnknownNameError, "did you mean scale"),
        ({"kind": "npy", "data": npy["data"]}, ParamError, r"expected also label, got \{"),
        ({**npy, "label": at + "short.npy"}, ShapeError, "expected one label per sample"),
        ({**npy, "label": at + "texts.npy"}, FormatError, "expected an array of numbers, got <U1"),
        ({**npy, "label": at + "none.npy"}, FormatError, "expected an array of numbers in"),
        ({**npy, "samples": 7}, FormatError, "expected 7 samples, got 6"),
        ({**images, "dtype": "int64"}, ParamError, "dtype to be one of 'float32', 'uint8', got"),
        ({**images, "dtype": "float32", "std": [1, 0, 1]}, ParamError, "std to be .* above 0 or"),
        ({**images, "augment": {"rand_krop": 1}}, ParamError, "did you mean rand_crop"),
        ({**images, "dtype": "float32", "mean": [1, 2]}, ParamError, "expected 3 numbers for mean"),
        ({**images, "path": 3}, ParamError, "expected path to be a path, got 3"),
        ({**images, "shape": [3, 8]}, ParamError, "expected shape to be a sequence of 3 values"),
        ({**npy, "shuffle": "perhaps"}, ParamError, "expected shuffle to be a boolean"),
        ({**npy, "label": at + "absent.npy"}, FileNotFoundError, "expected to read .*absent"),
        ({**npy, "label": at + "empty.npy"}, FormatError, "expected an array of numbers in"),
        ({**npy, "label": at + "several.npz"}, FormatError, "expected an array of numbers in"),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(18))
def test_descriptions_that_are_none(tmp_path: Path, number: int) -> None:
    source, error, text = wrong(tmp_path)[number]
    with pytest.raises(error, match=text):
        compute(Partition(source, 0, 2))


def test_partitions_that_are_none() -> None:
    with pytest.raises(ParamError, match="expected 0 <= first < end, got 3 and 3"):
        Partition({}, 3, 3)
    with pytest.raises(ParamError, match="first to be a whole number of at least 0, got 'a'"):
        Partition({}, "a", 3)  # type: ignore[arg-type]
    with pytest.raises(
        ParamError, match=r"expected a source of plain values .* got Object of type"
    ):
        Partition({"data": np.zeros(3)}, 0, 1)
    for text in ("", "[]", '{"source": {}, "first": 0, "end": 1}', "{"):
        with pytest.raises(FormatError, match="expected a partition as JSON, got"):
            Partition.from_json(text)
    for changed in ({"end": "2"}, {"end": True}, {"source": []}, {"first": 5}):
        values = {"source": {}, "first": 0, "end": 1, "seed": 0, **changed}
        with pytest.raises(MixflowError):
            Partition.from_json(json.dumps(values))
