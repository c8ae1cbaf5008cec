"""Iterators over text files, MNIST's files, arrays and datasets; threads that read ahead.

Values of batches are those of MXNet 1.9.1 for the same files.
"""

import gc
import gzip
import struct
import threading
import time

import numpy as np
import pytest
from forks import run_child

import mixflow as mx
from mixflow import io
from mixflow.errors import (
    DTypeError,
    FormatError,
    MixflowError,
    ParamError,
    ShapeError,
    UnknownNameError,
)
from mixflow.io import text

CSV = "".join(f"{i},{i + 0.5}\n" for i in range(7))
SVM = "1 0:0.5 2:1.2\n-2 \n3 0:0.6 1:2.4 2:1.2\n4.5 2:-1.2\n0\n"


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def epoch(iterator):
    """(first column of the data, labels, pad) of each batch."""
    found = []
    for batch in iterator:
        data = batch.data[0].asnumpy()
        column = data.reshape(len(data), -1)[:, 0].tolist()
        found.append((column, batch.label[0].asnumpy().tolist(), batch.pad))
    iterator.reset()
    return found


def fetchers():
    return [t for t in threading.enumerate() if t.name in ("PrefetchingIter", "CSVIter", "ahead")]


def wait_for_no_thread():
    gc.collect()  # an error that surfaced holds its reader in a cycle of references
    deadline = time.monotonic() + 60
    while fetchers() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not fetchers()


class TestCSV:
    def test_round_batch_goes_on_in_the_next_epoch(self, tmp_path):
        labels = write(tmp_path, "l.csv", "".join(f"{i * 10}\n" for i in range(7)))
        it = io.CSVIter(
            data_csv=write(tmp_path, "a.csv", CSV), data_shape=(2,), label_csv=labels, batch_size=3
        )
        assert it.provide_data[0] == ("data", (3, 2))
        assert it.provide_label[0] == ("softmax_label", (3,))
        assert epoch(it) == [
            ([0, 1, 2], [0, 10, 20], 0),
            ([3, 4, 5], [30, 40, 50], 0),
            ([6, 0, 1], [60, 0, 10], 2),
        ]
        assert epoch(it) == [([2, 3, 4], [20, 30, 40], 0), ([5, 6, 0], [50, 60, 0], 1)]
        assert epoch(it) == [([1, 2, 3], [10, 20, 30], 0), ([4, 5, 6], [40, 50, 60], 0)]
        assert epoch(it)[0] == ([0, 1, 2], [0, 10, 20], 0)

    def test_without_round_batch_old_rows_stay(self, tmp_path):
        path = write(tmp_path, "a.csv", CSV)
        it = io.CSVIter(path, (2,), 3, round_batch=False)
        for _ in range(2):
            assert epoch(it)[-1] == ([6, 4, 5], [0, 0, 0], 2)
        it = io.CSVIter(path, (2,), 9, round_batch=False)
        assert epoch(it) == [([0, 1, 2, 3, 4, 5, 6, 0, 0], [0] * 9, 2)]

    def test_batches_above_the_file(self, tmp_path):
        it = io.CSVIter(write(tmp_path, "a.csv", CSV), (2,), 9)
        assert epoch(it)[0][::2] == ([0, 1, 2, 3, 4, 5, 6, 0, 1], 2)
        assert epoch(it)[0][::2] == ([2, 3, 4, 5, 6, 0, 1, 2, 3], 4)
        it = io.CSVIter(write(tmp_path, "b.csv", "5,0\n6,0\n"), (2,), 5)
        assert epoch(it)[0][::2] == ([5, 6, 5, 6, 5], 3)

    def test_reset_in_mid_epoch_begins_anew(self, tmp_path):
        it = io.CSVIter(write(tmp_path, "a.csv", CSV), (2,), 3)
        it.next()
        it.reset()
        assert it.next().index.tolist() == [0, 1, 2]
        for _ in it:
            pass
        with pytest.raises(StopIteration):
            it.next()

    def test_shapes_and_dtypes(self, tmp_path):
        path = write(tmp_path, "a.csv", "1,2,3,4\n5,6,7,8\n")
        it = io.CSVIter(path, (2, 2), 2, label_csv=path, label_shape=(4,), data_name="x")
        batch = it.next()
        assert batch.data[0].asnumpy().tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
        assert batch.label[0].shape == (2, 4)
        assert it.provide_data[0] == ("x", (2, 2, 2))
        big = write(tmp_path, "b.csv", "1,-2\n3,9007199254740993\n")
        it = io.CSVIter(big, (2,), 2, dtype="int64")
        assert it.next().data[0].asnumpy().tolist() == [[1, -2], [3, 9007199254740993]]
        with pytest.raises(FormatError, match="of type int32 in line 2"):
            io.CSVIter(big, (2,), 2, dtype="int32")

    @pytest.mark.parametrize(
        "content",
        [
            "1, 2\n 3 ,4\n\t5,6\n",
            "1,2\r\n3,4\r\n5,6\r\n",
            "1,2\n3,4\n5,6",
            "1,2\n\n3,4\n\n\n5,6\n",
            "1,2,\n3,4,\n5,6,\n",
            "1,2\r3,4\r5,6\r",
            "\ufeff1,2\n3,4\n5,6\n",
            "+1,2e0\n3.0,4.\n5,.6e1\n",
        ],
    )
    def test_forms_that_mxnet_reads(self, tmp_path, content):
        it = io.CSVIter(write(tmp_path, "a.csv", content), (2,), 3)
        assert it.next().data[0].asnumpy().tolist() == [[1, 2], [3, 4], [5, 6]]

    def test_infinity_and_nan(self, tmp_path):
        it = io.CSVIter(write(tmp_path, "a.csv", "nan,inf\n-INF,1e39\n1e-50,0\n"), (2,), 3)
        found = it.next().data[0].asnumpy()
        np.testing.assert_array_equal(found, [[np.nan, np.inf], [-np.inf, np.inf], [0, 0]])

    @pytest.mark.parametrize(
        "content, match",
        [
            ("1,2\n3\n", r"expected 2 numbers .* in line 2 of .*, got 1"),
            ("1,2\n3,4,5\n", r"expected 2 numbers .* in line 2 of .*, got 3"),
            ("1,2\n\n3,x\n", r"expected a number in line 3 of .*, got 'x'"),
            ("1;2\n", r"expected 2 numbers"),
            ("1,\n", r"expected 2 numbers"),
            ("0x1,2\n", r"expected a number in line 1"),
            ("1_0,2\n", r"expected a number in line 1 of .*, got '1_0'"),
            ("\u0661,2\n", r"expected a number in line 1"),
            (b"\xff\xfe,2\n", r"expected a number in line 1"),
            ("1 2,3\n", r"expected a number in line 1"),
            ("", r"expected at least one row in .*, got none"),
            ("\n\n", r"expected at least one row"),
        ],
    )
    def test_bad_lines(self, tmp_path, content, match):
        with pytest.raises(FormatError, match=match):
            io.CSVIter(write(tmp_path, "a.csv", content), (2,), 2)

    def test_mistakes(self, tmp_path):
        path = write(tmp_path, "a.csv", CSV)
        with pytest.raises(ParamError, match="float32, int32, int64, got float64"):
            io.CSVIter(path, (2,), 2, dtype="float64")
        with pytest.raises(ParamError, match=r"batch_size to be a whole number .*got 0"):
            io.CSVIter(path, (2,), 0)
        with pytest.raises(ParamError, match="data_shape to be a whole number"):
            io.CSVIter(path, (0,), 2)
        with pytest.raises(UnknownNameError, match="expected a known name, got 'data_shap'"):
            io.CSVIter(path, (2,), 2, data_shap=3)
        with pytest.raises(FileNotFoundError):
            io.CSVIter(path + "none", (2,), 2)
        fewer = io.CSVIter(path, (2,), 3, label_csv=write(tmp_path, "l.csv", "1\n2\n3\n4\n"))
        fewer.next()
        with pytest.raises(FormatError, match="expected a label for each row, got 4"):
            fewer.next()

    def test_plain_decimals_are_rounded_as_python_rounds(self):
        rng = np.random.default_rng(0)
        fields = [f"{v:.{i % 14}f}"[:15] for i, v in enumerate(rng.normal(size=4000))]
        fields += [str(v) for v in rng.integers(-(10**13), 10**14, 4000)]
        fields += ["-0", "0.", ".5", "-.5", "999999999999999", "0.0000000000001", "00012"]
        raw = np.frombuffer("\n".join(fields).encode() + b"\n", np.uint8)
        ends = np.flatnonzero(raw == 10)
        starts = np.concatenate([[0], ends[:-1] + 1])
        found = text._decimals(raw, starts, ends - starts)
        wanted = np.array([float(field) for field in fields])
        assert found.tobytes() == wanted.tobytes()  # also the sign of zero
        for odd in (
            "1e5",
            "+1",
            "1-",
            "--1",
            "1.2.3",
            "-",
            ".",
            "-.",
            "",
            "nan",
            "1234567890123456",
        ):
            raw = np.frombuffer(f"12,{odd}\n".encode(), np.uint8)
            assert text._decimals(raw, np.array([0, 3]), np.array([2, len(odd)])) is None

    def test_many_blocks(self, tmp_path, monkeypatch):
        monkeypatch.setattr(text, "BLOCK_BYTES", 1000)
        lines = [f"{i},{i / 7!r}" for i in range(3000)]
        for ending in ("\n", "\r\n", "\r"):
            path = write(tmp_path, "a.csv", ending.join(lines))
            for ahead, keep in ((0, 0), (3, 0), (3, 1 << 20)):
                monkeypatch.setattr(text, "KEEP_BYTES", keep)
                it = io.CSVIter(path, (2,), 700, prefetch_buffer=ahead, round_batch=False)
                for _ in range(2):
                    batches = [b.data[0].asnumpy()[: 700 - b.pad] for b in it]
                    found = np.concatenate(batches)
                    assert found[:, 0].tolist() == list(range(3000))
                    np.testing.assert_array_equal(found[:, 1], np.float32(np.arange(3000) / 7))
                    it.reset()
                it.close()
        with pytest.raises(FormatError, match=r"a number in line 2990 of .*, got 'x'"):
            lines[2989] = "2,x"
            list(io.CSVIter(write(tmp_path, "a.csv", "\n".join(lines)), (2,), 700))
        assert wait_for_no_thread()

    def test_early_break_leaves_no_thread(self, tmp_path, monkeypatch):
        monkeypatch.setattr(text, "BLOCK_BYTES", 1000)
        path = write(tmp_path, "a.csv", CSV * 1000)
        it = io.CSVIter(path, (2,), 50, prefetch_buffer=2)
        for _ in it:
            break
        assert fetchers()
        it.reset()
        for _ in it:
            break
        assert len(fetchers()) == 1
        del it
        gc.collect()
        assert wait_for_no_thread()
        it = io.CSVIter(path, (2,), 50, prefetch_buffer=2)
        it.close()
        assert not fetchers()
        assert it.next().index[0] == 0


class TestLibSVM:
    def test_batches_are_sparse(self, tmp_path):
        it = io.LibSVMIter(data_libsvm=write(tmp_path, "a.svm", SVM), data_shape=(3,), batch_size=2)
        assert it.provide_data[0] == ("data", (2, 3))
        assert it.provide_label[0] == ("softmax_label", (2,))
        batch = it.next()
        data = batch.data[0]
        assert (data.stype, data.shape, data.dtype) == ("csr", (2, 3), np.float32)
        assert data.data.asnumpy().tolist() == [0.5, np.float32(1.2)]
        assert data.indices.asnumpy().tolist() == [0, 2]
        assert data.indptr.asnumpy().tolist() == [0, 2, 2]
        assert batch.label[0].asnumpy().tolist() == [1, -2]
        it.reset()
        assert [b[1:] for b in epoch(it)] == [([1, -2], 0), ([3, 4.5], 0), ([0, 1], 1)]
        assert [b[1:] for b in epoch(it)] == [([-2, 3], 0), ([4.5, 0], 0)]

    def test_labels_from_a_file(self, tmp_path):
        data = write(tmp_path, "a.svm", SVM)
        labels = write(tmp_path, "l.svm", "1 0:1 2:3\n1 1:5\n1 \n1 0:7\n1 2:9\n")
        it = io.LibSVMIter(data, (3,), 2, label_libsvm=labels, label_shape=(3,))
        assert it.provide_label[0] == ("softmax_label", (2, 3))
        found = [b.label[0].asnumpy().tolist() for b in it]
        assert found == [[[1, 0, 3], [0, 5, 0]], [[0, 0, 0], [7, 0, 0]], [[0, 0, 9], [1, 0, 3]]]

    def test_parts_are_cut_by_bytes_as_in_mxnet(self, tmp_path):
        path = write(tmp_path, "a.svm", SVM)
        found = [
            [b[1][0] for b in epoch(io.LibSVMIter(path, (3,), 1, num_parts=2, part_index=i))]
            for i in range(2)
        ]
        assert found == [[1, -2, 3], [4.5, 0]]
        labels = write(tmp_path, "l.svm", "".join(f"0 {i % 3}:{i}\n" for i in range(5)))
        it = io.LibSVMIter(
            path, (3,), 1, label_libsvm=labels, label_shape=(3,), num_parts=2, part_index=1
        )
        assert [int(b.label[0].asnumpy().sum()) for b in it] == [3, 4]

    @pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
    @pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n"])
    def test_parts_hold_each_line_once(self, tmp_path, parts, ending):
        lines = [f"{i} {i % 5}:{i}" + " 3:1" * (i % 4) for i in range(60)]
        path = write(tmp_path, "a.svm", ending.join(lines) + ending)
        found = []
        for part in range(parts):
            table = text.Table("LibSVMIter", path, text.sparse_parser(5), part, parts)
            for rows in table.blocks():
                found += rows.labels.tolist()
        assert found == list(range(60))

    @pytest.mark.parametrize(
        "content",
        [
            "1 0:1 # c 1:2\n# all\n2 1:3\n",
            "1 qid:3 0:1\n2 qid:4 1:3\n",
            "1:0.5 0:1\n2:3 1:3\n",
            "1 0:1\r\n2 1:3\r\n",
            "  1  0:1  \n\t2\t1:3\n",
            "1 0:1\n\n2 1:3\n\n",
            "1 0:1\n2 1:3",
            "1 0 : 1\n2 1: 3\n",
            "+1 0:+1\n2e0 1:3.0\n",
        ],
    )
    def test_forms_that_mxnet_reads(self, tmp_path, content):
        batch = io.LibSVMIter(write(tmp_path, "a.svm", content), (3,), 2).next()
        assert batch.data[0].asnumpy().tolist() == [[1, 0, 0], [0, 3, 0]]
        assert batch.label[0].asnumpy().tolist() == [1, 2]

    def test_order_and_repeats_are_kept(self, tmp_path):
        data = io.LibSVMIter(write(tmp_path, "a.svm", "1 2:1 0:5 0:6\n"), (3,), 1).next().data[0]
        assert data.indices.asnumpy().tolist() == [2, 0, 0]
        assert data.data.asnumpy().tolist() == [1, 5, 6]

    @pytest.mark.parametrize(
        "content, match",
        [
            ("1 0:1\n2 3:1\n", r"an index from 0 to 2 .* in line 2 of .*, got '3:1'"),
            ("1 -1:1\n", "an index from 0 to 2"),
            ("x 0:1\n", "expected a label in line 1"),
            ("1 0 2\n", "expected index:value in line 1"),
            ("1 0:x\n", "expected index:value in line 1"),
            ("1 0:1:2\n", "expected index:value"),
            ("1 1.5:2\n", "expected index:value"),
            ("1,2 0:1\n", "expected a label"),
            ("\x0b\n", "expected at least one row"),
            ("", "expected at least one row"),
            ("# nothing\n", "expected at least one row"),
        ],
    )
    def test_bad_lines(self, tmp_path, content, match):
        with pytest.raises(FormatError, match=match):
            io.LibSVMIter(write(tmp_path, "a.svm", content), (3,), 1)

    def test_mistakes(self, tmp_path):
        path = write(tmp_path, "a.svm", SVM)
        with pytest.raises(ParamError, match="expected round_batch=True"):
            io.LibSVMIter(path, (3,), 2, round_batch=False)
        with pytest.raises(ParamError, match="label_shape of more than one column"):
            io.LibSVMIter(path, (3,), 2, label_libsvm=path)
        with pytest.raises(ParamError, match="label_shape of more than one column"):
            io.LibSVMIter(path, (3,), 2, label_shape=(3,))
        with pytest.raises(ParamError, match="part_index from 0 to num_parts - 1, got 2 of 2"):
            io.LibSVMIter(path, (3,), 2, num_parts=2, part_index=2)
        with pytest.raises(ParamError, match="one size in data_shape"):
            io.LibSVMIter(path, (3, 1), 2)
        with pytest.raises(ParamError, match="the dtype float32, got int32"):
            io.LibSVMIter(path, (3,), 2, dtype="int32")
        with pytest.raises(UnknownNameError, match="num_part"):
            io.LibSVMIter(path, (3,), 2, num_part=2)

    def test_module_trains_on_them(self, tmp_path):
        rng = np.random.default_rng(0)
        rows = []
        for _ in range(64):
            columns = np.sort(rng.choice(10, 3, replace=False))
            rows.append(f"{int(columns[0] < 2)} " + " ".join(f"{c}:1" for c in columns))
        it = io.LibSVMIter(write(tmp_path, "a.svm", "\n".join(rows)), (10,), 16)
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2)
        module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
        mx.random.seed(0)
        module.fit(it, num_epoch=20, optimizer_params={"learning_rate": 1.0})
        assert dict(module.score(it, "acc"))["accuracy"] > 0.9


class TestCSR:
    def test_rows(self):
        dense = np.array([[0, 1, 0], [2, 0, 3], [0, 0, 0]])
        made = mx.nd.sparse.csr_matrix(dense)
        assert isinstance(made, mx.nd.sparse.CSRNDArray)
        assert (made.shape, made.ndim, made.size, len(made)) == ((3, 3), 2, 9, 3)
        assert (made.asnumpy() == dense).all()
        assert (made[1].asnumpy() == dense[1:2]).all()
        assert (made[-2:].asnumpy() == dense[-2:]).all()
        assert (made.take_rows(np.array([2, 1, 1])).asnumpy() == dense[[2, 1, 1]]).all()
        assert made.tostype("default").stype == "default"
        assert made.tostype("csr") is made
        assert (made.asscipy().toarray() == dense).all()
        assert (mx.nd.sparse.csr_matrix(made.asscipy()).asnumpy() == dense).all()
        assert (np.asarray(mx.nd.sparse.csr_matrix(made)) == dense).all()
        assert "CSRNDArray 3x3 @cpu(0)" in repr(made)
        assert mx.nd.sparse.csr_matrix(([1.5], [4], [0, 0, 1])).shape == (2, 5)

    def test_mistakes(self):
        make = mx.nd.sparse.csr_matrix
        with pytest.raises(ShapeError, match="as many data as indices"):
            make(([1, 2], [0], [0, 1]), shape=(1, 2))
        with pytest.raises(ShapeError, match="row starts that rise"):
            make(([1], [0], [0, 2]), shape=(1, 2))
        with pytest.raises(ShapeError, match="columns from 0 to 1, got 5 to 5"):
            make(([1], [5], [0, 1]), shape=(1, 2))
        with pytest.raises(ShapeError, match="expected a matrix"):
            make([1, 2])
        with pytest.raises(DTypeError, match="'default' or 'csr'"):
            make([[1]]).tostype("row_sparse")
        with pytest.raises(IndexError, match="a row or a slice"):
            make([[1]])["x"]


class TestMNIST:
    @pytest.fixture
    def files(self, tmp_path):
        def make(count, shape=(3, 4), labels=None):
            pixels = np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)
            image = struct.pack(">IIII", 2051, count, *shape) + pixels.tobytes()
            labels = np.arange(count, dtype=np.uint8) if labels is None else labels
            label = struct.pack(">II", 2049, len(labels)) + labels.tobytes()
            return write(tmp_path, "i", image), write(tmp_path, "l", gzip.compress(label)), pixels

        return make

    @pytest.mark.parametrize(
        "seed, order",
        [
            (0, [0, 2, 3, 5, 9, 1, 6, 8, 4, 7]),
            (1, [6, 9, 7, 2, 4, 1, 5, 3, 8, 0]),
            (2, [3, 0, 1, 7, 9, 2, 6, 5, 4, 8]),
            (7, [2, 4, 5, 3, 8, 7, 6, 1, 0, 9]),
        ],
    )
    def test_order_is_that_of_mxnet(self, files, seed, order):
        image, label, pixels = files(10)
        it = io.MNISTIter(image=image, label=label, batch_size=5, seed=seed, silent=True)
        for _ in range(2):
            batches = list(it)
            assert np.concatenate([b.label[0].asnumpy() for b in batches]).tolist() == order
            data = np.concatenate([b.data[0].asnumpy() for b in batches])
            assert (data[:, 0] * 256 == pixels[order]).all()
            it.reset()

    def test_order_of_a_large_set(self):
        order = io.mersenne_order(70000, 3)
        assert order[:6].tolist() == [27548, 48776, 47402, 59264, 12094, 24025]
        assert (np.sort(order) == np.arange(70000)).all()
        assert io.mersenne_order(1, 0).tolist() == [0]

    def test_parts_and_forms(self, files):
        image, label, _ = files(10)
        it = io.MNISTIter(image, label, 1, False, num_parts=3, part_index=2)
        assert [int(b.label[0].asscalar()) for b in it] == [6, 7, 8, 9]
        it = io.MNISTIter(image, label, 3, seed=5, num_parts=3, part_index=1)
        assert it.next().label[0].asnumpy().tolist() == [5, 3, 4]
        it = io.MNISTIter(image, label, 4, False, flat=True)
        assert it.provide_data[0] == ("data", (4, 12))
        assert [b.pad for b in it] == [0, 0]

    def test_mistakes(self, files):
        image, label, _ = files(10)
        with pytest.raises(ShapeError, match="at least one batch of 11, got 10 images"):
            io.MNISTIter(image, label, 11)
        with pytest.raises(ParamError, match="the dtype float32"):
            io.MNISTIter(image, label, 2, dtype="uint8")
        with pytest.raises(ParamError, match="part_index below num_parts"):
            io.MNISTIter(image, label, 2, num_parts=2, part_index=2)
        with pytest.raises(UnknownNameError, match="shufle"):
            io.MNISTIter(image, label, 2, shufle=True)
        with pytest.raises(ShapeError, match="expected an input_shape"):
            io.MNISTIter(image, label, 2, input_shape=(5,))
        image, label, _ = files(10, labels=np.zeros(9, np.uint8))
        with pytest.raises(ShapeError, match="one label per image"):
            io.MNISTIter(image, label, 2)

    def test_a_header_that_lies_allocates_nothing(self, tmp_path):
        head = b"\x00\x00\x08\x04" + struct.pack(">4I", *[2**32 - 1] * 4)
        for content in (head, gzip.compress(head)):
            with pytest.raises(FormatError, match=r"expected .* bytes for"):
                io.read_idx(write(tmp_path, "x", content))
        empty = b"\x00\x00\x08\x04" + struct.pack(">4I", 0, *[2**32 - 1] * 3)
        with pytest.raises(FormatError, match="expected the shape of an array"):
            io.read_idx(write(tmp_path, "x", empty))
        longer = b"\x00\x00\x08\x01" + struct.pack(">I", 2) + b"abc"
        with pytest.raises(FormatError, match="got more than 2"):
            io.read_idx(write(tmp_path, "x", longer))
        with pytest.raises(FormatError, match="expected a whole gzip file"):
            io.read_idx(write(tmp_path, "x", gzip.compress(longer[:-1])[:-9]))


class Dataset:
    """Slices like h5py: rising numbers, each once; counts what was read."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.read = array, array.shape, array.dtype, 0

    def __getitem__(self, key):
        if isinstance(key, np.ndarray) and (np.diff(key) <= 0).any():
            raise TypeError("Indexing elements must be in increasing order")
        found = self.array[key]
        self.read += len(found)
        return found


class TestArrays:
    @pytest.mark.parametrize("handle", ["pad", "discard", "roll_over"])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_dataset_gives_the_batches_of_its_array(self, handle, shuffle):
        array = np.random.default_rng(0).integers(0, 200, (10, 3), np.uint8)
        batches = []
        for source in (array, Dataset(array)):
            mx.random.seed(5)
            it = io.NDArrayIter(source, np.arange(10), 4, shuffle=shuffle, last_batch_handle=handle)
            found = []
            for _ in range(3):
                for batch in it:
                    found.append(
                        (batch.data[0].asnumpy().tolist(), batch.label[0].asnumpy().tolist())
                    )
                it.reset()
            batches.append(found)
        assert batches[0] == batches[1]

    def test_a_dataset_is_read_by_batches(self):
        source = Dataset(np.zeros((1000, 2), np.float32))
        it = io.NDArrayIter({"x": source}, batch_size=10)
        it.next()
        assert source.read == 10
        assert it.provide_data[0] == ("x", (10, 2))

    def test_sparse_sources(self):
        scipy_sparse = pytest.importorskip("scipy.sparse")
        dense = np.arange(20).reshape(5, 4)
        for source in (mx.nd.sparse.csr_matrix(dense), scipy_sparse.csr_matrix(dense)):
            it = io.NDArrayIter(source, np.arange(5), 2, last_batch_handle="discard")
            assert [b.data[0].asnumpy().tolist() for b in it] == [
                dense[:2].tolist(),
                dense[2:4].tolist(),
            ]
            it = io.NDArrayIter(source, np.arange(5), 2)
            last = list(it)[-1]
            assert last.data[0].stype == "csr"
            assert last.data[0].asnumpy().tolist() == dense[[4, 0]].tolist()
            assert last.pad == 1

    def test_dtypes_are_those_of_mxnet(self):
        it = io.NDArrayIter(
            {"b": np.arange(6, dtype=np.uint8), "a": mx.nd.arange(6, dtype="int32")}, np.ones(6), 3
        )
        assert [(d.name, d.dtype) for d in it.provide_data] == [("a", np.int32), ("b", np.float32)]
        assert [d.dtype for d in it.next().data] == [np.int32, np.float32]
        assert it.num_source == 3

    def test_samples_along_the_layout(self):
        it = io.NDArrayIter(np.arange(24.0).reshape(3, 4, 2), batch_size=2, layout="TNC")
        assert it.provide_data[0].shape == (3, 2, 2)
        assert it.num_data == 4
        assert it.next().data[0].asnumpy()[0].tolist() == [[0, 1], [2, 3]]

    def test_what_is_no_array(self):
        with pytest.raises(DTypeError, match="expected numbers for 'data'"):
            io.NDArrayIter({"data": ["a", "b"]})
        with pytest.raises(DTypeError, match="an array of numbers for 'data'"):
            io.NDArrayIter(np.array(["a", "b"]))


class Slow(io.DataIter):
    """Three batches; `step` is called before each."""

    provide_data = provide_label = ()

    def __init__(self, step=lambda n: None):
        super().__init__(1)
        self.step, self.at = step, 0

    def reset(self):
        self.at = 0

    def next(self):
        self.at += 1
        self.step(self.at)
        if self.at > 3:
            raise StopIteration
        return io.DataBatch([mx.nd.full((1,), self.at)], [])


class TestAhead:
    def test_error_comes_at_its_batch_and_stays(self):
        def fail(n):
            if n == 3:
                raise OSError("disk gone")

        it = io.PrefetchingIter(Slow(fail))
        assert [int(it.next().data[0].asscalar()) for _ in range(2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(OSError, match="disk gone"):
                it.next()
        it.iters[0].step = lambda n: None
        it.reset()
        assert len(list(it)) == 3
        assert wait_for_no_thread()

    def test_reset_in_mid_epoch(self):
        it = io.PrefetchingIter(Slow())
        for _ in range(5):
            assert int(it.next().data[0].asscalar()) == 1
            it.reset()
            assert len(fetchers()) <= 1
        assert len(list(it)) == 3
        it.close()
        assert not fetchers()

    def test_early_break_and_collection(self):
        it = io.PrefetchingIter(Slow())
        for _ in it:
            break
        del it
        gc.collect()
        assert wait_for_no_thread()

    def test_collection_after_an_epoch_and_a_reset(self):
        before = len(fetchers())
        it = io.PrefetchingIter(io.NDArrayIter(np.arange(60.0), np.arange(60.0), 3))
        assert len(list(it)) == 20
        it.reset()
        assert len(fetchers()) == before + 1
        del it
        gc.collect()
        assert wait_for_no_thread()

    def test_getters(self):
        it = io.PrefetchingIter(io.NDArrayIter(np.arange(6.0), np.arange(6.0), 4))
        with pytest.raises(MixflowError, match="expected a current batch"):
            it.getdata()
        assert it.iter_next()
        assert it.getdata()[0].shape == it.getlabel()[0].shape == (4,)
        assert it.iter_next()
        assert it.getpad() == 2
        assert it.getindex().tolist() == [4, 5, 0, 1]
        assert not it.iter_next()

    def test_a_fork_says_that_the_thread_is_gone(self):
        hold = threading.Event()
        it = io.Ahead(iter(hold.wait, None), 1, "ahead")

        def work() -> int:
            try:
                next(it)
            except MixflowError:
                return 0
            return 2

        assert run_child(work) == 0
        hold.set()
        it.close()
        assert wait_for_no_thread()

    def test_close_has_a_deadline(self, monkeypatch):
        monkeypatch.setattr(io.ahead, "CLOSE_SECONDS", 0.05)
        hold = threading.Event()
        it = io.Ahead(iter(hold.wait, None), 1, "ahead")
        with pytest.raises(MixflowError, match="expected the thread to end within"):
            it.close()
        hold.set()
        assert wait_for_no_thread()

    def test_no_more_than_depth_items_wait(self):
        made = []

        def items():
            for i in range(100):
                made.append(i)
                yield i

        it = io.Ahead(items(), 3, "ahead")
        assert next(it) == 0
        deadline = time.monotonic() + 30
        while len(made) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert len(made) == 5  # one taken, three waiting, one in the thread's hand
        assert list(it) == list(range(1, 100))

    def test_resize_restarts_and_counts(self):
        inner = io.NDArrayIter(np.arange(10.0), batch_size=4)
        it = io.ResizeIter(inner, 5)
        for _ in range(2):
            assert [b.data[0].asnumpy()[0] for b in it] == [0, 4, 8, 0, 4]
            it.reset()
        it = io.ResizeIter(io.PrefetchingIter(inner), 4, reset_internal=False)
        assert len(list(it)) == 4
        it.data_iter.close()
