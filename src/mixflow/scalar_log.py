"""Numbers over time as TensorBoard event files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from .extras import load


class ScalarLog:
    """Writes event files below a folder, one run (sub-folder) per name. Not thread-safe.

    No thread of its own: what was added stands in the file when `add` returns.

    Args:
        folder: what `tensorboard --logdir` reads; made where it is not there.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._files = load("tensorboardX.event_file_writer", "tensorboard")
        self._events = load("tensorboardX.proto.event_pb2", "tensorboard")
        self._summaries = load("tensorboardX.summary", "tensorboard")
        self._folder = Path(folder)
        self._runs: dict[str, Any] = {}

    def add(self, run: str, tag: str, value: float, step: int, wall: float | None = None) -> None:
        """One number.

        Args:
            run: its sub-folder; '' is the folder itself.
            tag: its name.
            value: the number.
            step: where it stands on the horizontal axis.
            wall: seconds since 1970; None: now.
        """
        writer = self._run(run)
        event = self._events.Event(
            wall_time=time.time() if wall is None else wall,
            step=step,
            summary=self._summaries.scalar(tag, float(value)),
        )
        writer.write_event(event)
        writer.flush()

    def _run(self, name: str) -> Any:
        if name not in self._runs:
            folder = self._folder / name
            folder.mkdir(parents=True, exist_ok=True)
            # The process number keeps two logs of one second apart.
            self._runs[name] = self._files.EventsWriter(str(folder / "events"), f".{os.getpid()}")
        return self._runs[name]

    def close(self) -> None:
        """Closes the files. Safe to call twice."""
        for writer in self._runs.values():
            writer.close()
        self._runs.clear()
