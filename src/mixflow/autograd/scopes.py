"""Recording and training modes of a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from .. import _rt


def is_recording() -> bool:
    """Whether calls of this thread go on the tape."""
    return _rt.core.is_recording()


def is_training() -> bool:
    """Whether operators of this thread run in training mode."""
    return _rt.core.is_training()


def set_recording(is_recording: bool) -> bool:
    """Switches recording; returns the old state."""
    return _rt.core.set_recording(is_recording)


def set_training(train_mode: bool) -> bool:
    """Switches training mode; returns the old state."""
    return _rt.core.set_training(train_mode)


@contextmanager
def _scope(recording: bool | None, training: bool | None) -> Iterator[None]:
    old_recording = set_recording(recording) if recording is not None else None
    old_training = set_training(training) if training is not None else None
    try:
        yield
    finally:
        if old_recording is not None:
            set_recording(old_recording)
        if old_training is not None:
            set_training(old_training)


def record(train_mode: bool = True) -> AbstractContextManager[None]:
    """Scope in which calls are recorded, in training mode unless told otherwise."""
    return _scope(True, train_mode)


def pause(train_mode: bool = False) -> AbstractContextManager[None]:
    """Scope in which calls are not recorded."""
    return _scope(False, train_mode)


def train_mode() -> AbstractContextManager[None]:
    """Scope of training mode."""
    return _scope(None, True)


def predict_mode() -> AbstractContextManager[None]:
    """Scope of prediction mode."""
    return _scope(None, False)
