"""Mutated images: decoding gives an image within the limit or an error of ours, nothing else.

MIXFLOW_TEST_COUNT inputs (default 2000, `make prove`: 10^6), drawn from MIXFLOW_TEST_SEED.
"""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from mixflow.errors import FormatError
from mixflow.image import codec

cv2 = pytest.importorskip("cv2")

COUNT = int(os.environ.get("MIXFLOW_TEST_COUNT", "2000"))
SEED = int(os.environ.get("MIXFLOW_TEST_SEED", "0"))
FOLDER = Path(__file__).parents[1] / "oracle" / "data" / "images"
#: Pixels; small, so that 10^6 inputs take minutes.
LIMIT = 1 << 16
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF)


@pytest.fixture(autouse=True)
def _quiet():
    before = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    yield
    cv2.utils.logging.setLogLevel(before)


def originals():
    """Whole files of every format."""
    names = ("a.jpg", "prog.jpg", "g.jpg", "rot.jpg", "a.png", "pal.png", "alpha.png", "one.png")
    made = [(FOLDER / name).read_bytes() for name in (*names, "a.tif", "a.bmp")]
    pixels = codec.decode((FOLDER / "a.png").read_bytes())[:12, :17]
    for suffix in (".gif", ".webp", ".ppm", ".pgm"):
        image = pixels[:, :, 0] if suffix == ".pgm" else pixels
        made.append(cv2.imencode(suffix, image)[1].tobytes())
    return made


def with_checksums(data):
    """A PNG whose chunks have right checksums again, so that more than those is tested."""
    made, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if length > len(data) - at - 12:
            break
        body = data[at + 4 : at + 8 + length]
        made += struct.pack(">I", length) + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + length
    return bytes(made + data[at:])


def mutated(data, rng):
    """One to four changes: bytes, runs, cuts, repeats, numbers of the header."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        where = int(rng.integers(0, max(1, len(data))))
        if rng.random() < 0.5:
            where = min(where, int(rng.integers(0, 64)))  # headers matter most
        kind = rng.integers(0, 7)
        if kind == 0:
            data[where : where + 1] = bytes([rng.integers(0, 256)])
        elif kind == 1:
            data[where : where + 1] = bytes([EXTREMES[rng.integers(0, len(EXTREMES))]])
        elif kind == 2:
            data[where : where + 4] = rng.integers(0, 256, 4, np.uint8).tobytes()
        elif kind == 3:
            del data[where : where + int(rng.integers(1, 40))]
        elif kind == 4:
            data[where:where] = data[where : where + int(rng.integers(1, 200))]
        elif kind == 5:
            data[where : where + 2] = struct.pack(">H", int(rng.integers(0, 3000)))
        else:
            del data[where:]
    if data[:4] == b"\x89PNG" and rng.random() < 0.7:
        data = with_checksums(bytes(data))
    return bytes(data)


def outcome(data, flag):
    """'image' or 'error'; anything else is a failure."""
    try:
        image = codec.decode(data, flag, pixel_limit=LIMIT)
    except FormatError as error:
        assert str(error).startswith("[imdecode] expected")
        return "error"
    assert image.dtype == np.uint8
    assert image.ndim == 3
    assert image.shape[2] == (3 if flag else 1)
    assert image.shape[0] * image.shape[1] <= LIMIT
    assert codec.header(data)[:2] == image.shape[:2]
    return "image"


def test_mutated_images():
    rng = np.random.default_rng(SEED)
    sources = originals()
    seen = {"image": 0, "error": 0}
    for number in range(COUNT):
        data = mutated(sources[number % len(sources)], rng)
        seen[outcome(data, int(rng.random() < 0.7))] += 1
    assert min(seen.values()) > COUNT // 20  # both happen


def test_random_bytes():
    rng = np.random.default_rng(SEED)
    starts = [data[:12] for data in originals()]
    for number in range(COUNT // 4):
        body = rng.integers(0, 256, int(rng.integers(0, 300)), np.uint8).tobytes()
        outcome(starts[number % len(starts)] + body, 1)
