"""The pieces of the pipeline: draws, order, schedule, workers, recipes, decoder."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from forks import run_child
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_files import data_threads, picture

from mixflow import config, extras
from mixflow.errors import FormatError, MixflowError, ParamError
from mixflow.pipeline import (
    ColourJitter,
    Decoder,
    DefaultRecipe,
    Draws,
    FileSource,
    FolderSource,
    Job,
    Order,
    Schedule,
    Workers,
    chunks_of,
    shard,
    turbo,
)
from mixflow.pipeline.images import window_of
from mixflow.pipeline.sources import read_list

# -- draws


def test_draws_depend_on_their_arguments_alone() -> None:
    first = [Draws(7, 2, i).uniform() for i in range(5)]
    assert first == [Draws(7, 2, i).uniform() for i in range(5)]
    others = {Draws(*key).bits() for key in ((7, 2, 0), (8, 2, 0), (7, 3, 0), (7, 2, 1), (2, 7, 0))}
    assert len(others) == 5


def test_draws_are_spread_evenly() -> None:
    made = np.array([Draws(1, 0, i).uniform(-1, 3) for i in range(4000)])
    assert made.min() >= -1 and made.max() < 3 and abs(made.mean() - 1) < 0.1
    counts = np.bincount([Draws(1, 0, i).integer(4) for i in range(4000)], minlength=4)
    assert len(counts) == 4 and counts.min() > 850
    normal = np.array([Draws(3, 1, i).normal(2.0) for i in range(4000)])
    assert abs(normal.mean()) < 0.15 and abs(normal.std() - 2) < 0.15
    assert sorted(Draws(0, 0, 0).shuffled([1, 2, 3])) == [1, 2, 3]


# -- order


@given(st.integers(1, 50), st.integers(1, 7), st.booleans(), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_parts_cover_every_sample_once(count: int, parts: int, shuffle: bool, epoch: int) -> None:
    orders = [Order(count, 3, shuffle, parts, k) for k in range(parts)]
    seen = np.concatenate([o.epoch(epoch) for o in orders])
    assert sorted(seen.tolist()) == list(range(count))
    assert max(map(len, orders)) - min(map(len, orders)) <= 1


def test_epochs_differ_and_repeat() -> None:
    order = Order(40, 5, True)
    assert order.epoch(1).tolist() == Order(40, 5, True).epoch(1).tolist()
    assert order.epoch(1).tolist() != order.epoch(2).tolist()
    assert Order(40, 6, True).epoch(1).tolist() != order.epoch(1).tolist()
    assert Order(4).epoch(9).tolist() == [0, 1, 2, 3]


def test_chunks_stay_together() -> None:
    chunks = chunks_of([10] * 12, 30)
    assert chunks.tolist() == [0, 3, 6, 9]
    kept = Order(12, chunks=chunks, chunk_seed=1).epoch(0).reshape(4, 3)
    assert (np.diff(kept, axis=1) == 1).all() and kept[:, 0].tolist() != [0, 3, 6, 9]
    mixed = Order(12, 2, True, chunks=chunks, chunk_seed=1).epoch(0).reshape(4, 3)
    assert [sorted(r) for r in mixed.tolist()] == kept.tolist() and (mixed != kept).any()
    assert chunks_of([100, 1, 1], 10).tolist() == [0, 1]


def test_order_errors() -> None:
    with pytest.raises(ParamError, match=r"part_index in \[0, num_parts\), got 3 of 3"):
        shard(10, 3, 3)
    with pytest.raises(ParamError, match="at least one sample, got none in part 0 of 4"):
        Schedule(Order(2, num_parts=4, part_index=0), 1)
    with pytest.raises(ParamError, match="last to be one of 'wrap', 'pad', 'discard', got 'x'"):
        Schedule(Order(2), 1, "x")
    with pytest.raises(ParamError, match="batch_size to be a whole number of at least 1, got 0"):
        Schedule(Order(2), 0)


@pytest.mark.parametrize(
    ("last", "batches", "pad", "filling"),
    [("wrap", 3, 2, [0, 1]), ("pad", 3, 2, [9, 9]), ("discard", 2, 0, [6, 7])],
)
def test_last_batch(last: str, batches: int, pad: int, filling: list[int]) -> None:
    schedule = Schedule(Order(10), 4, last)
    assert schedule.batches() == batches
    plan = schedule.batch(batches - 1)
    assert plan.pad == pad and plan.indices[2:] == filling
    schedule.start(*schedule.following())
    assert schedule.epoch == 1
    assert schedule.batch(0).indices[0] == (2 if last == "wrap" else 0)


@given(st.integers(1, 30), st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_wrapping_gives_every_sample_equally_often(count: int, batch: int) -> None:
    schedule = Schedule(Order(count, 1, True), batch)
    seen: list[int] = []
    while len(seen) % count or not seen:
        for i in range(schedule.batches()):
            plan = schedule.batch(i)
            seen += plan.indices
            assert len(plan.indices) == len(plan.epochs) == batch
        schedule.start(*schedule.following())
        if len(seen) > 40 * count:
            break
    counts = np.bincount(seen, minlength=count)
    assert batch > count or counts.max() - counts.min() <= 1


# -- workers


def test_jobs_are_done_by_all_threads_and_errors_are_the_first_parts() -> None:
    workers = Workers(3, "pipe")
    together = threading.Barrier(3, timeout=60)
    workers.submit(job := Job("a", 3, lambda part: (together.wait(), None)[1]))
    workers.wait(job)

    def fail(part: int) -> None:
        time.sleep(0.01 * (3 - part))
        if part:
            raise ValueError(part)

    workers.submit(failing := Job("b", 3, fail))
    with pytest.raises(ValueError, match="1"):
        workers.wait(failing)
    workers.close()
    assert not data_threads()
    with pytest.raises(MixflowError, match="expected running workers"):
        workers.submit(job)


def test_a_wait_names_who_is_missing() -> None:
    workers = Workers(1, "pipe", deadline=0.05)
    go = threading.Event()
    job = Job("batch 5", 1, lambda part: (go.wait(60), None)[1], "sample {}".format)
    workers.submit(job)
    text = r"batch 5 within 0.05 s, got pipe-0 (at sample 0 for \d s|idle)"
    with pytest.raises(MixflowError, match=text):
        workers.wait(job)
    go.set()
    job.done.wait(60)
    workers.close()


def test_threads_end_with_their_object() -> None:
    workers = Workers(2, "pipe")
    threads = workers.threads
    del workers
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert not data_threads()


def test_a_cancelled_job_does_not_go_on() -> None:
    workers = Workers(1, "pipe")
    started, go, seen = threading.Event(), threading.Event(), []

    def work(part: int) -> None:
        seen.append(part)
        started.set()
        go.wait(60)

    workers.submit(job := Job("c", 5, work))
    assert started.wait(60)
    job.cancel()
    go.set()
    assert job.done.wait(60) and seen == [0]
    workers.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_threads_of_its_own() -> None:
    workers = Workers(1, "pipe")

    def work() -> int:
        done: list[int] = []
        workers.submit(job := Job("d", 1, done.append))
        workers.wait(job)
        return 0 if done == [0] else 2

    assert run_child(work) == 0
    workers.close()


def test_worker_errors() -> None:
    with pytest.raises(ParamError, match="threads to be a whole number from 1 to 1024, got 0"):
        Workers(0, "pipe")
    with pytest.raises(ParamError, match="deadline to be a finite number above 0, got 0"):
        Workers(1, "pipe", deadline=0)


# -- decoder and recipes


def encoded(image: np.ndarray, ending: str = ".jpg", **options: int) -> np.ndarray:
    import cv2

    flags = [x for k, v in options.items() for x in (getattr(cv2, k), v)]
    return np.asarray(cv2.imencode(ending, image, flags)[1])


needs_turbo = pytest.mark.skipif(turbo.library() is None, reason="no TurboJPEG 3 library")


@needs_turbo
@given(
    st.integers(30, 90),
    st.integers(30, 90),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["444", "422", "420", "440"]),
    st.booleans(),
    st.sampled_from([1, 3]),
)
@settings(max_examples=60, deadline=None)
def test_a_part_has_the_pixels_of_the_whole(
    height: int, width: int, y: float, x: float, sampling: str, progressive: bool, channels: int
) -> None:
    import cv2

    content = encoded(
        picture(height, height, width),
        IMWRITE_JPEG_PROGRESSIVE=int(progressive),
        IMWRITE_JPEG_SAMPLING_FACTOR=getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}"),
    )
    decoder = Decoder(channels)
    whole = decoder.whole(content).astype(int)
    top, left = int(y * (height - 12)), int(x * (width - 12))
    rows, columns = range(top, top + 12), range(left, left + 12)
    found = decoder.part(content, decoder.size(content), rows, columns)
    assert found.array.shape[0] < height or found.array.shape[1] < width or min(height, width) < 34
    inner = found.array[top - found.top :, left - found.left :][:12, :12]
    assert np.abs(inner - whole[top : top + 12, left : left + 12]).max() <= 1


@needs_turbo
def test_a_damaged_part_is_an_error_of_ours() -> None:
    content = encoded(picture(1))
    decoder = Decoder(3, "part")
    for cut in (20, 200, len(content) - 40):
        with pytest.raises(FormatError):
            decoder.part(content[:cut], (60, 80, "jpeg"), range(50, 60), range(5))


@needs_turbo
def test_a_damaged_image_leaves_nothing_behind_for_the_next() -> None:
    """A decompressor that met a torn image remembered half of it, and could wait for ever."""
    decoder, rng = Decoder(3, "part"), np.random.default_rng(0)
    content, whole = encoded(picture(1)), Decoder(3, "whole").whole(encoded(picture(1)))
    for _ in range(60):
        cut = int(rng.integers(20, len(content)))
        with pytest.raises(FormatError):
            decoder.part(content[:cut], (60, 80, "jpeg"), range(50, 60), range(5))
        found = decoder.part(content, (60, 80, "jpeg"), range(20, 32), range(30, 42))
        inner = found.array[20 - found.top :, 30 - found.left :][:12, :12].astype(int)
        assert np.abs(inner - whole[20:32, 30:42]).max() <= 1


def test_decoder_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParamError, match="channels to be one of 1, 3, got 4"):
        Decoder(4)
    with pytest.raises(ParamError, match=r"mode to be one of 'auto', .*, got 'x'"):
        Decoder(3, "x")
    monkeypatch.setattr(turbo, "library", lambda: None)
    with pytest.raises(extras.MissingExtraError, match=r"mixflow\[jpeg\]"):
        Decoder(3, "part")
    assert not Decoder(3, "auto").parts
    with config.override(image_pixel_limit=100), pytest.raises(FormatError, match="100 pixels"):
        Decoder(3).size(encoded(picture(1)))


def test_reduced_decoding_is_smaller_and_similar() -> None:
    content = encoded(picture(3, 120, 160))
    decoder = Decoder(3, "reduced")
    size = decoder.size(content)
    small = decoder.reduced(content, size, 0.3)
    assert small is not None and small.shape == (60, 80, 3)
    assert np.abs(small.astype(int) - decoder.whole(content)[::2, ::2]).mean() < 6
    assert decoder.reduced(content, size, 0.6) is None
    assert Decoder(3).reduced(content, size, 0.3) is None


@given(
    st.integers(20, 70),
    st.integers(20, 70),
    st.sampled_from([-1, 25, 60]),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_one_pass_gives_what_the_steps_give(
    height: int, width: int, resize: int, seed: int, area: bool, crop: bool
) -> None:
    """A view through `core.picture` against OpenCV's steps, on the same draws."""
    from mixflow import _rt

    options = {"random_resized_crop": True, "min_random_area": 0.3} if area else {"rand_crop": crop}
    recipe = DefaultRecipe(20, 24, resize=-1 if area else resize, rand_mirror=True, **options)
    image = picture(seed, height, width)
    view = recipe.view(height, width, Draws(seed, 0, 0))
    if view is None:
        assert height < 20 or width < 24 or resize > 0
        return
    out = np.empty((3, 20, 24), np.uint8)
    top, left, rows, columns = view.window
    _rt.core.picture(
        image, out, (-top, -left, rows, columns, *view.resized, *view.corner, int(view.mirror))
    )
    expected, mirror = recipe.apply(image, Draws(seed, 0, 0))
    assert mirror == view.mirror
    expected = expected[:, ::-1] if mirror else expected
    assert np.abs(out.transpose(1, 2, 0).astype(int) - expected).max() <= 1
    needed = window_of(view, 20, 24)
    assert needed[0].start >= 0 and needed[0].stop <= height
    part = np.ascontiguousarray(
        image[needed[0].start : needed[0].stop, needed[1].start : needed[1].stop]
    )
    at = (needed[0].start - top, needed[1].start - left)
    again = np.empty_like(out)
    _rt.core.picture(
        part, again, (*at, rows, columns, *view.resized, *view.corner, int(view.mirror))
    )
    np.testing.assert_array_equal(again, out)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"inter_method": 7}, "inter_method to be one of 0, 1, 2, 3, 4, 9, 10, got 7"),
        ({"random_resized_crop": True, "rand_crop": True}, "without rand_crop"),
        ({"min_aspect_ratio": 0.5}, "min_aspect_ratio with random_resized_crop"),
        ({"min_crop_size": 9}, "min_crop_size <= max_crop_size, got 9 and -1"),
        ({"min_random_area": 0.0}, "0 < min_random_area"),
        (
            {"random_resized_crop": True, "min_aspect_ratio": 2.0, "max_aspect_ratio": 1.0},
            "0 < min_aspect_ratio <= max_aspect_ratio, got 2.0 and 1.0",
        ),
    ],
)
def test_recipe_errors(options: dict, text: str) -> None:
    with pytest.raises(ParamError, match=text):
        DefaultRecipe(8, 8, **options)


def test_colours_change_within_their_limits() -> None:
    image = picture(2)
    for name in ("brightness", "contrast", "saturation", "pca_noise"):
        jitter = ColourJitter(**{name: 0.3})
        made = [jitter.apply(image, Draws(0, 0, i)) for i in range(4)]
        assert made[0].dtype == np.uint8 and made[0].shape == image.shape
        assert (made[0] != made[1]).any()
        assert (made[0] == jitter.apply(image, Draws(0, 0, 0))).all()
    bright = ColourJitter(brightness=0.3).apply(np.full((4, 4, 3), 100, np.uint8), Draws(0, 0, 5))
    assert 70 <= bright.min() == bright.max() <= 130
    grey = np.full((4, 4, 3), 90, np.uint8)
    assert (ColourJitter(saturation=0.9).apply(grey, Draws(0, 0, 1)) == 90).all()
    moved = ColourJitter(random_h=20, random_s=9, random_l=9).apply(image, Draws(0, 0, 3))
    assert (moved != image).any()
    assert ColourJitter().apply(image, Draws(0, 0, 0)) is image
    with pytest.raises(ParamError, match="brightness to be a finite number of at least 0, got -1"):
        ColourJitter(brightness=-1)


# -- sources


def test_folders_and_lists(tmp_path: Path) -> None:
    for name in ("b/1.jpg", "b/deep/2.JPG", "a/3.png", "a/notes.txt"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    source = FolderSource(tmp_path)
    assert source.classes == ["a", "b"] and len(source) == 3
    assert [(bytes(s.content), float(s.label[0])) for s in map(source.__getitem__, range(3))] == [
        (b"a/3.png", 0.0),
        (b"b/1.jpg", 1.0),
        (b"b/deep/2.JPG", 1.0),
    ]
    assert source.sizes().tolist() == [7, 7, 12]
    (tmp_path / "x.lst").write_text("5\t1.5\t2\tb/1.jpg\n\n7\t3\t4\ta/3.png\n")
    listed = FileSource.from_list(tmp_path / "x.lst", tmp_path)
    assert listed[1].label.tolist() == [3.0, 4.0] and listed[0].content == b"b/1.jpg"
    (tmp_path / "b/1.jpg").unlink()
    with pytest.raises(OSError, match=r"expected to read .*1.jpg"):
        listed[0]
    (tmp_path / "bad.lst").write_text("1\tx\n")
    with pytest.raises(FormatError, match="line 1 of"):
        read_list(tmp_path / "bad.lst")
    with pytest.raises(ParamError, match="folder per class"):
        FolderSource(tmp_path / "a")
