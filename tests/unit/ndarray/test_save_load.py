"""`.params` files: round trips, corruption, and files that MXNet 1.9.1 wrote."""

import contextlib
import os
import struct

import ml_dtypes
import numpy as np
import pytest

from mixflow import ndarray as nd
from mixflow.context import cpu
from mixflow.errors import FormatError
from mixflow.ndarray import save_load
from mixflow.ndarray.save_load import V2

DTYPES = ["float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", "bfloat16"]
DATA = os.path.join(os.path.dirname(__file__), "..", "..", "oracle", "data", "params")


def equal(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (2, 3), (), (0,), (2, 0, 3)])
def test_round_trip(tmp_path, dtype, shape):
    path = str(tmp_path / "x.params")
    values = np.arange(int(np.prod(shape))).reshape(shape)
    wanted = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    a = nd.array(values.astype(wanted), dtype=dtype)
    nd.save(path, [a])
    (back,) = nd.load(path)
    equal(a, back)
    assert not list(tmp_path.glob("*.tmp"))


def test_list_dict_single_and_buffer(tmp_path):
    path = str(tmp_path / "x.params")
    a, b = nd.ones((2,)), nd.zeros((3,), dtype="int32")
    nd.save(path, a)
    equal(nd.load(path)[0], a)
    nd.save(path, {"arg:a": a, "aux:ß": b})
    back = nd.load(path)
    assert list(back) == ["arg:a", "aux:ß"]
    equal(back["aux:ß"], b)
    with open(path, "rb") as handle:
        equal(nd.load_frombuffer(handle.read())["arg:a"], a)
    nd.save(path, [])
    assert nd.load(path) == []


@pytest.mark.parametrize("data", [{1: 2}, {"a": 1}, ["x"], 3, {1: None}])
def test_what_cannot_be_saved(tmp_path, data):
    path = str(tmp_path / "x.params")
    with pytest.raises(TypeError, match="save only accept"):
        nd.save(path, data)
    assert not os.path.exists(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = str(tmp_path / "x.params")
    nd.save(path, [nd.ones((2,))])

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        nd.save(path, [nd.zeros((200,))])
    assert os.listdir(tmp_path) == ["x.params"]
    np.testing.assert_array_equal(nd.load(path)[0].asnumpy(), [1, 1])


def sample():
    arrays = {"w": nd.array([[1, 2], [3, 4]]), "b": nd.ones((3,), dtype="int64", ctx=cpu(1))}
    return save_load.save_to_buffer(arrays)


def test_every_truncation_is_a_format_error(tmp_path):
    content = sample()
    for size in range(len(content)):
        with pytest.raises(FormatError, match=r"\[load\] <buffer>: expected .* at offset \d+, got"):
            nd.load_frombuffer(content[:size])
    with pytest.raises(FormatError, match="more bytes"):
        nd.load_frombuffer(content + b"x")
    path = tmp_path / "cut.params"
    path.write_bytes(content[:40])
    with pytest.raises(FormatError, match=r"cut\.params: expected"):
        nd.load(str(path))


def test_flipped_bytes_never_crash():
    content = sample()
    rng = np.random.default_rng(0)
    for _ in range(3000):
        broken = bytearray(content)
        for at in rng.integers(0, len(content), rng.integers(1, 4)):
            broken[at] = rng.integers(256)
        with contextlib.suppress(FormatError):
            nd.load_frombuffer(bytes(broken))


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (0, struct.pack("<Q", 0x113), "list magic 0x112 at offset 0, got 0x113"),
        (16, struct.pack("<Q", 1 << 60), "at most .* arrays"),
        (24, struct.pack("<I", 0xDEADBEEF), "magic of an array at offset 24, got 0xdeadbeef"),
        (28, struct.pack("<i", 7), "storage type"),
        (32, struct.pack("<i", 100), "0 to 32 dimensions"),
        (36, struct.pack("<q", 1 << 50), "elements"),
        (36, struct.pack("<q", -1), "at least 0"),
        (52, struct.pack("<i", 9), "context type"),
        (60, struct.pack("<i", 99), "type code"),
    ],
)
def test_what_is_wrong_is_named(at, value, text):
    content = sample()
    broken = content[:at] + value + content[at + len(value) :]
    with pytest.raises(FormatError, match=text):
        nd.load_frombuffer(broken)


def test_old_versions():
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    tail = struct.pack("<iii", 1, 0, 0) + values.tobytes()
    old = {
        "v1": struct.pack("<II2q", 0xF993FAC8, 2, 2, 3),
        "none": struct.pack("<I2I", 2, 2, 3),
        "v3": struct.pack("<Iii2q", 0xF993FACA, 0, 2, 2, 3),
    }
    for head in old.values():
        content = struct.pack("<QQQ", 0x112, 0, 1) + head + tail + struct.pack("<Q", 0)
        (back,) = nd.load_frombuffer(content)
        np.testing.assert_array_equal(back.asnumpy(), values)


FILES = sorted(f for f in os.listdir(DATA) if f.endswith(".params")) if os.path.isdir(DATA) else []


@pytest.mark.parametrize("name", FILES)
def test_files_of_mxnet(name, tmp_path):
    path = os.path.join(DATA, name)
    expected = np.load(path.replace(".params", ".npz"))
    got = nd.load(path)
    items = got.items() if isinstance(got, dict) else [(str(i), a) for i, a in enumerate(got)]
    assert [k for k, _ in items] == list(expected)
    for key, a in items:
        assert a.asnumpy().dtype == expected[key].dtype
        np.testing.assert_array_equal(a.asnumpy(), expected[key])
    if "context" in name:
        return
    ours = str(tmp_path / name)
    nd.save(ours, got)
    with open(path, "rb") as theirs, open(ours, "rb") as mine:
        assert theirs.read() == mine.read()


def test_there_are_files_of_mxnet():
    assert len(FILES) >= 5


def sparse_file(shape, rows):
    """One row_sparse array, as MXNet lays it out."""
    head = struct.pack("<Iii2q", V2, 1, 2, len(rows), 1) + struct.pack("<i2q", 2, *shape)
    head += struct.pack("<iii", 1, 0, 0) + struct.pack("<iiq", 6, 1, len(rows))
    body = np.ones((len(rows), 1), "<f4").tobytes() + np.array(rows, "<i8").tobytes()
    return struct.pack("<QQQ", 0x112, 0, 1) + head + body + struct.pack("<Q", 0)


def test_sparse_files_are_checked():
    (a,) = nd.load_frombuffer(sparse_file((4, 1), [0, 2]))
    np.testing.assert_array_equal(a.asnumpy()[:, 0], [1, 0, 1, 0])
    with pytest.raises(FormatError, match="rows within"):
        nd.load_frombuffer(sparse_file((4, 1), [0, 4]))
    with pytest.raises(FormatError, match="different rows"):
        nd.load_frombuffer(sparse_file((4, 1), [1, 1]))
    (tall,) = nd.load_frombuffer(sparse_file((1 << 45, 1), [1 << 44]))
    assert tall.shape == (1 << 45, 1)
    assert tall.indices.asnumpy().tolist() == [1 << 44]


def csr_file(shape, starts):
    """One csr matrix with a single element in its column 0, as MXNet lays it out."""
    head = struct.pack("<Iiiq", V2, 2, 1, 1) + struct.pack(f"<i{len(shape)}q", len(shape), *shape)
    head += struct.pack("<iii", 1, 0, 0) + struct.pack("<iiqiiq", 6, 1, len(starts), 6, 1, 1)
    body = np.ones(1, "<f4").tobytes() + np.array([*starts, 0], "<i8").tobytes()
    return struct.pack("<QQQ", 0x112, 0, 1) + head + body + struct.pack("<Q", 0)


def test_csr_files_are_checked():
    (a,) = nd.load_frombuffer(csr_file((2, 3), [0, 1, 1]))
    assert a.asnumpy().tolist() == [[1, 0, 0], [0, 0, 0]]
    for starts in ([0, 1], [0, 1, 2], [1, 1, 1], [0, 2, 1]):
        with pytest.raises(FormatError, match=r"a CSR matrix of \(2, 3\)"):
            nd.load_frombuffer(csr_file((2, 3), starts))
    for shape in ((2,), (2, 3, 4)):
        with pytest.raises(FormatError, match="a CSR matrix of two dimensions"):
            nd.load_frombuffer(csr_file(shape, [0, 1, 1]))
