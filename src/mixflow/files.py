"""Writing files so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .errors import FileError


def write_atomically(path: str | Path, content: bytes | Iterable[bytes]) -> None:
    """Writes to a temporary name in the same folder, flushes to disk, renames.

    A link keeps pointing to its file, which is the one replaced. What exists and is no plain file
    (a device, a pipe) is written into instead: a rename would put a plain file in its place.

    Args:
        path: the file.
        content: its bytes, or parts of them one after the other.

    Raises:
        FileError: the folder does not exist or is not writable; nothing is left behind.
    """
    try:
        _write(path, content)
    except BrokenPipeError:  # the reader of a pipe has gone: no fault of the file
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        found = FileError(f"[files] expected to write {os.fspath(path)}, got: {reason}")
        found.errno, found.strerror = error.errno, error.strerror
        found.filename = os.fspath(path)
        raise found from error


def _write(path: str | Path, content: bytes | Iterable[bytes]) -> None:
    parts = [content] if isinstance(content, bytes) else content
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file() and not target.is_dir():
        with open(target, "wb") as stream:
            stream.writelines(parts)
        return
    handle, temporary = tempfile.mkstemp(dir=target.parent or ".", prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
