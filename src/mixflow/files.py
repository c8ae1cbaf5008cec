"""Files: reading with errors of ours, and writing so that a reader sees the old or the new.

Hazards: a path may name a pipe or a device, whose opening or reading waits for ever, and two
writers of one file mix their parts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from .errors import FileError, FormatError, MissingFileError

Name = str | os.PathLike[str]


def file_error(text: str, path: Any, error: BaseException) -> FileError:
    """An error of ours with the facts of another about a file.

    Args:
        text: '[operator] expected ...'; what is wrong is added.
        path: the file.
        error: what the system (or Python, of a path that is none) says.
    """
    reason = getattr(error, "strerror", None) or str(error)
    kind = MissingFileError if isinstance(error, FileNotFoundError) else FileError
    made = kind(f"{text}, got: {reason}")
    made.errno, made.filename = getattr(error, "errno", None), path
    made.strerror = getattr(error, "strerror", None)
    return made


def open_file(path: Any, operator: str, mode: str = "rb", **options: Any) -> IO[Any]:
    """`open`, with errors of ours.

    Raises:
        FileError: it cannot be opened; `MissingFileError` where there is none.
    """
    try:
        return open(path, mode, **options)
    except (OSError, TypeError, ValueError) as error:
        verb = "read" if "r" in mode else "write"
        raise file_error(f"[{operator}] expected to {verb} {path!r:.200}", path, error) from None


def open_regular(path: Any, operator: str) -> BinaryIO:
    """A plain file, opened for reading. A pipe or device is refused without waiting for it.

    Raises:
        FormatError: something else.
        FileError: it cannot be opened; `MissingFileError` where there is none.
    """
    flags = getattr(os, "O_NONBLOCK", 0)
    opened = open_file(path, operator, opener=lambda name, mode: os.open(name, mode | flags))
    file = cast(BinaryIO, opened)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise FormatError(f"[{operator}] expected a regular file, got {path!r:.200}")
    return file


def read_regular(path: Any, operator: str) -> bytes:
    """The content of a plain file.

    Raises:
        FormatError, FileError: as `open_regular`, or it cannot be read.
    """
    with open_regular(path, operator) as file:
        try:
            return file.read()
        except OSError as error:
            text = f"[{operator}] expected to read {path!r:.200}"
            raise file_error(text, path, error) from None


def same_file(first: Name, second: Name) -> bool:
    """Whether two names, of which one or both may not exist yet, mean one file, also by links."""
    try:
        return os.path.samefile(first, second)
    except OSError:
        return os.path.realpath(first) == os.path.realpath(second)


def lock(file: IO[Any]) -> bool:
    """Takes a file for this writer alone, until `unlock` or its end.

    Only between programs that do the same (flock), and without effect where the system knows no
    locks. A forked child has it together with its parent.

    Returns:
        False where another holds it.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def unlock(file: IO[Any]) -> None:
    """Gives a file back, also where a forked child still has it open."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_UN)


@contextlib.contextmanager
def held(path: Name, operator: str) -> Iterator[None]:
    """Scope in which this program alone works with a file that exists.

    Raises:
        FileError: another does, or it cannot be read.
    """
    with open_file(path, operator) as file:
        if not lock(file):
            raise FileError(
                f"[{operator}] expected {os.fspath(path)} for this program alone, got one that "
                "another works with; wait until it has ended"
            )
        try:
            yield
        finally:
            unlock(file)


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
        text = f"[files] expected to write {os.fspath(path)}"
        raise file_error(text, os.fspath(path), error) from error


def flush_folder(path: Name) -> None:
    """Has the names in a folder on disk: of files that were made, renamed or removed there.

    Raises:
        FileError: it can't be opened or flushed. Systems without such a thing do nothing.
    """
    if os.name != "posix":
        return
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has nothing to flush
            text = f"[files] expected to flush {os.fspath(path)}"
            raise file_error(text, os.fspath(path), error) from None


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
