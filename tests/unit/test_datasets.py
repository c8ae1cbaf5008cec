"""Image sets: folders, archives, checksums of downloads."""

import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np
import pytest

from mixflow import datasets
from mixflow.errors import FormatError, MixflowError


@pytest.fixture
def cifar(tmp_path):
    """Small files in CIFAR-10's binary form, and their records."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "cifar"
    folder.mkdir()
    records = {}
    for number, name in enumerate(
        [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]
    ):
        part = rng.integers(0, 256, (2 + number, 3073), np.uint8)
        part[:, 0] %= 10
        (folder / name).write_bytes(part.tobytes())
        records[name] = part
    return folder, records


def check(found, records):
    train = np.concatenate([records[f"data_batch_{n}.bin"] for n in range(1, 6)])
    assert found.train_labels.tolist() == train[:, 0].tolist()
    assert found.test_labels.tolist() == records["test_batch.bin"][:, 0].tolist()
    assert found.train_images.shape == (len(train), 3, 32, 32)
    np.testing.assert_allclose(found.train_images.reshape(len(train), -1) * 255, train[:, 1:], 1e-6)
    assert found.classes[9] == "truck"


def pack(folder, target):
    with tarfile.open(target, "w:gz") as archive:
        for path in folder.iterdir():
            archive.add(path, f"cifar-10-batches-bin/{path.name}")


class TestCifar:
    def test_folder(self, cifar):
        folder, records = cifar
        check(datasets.cifar10(folder), records)
        check(datasets.load(str(folder)), records)

    def test_folder_below(self, cifar):
        folder, records = cifar
        folder.rename(folder.parent / "cifar-10-batches-bin")
        check(datasets.cifar10(folder.parent), records)

    def test_archive(self, cifar, tmp_path):
        folder, records = cifar
        (tmp_path / "packed").mkdir()
        pack(folder, tmp_path / "packed" / "cifar-10-binary.tar.gz")
        check(datasets.load(str(tmp_path / "packed")), records)
        assert len(list((tmp_path / "packed").iterdir())) == 1

    def test_damage(self, cifar, tmp_path):
        folder, _ = cifar
        (folder / "test_batch.bin").write_bytes(bytes(3000))
        with pytest.raises(FormatError, match="expected whole records of 3073 bytes"):
            datasets.cifar10(folder)
        (folder / "test_batch.bin").write_bytes(b"\x0b" + bytes(3072))
        with pytest.raises(FormatError, match=r"classes from 0 to 9 in .*, got 11"):
            datasets.cifar10(folder)
        (folder / "test_batch.bin").unlink()
        with pytest.raises(FormatError, match="got neither"):
            datasets.cifar10(folder)
        target = tmp_path / "cifar-10-binary.tar.gz"
        pack(folder, target)
        with pytest.raises(FormatError, match=r"expected test_batch.bin in"):
            datasets.cifar10(tmp_path)
        target.write_bytes(target.read_bytes()[:-500])
        with pytest.raises(FormatError, match="expected a whole archive"):
            datasets.cifar10(tmp_path)

    def test_an_archive_that_would_fill_memory(self, tmp_path, monkeypatch):
        monkeypatch.setattr(datasets, "_CIFAR_MOST_RECORDS", 2)
        with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
            member = tarfile.TarInfo("x/test_batch.bin")
            member.size = 3 * 3073
            archive.addfile(member, io.BytesIO(bytes(member.size)))
        with pytest.raises(FormatError, match="expected at most 2 images"):
            datasets.cifar10(tmp_path)


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


class TestDownload:
    @pytest.fixture
    def server(self, tmp_path, monkeypatch):
        """MNIST's four files below a file:// address, and a cache that is empty."""
        folder = tmp_path / "server"
        folder.mkdir()
        files = {}
        for name in datasets._MNIST.files:
            shape = (4, 28, 28) if "images" in name else (4,)
            content = gzip.compress(idx(np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)))
            (folder / name).write_bytes(content)
            files[name] = hashlib.md5(content).hexdigest()
        source = datasets._MNIST._replace(url=folder.as_uri() + "/", files=files, places=())
        monkeypatch.setattr(datasets, "_MNIST", source)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return folder

    def test_once(self, server, tmp_path):
        found = datasets.mnist()
        assert found.name == "mnist"
        assert found.train_images.shape == (4, 1, 28, 28)
        assert found.test_labels.tolist() == [0, 1, 2, 3]
        for path in server.iterdir():
            path.unlink()
        assert datasets.load("mnist").train_labels.tolist() == [0, 1, 2, 3]

    def test_another_content_is_not_kept(self, server, tmp_path):
        (server / "t10k-labels-idx1-ubyte.gz").write_bytes(b"something else")
        with pytest.raises(FormatError, match=r"expected the checksum .* of .*t10k-labels"):
            datasets.mnist()
        kept = [p.name for p in (tmp_path / "cache" / "mixflow" / "mnist").iterdir()]
        assert "t10k-labels-idx1-ubyte.gz" not in kept
        assert len(kept) == 3

    def test_no_network(self, server):
        for path in server.iterdir():
            path.unlink()
        with pytest.raises(
            MixflowError, match="expected MNIST on this machine, got none and no download"
        ):
            datasets.mnist()

    def test_local_folder_and_system_package(self, server, monkeypatch):
        assert datasets.mnist(server).test_images.shape == (4, 1, 28, 28)
        monkeypatch.setattr(
            datasets,
            "_FASHION",
            datasets._MNIST._replace(places=(str(server),), url="file:///none/"),
        )
        assert datasets.fashion_mnist().name == "fashion-mnist"
