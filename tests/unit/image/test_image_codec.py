"""Headers, decoding, resizing, cropping: values, limits, errors."""

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

import mixflow as mx
from mixflow import nd
from mixflow.errors import DTypeError, FileError, FormatError, ParamError, ShapeError
from mixflow.image import codec
from mixflow.image.header import check_structure, header

cv2 = pytest.importorskip("cv2")
FOLDER = Path(__file__).parents[2] / "oracle" / "data" / "images"


@pytest.fixture(scope="module")
def pixels():
    return codec.decode((FOLDER / "a.png").read_bytes())[:20, :31].copy()


def encoded(suffix, image):
    return cv2.imencode(suffix, image)[1].tobytes()


def png(width, height):
    """A PNG that says so and holds nothing."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + b"\0\0\0\0"


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".tif", ".gif", ".webp", ".ppm"])
def test_headers_of_every_format(suffix, pixels):
    data = encoded(suffix, pixels)
    found = header(data)
    assert found[:3] == (20, 31, 3)
    assert found.format in codec.FORMATS
    assert codec.decode(data).shape == (20, 31, 3)
    assert codec.decode(data, 0).shape == (20, 31, 1)


def test_headers_of_grey_and_of_other_orders(pixels):
    assert header(encoded(".png", pixels[:, :, 0])).channels == 1
    assert header(encoded(".pgm", pixels[:, :, 0])) == (20, 31, 1, "pnm")
    assert header(b"P3 # a comment\n# another\n 7 5 255\n").width == 7
    assert header(b"MM\0*" + struct.pack(">IH", 8, 2) + _field(256, 3, 9) + _field(257, 4, 8)) == (
        (8, 9, 1, "tiff")
    )
    old = b"BM" + bytes(12) + struct.pack("<IHHHH", 12, 9, 8, 1, 24)
    assert header(old) == (8, 9, 3, "bmp")
    flat = b"RIFF\0\0\0\0WEBPVP8X" + bytes(4) + b"\x10\0\0\0" + b"\x08\0\0" + b"\x07\0\0"
    assert header(flat) == (8, 9, 4, "webp")


def _field(tag, kind, value):
    packed = struct.pack(">HH", value, 0) if kind == 3 else struct.pack(">I", value)
    return struct.pack(">HHI", tag, kind, 1) + packed


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".tif", ".gif", ".webp", ".ppm"])
def test_every_truncation_of_a_header_is_an_error(suffix, pixels):
    data = encoded(suffix, pixels)
    for size in range(min(200, len(data))):
        try:
            found = header(data[:size])
        except FormatError as error:
            assert str(error).startswith("[image header] expected")
        else:
            assert found[:2] == (20, 31)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no bytes"),
        (b"hello world", r"image \(jpeg, png.*hello"),
        (png(0, 5), "at least one pixel"),
        (png(1 << 20, 1 << 20), "at most 268435456 pixels, got 1048576 x 1048576"),
        (png(8, 8)[:20], "whole png header"),
        (png(8, 8), "whole png, got 33 bytes"),
        (b"\xff\xd8\xff" + bytes(50), "whole jpeg header"),
        (b"\xff\xd8\xff\xd9", "whole jpeg header"),
        (b"P6\nx y\n255\n", "whole pnm header"),
        # OpenCV reads 1 x 12 here and another reader 1 x 255: the limit must not be got round.
        (b"P6\n1# 12\n255\nu" + bytes(900), "whole pnm header"),
        (b"P6#\r1 1\n9 9\n255\n" + bytes(300), "whole pnm header"),
    ],
)
def test_what_is_no_image(data, text):
    with pytest.raises(FormatError, match=r"\[imdecode\] expected.*" + text):
        mx.image.imdecode(data)


def test_comments_of_a_text_header_end_as_they_do_for_the_decoder():
    data = b"P6\n# 9 9\r2 #3\n1\n255\n" + bytes(6)
    assert header(data) == (1, 2, 3, "pnm")
    assert mx.image.imdecode(data).shape == (1, 2, 3)


def test_limit_is_checked_before_decoding(monkeypatch, pixels):
    data = encoded(".png", pixels)
    with mx.config.override(image_pixel_limit=20 * 31):
        assert mx.image.imdecode(data).shape == (20, 31, 3)
        with pytest.raises(FormatError, match=r"imresize.*at most 620 pixels.*image_pixel_limit"):
            mx.image.imresize(mx.image.imdecode(data), 32, 20)
        with pytest.raises(FormatError, match="copyMakeBorder"):
            mx.image.copyMakeBorder(mx.image.imdecode(data), 1, 0, 0, 0)
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("it was decoded"))
    with (
        mx.config.override(image_pixel_limit=20 * 31 - 1),
        pytest.raises(FormatError, match="at most 619 pixels, got 20 x 31"),
    ):
        mx.image.imdecode(data)
    with pytest.raises(FormatError, match="at most 5 pixels"):
        codec.decode(data, pixel_limit=5)
    with pytest.raises(mx.MXNetError, match="image_pixel_limit"):
        mx.config.update(image_pixel_limit=0)


def test_costly_structures_are_refused(pixels):
    data = encoded(".jpg", pixels)
    with pytest.raises(FormatError, match="at most 500 scans in a jpeg, got 502"):
        codec.decode(data[:-2] + b"\xff\xda\0\0" * 501 + data[-2:])
    whole = encoded(".png", pixels)
    check_structure(whole, header(whole))
    broken = whole[:33] + b"\x7f\xff\xff\xff" + whole[37:]
    with pytest.raises(FormatError, match="inside of the chunk at byte 33"):
        codec.decode(broken)


def test_corrupt_contents_are_an_error(capfd):
    for name in ("a.jpg", "a.png", "a.bmp", "a.tif"):
        data = (FOLDER / name).read_bytes()
        with pytest.raises(FormatError, match=r"\[imdecode\] expected a whole"):
            mx.image.imdecode(data[: len(data) * 2 // 3])
    with pytest.raises(FormatError, match="corrupt or truncated"):
        mx.image.imdecode((FOLDER / "a.jpg").read_bytes()[:700])
    capfd.readouterr()  # what the decoders print


def test_every_kind_of_buffer():
    data = (FOLDER / "a.png").read_bytes()
    wanted = mx.image.imdecode(data).asnumpy()
    array = np.frombuffer(data, np.uint8)
    forms = (bytearray(data), memoryview(data), array, nd.array(array, dtype="uint8"))
    for buffer in forms:
        np.testing.assert_array_equal(mx.image.imdecode(buffer).asnumpy(), wanted)
    blue_first = mx.image.imdecode(data, 1, False).asnumpy()
    np.testing.assert_array_equal(blue_first[:, :, ::-1], wanted)
    for wrong in ("text", 5, None, array.astype(np.float32)):
        with pytest.raises(DTypeError, match=r"\[imdecode\] expected .*bytes"):
            mx.image.imdecode(wrong)


def test_out_and_flag(tmp_path):
    data = (FOLDER / "a.png").read_bytes()
    out = nd.zeros((37, 53, 3), dtype="uint8")
    assert mx.image.imdecode(data, out=out) is out
    np.testing.assert_array_equal(out.asnumpy(), mx.image.imdecode(data).asnumpy())
    small = nd.zeros((5, 6, 3), dtype="uint8")
    assert mx.image.imresize(out, 6, 5, out=small) is small
    assert small.asnumpy().any()
    with pytest.raises(ShapeError, match=r"out of shape \(37, 53, 3\)"):
        mx.image.imdecode(data, out=nd.zeros((2, 2, 3), dtype="uint8"))
    with pytest.raises(ParamError, match="flag 0"):
        mx.image.imdecode(data, flag=-1)


def test_reading_files(tmp_path):
    found = mx.image.imread(str(FOLDER / "a.png"), flag=0)
    assert found.shape == (37, 53, 1)
    with pytest.raises(FileError, match=r"\[imread\] expected to read .*No such file") as e:
        mx.image.imread(str(tmp_path / "nowhere.png"))
    assert isinstance(e.value, OSError)
    assert e.value.errno == 2
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(FormatError, match=r"\[imread\] expected an image.*bad.png"):
        mx.image.imread(str(tmp_path / "bad.png"))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: mx.image.imresize(x, 0, 5), ShapeError, "at least one pixel"),
        (
            lambda x: mx.image.imresize(x, 5, 5, 9),
            ParamError,
            "interp to be one of 0, 1, 2, 3, 4, got 9",
        ),
        (lambda x: mx.image.imresize(x.astype("int32"), 5, 5), DTypeError, "int32"),
        (lambda x: mx.image.imresize(x[0], 5, 5), ShapeError, "height, width, channels"),
        (lambda x: mx.image.imresize([1], 5, 5), DTypeError, "NDArray, got list"),
        (lambda x: mx.image.resize_short(x, 5, 7), ParamError, "interp to be one of .*10, got 7"),
        (lambda x: mx.image.fixed_crop(x, 20, 0, 12, 5), ShapeError, "inside of 20 x 31"),
        (lambda x: mx.image.fixed_crop(x, -1, 0, 12, 5), ShapeError, "x=-1"),
        (
            lambda x: mx.image.copyMakeBorder(x, 1, 1, 1, 1, 5),
            ParamError,
            "type to be one of 0, 1, 2, 3, 4, got 5",
        ),
        (lambda x: mx.image.copyMakeBorder(x, -1, 1, 1, 1), ParamError, "at least 0"),
        (
            lambda x: mx.image.copyMakeBorder(x.astype("bfloat16"), 1, 1, 1, 1),
            ShapeError,
            "bfloat16",
        ),
        (lambda x: mx.image.color_normalize(x, nd.ones(3)), DTypeError, "cast it first"),
        (lambda x: mx.image.random_size_crop(x, (2, 2), 0.1, (1, 1), a=1), ParamError, "got a"),
        (lambda x: mx.image.imrotate(x, 10), DTypeError, "float32, got uint8"),
        (
            lambda x: mx.image.imrotate(x.astype("float32"), 10, True, True),
            ParamError,
            "zoom_in or zoom_out",
        ),
        (lambda x: mx.image.imrotate(nd.ones((3, 3)), 10), ShapeError, "3 or 4 axes"),
        (lambda x: mx.image.imrotate(nd.ones((3, 3, 3)), nd.ones(1)), DTypeError, "one angle"),
        (lambda x: mx.image.imrotate(nd.ones((2, 3, 3, 3)), nd.ones(3)), ShapeError, "2 angles"),
    ],
)
def test_errors_of_functions(call, error, text, pixels):
    with pytest.raises(error, match=text):
        call(nd.array(pixels, dtype="uint8"))


def test_old_name_of_area_warns(pixels):
    with pytest.warns(DeprecationWarning, match="min_area"):
        mx.image.random_size_crop(pixels, (5, 5), None, (0.9, 1.1), min_area=0.5)


def test_views_and_mirrored_images_resize_as_copies(pixels):
    view = pixels[3:17, 20:2:-1]
    np.testing.assert_array_equal(codec.resize(view, 9, 8), codec.resize(view.copy(), 9, 8))


def test_choice_of_interpolation():
    assert codec.interpolation(9) == 2
    assert codec.interpolation(9, (5, 5, 10, 10)) == 2
    assert codec.interpolation(9, (5, 5, 3, 3)) == 3
    assert codec.interpolation(9, (5, 5, 3, 10)) == 1
    assert {codec.interpolation(10) for _ in range(100)} == {0, 1, 2, 3, 4}


def test_missing_opencv_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(mx.MXNetError, match=r"pip install 'mixflow\[images\]'"):
        mx.image.imread(str(FOLDER / "a.png"))
