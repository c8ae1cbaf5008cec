"""Record files (``mx.recordio``), byte-compatible with MXNet 1.9.1."""

from .files import MXIndexedRecordIO, MXRecordIO
from .framing import TornRecordError
from .header import IRHeader, encode_image, pack, pack_img, unpack, unpack_img
from .index import read_index, write_index
from .reader import RecordFile
from .rebuild import rebuild_index
from .writer import DuplicateKeyWarning, RecordWriter, TornRecordWarning

__all__ = [
    "DuplicateKeyWarning",
    "IRHeader",
    "MXIndexedRecordIO",
    "MXRecordIO",
    "RecordFile",
    "RecordWriter",
    "TornRecordError",
    "TornRecordWarning",
    "encode_image",
    "pack",
    "pack_img",
    "read_index",
    "rebuild_index",
    "unpack",
    "unpack_img",
    "write_index",
]
