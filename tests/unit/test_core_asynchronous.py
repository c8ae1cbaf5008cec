"""Asynchronous callbacks: tasks that end when they are told to. The same tests on every core."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from core_support import empty, vector


def test_an_asynchronous_callback_ends_when_it_is_told(core: Any) -> None:
    source, target = vector(core), empty(core)
    kept: list[Any] = []

    def later(completion: Any) -> None:
        kept.append(completion)
        threading.Timer(0.05, completion.done).start()

    core.push(later, [source], [target], "later", asynchronous=True)
    core.wait_all()
    target.wait_to_read()
    with pytest.raises(RuntimeError, match="expected one call of done, got a second"):
        kept[0].done()


def test_an_asynchronous_error_stays_on_what_the_task_writes(core: Any) -> None:
    target = empty(core)
    kept: list[Any] = []

    def later(completion: Any) -> None:
        kept.append(completion)
        threading.Timer(0.05, completion.done, ["the server is gone"]).start()

    core.push(later, [], [target], "later", asynchronous=True)
    with pytest.raises(RuntimeError, match="the server is gone"):
        target.wait_to_read()


def test_a_lost_completion_and_a_raised_error_end_the_task(core: Any) -> None:
    def fail(completion: Any) -> None:
        raise ValueError("no such server")

    for body, text in ((lambda completion: None, "abandoned"), (fail, "no such server")):
        target = empty(core)
        core.push(body, [], [target], "lost", asynchronous=True)
        with pytest.raises(RuntimeError, match=text):
            target.wait_to_read()
