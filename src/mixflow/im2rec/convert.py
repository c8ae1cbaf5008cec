"""From lists to record files: many threads, one order, and a run that goes on after a kill.

The records, their index and the list of bad images grow under temporary names. About once a second
they are flushed to the disk and a small state file notes how long each is and how many lines of the
list are done. A later run cuts the files to these lengths and goes on from there, so that the bytes
are those of a run without interruption. At the end the files get their names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import config, extras
from ..arguments import MOST_THREADS, a, checked, flag, function, optional, whole
from ..arguments import path as name_of_file
from ..errors import MixflowError, ParamError
from ..files import held, open_file, write_atomically
from ..libinfo import __version__
from ..recordio import DuplicateKeyWarning, RecordWriter
from .encode import BAD, Options, check_options, make_record, reason
from .lists import BadLine, Item, escaped, left_out_rows, read_list

#: Least time between two notes of how far a run is.
SAVE_SECONDS = 1.0
#: Images in work or waiting for their turn, per thread: bounds the memory.
_AHEAD = 4

Progress = Callable[[int, int, str], None]


class Converted(NamedTuple):
    """What became of one list.

    Attributes:
        list, rec, idx: paths.
        records: images in the record file.
        bad: path of the table of bad images (line, path, reason); '' where there are none.
        skipped: how many were bad.
        resumed: lines that an interrupted run had done.
    """

    list: str
    rec: str
    idx: str
    records: int
    bad: str
    skipped: int
    resumed: int


class _State(NamedTuple):
    """The state file: lengths of the files in bytes, and counts."""

    key: str
    lines: int = 0
    rec: int = 0
    idx: int = 0
    bad: int = 0
    records: int = 0
    skipped: int = 0
    done: bool = False


class _Names:
    """Paths of one list's files."""

    def __init__(self, stem: str) -> None:
        self.final = {kind: f"{stem}.{kind}" for kind in ("rec", "idx", "bad.tsv")}
        self.part = {kind: f"{path}.part" for kind, path in self.final.items()}
        self.state = f"{stem}.im2rec.json"


@checked(
    "im2rec",
    path=name_of_file,
    root=name_of_file,
    options=optional(a(Options)),
    num_thread=whole(0, MOST_THREADS),
    resume=flag,
    progress=optional(function),
)
def convert_list(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str],
    options: Options | None = None,
    num_thread: int = 0,
    resume: bool = True,
    progress: Progress | None = None,
) -> Converted:
    """Writes the records of one list beside it: `name.lst` gives `name.rec` and `name.idx`.

    Args:
        path: the list.
        root: folder of the paths in it.
        options: what to do with the images.
        num_thread: threads that read and encode; 0 = the cores of the process. The files are the
            same whatever their number.
        resume: go on where an interrupted run with the same list and options stopped.
        progress: called with (lines done, lines in all, path of the list).

    Returns:
        What was written. Bad images are left out and stand in a table `name.bad.tsv`. An id that
        stands twice in the list gives two records with a warning `DuplicateKeyWarning`.

    Raises:
        ParamError: an option that is none, or a list with the name of its own records.
        FileError: the list cannot be read, another run is at work on it, or the disk is full or the
            like; a later run can go on.
    """
    options = check_options(options or Options())
    if not options.pass_through:
        extras.load("cv2", "im2rec")
    names = _Names(os.path.splitext(os.fspath(path))[0])
    if os.fspath(path) in (*names.final.values(), *names.part.values()):
        raise ParamError(f"[im2rec] expected a list such as name.lst, got {os.fspath(path)}")
    with held(path, "im2rec"):
        return _converted(os.fspath(path), root, options, num_thread, resume, progress, names)


def _converted(
    path: str,
    root: str | os.PathLike[str],
    options: Options,
    num_thread: int,
    resume: bool,
    progress: Progress | None,
    names: _Names,
) -> Converted:
    """`convert_list` of a list that nobody else works with."""
    total, key = _fingerprint(path, root, options)
    state = _resumed(names, key) if resume else _State(key)
    began = state.lines
    if not state.done:
        threads = num_thread or config.current().threads
        with (
            _Run(names, state) as run,
            contextlib.closing(_records(path, root, options, threads, began)) as done,
        ):
            for lines, (item, result) in enumerate(done, began + 1):
                run.add(lines, item, result)
                if progress is not None:
                    progress(lines, total, path)
            state = run.finish()
    _rename(names, state)
    bad = names.final["bad.tsv"] if state.skipped else ""
    return Converted(
        path,
        names.final["rec"],
        names.final["idx"],
        state.records,
        bad,
        state.skipped,
        began,
    )


def _fingerprint(
    path: str | os.PathLike[str], root: str | os.PathLike[str], options: Options
) -> tuple[int, str]:
    """Lines of a list, and a key of everything that decides on the bytes of its records."""
    total, digest, ids = 0, hashlib.sha256(), array("q")
    with open_file(path, "im2rec") as file:
        for line in file:
            digest.update(line)
            total += bool(line.strip())
            with contextlib.suppress(ValueError, OverflowError):
                ids.append(int(line.partition(b"\t")[0]))
    _warn_of_twins(os.fspath(path), ids)
    codec = "" if options.pass_through else str(extras.load("cv2", "im2rec").__version__)
    facts = [__version__, codec, os.path.abspath(root), list(options)]
    digest.update(json.dumps(facts).encode())
    return total, digest.hexdigest()


def _warn_of_twins(path: str, ids: array[int]) -> None:
    found, counts = np.unique(np.frombuffer(ids, np.int64), return_counts=True)
    twins = found[counts > 1]
    if twins.size:
        warnings.warn(
            f"[im2rec] expected a new id in each line of {path}, got {twins.size} that stand "
            f"several times, {twins[0]} for one; by its id only the last record is found",
            DuplicateKeyWarning,
            stacklevel=6,
        )


def _resumed(names: _Names, key: str) -> _State:
    """Where an interrupted run stopped; the start where there was none or its files do not fit."""
    try:
        state = _State(**json.loads(Path(names.state).read_text()))
        if state.key == key and _fits(names, state):
            return state
    except (OSError, ValueError, TypeError):
        pass
    return _State(key)


def _fits(names: _Names, state: _State) -> bool:
    for kind, length in (("rec", state.rec), ("idx", state.idx), ("bad.tsv", state.bad)):
        path = names.part[kind]
        if state.done and not os.path.exists(path):  # it may have its name already
            path = names.final[kind]
        if (length or kind != "bad.tsv") and os.path.getsize(path) < length:
            return False
    return True


def _records(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str],
    options: Options,
    threads: int,
    skip: int,
) -> Generator[tuple[Item | BadLine, bytes | Exception], None, None]:
    """Items of a list with their records, in its order; encoded ahead by threads."""
    folder = os.fspath(root)
    waiting: deque[tuple[Item | BadLine, Future[bytes] | None]] = deque()
    pool = ThreadPoolExecutor(threads, "mixflow-im2rec")
    try:
        for item in islice(read_list(path), skip, None):
            task: Future[bytes] | None = None
            if isinstance(item, Item):
                task = pool.submit(make_record, item, folder, options)
            waiting.append((item, task))
            if len(waiting) >= _AHEAD * threads:
                yield _settled(*waiting.popleft())
        while waiting:
            yield _settled(*waiting.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _settled(
    item: Item | BadLine, future: Future[bytes] | None
) -> tuple[Item | BadLine, bytes | Exception]:
    if future is None:
        return item, MixflowError(item.reason)  # type: ignore[union-attr]
    try:
        return item, future.result()
    except BAD as error:
        return item, error


class _Run:
    """The growing files of one list."""

    def __init__(self, names: _Names, state: _State) -> None:
        self.names = names
        if not state.lines and not state.bad:  # names that no list holds come first
            rows = left_out_rows(names.final["bad.tsv"])
            Path(names.part["bad.tsv"]).write_bytes(b"".join(rows))
            state = state._replace(bad=sum(map(len, rows)), skipped=len(rows))
        self.state = state
        for kind, length in (("rec", state.rec), ("idx", state.idx), ("bad.tsv", state.bad)):
            with open(names.part[kind], "ab") as file:
                file.truncate(length)
        if not state.lines:
            Path(names.state).unlink(missing_ok=True)
        self.writer = RecordWriter(names.part["rec"], names.part["idx"], append=True)
        self.bad = open(names.part["bad.tsv"], "ab")  # noqa: SIM115 - closed by __exit__
        self.saved = time.monotonic()

    def add(self, lines: int, item: Item | BadLine, result: bytes | Exception) -> None:
        """Takes in the next line of the list."""
        records, skipped = self.state.records, self.state.skipped
        if isinstance(result, bytes) and isinstance(item, Item):
            self.writer.write(result, item.id)
            records += 1
        else:
            what = item.path if isinstance(item, Item) else item.text.replace("\t", " ")
            row = f"{lines}\t{escaped(what)}\t{reason(result)}\n"  # type: ignore[arg-type]
            self.bad.write(row.encode("utf-8", "surrogateescape"))
            skipped += 1
        self.state = self.state._replace(lines=lines, records=records, skipped=skipped)
        if time.monotonic() - self.saved >= SAVE_SECONDS:
            self.save()

    def save(self, done: bool = False) -> _State:
        """Everything to the disk, and a note of how far it is."""
        self.writer.flush(to_disk=True)
        self.bad.flush()
        os.fsync(self.bad.fileno())
        self.state = self.state._replace(
            rec=self.writer.position,
            idx=os.path.getsize(self.names.part["idx"]),
            bad=self.bad.tell(),
            done=done,
        )
        write_atomically(self.names.state, json.dumps(self.state._asdict()).encode())
        self.saved = time.monotonic()
        return self.state

    def finish(self) -> _State:
        """The last note: only the names are missing."""
        return self.save(done=True)

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.bad.close()
        self.writer.close()


def _rename(names: _Names, state: _State) -> None:
    """Gives finished files their names; what an interrupted run has renamed stays."""
    if not state.skipped:
        for path in (names.part["bad.tsv"], names.final["bad.tsv"]):
            Path(path).unlink(missing_ok=True)
    for kind, part in names.part.items():
        if os.path.exists(part):
            os.replace(part, names.final[kind])
    Path(names.state).unlink(missing_ok=True)
