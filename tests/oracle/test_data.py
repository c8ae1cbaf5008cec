"""Record files byte for byte, and batches of iterators over files, against MXNet 1.9.1.

The recorded files come from record_data.py. The tests marked `oracle` run MXNet itself in the
environment whose Python MIXFLOW_MXNET_PYTHON names.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mixflow as mx
from mixflow import im2rec, recordio

sys.path.insert(0, str(Path(__file__).parent))
import data_cases

DATA = Path(__file__).parent / "data" / "files"
MXNET = os.environ.get(
    "MIXFLOW_MXNET_PYTHON", str(Path(__file__).resolve().parents[2] / ".bench/mxnet/bin/python")
)
needs_mxnet = pytest.mark.skipif(not Path(MXNET).exists(), reason="no environment with MXNet 1.9.1")


def test_our_file_is_the_recorded_one(tmp_path):
    with recordio.MXIndexedRecordIO(tmp_path / "a.idx", tmp_path / "a.rec", "w") as writer:
        for key, payload in enumerate(data_cases.payloads(80, 1)):
            writer.write_idx(3 * key, payload)
        for label, first, second in data_cases.labels(2):
            header = recordio.IRHeader(9, label, first, second)
            writer.write_idx(1000 + first, recordio.pack(header, b"content"))
    for kind in ("rec", "idx"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (DATA / f"records.{kind}").read_bytes()


def test_the_recorded_file_is_read():
    payloads = data_cases.payloads(80, 1)
    reader = recordio.MXRecordIO(DATA / "records.rec", "r")
    assert [reader.read() for _ in payloads] == payloads
    indexed = recordio.MXIndexedRecordIO(DATA / "records.idx", DATA / "records.rec", "r")
    for label, first, second in data_cases.labels(2):
        header, content = recordio.unpack(indexed.read_idx(1000 + first))
        assert (header.id, header.id2, content) == (first, second, b"content")
        if isinstance(label, list) and label:
            np.testing.assert_array_equal(header.label, np.float32(label))
        else:
            assert header.flag == 0
            assert header.label == (np.float32(label) if label != [] else 0)


def test_the_recorded_index_is_made_anew(tmp_path):
    recordio.rebuild_index(DATA / "records.rec", tmp_path / "a.idx")
    assert (
        recordio.read_index(tmp_path / "a.idx")[1].tolist()
        == recordio.read_index(DATA / "records.idx")[1].tolist()
    )


@pytest.mark.parametrize("number", range(len(data_cases.ITERATORS)))
def test_batches_are_the_recorded_ones(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data_cases.write_files()
    kind, options = data_cases.ITERATORS[number]
    with np.load(DATA / "batches.npz") as archive:
        wanted = {k: archive[k] for k in archive.files if k.startswith(f"{number} ")}
    seen = 0
    for place, batch in enumerate(data_cases.batches(mx.io, kind, options)):
        if batch is None:
            continue
        stype, data, label, pad = batch
        name = f"{number} {place} {stype} {pad}"
        for got, key in ((data, f"{name} data"), (label, f"{name} label")):
            good = wanted[key]
            if not options.get("round_batch", True) and pad:
                good, got = good[:-pad], got[:-pad]  # MXNet's first batch may hold anything there
            assert got.dtype == good.dtype
            assert got.shape == good.shape
            # MXNet rounds decimal numbers in float arithmetic.
            np.testing.assert_allclose(got, good, rtol=3e-7, err_msg=key)
        seen += 2
    assert seen == len(wanted)


def run(script, *arguments, cwd):
    (cwd / "script.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n{script}"
    )
    command = [MXNET, "script.py", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]


_WRITE = """
import mxnet as mx, data_cases
writer = mx.recordio.MXIndexedRecordIO("theirs.idx", "theirs.rec", "w")
for key, payload in enumerate(data_cases.payloads(10000, 7)):
    writer.write_idx(key, payload)
writer.close()
"""
_READ = """
import random
import mxnet as mx, data_cases
payloads = data_cases.payloads(10000, 7)
reader = mx.recordio.MXRecordIO("ours.rec", "r")
assert [reader.read() for _ in payloads] == payloads
assert reader.read() is None
reader = mx.recordio.MXIndexedRecordIO("ours.idx", "ours.rec", "r")
order = list(range(len(payloads)))
random.Random(1).shuffle(order)
for key in order:
    assert reader.read_idx(key) == payloads[key]
"""


@pytest.mark.oracle
@needs_mxnet
def test_ten_thousand_records_both_ways(tmp_path):
    payloads = data_cases.payloads(10000, 7)
    with recordio.MXIndexedRecordIO(tmp_path / "ours.idx", tmp_path / "ours.rec", "w") as writer:
        for key, payload in enumerate(payloads):
            writer.write_idx(key, payload)
    run(_WRITE, cwd=tmp_path)
    run(_READ, cwd=tmp_path)
    for kind in ("rec", "idx"):
        ours, theirs = (tmp_path / f"{name}.{kind}" for name in ("ours", "theirs"))
        assert ours.read_bytes() == theirs.read_bytes()
    reader = recordio.MXRecordIO(tmp_path / "theirs.rec", "r")
    assert [reader.read() for _ in payloads] == payloads
    indexed = recordio.MXIndexedRecordIO(tmp_path / "theirs.idx", tmp_path / "theirs.rec", "r")
    for key in np.random.default_rng(1).permutation(len(payloads)).tolist():
        assert indexed.read_idx(key) == payloads[key]


_TOOL = """
import os, runpy, types
import mxnet as mx
sys.modules["cv2"] = types.ModuleType("cv2")  # passing images through needs none of it
tool = os.path.join(os.path.dirname(mx.__file__), "tools", "im2rec.py")
sys.argv[0] = tool
runpy.run_path(tool, run_name="__main__")
"""


@pytest.mark.oracle
@needs_mxnet
@pytest.mark.parametrize(
    "options",
    [
        {"recursive": True},
        {"recursive": True, "train_ratio": 0.6, "test_ratio": 0.2, "chunks": 2},
        {"shuffle": False, "exts": [".jpg"]},
    ],
)
def test_lists_and_records_of_the_tool(tmp_path, options):
    root = tmp_path / "images"
    for number in range(25):
        place = root / f"c{number % 4}" if options.get("recursive") else root
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.{'jpg' if number % 3 else 'PNG'}").write_bytes(bytes([number]) * number)
    arguments = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if name == "shuffle":
            arguments.append("--no-shuffle")
        elif value is True:
            arguments.append(flag)
        else:
            arguments += [flag, *map(str, value if isinstance(value, list) else [value])]
    for who in ("ours", "theirs"):
        (tmp_path / who).mkdir()
    run(_TOOL, "theirs/x", "images", "--list", *arguments, cwd=tmp_path)
    run(_TOOL, "theirs/x", "images", "--pass-through", cwd=tmp_path)
    im2rec.im2rec(tmp_path / "ours" / "x", root, pass_through=True, **options)
    ours, theirs = (
        {p.name: p.read_bytes() for p in (tmp_path / who).iterdir()} for who in ("ours", "theirs")
    )
    assert ours == theirs
