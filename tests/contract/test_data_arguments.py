"""Public classes and functions of mx.io, mx.image and mx.recordio with bad values per parameter.

Whatever is passed: an error of ours or success, never one of NumPy, OpenCV or the interpreter.
"""

import inspect
from pathlib import Path

import numpy as np
import pytest

import mixflow as mx
from mixflow import recordio
from mixflow.errors import MixflowError
from mixflow.extras import load

load("cv2", "tests")
pytestmark = pytest.mark.filterwarnings("ignore")
BAD = [
    None,
    -1,
    0,
    1.5,
    float("nan"),
    float("inf"),
    10**30,
    True,
    "",
    "x",
    "a\0b",
    b"x",
    (),
    [],
    [None],
    ("x", "y", "z"),
    (1, 2, 3, 4),
    {},
    object(),
    len,
    np.zeros((2, 2)),
    np.array("text"),
    np.ma.masked,
    np.datetime64("nat"),
    1j,
]
SHAPE = (3, 8, 8)
#: Texts that name nothing, or objects that any value may stand for.
FREE = {("DataBatch", name) for name in ("pad", "index", "bucket_key")}


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """Name of a parameter -> a good value."""
    folder = tmp_path_factory.mktemp("data")
    path, index = str(folder / "a.rec"), str(folder / "a.idx")
    with recordio.MXIndexedRecordIO(index, path, "w") as file:
        for i in range(4):
            label = [2, 5, 0, 0.1, 0.1, 0.9, 0.9]
            image = np.full((10, 10, 3), 40 * i, np.uint8)
            file.write_idx(i, recordio.pack_img((0, label, i, 0), image, 95))
    (folder / "a.csv").write_text("1,2\n3,4\n")
    (folder / "a.svm").write_text("1 0:2\n0 1:3\n")
    pixels = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (4, 2, 2)) + bytes(16)
    (folder / "images").write_bytes(pixels)
    (folder / "labels").write_bytes(b"\0\0\x08\x01" + (4).to_bytes(4, "big") + bytes(4))
    arrays = mx.io.NDArrayIter(np.zeros((4, 3, 8, 8), np.float32), batch_size=2)
    return {
        "path_imgrec": path,
        "path_imgidx": index,
        "data_shape": SHAPE,
        "batch_size": 2,
        "data_csv": str(folder / "a.csv"),
        "data_libsvm": str(folder / "a.svm"),
        "image": str(folder / "images"),
        "label": str(folder / "labels"),
        "data": np.zeros((4, 2)),
        "iters": arrays,
        "data_iter": arrays,
        "size": 2,
        "pixels": 1,
        "name": "data",
        "shape": (2, 3),
        "uri": path,
        "idx_path": index,
        "flag": "r",
        "path": path,
        "index": index,
        "label_width": 7,
    }


CLASSES = [
    *(getattr(mx.io, n) for n in mx.io.__all__ if inspect.isclass(getattr(mx.io, n))),
    *(getattr(mx.image, n) for n in mx.image.__all__ if inspect.isclass(getattr(mx.image, n))),
    recordio.MXRecordIO,
    recordio.MXIndexedRecordIO,
    recordio.RecordFile,
    mx.image.CreateAugmenter,
    mx.image.CreateDetAugmenter,
    mx.image.CreateMultiRandCropAugmenter,
]
#: Bases without arguments of their own, what takes ready-made pieces, what starts processes.
SKIPPED = {"Augmenter", "DetAugmenter", "PictureIter", "Ahead", "PartitionedIter"}
#: Good values that differ from those of the same name elsewhere.
OWN = {
    "NDArrayIter": {"label": np.zeros(4)},
    "CSVIter": {"data_shape": (2,)},
    "LibSVMIter": {"data_shape": (2,)},
    "ImageDetIter": {"label_width": None},
    "SequentialAug": {"ts": []},
    "RandomOrderAug": {"ts": []},
    "ResizeAug": {"size": 4},
    "RandomSizedCropAug": {"area": 0.5, "ratio": (0.5, 1.0)},
    "LightingAug": {"eigval": np.ones(3), "eigvec": np.eye(3), "alphastd": 0.1},
    "ColorNormalizeAug": {"mean": [1, 2, 3], "std": [1, 2, 3]},
    "DetBorrowAug": {"augmenter": mx.image.CastAug()},
    "DetRandomSelectAug": {"aug_list": []},
    "DataBatch": {"data": [], "label": []},
    "RecordFile": {"index": None},
}


def good(made, values):
    own, found = OWN.get(made.__name__, {}), {}
    for name, parameter in inspect.signature(made).parameters.items():
        value = own.get(name, values.get(name))
        wanted = parameter.default is parameter.empty or name.startswith(("data", "path_img"))
        wanted = wanted or name in ("batch_size", "image", "label", "uri", "label_width")
        if parameter.kind is parameter.VAR_KEYWORD or (value is None and name not in own):
            continue
        if wanted and value is not None:
            found[name] = value
    for name in inspect.signature(made).parameters:
        if name not in found and inspect.signature(made).parameters[name].default is inspect._empty:
            found.setdefault(name, (4, 4) if name == "size" else 0.5)
    if made.__name__.endswith("Aug") and "size" in found and made.__name__ != "ResizeAug":
        found["size"] = (4, 4)
    found.pop("kwargs", None), found.pop("augmentation", None), found.pop("unknown", None)
    return found


def names_of(made):
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = [n for n, p in inspect.signature(made).parameters.items() if p.kind not in kinds]
    if made.__name__.startswith("ImageRecord"):
        from mixflow.pipeline import ColourJitter, DefaultRecipe

        found += [*ColourJitter.__dataclass_fields__, *DefaultRecipe.__dataclass_fields__]
        found = [n for n in found if n not in ("height", "width", "colours")]
    if made is mx.io.ImageDetRecordIter:
        from mixflow.pipeline import DetectionRecipe

        found += [n for n in DetectionRecipe.__dataclass_fields__ if n not in ("height", "width")]
        found = [n for n in found if n not in ("samplers", "one_pass")]
        found += ["min_crop_scales", "num_crop_sampler", "max_crop_trials"]
    return found


def finish(thing):
    close = getattr(thing, "close", None)
    if callable(close):
        close()


@pytest.mark.parametrize("made", [c for c in CLASSES if c.__name__ not in SKIPPED], ids=str)
def test_bad_values_give_errors_of_ours(made, values, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # for what is written
    arguments = good(made, values)
    if not made.__name__.endswith("DataIter"):
        finish(made(**arguments))  # the good values are good
    for name in names_of(made):
        for value in BAD:
            try:
                thing = made(**{**arguments, name: value})
            except MixflowError:
                continue
            except Exception as error:
                raise AssertionError(f"{made.__name__}({name}={value!r}): {error!r}") from error
            finish(thing)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (mx.image.imresize, {"w": 4, "h": 4, "interp": 1}),
        (mx.image.resize_short, {"size": 4, "interp": 2}),
        (mx.image.fixed_crop, {"x0": 0, "y0": 0, "w": 4, "h": 4, "size": (3, 3), "interp": 2}),
        (mx.image.random_crop, {"size": (4, 4), "interp": 2}),
        (mx.image.center_crop, {"size": (4, 4), "interp": 2}),
        (mx.image.random_size_crop, {"size": (4, 4), "area": 0.5, "ratio": (0.5, 1)}),
        (mx.image.copyMakeBorder, {"top": 1, "bot": 1, "left": 1, "right": 1, "type": 0}),
        (mx.image.imdecode, {"buf": b"", "flag": 1, "to_rgb": True}),
        (mx.image.imread, {"filename": "none", "flag": 1, "to_rgb": True}),
        (recordio.pack, {"header": (0, 1, 2, 3), "s": b"x"}),
        (recordio.unpack, {"s": bytes(30)}),
        (recordio.unpack_img, {"s": bytes(30), "iscolor": 1}),
        (recordio.rebuild_index, {"path": "none", "index": "out", "keys": "id"}),
        (recordio.read_index, {"path": "none"}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_functions(function, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    first = {"src": np.zeros((8, 8, 3), np.uint8)} if "image" in function.__module__ else {}
    if "buf" in arguments or "filename" in arguments:
        first = {}
    for name in (*first, *arguments):
        for value in BAD:
            try:
                function(**{**first, **arguments, name: value})
            except MixflowError:
                continue
            except Exception as error:
                raise AssertionError(f"{function.__name__}({name}={value!r}): {error!r}") from error
