"""Record files: bytes, order, keys, views, crashes, processes."""

import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from forks import run_child

import mixflow as mx
from mixflow import recordio
from mixflow.errors import FileError, FormatError, MixflowError, ParamError, UnknownNameError

MAGIC = struct.pack("<I", 0xCED7230A)
#: Payloads and their bytes in a file of MXNet 1.9.1.
KNOWN = [
    (b"", "0a23d7ce 00000000"),
    (b"a", "0a23d7ce 01000000 61000000"),
    (b"abcd", "0a23d7ce 04000000 61626364"),
    (MAGIC, "0a23d7ce 00000020 0a23d7ce 00000060"),
    (b"x" + MAGIC + b"yz", "0a23d7ce 07000000 780a23d7 ce797a00"),
    (
        b"abcd" + MAGIC + MAGIC + b"q",
        "0a23d7ce 04000020 61626364 0a23d7ce 00000040 0a23d7ce 01000060 71000000",
    ),
]
PAYLOADS = [payload for payload, _ in KNOWN]


def random_payload(rng):
    """Bytes with magic numbers at aligned and other places."""
    pieces = []
    for _ in range(rng.integers(0, 6)):
        pieces.append(rng.integers(0, 256, rng.integers(0, 40), np.uint8).tobytes())
        if rng.random() < 0.5:
            pieces.append(MAGIC)
    if rng.random() < 0.1:
        pieces.append(bytes(rng.integers(500, 3000)))
    return b"".join(pieces)


@pytest.fixture
def made(tmp_path):
    """Writes records with keys 0.. and gives (index, records) as texts."""

    def make(payloads, name="data"):
        index, records = str(tmp_path / f"{name}.idx"), str(tmp_path / f"{name}.rec")
        with recordio.MXIndexedRecordIO(index, records, "w") as writer:
            for key, payload in enumerate(payloads):
                writer.write_idx(key, payload)
        return index, records

    return make


class TestBytes:
    def test_known_bytes(self, made):
        _, records = made(PAYLOADS)
        with open(records, "rb") as file:
            assert file.read() == bytes.fromhex("".join(text for _, text in KNOWN))

    def test_what_is_written_is_read(self, made):
        rng = np.random.default_rng(1)
        payloads = [random_payload(rng) for _ in range(400)]
        index, records = made(payloads)
        with recordio.MXRecordIO(records, "r") as reader:
            assert [reader.read() for _ in payloads] == payloads
            assert reader.read() is None
            assert reader.read() is None
        with recordio.MXIndexedRecordIO(index, records, "r") as reader:
            for key in rng.permutation(len(payloads)).tolist():
                assert reader.read_idx(key) == payloads[key]

    def test_large_payload_with_magic(self, made):
        payload = bytes(4000) + MAGIC + bytes(3001)
        _, records = made([payload])
        assert recordio.MXRecordIO(records, "r").read() == payload

    def test_other_buffers(self, made):
        numbers = np.arange(6, dtype=np.int16)
        _, records = made([bytearray(b"abc"), memoryview(b"defg")[1:], numbers])
        reader = recordio.MXRecordIO(records, "r")
        assert [reader.read() for _ in range(3)] == [b"abc", b"efg", numbers.tobytes()]

    def test_what_cannot_be_written(self, tmp_path, monkeypatch):
        writer = recordio.MXRecordIO(str(tmp_path / "x.rec"), "w")
        with pytest.raises(ParamError, match="got a str"):
            writer.write("text")
        with pytest.raises(ParamError, match="expected bytes to write, got int"):
            writer.write(3)
        monkeypatch.setattr(recordio.framing, "LENGTH_MASK", 5)
        with pytest.raises(ParamError, match="expected a record below 6 bytes, got 6"):
            writer.write(b"123456")
        writer.close()
        assert os.path.getsize(tmp_path / "x.rec") == 0


class TestOrder:
    def test_tell_and_seek(self, made):
        _, records = made(PAYLOADS)
        reader = recordio.MXRecordIO(records, "r")
        places = []
        for _ in PAYLOADS:
            places.append(reader.tell())
            reader.read()
        assert places == [0, 8, 20, 32, 48, 64]
        for number in (4, 0, 5, 2):
            reader.seek(places[number])
            assert reader.read() == PAYLOADS[number]
        with pytest.raises(ParamError, match="expected a position from 0 to 96, got 97"):
            reader.seek(97)
        reader.seek(4)
        with pytest.raises(FormatError, match="magic number 0xced7230a at byte 4"):
            reader.read()

    def test_seek_by_key_then_read_on(self, made):
        reader = recordio.MXIndexedRecordIO(*made(PAYLOADS), "r")
        reader.seek(2)
        assert reader.tell() == 20
        assert [reader.read(), reader.read()] == PAYLOADS[2:4]
        assert reader.keys == list(range(6))
        assert reader.idx[5] == 64
        with pytest.raises(UnknownNameError, match="expected one of the 6 keys"):
            reader.read_idx(6)

    def test_tell_while_writing(self, tmp_path):
        writer = recordio.MXIndexedRecordIO(str(tmp_path / "a.idx"), str(tmp_path / "a.rec"), "w")
        places = []
        for i in range(5):
            writer.write_idx(i, b"record_%d" % i)
            places.append(writer.tell())
        assert places == [16, 32, 48, 64, 80]

    def test_reset(self, made):
        _, records = made(PAYLOADS)
        reader = recordio.MXRecordIO(records, "r")
        first = [reader.read() for _ in range(3)]
        reader.reset()
        assert [reader.read() for _ in range(3)] == first

    def test_reset_of_a_writer_begins_anew(self, tmp_path):
        path = str(tmp_path / "a.rec")
        writer = recordio.MXRecordIO(path, "w")
        writer.write(b"old")
        writer.reset()
        writer.write(b"new")
        writer.close()
        reader = recordio.MXRecordIO(path, "r")
        assert [reader.read(), reader.read()] == [b"new", None]

    def test_wrong_state(self, made):
        _, records = made(PAYLOADS)
        reader = recordio.MXRecordIO(records, "r")
        with pytest.raises(MixflowError, match="open for writing, got flag 'r'"):
            reader.write(b"x")
        reader.close()
        reader.close()
        with pytest.raises(MixflowError, match="open for reading, got a closed file"):
            reader.read()
        with pytest.raises(MixflowError, match="closed file"):
            reader.tell()
        with pytest.raises(ParamError, match="flag to be one of 'r', 'w', 'a', got 'x'"):
            recordio.MXRecordIO(records, "x")
        with pytest.raises(OSError):
            recordio.MXRecordIO(records + "none", "r")
        with pytest.raises(FormatError, match="expected a regular file"):
            recordio.MXRecordIO("/dev/null", "r")

    def test_a_reader_sees_what_is_flushed_later(self, tmp_path):
        path = str(tmp_path / "a.rec")
        writer = recordio.MXRecordIO(path, "w")
        reader = recordio.MXRecordIO(path, "r")
        assert reader.read() is None
        writer.write(b"one")
        writer.flush()
        assert [reader.read(), reader.read()] == [b"one", None]
        writer.write(b"two")
        writer.close()
        assert [reader.read(), reader.read()] == [b"two", None]

    def test_a_new_file_leaves_open_readers_alone(self, made):
        _, records = made([b"old" * 5000])
        reader = recordio.RecordFile(records)
        made([b"new"])
        assert bytes(reader[0]) == b"old" * 5000
        assert bytes(recordio.RecordFile(records)[0]) == b"new"


class TestKeys:
    def test_text_keys(self, tmp_path):
        index, records = str(tmp_path / "a.idx"), str(tmp_path / "a.rec")
        with recordio.MXIndexedRecordIO(index, records, "w", key_type=str) as writer:
            writer.write_idx("cat", b"1")
            writer.write_idx("großer hund", b"2")
            for key in ("a\tb", "a\nb", " a", ""):
                with pytest.raises(ParamError, match="a key that fits on a line"):
                    writer.write_idx(key, b"3")
        reader = recordio.MXIndexedRecordIO(index, records, "r", key_type=str)
        assert reader.keys == ["cat", "großer hund"]
        assert reader.read_idx("großer hund") == b"2"

    def test_refused_key_leaves_the_files_alone(self, tmp_path):
        index, records = str(tmp_path / "a.idx"), str(tmp_path / "a.rec")
        with recordio.MXIndexedRecordIO(index, records, "w", key_type=str) as writer:
            with pytest.raises(ParamError):
                writer.write_idx("a\tb", b"3")
            writer.write_idx("b", b"4")
        assert recordio.MXRecordIO(records, "r").read() == b"4"

    @pytest.mark.parametrize(
        "text, keys, positions",
        [
            ("0\t0\n1\t16\n", [0, 1], [0, 16]),
            ("0\t0\n1\t16", [0, 1], [0, 16]),
            ("-5\t0\r\n7\t16\textra\n\n", [-5, 7], [0, 16]),
            ("", [], []),
        ],
    )
    def test_forms_of_an_index(self, tmp_path, text, keys, positions):
        path = tmp_path / "a.idx"
        path.write_bytes(text.encode())
        found, places = recordio.read_index(path)
        assert found == keys
        assert places.tolist() == positions

    @pytest.mark.parametrize(
        "text, line",
        [("0\t0\n1\n", 2), ("a\t0\n", 1), ("1\t-4\n", 1), ("1\t99999999999999999999", 1)],
    )
    def test_bad_lines(self, tmp_path, text, line):
        path = tmp_path / "a.idx"
        path.write_text(text)
        with pytest.raises(FormatError, match=f"a tab and a position in line {line}"):
            recordio.read_index(path)
        path.write_bytes(b"\xff\t0\n")
        with pytest.raises(FormatError, match="expected a text index"):
            recordio.read_index(path)

    def test_index_of_another_file(self, made):
        index, _ = made([b"a" * 50] * 9, "long")
        _, records = made(PAYLOADS, "short")
        reader = recordio.MXIndexedRecordIO(index, records, "r")
        with pytest.raises(FormatError, match=r"expected a position below 96 in .*, got 420"):
            reader.read_idx(7)
        with pytest.raises(FormatError, match="index that of another file"):
            reader.read_idx(1)
        assert recordio.RecordFile(records, index)[0] == b""
        with pytest.raises(FormatError, match="index that of another file"):
            recordio.RecordFile(records, index).read_many([0, 1])

    def test_position_inside_of_a_record(self, made):
        _, records = made(PAYLOADS)
        file = recordio.RecordFile(records, np.array([40]))
        with pytest.raises(FormatError, match="the beginning of a record at byte 40"):
            file[0]


class TestRecordFile:
    def test_views(self, made):
        rng = np.random.default_rng(2)
        payloads = [random_payload(rng) for _ in range(60)]
        index, records = made(payloads)
        for source in (None, index, np.array(list(recordio.read_index(index)[1]))):
            file = recordio.RecordFile(records, source)
            assert len(file) == 60
            assert [bytes(v) for v in file] == payloads
            assert all(v.readonly for v in file)
            order = rng.permutation(60)
            assert [bytes(v) for v in file.read_many(order)] == [payloads[i] for i in order]
            assert file.lengths().tolist() == [len(p) for p in payloads]
            assert file[-1] == payloads[-1]
            assert list(file.keys) == list(range(60))
            assert file.row(3) == 3
            with pytest.raises(IndexError):
                file[60]
            with pytest.raises(IndexError):
                file.read_many([3, 60])
            with pytest.raises(UnknownNameError, match="expected a key of"):
                file.row(60)
            assert file.read_many([]) == []

    def test_one_part_only_takes_the_quick_way(self, made):
        payloads = [bytes([i]) * i for i in range(100)]
        file = recordio.RecordFile(*reversed(made(payloads)))
        assert [bytes(v) for v in file.read_many(range(100))] == payloads
        assert file.lengths([5, 7]).tolist() == [5, 7]
        file.prefetch([1, 2, 3])

    def test_keys_of_the_index(self, tmp_path):
        index, records = str(tmp_path / "a.idx"), str(tmp_path / "a.rec")
        with recordio.MXIndexedRecordIO(index, records, "w") as writer:
            for key in (10, 7, 30):
                writer.write_idx(key, b"%d" % key)
        file = recordio.RecordFile(records, index)
        assert list(file.keys) == [10, 7, 30]
        assert file[file.row(7)] == b"7"

    def test_a_view_outlives_the_file(self, made):
        _, records = made([b"abc" * 100])
        file = recordio.RecordFile(records)
        view = file[0]
        file.close()
        file.close()
        assert bytes(view) == b"abc" * 100
        with pytest.raises(MixflowError, match="expected an open file"):
            file[0]
        with pytest.raises(MixflowError, match="expected an open file"):
            file.read_many([0])
        assert file.closed

    def test_empty_file(self, tmp_path):
        (tmp_path / "a.rec").touch()
        with recordio.RecordFile(tmp_path / "a.rec") as file:
            assert len(file) == 0
            assert file.lengths().tolist() == []

    def test_pickle(self, made):
        index, records = made(PAYLOADS)
        for file in (recordio.RecordFile(records), recordio.RecordFile(records, index)):
            again = pickle.loads(pickle.dumps(file))
            assert [bytes(v) for v in again] == PAYLOADS

    def test_threads_share_one(self, made):
        rng = np.random.default_rng(3)
        payloads = [rng.integers(0, 256, 3000, np.uint8).tobytes() for _ in range(50)]
        file = recordio.RecordFile(*reversed(made(payloads)))
        wrong = []

        def read(seed):
            for i in np.random.default_rng(seed).integers(0, 50, 500).tolist():
                if file[i] != payloads[i] or file.read_many([i])[0] != payloads[i]:
                    wrong.append(i)

        threads = [threading.Thread(target=read, args=(s,)) for s in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong


class TestCrash:
    def test_torn_tail_is_reported_with_its_position(self, made):
        index, records = made([b"a" * 10, b"b" * 10, b"c" * 10])
        whole = Path(records).read_bytes()
        for size in range(41, 60):
            with open(records, "wb") as file:
                file.write(whole[:size])
            reader = recordio.MXRecordIO(records, "r")
            assert [reader.read(), reader.read()] == [b"a" * 10, b"b" * 10]
            with pytest.raises(recordio.TornRecordError, match="record at byte 40") as caught:
                reader.read()
            assert caught.value.position == 40
            assert pickle.loads(pickle.dumps(caught.value)).position == 40
            indexed = recordio.MXIndexedRecordIO(index, records, "r")
            assert indexed.read_idx(1) == b"b" * 10
            with pytest.raises(recordio.TornRecordError):
                indexed.read_idx(2)
            with pytest.raises(recordio.TornRecordError):
                len(recordio.RecordFile(records))

    def test_torn_between_the_parts_of_a_record(self, made):
        _, records = made([b"abcd", b"abcd" + MAGIC + b"q"])
        size = os.path.getsize(records)
        os.truncate(records, size - 12)
        reader = recordio.MXRecordIO(records, "r")
        reader.read()
        with pytest.raises(recordio.TornRecordError, match="record at byte 12"):
            reader.read()

    @pytest.mark.parametrize("cut", [1, 5, 12, 19])
    def test_append_cuts_the_torn_tail_off(self, made, cut):
        index, records = made([b"a" * 10, b"b" * 10, b"c" * 10])
        os.truncate(records, 60 - cut)
        with pytest.warns(
            recordio.TornRecordWarning, match=r"got \d+ bytes .* at byte 40; cut off"
        ):
            writer = recordio.MXIndexedRecordIO(index, records, "a")
        assert writer.keys == [0, 1]
        writer.write_idx(7, b"new")
        writer.close()
        reader = recordio.MXIndexedRecordIO(index, records, "r")
        assert reader.keys == [0, 1, 7]
        assert [reader.read_idx(k) for k in reader.keys] == [b"a" * 10, b"b" * 10, b"new"]

    @pytest.mark.parametrize("rest", [b"\x1c", b"\x1f\x1d", b"9", b"9\tx"])
    def test_append_drops_a_torn_line_of_the_index(self, made, rest):
        index, records = made([b"a" * 10, b"b" * 10])
        with open(index, "ab") as file:
            file.write(rest)
        with recordio.MXIndexedRecordIO(index, records, "a") as writer:
            writer.write_idx(7, b"new")
        reader = recordio.MXIndexedRecordIO(index, records, "r")
        assert reader.keys == [0, 1, 7]
        assert reader.read_idx(7) == b"new"

    def test_append_in_order(self, made):
        _, records = made([b"a" * 10, b"b" * 10])
        with recordio.MXRecordIO(records, "a") as writer:
            assert writer.tell() == 40
            writer.write(b"c")
        os.truncate(records, 50)
        with (
            pytest.warns(recordio.TornRecordWarning, match="torn record at byte 40"),
            recordio.MXRecordIO(records, "a") as writer,
        ):
            writer.write(b"d")
        reader = recordio.MXRecordIO(records, "r")
        assert [reader.read() for _ in range(4)] == [b"a" * 10, b"b" * 10, b"d", None]

    def test_append_makes_missing_files(self, tmp_path):
        index, records = str(tmp_path / "a.idx"), str(tmp_path / "a.rec")
        for key in range(3):
            with recordio.MXIndexedRecordIO(index, records, "a") as writer:
                writer.write_idx(key, b"x" * key)
        assert recordio.MXIndexedRecordIO(index, records, "r").read_idx(2) == b"xx"

    def test_zeros_of_a_power_cut_are_a_torn_tail(self, made):
        _, records = made([b"a" * 10])
        with open(records, "ab") as file:
            file.write(bytes(5000))
        with pytest.warns(recordio.TornRecordWarning, match="at byte 20"):
            recordio.MXRecordIO(records, "a").close()
        assert os.path.getsize(records) == 20

    def test_damage_in_the_middle_is_no_torn_tail(self, made):
        index, records = made([b"a" * 10, b"b" * 10, b"c" * 10])
        with open(records, "r+b") as file:
            file.seek(20)
            file.write(b"damage!")
        before = Path(records).read_bytes()
        with pytest.raises(FormatError, match=r"magic number .* at byte 20"):
            recordio.MXRecordIO(records, "a")
        with open(index, "w") as file:
            file.write("0\t0\n")
        with pytest.raises(FormatError, match=r"magic number .* at byte 20"):
            recordio.MXIndexedRecordIO(index, records, "a")
        assert Path(records).read_bytes() == before

    def test_torn_line_of_the_index(self, made):
        index, records = made([b"a" * 10, b"b" * 10, b"c" * 10])
        lines = Path(index).read_bytes()
        for size in range(len(lines) - 3, len(lines)):
            with open(index, "wb") as file:
                file.write(lines[:size])
            if size == len(lines) - 1:  # only the line's end is missing
                with recordio.MXIndexedRecordIO(index, records, "a") as writer:
                    assert writer.keys == [0, 1, 2]
                assert Path(index).read_bytes() == lines
            else:
                with pytest.raises(
                    FormatError, match="1 records without one from byte 40 on; make it"
                ):
                    recordio.MXIndexedRecordIO(index, records, "a")

    def test_index_missing(self, made):
        index, records = made(PAYLOADS)
        os.unlink(index)
        with pytest.raises(FormatError, match="mixflow rec2idx"):
            recordio.MXIndexedRecordIO(index, records, "a")
        with pytest.raises(FileNotFoundError):
            recordio.MXIndexedRecordIO(index, records, "r")

    def test_killed_writer_can_be_continued(self, tmp_path):
        index, records = str(tmp_path / "a.idx"), str(tmp_path / "a.rec")
        program = (
            "import mixflow as mx, sys\n"
            f"w = mx.recordio.MXIndexedRecordIO({index!r}, {records!r}, 'w')\n"
            "for i in range(10**9):\n"
            "    w.write_idx(i, b'%09d' % i * (i % 300))\n"
            "    if i == 3000: print('go', flush=True)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout.readline() == "go\n"
            child.send_signal(signal.SIGKILL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", recordio.TornRecordWarning)
            writer = recordio.MXIndexedRecordIO(index, records, "a")
        count = len(writer.keys)
        assert count > 2000
        assert writer.keys == list(range(count))
        writer.write_idx(count, b"last")
        writer.close()
        file = recordio.RecordFile(records)
        assert len(file) == count + 1
        assert all(file[i] == b"%09d" % i * (i % 300) for i in range(count))

    def test_full_disk(self):
        writer = recordio.MXRecordIO("/dev/full", "w")
        writer.write(b"x" * 100)
        with pytest.raises(FileError, match="to write 108 bytes to /dev/full, got: No space"):
            writer.flush()
        with pytest.raises(FileError):
            writer.close()

    def test_failed_write_leaves_both_files_as_before(self, made, monkeypatch):
        index, records = made([b"a" * 10])
        writer = recordio.MXIndexedRecordIO(index, records, "a")
        writer.write_idx(1, b"b" * 10)
        real, calls = os.write, []

        def fail_on_second(handle, content):
            calls.append(handle)
            if len(calls) == 2:
                real(handle, content[:5])
                raise OSError(28, "No space left on device")
            return real(handle, content)

        monkeypatch.setattr(os, "write", fail_on_second)
        with pytest.raises(FileError, match="No space left"):
            writer.flush()
        assert os.path.getsize(records) == 20
        assert recordio.read_index(index)[0] == [0]
        monkeypatch.undo()
        writer.close()
        assert recordio.MXIndexedRecordIO(index, records, "r").read_idx(1) == b"b" * 10


class TestProcesses:
    def test_pickled_reader_opens_again(self, made):
        index, records = made(PAYLOADS)
        reader = recordio.MXRecordIO(records, "r")
        reader.read()
        again = pickle.loads(pickle.dumps(reader))
        assert again.read() == PAYLOADS[0]
        assert reader.read() == PAYLOADS[1]
        indexed = pickle.loads(pickle.dumps(recordio.MXIndexedRecordIO(index, records, "r")))
        assert indexed.read_idx(4) == PAYLOADS[4]
        reader.close()
        assert not pickle.loads(pickle.dumps(reader)).is_open

    def test_writer_is_not_pickled(self, tmp_path):
        with (
            recordio.MXRecordIO(str(tmp_path / "a.rec"), "w") as writer,
            pytest.raises(MixflowError, match="expected a reader to be pickled"),
        ):
            pickle.dumps(writer)

    def test_readers_and_writers_after_fork(self, made, tmp_path):
        index, records = made(PAYLOADS)
        reader = recordio.MXIndexedRecordIO(index, records, "r")
        writer = recordio.MXRecordIO(str(tmp_path / "w.rec"), "w")
        writer.write(b"parent")

        def work() -> int:
            good = reader.read_idx(5) == PAYLOADS[5] and reader.read() is None
            try:
                writer.write(b"child")
            except MixflowError as error:
                good = good and "open a file of its own in each process" in str(error)
                writer.close()
                return 0 if good else 2
            return 3

        assert run_child(work) == 0
        writer.close()
        copy = recordio.MXRecordIO(str(tmp_path / "w.rec"), "r")
        assert [copy.read(), copy.read()] == [b"parent", None]


class TestHeaders:
    def test_number_as_label(self):
        packed = recordio.pack(recordio.IRHeader(3, 7, 5, 6), b"abc")
        assert packed == struct.pack("<IfQQ", 0, 7, 5, 6) + b"abc"
        header, content = recordio.unpack(packed)
        assert header == (0, 7.0, 5, 6)
        assert content == b"abc"
        assert repr(header) == "HEADER(flag=0, label=7.0, id=5, id2=6)"
        assert recordio.pack((0, np.float32(7), 5, 6), b"abc") == packed

    @pytest.mark.parametrize(
        "label", [[1, 2.5], (1, 2.5), np.array([1, 2.5]), np.array([[1], [2.5]])]
    )
    def test_array_as_label(self, label):
        packed = recordio.pack(recordio.IRHeader(0, label, 5, 6), b"abc")
        assert packed == struct.pack("<IfQQ2f", 2, 0, 5, 6, 1, 2.5) + b"abc"
        header, content = recordio.unpack(packed)
        assert header.flag == 2
        assert header.label.dtype == np.float32
        assert header.label.tolist() == [1, 2.5]
        assert content == b"abc"

    def test_views_stay_views(self):
        header, content = recordio.unpack(memoryview(recordio.pack((0, [1], 2, 3), b"abc")))
        assert isinstance(content, memoryview)
        assert content == b"abc"
        assert header.label.tolist() == [1]

    def test_bad_headers(self):
        with pytest.raises(FormatError, match="expected at least 24 bytes of header, got 3"):
            recordio.unpack(b"abc")
        with pytest.raises(FormatError, match="expected 9 labels of 4 bytes, got 3 bytes"):
            recordio.unpack(struct.pack("<IfQQ", 9, 0, 0, 0) + b"abc")
        for header in ((0, "x", 1, 2), (0, 1, -1, 0), (0, 1, 2), (0, 1, 2, 1 << 64)):
            with pytest.raises(ParamError, match=r"expected a header \(flag, label, id, id2\)"):
                recordio.pack(header, b"")
        with pytest.raises(ParamError, match="and str"):
            recordio.pack((0, 1, 2, 3), "text")


class TestImages:
    @pytest.fixture
    def image(self):
        pytest.importorskip("cv2")
        return np.random.default_rng(4).integers(0, 256, (10, 12, 3), np.uint8)

    def test_png_is_exact(self, image):
        packed = recordio.pack_img((0, 1.5, 2, 0), image, quality=3, img_fmt=".png")
        header, found = recordio.unpack_img(packed)
        assert header.label == 1.5
        assert (found == image).all()
        assert recordio.unpack_img(packed, iscolor=0)[1].shape == (10, 12)

    def test_jpeg_quality(self, image):
        image = np.tile(np.arange(64, dtype=np.uint8)[:, None, None], (1, 64, 3)) + image[0, 0]
        high, low = (recordio.pack_img((0, 1, 2, 0), image, quality=q) for q in (95, 10))
        assert len(low) < len(high)
        assert abs(recordio.unpack_img(high)[1].astype(int) - image).mean() < 2

    def test_what_is_no_image(self, image):
        assert recordio.unpack_img(recordio.pack((0, 1, 2, 0), b"no image"))[1] is None
        assert recordio.unpack_img(recordio.pack((0, 1, 2, 0), b""))[1] is None
        with pytest.raises(ParamError, match="expected an image and an encoding"):
            recordio.pack_img((0, 1, 2, 0), image, img_fmt=".nothing")
        with pytest.raises(ParamError, match="expected an image and an encoding"):
            recordio.pack_img((0, 1, 2, 0), "path")


class TestRebuild:
    def test_equal_to_the_written_index(self, made):
        index, records = made(PAYLOADS * 20)
        before = Path(index).read_text()
        os.unlink(index)
        found = recordio.rebuild_index(records, index)
        assert found == (120, os.path.getsize(records), ())
        assert Path(index).read_text() == before

    def test_ids_as_keys(self, made):
        index, records = made([recordio.pack((0, [1, 2], 10 * i, 0), MAGIC * 3) for i in range(5)])
        recordio.rebuild_index(records, index, keys="id")
        assert recordio.read_index(index)[0] == [0, 10, 20, 30, 40]
        with pytest.raises(ParamError, match="keys to be one of 'number', 'id', got"):
            recordio.rebuild_index(records, index, keys="x")
        _, other = made([recordio.pack((0, 1, 5, 0), b"")] * 2, "twice")
        with pytest.raises(FormatError, match="different id"):
            recordio.rebuild_index(other, index, keys="id")
        _, other = made([b"abc"], "plain")
        with pytest.raises(FormatError, match="expected an image header in the record at byte 0"):
            recordio.rebuild_index(other, index, keys="id")

    def test_torn_tail_is_a_problem_but_no_error(self, made):
        index, records = made([b"a" * 10] * 4)
        os.truncate(records, 70)
        found = recordio.rebuild_index(records, index)
        assert found.records == 3
        assert found.end == 60
        assert "whole record at byte 60" in found.problems[0]

    def test_damage_can_be_skipped(self, made):
        index, records = made([b"%d" % i * 10 for i in range(9)])
        before = Path(index).read_text()
        with open(records, "r+b") as file:
            file.seek(40)
            file.write(b"damage!!")
        with pytest.raises(FormatError, match="at byte 40"):
            recordio.rebuild_index(records, index)
        assert Path(index).read_text() == before
        found = recordio.rebuild_index(records, index, skip_damaged=True)
        assert found.records == 8
        assert len(found.problems) == 1
        file = recordio.RecordFile(records, index)
        assert [bytes(v[:1]) for v in file] == [b"%d" % i for i in (0, 1, 3, 4, 5, 6, 7, 8)]

    def test_command(self, made, capsys):
        from mixflow import cli

        index, records = made(PAYLOADS)
        before = Path(index).read_text()
        os.unlink(index)
        assert cli.main(["rec2idx", records, index]) == 0
        assert Path(index).read_text() == before
        assert "6 records" in capsys.readouterr().out
        assert cli.main(["rec2idx", records + "none", index]) == 1


def test_module_is_part_of_the_package():
    assert mx.recordio is recordio
