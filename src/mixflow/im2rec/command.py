"""The commands ``mixflow im2rec`` and ``mixflow rec2idx``."""

from __future__ import annotations

import argparse
from typing import Any

from .. import extras, recordio
from ..errors import MixflowError
from . import im2rec
from .encode import COLORS, ENCODINGS
from .lists import EXTENSIONS, SEED, make_list


def add_im2rec(command: argparse.ArgumentParser) -> None:
    """The arguments of `im2rec`: those of MXNet's tool and some more."""
    command.add_argument("prefix", help="start of the paths of lists and record files")
    command.add_argument("root", help="folder of the images")
    lists = command.add_argument_group("making lists")
    lists.add_argument("--list", action="store_true", help="make the list(s) only")
    lists.add_argument("--exts", nargs="+", default=list(EXTENSIONS), help="endings of images")
    lists.add_argument("--chunks", type=int, default=1, help="parts")
    lists.add_argument("--train-ratio", type=float, default=1.0, help="share for training")
    lists.add_argument("--test-ratio", type=float, default=0.0, help="share for testing")
    lists.add_argument("--recursive", action="store_true", help="a label per subfolder")
    lists.add_argument(
        "--no-shuffle", dest="shuffle", action="store_false", help="keep the order of the paths"
    )
    lists.add_argument("--seed", type=int, default=SEED, help="of the order")
    images = command.add_argument_group("making records")
    images.add_argument("--pass-through", action="store_true", help="the files as they are")
    images.add_argument("--resize", type=int, default=0, help="pixels of the shorter side")
    images.add_argument("--center-crop", action="store_true", help="cut the middle square")
    images.add_argument("--quality", type=int, default=95, help="JPEG 1-100, PNG 1-9")
    images.add_argument("--num-thread", type=int, default=0, help="0: one per core")
    images.add_argument("--color", type=int, default=1, choices=COLORS, help="1, 0 grey, -1 as is")
    images.add_argument("--encoding", default=".jpg", choices=ENCODINGS)
    images.add_argument("--pack-label", action="store_true", help="all labels of a line")
    images.add_argument(
        "--no-resume", dest="resume", action="store_false", help="begin anew after an interruption"
    )
    images.add_argument("--quiet", action="store_true", help="no progress bar")
    command.set_defaults(run=run_im2rec)


_LISTING = ("recursive", "exts", "chunks", "train_ratio", "test_ratio", "shuffle", "seed")
_CONVERTING = ("pass_through", "resize", "center_crop", "quality", "num_thread", "color")
_MORE = ("encoding", "pack_label", "resume")


def run_im2rec(args: argparse.Namespace) -> None:
    """``mixflow im2rec``."""
    options: dict[str, Any] = {name: getattr(args, name) for name in _LISTING}
    if args.list:
        made = make_list(args.prefix, args.root, **options)
        for folder, label in made.labels.items():
            print(f"{folder} {label}")
        print(f"{made.images} images in {', '.join(made.files)}")
        if made.left_out:
            print(f"{len(made.left_out)} names that a list cannot hold stand in {made.bad}")
        return
    options |= {name: getattr(args, name) for name in (*_CONVERTING, *_MORE)}
    tqdm = extras.load("tqdm", "mixflow im2rec")
    with tqdm.tqdm(unit="image", dynamic_ncols=True, disable=args.quiet or None) as bar:
        current = ""

        def progress(done: int, total: int, path: str) -> None:
            nonlocal current
            if path != current:
                current = path
                bar.reset(total)
                bar.set_description(path, refresh=False)
            bar.update(done - bar.n)

        results = im2rec(args.prefix, args.root, progress=progress, **options)
    for found in results:
        resumed = f", {found.resumed} lines were done before" if found.resumed else ""
        bad = f"; {found.skipped} bad images are listed in {found.bad}" if found.skipped else ""
        print(f"{found.records} records in {found.rec}{resumed}{bad}")
    if not any(found.records for found in results):
        skipped = sum(found.skipped for found in results)
        tables = ", ".join(found.bad for found in results if found.bad)
        hint = f"{skipped} bad ones; the reasons stand in {tables}" if skipped else "an empty list"
        raise MixflowError(f"[im2rec] expected at least one image that can be read, got {hint}")


def add_rec2idx(command: argparse.ArgumentParser) -> None:
    """The arguments of `rec2idx`."""
    command.add_argument("record", help="record file")
    command.add_argument("index", help="index to write")
    command.add_argument(
        "--keys",
        default="number",
        choices=("number", "id"),
        help="number the records, or take the ids of image headers (default: %(default)s)",
    )
    command.add_argument(
        "--skip-damaged", action="store_true", help="go on behind damaged places of the file"
    )
    command.set_defaults(run=run_rec2idx)


def run_rec2idx(args: argparse.Namespace) -> None:
    """``mixflow rec2idx``."""
    found = recordio.rebuild_index(args.record, args.index, args.keys, args.skip_damaged)
    print(f"{found.records} records in {args.index}")
    for problem in found.problems:
        print(f"  {problem}")
