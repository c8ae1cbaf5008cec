"""`mixflow im2rec`: lists, options, threads, bad images, kills."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mixflow import cli, config, im2rec, recordio
from mixflow.errors import FormatError, ParamError
from mixflow.im2rec import convert

cv2 = pytest.importorskip("cv2")


@pytest.fixture
def folder(tmp_path):
    """12 images in three folders, of several sizes and kinds."""
    rng = np.random.default_rng(0)
    root = tmp_path / "images"
    for number in range(12):
        place = root / f"class{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        shape = (20 + number, 31 - number, 3) if number % 4 else (24, 24)
        ending = "png" if number % 2 else "jpg"
        cv2.imwrite(str(place / f"{number:02}.{ending}"), rng.integers(0, 256, shape, np.uint8))
    (root / "class1" / "notes.txt").write_text("no image")
    return root


def records_of(result):
    reader = recordio.MXIndexedRecordIO(result.idx, result.rec, "r")
    return {key: recordio.unpack(reader.read_idx(key)) for key in reader.keys}


def contents(stem):
    return [Path(f"{stem}.{kind}").read_bytes() for kind in ("rec", "idx")]


class TestLists:
    def test_recursive_list_is_that_of_mxnet(self, folder, tmp_path):
        made = im2rec.make_list(tmp_path / "a", folder, recursive=True)
        assert made.images == 12
        assert made.labels == {"class0": 0, "class1": 1, "class2": 2}
        paths = sorted(str(p.relative_to(folder)) for p in folder.rglob("*.[jp]*g"))
        wanted = [(i, path, int(path[5])) for i, path in enumerate(paths)]
        random.seed(100)
        random.shuffle(wanted)
        lines = [f"{i}\t{label:f}\t{path}\n" for i, path, label in wanted]
        assert Path(made.files[0]).read_text() == "".join(lines)

    def test_one_folder_without_shuffle(self, folder, tmp_path):
        made = im2rec.make_list(tmp_path / "a", folder / "class1", shuffle=False)
        items = list(im2rec.read_list(made.files[0]))
        assert [i.path for i in items] == ["01.png", "04.jpg", "07.png", "10.jpg"]
        assert [i.id for i in items] == [0, 1, 2, 3]
        assert {i.labels for i in items} == {(0.0,)}
        assert im2rec.find_images(folder / "class1", exts=[".png"])[0][1].path == "07.png"

    def test_split_and_chunks(self, folder, tmp_path):
        made = im2rec.make_list(
            tmp_path / "a", folder, True, train_ratio=0.5, test_ratio=0.25, chunks=2, seed=3
        )
        names = [os.path.basename(path) for path in made.files]
        assert names == [f"a_{n}_{part}.lst" for n in (0, 1) for part in ("train", "test", "val")]
        parts = [list(im2rec.read_list(path)) for path in made.files]
        assert [len(p) for p in parts] == [3, 1, 2] * 2
        assert sorted(i.id for p in parts for i in p) == list(range(12))
        again = im2rec.make_list(tmp_path / "b", folder, True, seed=3)
        assert list(im2rec.read_list(again.files[0]))[:1] == parts[1]

    def test_a_link_back_is_not_followed(self, folder, tmp_path):
        (folder / "class0" / "loop").symlink_to(folder)
        (tmp_path / "more").mkdir()
        cv2.imwrite(str(tmp_path / "more" / "x.png"), np.zeros((3, 3), np.uint8))
        (folder / "linked").symlink_to(tmp_path / "more")
        items, labels = im2rec.find_images(folder, recursive=True)
        assert len(items) == 13
        assert labels["linked"] == 3

    def test_errors(self, folder, tmp_path):
        with pytest.raises(ParamError, match=r"expected images .* got none; subfolders need"):
            im2rec.make_list(tmp_path / "a", folder)
        with pytest.raises(ParamError, match="expected a folder of images"):
            im2rec.make_list(tmp_path / "a", tmp_path / "none")
        with pytest.raises(ParamError, match="chunks to be a whole number of at least 1"):
            im2rec.make_list(tmp_path / "a", folder, chunks=0)
        with pytest.raises(ParamError, match="together at most 1"):
            im2rec.make_list(tmp_path / "a", folder, train_ratio=0.8, test_ratio=0.3)
        (folder / "a\tb.png").touch()
        with pytest.raises(ParamError, match="without tab or line end"):
            im2rec.find_images(folder)
        with pytest.raises(FormatError, match=r"expected a list .*got none; make it with --list"):
            im2rec.find_lists(tmp_path / "zzz")


class TestRecords:
    def test_pass_through(self, folder, tmp_path):
        (result,) = im2rec.im2rec(tmp_path / "a", folder, recursive=True, pass_through=True)
        assert (result.records, result.skipped, result.bad, result.resumed) == (12, 0, "", 0)
        found = records_of(result)
        for item in im2rec.read_list(result.list):
            header, content = found[item.id]
            assert content == (folder / item.path).read_bytes()
            assert header == (0, item.labels[0], item.id, 0)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.idx", "a.lst", "a.rec", "images"]

    def test_order_of_the_list_is_kept(self, folder, tmp_path):
        (result,) = im2rec.im2rec(tmp_path / "a", folder, recursive=True)
        keys = recordio.read_index(result.idx)[0]
        assert keys == [item.id for item in im2rec.read_list(result.list)]

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"resize": 16, "center_crop": True, "encoding": ".png", "quality": 3},
            {"resize": 40, "color": 0, "quality": 50},
            {"color": -1, "encoding": ".png"},
        ],
    )
    def test_any_number_of_threads_gives_the_same_bytes(self, folder, tmp_path, options):
        files = []
        for threads in (1, 2, 7):
            stem = tmp_path / f"t{threads}"
            im2rec.im2rec(stem, folder, recursive=True, num_thread=threads, **options)
            files.append(contents(stem))
        assert files[0] == files[1] == files[2]

    def test_pixels(self, folder, tmp_path):
        options = dict(resize=12, center_crop=True, encoding=".png")
        (result,) = im2rec.im2rec(tmp_path / "a", folder, recursive=True, **options)
        found = records_of(result)
        for item in im2rec.read_list(result.list):
            image = cv2.imread(str(folder / item.path), 1)
            height, width = image.shape[:2]
            side = min(height, width)
            top, left = (height - side) // 2, (width - side) // 2
            wanted = cv2.resize(image[top : top + side, left : left + side], (12, 12))
            got = cv2.imdecode(np.frombuffer(found[item.id][1], np.uint8), -1)
            assert (got == wanted).all()

    def test_shorter_side(self, folder, tmp_path):
        (result,) = im2rec.im2rec(tmp_path / "a", folder, recursive=True, resize=10, color=0)
        for item in im2rec.read_list(result.list):
            height, width = cv2.imread(str(folder / item.path)).shape[:2]
            got = recordio.unpack_img(
                recordio.MXIndexedRecordIO(result.idx, result.rec, "r").read_idx(item.id)
            )[1]
            wanted = (height * 10 // width, 10) if height > width else (10, width * 10 // height)
            assert got.shape == wanted

    @pytest.mark.parametrize("pack_label", [False, True])
    def test_several_labels(self, folder, tmp_path, pack_label):
        (tmp_path / "a.lst").write_text("5\t1.5\t2\t-3\tclass0/00.jpg\n9\t4\tclass1/01.png\n")
        (result,) = im2rec.im2rec(tmp_path / "a", folder, pack_label=pack_label)
        found = records_of(result)
        assert found[9][0].label == 4.0
        label = found[5][0].label
        assert list(label) == [1.5, 2, -3] if pack_label else label == 1.5

    def test_bad_images_are_listed_and_skipped(self, folder, tmp_path, monkeypatch):
        (folder / "broken.jpg").write_bytes(b"no jpeg")
        (folder / "empty.png").touch()
        cut = (folder / "class1" / "01.png").read_bytes()[:60]
        (folder / "cut.png").write_bytes(cut)
        lines = ["1\t0\tclass0/00.jpg", "2\t0\tbroken.jpg", "3\t0\tempty.png", "4\t0\tcut.png"]
        lines += [
            "x\t0\tclass0/00.jpg",
            "5\tclass0/00.jpg",
            "6\t0\tnone.jpg",
            "7\t1\tclass1/01.png",
        ]
        lines += ["-8\t0\tclass0/00.jpg", "9\t0\tclass2/08.jpg"]
        (tmp_path / "a.lst").write_text("\n".join(lines) + "\n")
        with config.override(image_pixel_limit=700):
            (result,) = im2rec.im2rec(tmp_path / "a", folder)
        assert (result.records, result.skipped) == (3, 7)
        assert list(records_of(result)) == [1, 7, 9]
        rows = [line.split("\t") for line in Path(result.bad).read_text().splitlines()]
        assert [int(row[0]) for row in rows] == [2, 3, 4, 5, 6, 7, 9]
        reasons = {int(row[0]): row[-1] for row in rows}
        assert rows[0][1] == "broken.jpg"
        assert "image" in reasons[2]
        assert "No such file" in reasons[7]
        assert "expected a number" in reasons[5]
        assert "got 2 fields" in reasons[6]
        assert "expected a header" in reasons[9]
        with config.override(image_pixel_limit=100):
            (result,) = im2rec.im2rec(tmp_path / "a", folder)
        assert result.records == 0
        assert "expected at most 100 pixels" in Path(result.bad).read_text()

    def test_a_table_of_an_earlier_run_goes(self, folder, tmp_path):
        (tmp_path / "a.lst").write_text("1\t0\tnone.jpg\n")
        (result,) = im2rec.im2rec(tmp_path / "a", folder)
        assert Path(result.bad).exists()
        (tmp_path / "a.lst").write_text("1\t0\tclass0/00.jpg\n")
        im2rec.im2rec(tmp_path / "a", folder)
        assert not Path(result.bad).exists()

    def test_errors(self, folder, tmp_path):
        (tmp_path / "a.lst").write_text("1\t0\tclass0/00.jpg\n")
        with pytest.raises(ParamError, match="expected color"):
            im2rec.im2rec(tmp_path / "a", folder, color=2)
        with pytest.raises(ParamError, match="quality to be a whole number from 0 to 100"):
            im2rec.im2rec(tmp_path / "a", folder, quality=101)
        with pytest.raises(ParamError, match="num_thread to be a whole number from 0"):
            im2rec.im2rec(tmp_path / "a", folder, num_thread=-1)

    def test_a_mistake_of_the_program_is_no_bad_image(self, folder, tmp_path, monkeypatch):
        monkeypatch.setattr(convert, "make_record", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            im2rec.im2rec(tmp_path / "a", folder, recursive=True)
        assert not (tmp_path / "a.rec").exists()


class TestResume:
    @pytest.fixture
    def many(self, folder, tmp_path):
        """A list of 120 lines with bad ones among them."""
        paths = sorted(str(p.relative_to(folder)) for p in folder.rglob("*.[jp]*g"))
        lines = [
            f"{i}\t{i % 3}\t{'none.jpg' if i % 17 == 3 else paths[i % 12]}\n" for i in range(120)
        ]
        (tmp_path / "whole.lst").write_text("".join(lines))
        (tmp_path / "cut.lst").write_text("".join(lines))
        (result,) = im2rec.im2rec(tmp_path / "whole", folder, resize=20, num_thread=2)
        assert result.skipped == 7
        return tmp_path

    def interrupted(self, many, folder, monkeypatch, after):
        """Stops a run after so many lines."""
        monkeypatch.setattr(convert, "SAVE_SECONDS", 0.0)
        monkeypatch.setattr(os, "fsync", lambda _: None)

        def stop(done, total, path):
            assert total == 120
            if done == after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            im2rec.im2rec(many / "cut", folder, resize=20, num_thread=3, progress=stop)

    def same(self, many):
        return all(
            (many / f"whole.{kind}").read_bytes() == (many / f"cut.{kind}").read_bytes()
            for kind in ("rec", "idx", "bad.tsv")
        ) and not list(many.glob("*.part")) + list(many.glob("*.json"))

    @pytest.mark.parametrize("after", [1, 60, 120])
    def test_goes_on_after_an_interruption(self, many, folder, monkeypatch, after):
        self.interrupted(many, folder, monkeypatch, after)
        assert not (many / "cut.rec").exists()
        (result,) = im2rec.im2rec(many / "cut", folder, resize=20)
        assert result.resumed == after
        assert self.same(many)

    def test_what_was_torn_after_the_note_is_cut_off(self, many, folder, monkeypatch):
        self.interrupted(many, folder, monkeypatch, 70)
        for kind in ("rec", "idx", "bad.tsv"):
            with open(many / f"cut.{kind}.part", "ab") as file:
                file.write(b"rubbish")
        (result,) = im2rec.im2rec(many / "cut", folder, resize=20)
        assert result.resumed == 70
        assert self.same(many)

    def test_other_options_begin_anew(self, many, folder, monkeypatch):
        self.interrupted(many, folder, monkeypatch, 70)
        (result,) = im2rec.im2rec(many / "cut", folder, resize=21)
        assert result.resumed == 0
        self.interrupted(many, folder, monkeypatch, 70)
        (result,) = im2rec.im2rec(many / "cut", folder, resize=20, resume=False)
        assert result.resumed == 0
        assert self.same(many)

    @pytest.mark.parametrize("harm", ["short", "missing", "no json", "old json"])
    def test_files_that_do_not_fit_begin_anew(self, many, folder, monkeypatch, harm):
        self.interrupted(many, folder, monkeypatch, 70)
        if harm == "short":
            os.truncate(many / "cut.rec.part", 70)
        elif harm == "missing":
            os.unlink(many / "cut.idx.part")
        else:
            (many / "cut.im2rec.json").write_text("{" if harm == "no json" else '{"a": 1}')
        (result,) = im2rec.im2rec(many / "cut", folder, resize=20)
        assert result.resumed == 0
        assert self.same(many)

    def test_stopped_between_the_names(self, many, folder, monkeypatch):
        real, calls = os.replace, []

        def second_fails(source, target):
            if str(source).endswith(".part"):
                calls.append(source)
                if len(calls) == 2:
                    raise KeyboardInterrupt
            return real(source, target)

        monkeypatch.setattr(os, "replace", second_fails)
        with pytest.raises(KeyboardInterrupt):
            im2rec.im2rec(many / "cut", folder, resize=20)
        monkeypatch.undo()
        state = json.loads((many / "cut.im2rec.json").read_text())
        assert state["done"] is True
        (result,) = im2rec.im2rec(many / "cut", folder, resize=20)
        assert (result.resumed, result.records, result.skipped) == (120, 113, 7)
        assert self.same(many)

    def test_goes_on_after_kills(self, many, folder):
        program = (
            "import os\n"
            "from mixflow import im2rec\n"
            "from mixflow.im2rec import convert\n"
            "convert.SAVE_SECONDS = 0.0\n"
            "os.fsync = lambda _: None\n"
            "def tell(done, total, path):\n"
            "    print(done, flush=True)\n"
            f"im2rec.im2rec({str(many / 'cut')!r}, {str(folder)!r}, resize=20, progress=tell)\n"
        )
        for lines in (10, 30):
            with subprocess.Popen(
                [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
            ) as child:
                for _ in range(lines):
                    assert child.stdout.readline()
                child.send_signal(signal.SIGKILL)
        (result,) = im2rec.im2rec(many / "cut", folder, resize=20)
        assert result.resumed >= 30
        assert self.same(many)


class TestCommand:
    def test_list_then_records(self, folder, tmp_path, capsys):
        start = [str(tmp_path / "a"), str(folder)]
        assert cli.main(["im2rec", *start, "--list", "--recursive", "--train-ratio", "0.75"]) == 0
        printed = capsys.readouterr().out
        assert "class1 1" in printed
        assert "12 images in" in printed
        assert cli.main(["im2rec", *start, "--resize", "18", "--num-thread", "2", "--quiet"]) == 0
        printed = capsys.readouterr().out
        assert f"9 records in {tmp_path / 'a_train.rec'}" in printed
        assert f"3 records in {tmp_path / 'a_val.rec'}" in printed
        file = recordio.RecordFile(tmp_path / "a_val.rec", tmp_path / "a_val.idx")
        assert min(recordio.unpack_img(bytes(file[0]))[1].shape[:2]) == 18

    def test_bad_images_are_told(self, folder, tmp_path, capsys):
        (tmp_path / "a.lst").write_text("1\t0\tnone.jpg\n")
        assert cli.main(["im2rec", str(tmp_path / "a"), str(folder), "--pass-through"]) == 1
        printed = capsys.readouterr()
        assert "1 bad images are listed in" in printed.out
        assert "at least one image that can be read, got 1 bad ones; the reasons" in printed.err

    def test_mistakes_are_one_line(self, tmp_path, capsys):
        assert cli.main(["im2rec", str(tmp_path / "a"), str(tmp_path / "none")]) == 1
        assert "mixflow: [im2rec] expected a folder" in capsys.readouterr().err
