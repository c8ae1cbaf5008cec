"""What goes wrong around data, and what is said: one file twice, races, forks, ends, empty sets."""

import json
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from forks import run_child

import mixflow as mx
from mixflow import cli, config, datasets, im2rec, recordio
from mixflow.errors import (
    FileError,
    FormatError,
    MissingFileError,
    MixflowError,
    ParamError,
    ShapeError,
)
from mixflow.io import Ahead
from mixflow.pipeline import Job, Workers

cv2 = pytest.importorskip("cv2")
SHAPE = (3, 8, 8)


def write(folder: Path, count: int = 10) -> str:
    """A record file of pictures 10 x 10 with labels 0, 1, ..."""
    path = str(folder / "a.rec")
    rng = np.random.default_rng(0)
    with recordio.MXIndexedRecordIO(path[:-3] + "idx", path, "w") as file:
        for i in range(count):
            image = rng.integers(0, 256, (10, 10, 3), np.uint8)
            file.write_idx(i, recordio.pack_img((0, float(i), i, 0), image, 95))
    return path


class TestRecords:
    def test_an_index_cannot_overwrite_its_records(self, tmp_path, capsys):
        path = write(tmp_path)
        before = Path(path).read_bytes()
        os.symlink(path, tmp_path / "soft")
        os.link(path, tmp_path / "hard")
        for index in (path, str(tmp_path / "soft"), str(tmp_path / "hard")):
            assert cli.main(["rec2idx", path, index]) == 1
            assert "index that is another file than the records" in capsys.readouterr().err
            with pytest.raises(ParamError, match="the records would be lost"):
                recordio.MXIndexedRecordIO(index, path, "w")
        assert Path(path).read_bytes() == before

    def test_one_appender_at_a_time(self, tmp_path):
        path = write(tmp_path)
        index = path[:-3] + "idx"
        first = recordio.MXIndexedRecordIO(index, path, "a")
        with pytest.raises(FileError, match="without another writer, got one that has it open"):
            recordio.MXIndexedRecordIO(index, path, "a")
        first.write_idx(10, b"more")
        first.close()
        with recordio.MXIndexedRecordIO(index, path, "a") as second:
            second.write_idx(11, b"and more")
        reader = recordio.MXIndexedRecordIO(index, path, "r")
        assert (reader.read_idx(10), reader.read_idx(11)) == (b"more", b"and more")

    def test_threads_share_a_writer(self, tmp_path):
        path, index = str(tmp_path / "t.rec"), str(tmp_path / "t.idx")
        with recordio.MXIndexedRecordIO(index, path, "w") as file:

            def add(worker):
                for i in range(200):
                    key = worker * 1000 + i
                    file.write_idx(key, str(key).encode() * (1 + i % 700))

            threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        reader = recordio.MXIndexedRecordIO(index, path, "r")
        assert len(reader.keys) == 800
        for key in reader.keys:
            assert reader.read_idx(key) == str(key).encode() * (1 + key % 1000 % 700)

    def test_a_key_twice_warns_and_the_last_is_found(self, tmp_path):
        path, index = str(tmp_path / "t.rec"), str(tmp_path / "t.idx")
        with recordio.MXIndexedRecordIO(index, path, "w") as file:
            file.write_idx(1, b"a")
            with pytest.warns(recordio.DuplicateKeyWarning, match="expected a new key"):
                file.write_idx(1, b"b")
        reader = recordio.MXIndexedRecordIO(index, path, "r")
        assert reader.keys == [1, 1] and reader.read_idx(1) == b"b"  # as in MXNet

    def test_other_files_have_no_index(self, tmp_path, capsys):
        (tmp_path / "x.txt").write_text("no records in here, only text\n")
        for arguments in ([], ["--skip-damaged"]):
            index = tmp_path / "x.idx"
            assert cli.main(["rec2idx", str(tmp_path / "x.txt"), str(index), *arguments]) == 1
            assert "mixflow: [" in capsys.readouterr().err
            assert not index.exists()

    @pytest.mark.parametrize(
        "label", [None, [None], ["1.5"], "7", [[1], [2, 3]], np.ma.array([1, 2], mask=[0, 1])]
    )
    def test_labels_that_are_no_numbers(self, label):
        with pytest.raises(ParamError, match=r"expected a header \(flag, label, id, id2\)"):
            recordio.pack((0, label, 1, 0), b"")

    @pytest.mark.parametrize("line", ["1_2\t0", "1\t1_0", "\u0661\t0", "1\tnan", "1"])
    def test_numbers_of_an_index_are_plain(self, tmp_path, line):
        (tmp_path / "a.idx").write_text(line + "\n", encoding="utf-8")
        with pytest.raises(FormatError, match="a key, a tab and a position in line 1"):
            recordio.read_index(tmp_path / "a.idx")

    def test_a_missing_file_is_both(self, tmp_path):
        for kind in (MissingFileError, MixflowError, FileNotFoundError):
            with pytest.raises(kind, match="expected to read"):
                recordio.MXRecordIO(str(tmp_path / "none.rec"), "r")


class TestIm2rec:
    def image(self, path):
        cv2.imwrite(str(path), np.full((9, 12, 3), 80, np.uint8))

    def test_names_that_a_list_cannot_hold(self, tmp_path, capsys):
        root = tmp_path / "root"
        root.mkdir()
        for name in ("a.png", "b\tc.png", "d\ne.png"):
            self.image(root / "x.png")
            os.rename(root / "x.png", root / name)
        prefix = str(tmp_path / "set")
        for _ in range(2):  # the second run finds the list
            assert cli.main(["im2rec", prefix, str(root), "--pass-through", "--quiet"]) == 0
            assert "1 records" in capsys.readouterr().out
            rows = Path(prefix + ".bad.tsv").read_text().splitlines()
            assert [row.split("\t")[:2] for row in rows] == [["0", "b\\tc.png"], ["0", "d\\ne.png"]]
        assert cli.main(["im2rec", prefix, str(root), "--list"]) == 0
        assert "2 names that a list cannot hold" in capsys.readouterr().out

    def test_pipes_and_devices_are_bad_images(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.png")
        self.image(tmp_path / "a.png")
        lines = "1\t0\tpipe.png\n2\t0\t/dev/zero\n3\t0\ta.png\n"
        (tmp_path / "l.lst").write_text(lines)
        made = im2rec.convert_list(tmp_path / "l.lst", tmp_path)
        assert (made.records, made.skipped) == (1, 2)
        assert Path(made.bad).read_text().count("expected a regular file") == 2
        with pytest.raises(FormatError, match="expected a regular file"):
            mx.image.imread(str(tmp_path / "pipe.png"))

    def test_nothing_made_is_a_failure(self, tmp_path, capsys):
        (tmp_path / "l.lst").write_text("")
        assert cli.main(["im2rec", str(tmp_path / "l"), str(tmp_path), "--quiet"]) == 1
        assert "at least one image that can be read, got an empty list" in capsys.readouterr().err

    def test_too_large_a_size_is_a_bad_image(self, tmp_path, capsys):
        self.image(tmp_path / "a.png")
        (tmp_path / "l.lst").write_text("1\t0\ta.png\n")
        start = ["im2rec", str(tmp_path / "l"), str(tmp_path), "--quiet"]
        assert cli.main([*start, "--resize", "99999"]) == 1
        row = (tmp_path / "l.bad.tsv").read_text()
        assert row.startswith("1\ta.png\t[im2rec] expected at most") and "pixels" in row

    def test_threads_by_the_core_or_as_given(self, tmp_path):
        self.image(tmp_path / "a.png")
        (tmp_path / "l.lst").write_text("1\t0\ta.png\n")
        assert im2rec.convert_list(tmp_path / "l.lst", tmp_path, num_thread=0).records == 1
        with pytest.raises(ParamError, match="num_thread to be a whole number from 0 to 1024"):
            im2rec.convert_list(tmp_path / "l.lst", tmp_path, num_thread=10**9)

    def test_an_id_twice_warns(self, tmp_path):
        self.image(tmp_path / "a.png")
        (tmp_path / "l.lst").write_text("1\t0\ta.png\n1\t0\ta.png\n")
        with pytest.warns(recordio.DuplicateKeyWarning, match="1 that stand several times, 1 for"):
            assert im2rec.convert_list(tmp_path / "l.lst", tmp_path).records == 2
        with pytest.warns(recordio.DuplicateKeyWarning, match="the last line of a key counts"):
            mx.image.ImageIter(
                1, SHAPE, path_imglist=str(tmp_path / "l.lst"), path_root=str(tmp_path)
            )

    def test_one_run_at_a_time(self, tmp_path):
        self.image(tmp_path / "a.png")
        (tmp_path / "l.lst").write_text("1\t0\ta.png\n")
        from mixflow.files import held

        with (
            held(tmp_path / "l.lst", "x"),
            pytest.raises(FileError, match="one that another works with; wait"),
        ):
            im2rec.convert_list(tmp_path / "l.lst", tmp_path)
        assert im2rec.convert_list(tmp_path / "l.lst", tmp_path).records == 1


class TestRecordIterators:
    def make(self, tmp_path, **options):
        options = {"batch_size": 3, "preprocess_threads": 1, "data_shape": SHAPE, **options}
        return mx.io.ImageRecordIter(path_imgrec=write(tmp_path), **options)

    def test_threads_share_an_iterator(self, tmp_path):
        it = self.make(tmp_path, batch_size=1, prefetch_buffer=2)
        found, lock = [], threading.Lock()

        def take():
            for batch in it:
                with lock:
                    found.append(int(batch.label[0].asscalar()))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(found) == list(range(10))
        it.close()

    def test_close_ends_a_next_of_another_thread(self, tmp_path):
        it = self.make(tmp_path)
        go, errors = threading.Event(), []
        slow = it._filler.fill
        it.reset()
        it.next()
        it._filler.fill = lambda *arguments: (go.wait(30), slow(*arguments))
        it._loader._go_to(0, 0, 0)

        def take():
            try:
                it.next()
            except MixflowError as error:
                errors.append(str(error))

        thread = threading.Thread(target=take)
        thread.start()
        threading.Timer(0.1, go.set).start()
        it.close()
        thread.join(30)
        assert errors and "expected an open iterator, got one after close" in errors[0]

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_goes_on_with_threads_of_its_own(self, tmp_path):
        it = self.make(tmp_path, shuffle=True, seed=3)
        whole = [batch.label[0].asnumpy().tolist() for batch in it]
        it.load_state_dict({**it.state_dict(), "epoch": 0, "carried": 0, "batch": 0})
        it.next()

        def work():
            rest = [batch.label[0].asnumpy().tolist() for batch in it]
            return 0 if rest == whole[1:] else 2

        assert run_child(work) == 0
        it.close()

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_fork_does_not_wait_for_threads_of_its_parent(self):
        workers, go = Workers(1, "pipe"), threading.Event()
        workers.submit(job := Job("batch 1", 1, lambda part: go.wait(60)))

        def work():
            try:
                workers.wait(job)
            except MixflowError as error:
                return 0 if "which has none of its threads" in str(error) else 2
            return 3

        assert run_child(work) == 0
        go.set()
        workers.close()

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_fork_of_what_is_read_ahead(self):
        ahead = Ahead(iter(range(100)), 2)
        next(ahead)

        def work():
            try:
                next(ahead)
            except MixflowError as error:
                ahead.close()
                return 0 if "which has none of its threads; call reset" in str(error) else 2
            return 3

        assert run_child(work) == 0
        ahead.close()

    @pytest.mark.parametrize(
        "change",
        [
            {"batch": 5},
            {"carried": 3},
            {"epoch": 1 << 62},
            {"batch": 1.5},
            {"batch": True},
            {"carried": "1"},
            {"carried": 1},
            {"epoch": -1},
        ],
    )
    def test_places_that_no_epoch_has(self, tmp_path, change):
        with self.make(tmp_path) as it, pytest.raises(FormatError, match="expected a "):
            it.load_state_dict({**it.state_dict(), **change})

    def test_every_place_of_a_run_is_taken_back(self, tmp_path):
        with self.make(tmp_path) as it:
            for _ in range(3):
                for _ in it:
                    it.load_state_dict(json.loads(json.dumps(it.state_dict())))
                it.reset()

    def test_batches_beyond_the_memory_are_refused_at_once(self, tmp_path):
        with pytest.raises(ParamError, match=r"batches under way of at most \d+ bytes"):
            self.make(tmp_path, batch_size=10**9)
        with pytest.raises(ParamError, match=r"a batch of at most \d+ bytes"):
            mx.io.NDArrayIter(np.zeros((4, 100)), batch_size=10**9)
        (tmp_path / "a.csv").write_text("1,2\n")
        with pytest.raises(ParamError, match=r"a batch of at most \d+ bytes"):
            mx.io.CSVIter(str(tmp_path / "a.csv"), (2,), 10**12)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("label_width", 0),
            ("batch_size", 1.5),
            ("mean_r", float("nan")),
            ("std_r", float("inf")),
            ("resize", -2),
            ("pad", -1),
            ("scale", "x"),
            ("shuffle", 2),
            ("deadline", float("nan")),
            ("seed", None),
            ("fill_value", 256),
        ],
    )
    def test_arguments_are_named(self, tmp_path, name, value):
        with pytest.raises(ParamError, match=f"expected {name} to be "):
            self.make(tmp_path, **{name: value})

    def test_texts_stand_for_values_as_in_mxnet(self, tmp_path):
        with self.make(tmp_path, data_shape="(3, 8, 8)", batch_size="3", shuffle="False") as it:
            assert it.next().data[0].shape == (3, *SHAPE)

    def test_more_parts_than_records(self, tmp_path):
        with pytest.raises(ParamError, match="expected at least one sample, got none in part 0"):
            self.make(tmp_path, num_parts=11)


class TestWrappers:
    def arrays(self, count, batch=2):
        return mx.io.NDArrayIter(np.arange(count, dtype=np.float32), batch_size=batch)

    @pytest.mark.parametrize("counts", [(4, 6), (4, 3), (3, 6)])
    def test_joined_iterators_must_match(self, counts):
        it = mx.io.PrefetchingIter([self.arrays(n) for n in counts])
        with pytest.raises(ShapeError, match="same number of batches and the same padding"):
            list(it)
        it.close()

    def test_joined_iterators_have_one_batch_size(self):
        with pytest.raises(ParamError, match=r"iterators of one batch size, got \[2, 3\]"):
            mx.io.PrefetchingIter([self.arrays(6), self.arrays(6, 3)])
        with pytest.raises(ParamError, match="an iterator or a list of some, got 5"):
            mx.io.PrefetchingIter(5)
        with pytest.raises(ParamError, match="a dict of names for each of 1 iterators"):
            mx.io.PrefetchingIter(self.arrays(6), rename_data=[{}, {}])

    @pytest.mark.parametrize("size", [-1, 2.5, 0, None, "x"])
    def test_sizes_of_epochs(self, size):
        with pytest.raises(ParamError, match="size to be a whole number of at least 1"):
            mx.io.ResizeIter(self.arrays(4), size)

    def test_an_iterator_without_batches_is_not_repeated(self):
        class Empty(mx.io.DataIter):
            provide_data = provide_label = ()

            def next(self):
                raise StopIteration

        with pytest.raises(MixflowError, match="without any after its reset"):
            mx.io.ResizeIter(Empty(1), 3).next()


class TestImages:
    @pytest.mark.parametrize(
        ("make", "name"),
        [
            (lambda: mx.image.BrightnessJitterAug(float("nan")), "brightness"),
            (lambda: mx.image.ColorNormalizeAug([1, 2, 3], [1, 0, 1]), "std"),
            (lambda: mx.image.ResizeAug(5, 99), "interp"),
            (lambda: mx.image.CenterCropAug((5, 0)), "size"),
            (lambda: mx.image.CreateAugmenter(SHAPE, resize=-1), "resize"),
            (lambda: mx.image.CreateAugmenter(SHAPE, inter_method=99), "inter_method"),
            (lambda: mx.image.HorizontalFlipAug(2), "p"),
            (lambda: mx.image.SequentialAug([1]), "ts"),
            (lambda: mx.image.RandomSizedCropAug((2, 2), (0.5, 0.2), (1, 1)), "area"),
            (lambda: mx.image.det.DetRandomPadAug(pad_val="x"), "pad_val"),
        ],
    )
    def test_augmenters(self, make, name):
        with pytest.raises(ParamError, match=f"expected {name} to be "):
            make()

    def test_nothing_to_iterate_over(self, tmp_path):
        with pytest.raises(ParamError, match="expected at least one sample, got none"):
            mx.image.ImageIter(1, SHAPE, imglist=[])
        (tmp_path / "e.lst").write_text("\n")
        with pytest.raises(ParamError, match="expected at least one sample, got none"):
            mx.image.ImageIter(1, SHAPE, path_imglist=str(tmp_path / "e.lst"))
        recordio.MXRecordIO(str(tmp_path / "e.rec"), "w").close()
        with pytest.raises(ParamError, match="expected at least one record in"):
            mx.image.ImageIter(1, SHAPE, path_imgrec=str(tmp_path / "e.rec"))
        with pytest.raises(ParamError, match="got none in part 2 of 4"):
            names = [[0, "a"], [0, "b"]]
            mx.image.ImageIter(1, SHAPE, imglist=names, num_parts=4, part_index=2)

    def test_other_kinds_of_images(self, tmp_path):
        """16 bits, grey with alpha, one pixel: a batch of the right shape or an error of ours."""
        path = str(tmp_path / "k.rec")
        images = [
            np.full((12, 12), 40000, np.uint16),
            np.full((12, 12, 4), 200, np.uint8),
            np.full((1, 1, 3), 3, np.uint8),
            np.full((1, 300), 7, np.uint8),
        ]
        with recordio.MXRecordIO(path, "w") as file:
            for i, image in enumerate(images):
                file.write(recordio.pack_img((0, i, i, 0), image, 3, ".png"))
        with mx.io.ImageRecordIter(path_imgrec=path, data_shape=SHAPE, batch_size=1) as it:
            assert [batch.data[0].shape for batch in it] == [(1, *SHAPE)] * 4


def test_headers_of_sets_are_checked_before_anything_is_read(tmp_path):
    huge = tmp_path / "train-images-idx3-ubyte"
    with open(huge, "wb") as file:
        file.write(b"\0\0\x08\x03" + b"\x7f\xff\xff\xff" * 3)
        file.truncate(1 << 40)  # no byte of it is on the disk
    with pytest.raises(FormatError, match="expected"):
        mx.io.read_idx(huge)
    with open(huge, "r+b") as file:
        file.write(b"\0\0\x08\x01" + ((1 << 32) - 1).to_bytes(4, "big"))
    with (
        config.override(memory_limit="1 GiB"),
        pytest.raises(ParamError, match="does not fit into memory"),
    ):
        mx.io.read_idx(huge)
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").touch()
    with open(tmp_path / "test_batch.bin", "wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "data_batch_1.bin").write_bytes(b"")
    with open(tmp_path / "data_batch_1.bin", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="at most 100000 images"):
        datasets.cifar10(tmp_path)


class TestSettings:
    @pytest.mark.parametrize(
        ("text", "nbytes"),
        [
            ("2GiB", 2 << 30),
            ("1.5G", 3 << 29),
            ("2 GB", 2 << 30),
            ("500m", 500 << 20),
            (7, 7),
            (2e9, 2 * 10**9),
            (" 10 kib ", 10240),
        ],
    )
    def test_bytes(self, text, nbytes):
        assert config.as_bytes(text) == nbytes

    @pytest.mark.parametrize("text", ["", "G", "2X", "-1", "1.5", "nan", None, "1e3", "2 G B"])
    def test_no_bytes(self, text):
        with pytest.raises(ValueError, match="not a"):
            config.as_bytes(text)

    def test_names_of_other_libraries(self):
        with pytest.raises(ParamError, match="got 'lr'; did you mean learning_rate"):
            mx.optimizer.create("sgd", lr=1)
        with pytest.raises(ParamError, match="did you mean wd"):
            mx.optimizer.create("adam", weight_decay=1)

    def test_limit_and_precision_in_class_and_bind(self):
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4)
        shapes = [("data", (2, 3))]
        module = mx.mod.Module(net, label_names=None, memory_limit="1.5 GiB")
        module.bind(shapes)
        assert module._group.memory_limit == "1.5 GiB"
        module.bind(shapes, force_rebind=True, memory_limit="1G", precision="float32")
        assert (module._group.memory_limit, module._group.precision) == ("1G", "float32")
        with pytest.raises(ParamError, match="expected a memory_limit in bytes"):
            mx.mod.Module(net, label_names=None, memory_limit="much").bind(shapes)

    def test_the_precision_that_is_used_is_told(self, monkeypatch):
        from mixflow import executor

        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4)
        run = net.simple_bind(mx.cpu(), data=(2, 3), precision="float16")
        monkeypatch.setattr(executor, "served", lambda name, backend: None)
        assert run.precision == "float32"
        monkeypatch.setattr(executor, "served", lambda name, backend: (frozenset(), None))
        assert run.precision == "float16"


def test_no_warning_without_a_reason(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(tmp_path)
