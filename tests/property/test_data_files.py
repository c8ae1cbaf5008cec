"""Mutated record files, indexes, idx, CSV and LibSVM files: errors of ours or valid data.

MIXFLOW_TEST_COUNT is the number of mutated inputs (``make prove``: 1000000, which takes minutes and
therefore ``--timeout 3600``). The kinds of input get
equal shares; a tenth of each goes through files, the rest through the parsers alone.
"""

import contextlib
import gzip
import os
import random
import resource
import struct
import warnings

import numpy as np
import pytest

from mixflow import io, recordio
from mixflow.errors import FormatError, MixflowError, UnknownNameError
from mixflow.io import text
from mixflow.recordio import framing, index, rebuild

COUNT = int(os.environ.get("MIXFLOW_TEST_COUNT", "4000")) // 5
SEED = int(os.environ.get("MIXFLOW_TEST_SEED", "0"))
MAGIC = framing.MAGIC_BYTES
#: More than this much new memory would mean that a length was believed.
MOST_BYTES = 300 << 20
PIECES = {
    "record": [MAGIC, b"\0\0\0\x20", b"\0\0\0\x40", b"\0\0\0\x60", b"\xff\xff\xff\x1f", b"\0" * 8],
    "index": [b"\t", b"\n", b"9" * 20, b"-1", b"1\t0\n", b"\r", b" ", b"\xff", b"0x1", b"1_0"],
    "csv": [b",", b"\n", b"\r", b"nan", b"1e999", b"-", b".", b"e5", b" ", b"\xff", b"1_0", b"\0"],
    "svm": [b":", b" ", b"\n", b"1:2", b"#", b"qid:3", b"9" * 25, b"nan", b"-1:1", b"\xef\xbb\xbf"],
    "idx": [
        b"\0\0\x08\x03",
        b"\xff\xff\xff\xff",
        b"\x1f\x8b",
        b"\0\0\0\0",
        b"\x04",
        b"\0\0\x08\x01",
    ],
}


def mutated(rng, raw, pieces):
    """A changed copy: bits, bytes, pieces put in, cut out, doubled, moved, or cut off."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((1, 1, 4, 16, 64)))
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[min(at, len(data) - 1)] = rng.randrange(256)
        elif kind == 2:
            data[at:at] = rng.choice(pieces)
        elif kind == 3:
            data[at : at + 4] = rng.choice(pieces)[:4]
        elif kind == 4:
            del data[at:to]
        elif kind == 5:
            data[at:at] = data[at:to]
        else:
            del data[at:]
    return bytes(data)


@pytest.fixture
def few_bytes():
    """The test must not take much memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MOST_BYTES


def cases(kind, seeds):
    """(number, mutated bytes) pairs."""
    rng = random.Random(f"{SEED} {kind}")
    for number in range(COUNT):
        yield number, mutated(rng, rng.choice(seeds), PIECES[kind])


def put(path, content):
    """Writes a file anew: a mapping of the old one stays whole."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return str(path)


def record_seeds(folder):
    payloads = [
        b"",
        b"abc",
        MAGIC * 2 + b"x",
        b"x" * 40 + MAGIC + b"yz",
        recordio.pack((0, 3.0, 7, 0), b"image"),
        recordio.pack((0, [1, 2, 3], 7, 0), MAGIC),
    ]
    seeds = []
    for chosen in (payloads, payloads[:2], payloads[3:], [bytes(700)] * 3):
        with recordio.MXRecordIO(str(folder / "seed.rec"), "w") as writer:
            for payload in chosen:
                writer.write(payload)
        seeds.append((folder / "seed.rec").read_bytes())
    return seeds


def unpacked(record):
    try:
        header, content = recordio.unpack(record)
    except FormatError:
        return
    assert len(content) + 24 + 4 * header.flag == len(record)


def check_records(raw):
    """Walks, reads and searches a record file in memory."""
    view = memoryview(raw)
    found = framing.scan(view, "x")
    total = 0
    for at in found.positions.tolist():
        record, after = framing.read_record(view, at, "x")
        assert after <= len(raw)
        total += len(record) + 8
        unpacked(record)
    assert total <= len(raw)
    assert (found.error is None) == (found.end == len(raw))
    for at in range(0, len(raw) + 8, 5):
        try:
            record, after = framing.read_record(view, at, "x")
            assert at < after <= len(raw)
        except FormatError:
            pass
    head = rebuild.next_head(view, 4)
    assert head is None or raw[head : head + 4] == MAGIC


def test_records(tmp_path, few_bytes):
    path, lines = tmp_path / "a.rec", tmp_path / "a.idx"
    for number, raw in cases("record", record_seeds(tmp_path)):
        check_records(raw)
        if number % 10:
            continue
        put(path, raw)
        try:
            whole = recordio.rebuild_index(path, lines, skip_damaged=True)
        except FormatError as error:
            assert "without any record" in str(error)
            continue
        file = recordio.RecordFile(path, lines)
        assert len(file) == whole.records
        assert [len(v) for v in file.read_many(range(len(file)))] == file.lengths().tolist()
        reader, read = recordio.MXRecordIO(path, "r"), []
        try:
            while (record := reader.read()) is not None:
                read.append(record)
        except FormatError:
            pass
        assert read == [bytes(v) for v in file][: len(read)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", recordio.TornRecordWarning)
            try:
                with recordio.MXRecordIO(path, "a") as writer:
                    writer.write(b"more")
            except FormatError:
                assert path.read_bytes() == raw
            else:
                again = recordio.RecordFile(path)
                assert [bytes(v) for v in again] == [*read, b"more"]


def test_indexes(tmp_path, few_bytes):
    records = record_seeds(tmp_path)[0]
    put(tmp_path / "a.rec", records)
    recordio.rebuild_index(tmp_path / "a.rec", tmp_path / "a.idx")
    good = (tmp_path / "a.idx").read_bytes()
    seeds = [good, good[:-1], good.replace(b"\n", b"\r\n"), b"5\t0\n-3\t8\n"]
    for number, raw in cases("index", seeds):
        try:
            keys, positions = index.parse_index(raw, int, "x")
        except FormatError:
            keys, positions = None, None
        if keys is not None:
            assert len(keys) == len(positions) <= raw.count(b"\t")
            assert (positions >= 0).all()
            if index._plain_numbers(raw) is not None:
                slow = index._parse_lines(raw, int, "x")
                assert slow[0] == keys
                assert slow[1].tolist() == positions.tolist()
        if number % 10:
            continue
        lines = put(tmp_path / "b.idx", raw)
        path = put(tmp_path / "b.rec", records)
        try:
            reader = recordio.MXIndexedRecordIO(lines, path, "r")
        except FormatError:
            assert keys is None
            continue
        for key in [*reader.keys, 77]:
            with contextlib.suppress(FormatError, UnknownNameError):
                assert len(reader.read_idx(key)) < len(records)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", recordio.TornRecordWarning)
            warnings.simplefilter("ignore", recordio.DuplicateKeyWarning)
            try:
                with recordio.MXIndexedRecordIO(lines, path, "a") as writer:
                    writer.write_idx(5, b"more")
                assert recordio.MXIndexedRecordIO(lines, path, "r").read_idx(5) == b"more"
            except FormatError:
                assert (tmp_path / "b.rec").read_bytes() == records


def same(one, two):
    return one.dtype == two.dtype and np.array_equal(one, two, equal_nan=one.dtype.kind == "f")


WHERE = text.Where("fuzz", "x", 0, 1)


def test_csv(tmp_path, few_bytes):
    seeds = [b"1,2\n3,4\n", b"1.5,-2e3\n nan,inf\r\n\n7,8,\n", b"10,20\n" * 9]
    parsers = [text.dense_parser(2, np.dtype(t)) for t in ("float32", "int32", "int64")]
    for number, raw in cases("csv", seeds):
        block = text._newlines(raw + b"\n")
        try:
            found = parsers[number % 3](block, WHERE)
            assert found.shape[1] == 2
            wide = np.float64 if number % 3 == 0 else np.int64
            plain = text._plain_dense(block, 2, wide)
            if plain is not None:
                slow = np.array(list(text._dense_lines(block, 2, wide, WHERE)), wide).reshape(-1, 2)
                assert same(plain.reshape(-1, 2), slow)
        except FormatError:
            pass
        if number % 10 == 0:
            use_iterator(io.CSVIter, put(tmp_path / "a.csv", raw), (2,))


def test_libsvm(tmp_path, few_bytes):
    seeds = [b"1 0:1 2:3\n-1 1:2.5\n", b"2\n1 qid:3 0:1 # c\n\n+3 2:-1e3", b"0 0:1 1:1 2:1\n" * 7]
    parse = text.sparse_parser(3)
    for number, raw in cases("svm", seeds):
        block = text._newlines(raw + b"\n")
        try:
            found = parse(block, WHERE)
            assert len(found.labels) == len(found.counts)
            assert found.counts.sum() == len(found.indices) == len(found.values)
            assert ((found.indices >= 0) & (found.indices < 3)).all()
            plain = text._plain_sparse(block, 3)
            if plain is not None:
                assert all(map(same, plain, text._sparse_lines(block, 3, WHERE)))
        except FormatError:
            pass
        if number % 10 == 0:
            use_iterator(io.LibSVMIter, put(tmp_path / "a.svm", raw), (3,))


def use_iterator(kind, path, shape):
    try:
        iterator = kind(path, shape, 4, prefetch_buffer=0)
        for _ in range(2):
            for _, batch in zip(range(5), iterator, strict=False):
                assert batch.data[0].shape == (4, *shape)
            iterator.reset()
    except MixflowError:
        pass


def test_idx(tmp_path, few_bytes):
    plain = b"\0\0\x08\x03" + struct.pack(">3I", 2, 3, 3) + bytes(range(18))
    seeds = [plain, gzip.compress(plain), b"\0\0\x08\x01" + struct.pack(">I", 4) + b"abcd"]
    for _, raw in cases("idx", seeds):
        try:
            found = io.read_idx(put(tmp_path / "x", raw))
            assert found.nbytes < 1200 * len(raw)
        except FormatError:
            pass
