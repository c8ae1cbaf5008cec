"""The ``mixflow`` command."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import datasets, extras, models, placement, profiler, train, visualization
from .checkpoint import load_checkpoint
from .context import cpu
from .errors import FormatError, MixflowError, UnknownNameError, describe_unknown
from .files import write_atomically
from .im2rec import command as im2rec
from .io import NDArrayIter
from .kvstore import utilisation
from .kvstore.job.commands import add_jobs
from .kvstore.job.launch import add_launch
from .libinfo import __version__
from .module import Module
from .simulate import add_simulate

NETWORK_HELP = "e.g. lenet, mlp, resnet-20-cifar"
DATA_HELP = "digits, mnist, fashion-mnist, cifar10 or a folder of their files"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints a table with rich."""
    table = extras.load("rich.table", "mixflow").Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    # A pipe or file takes whole lines; a terminal folds them.
    width = None if sys.stdout.isatty() else 200
    extras.load("rich.console", "mixflow").Console(width=width).print(table)


def _train(args: argparse.Namespace) -> None:
    """``mixflow train``."""
    config = train.TrainConfig(
        network=args.network,
        data=args.data,
        epochs=args.epochs,
        batch_size=args.batch_size,
        optimizer=args.optimizer,
        lr=_default_lr(args.optimizer) if args.lr is None else args.lr,
        wd=args.wd,
        momentum=args.momentum,
        seed=args.seed,
        shift=args.shift,
        contexts=args.contexts,
        out=args.out,
    )
    tqdm = extras.load("tqdm", "mixflow train")
    with tqdm.tqdm(unit="batch", dynamic_ncols=True, disable=args.quiet or None) as bar:

        def progress(epoch: int, batch: int, batches: int) -> None:
            bar.total = batches * config.epochs
            bar.set_description(f"epoch {epoch + 1}/{config.epochs}", refresh=False)
            bar.update(epoch * batches + batch + 1 - bar.n)

        result = train.train(config, progress)
    _show_history(result)


def _default_lr(optimizer: str) -> float:
    """A learning rate that suits the method."""
    return {"adam": 0.001, "rmsprop": 0.001, "adagrad": 0.05, "signum": 0.001}.get(optimizer, 0.05)


def _show_history(result: train.TrainResult) -> None:
    rows = [
        (
            row["epoch"],
            f"{row['train_loss']:.4f}",
            f"{100 * row['train_accuracy']:.2f}",
            f"{100 * row['test_accuracy']:.2f}",
            f"{row['seconds']:.2f}",
        )
        for row in result.history
    ]
    columns = ("epoch", "training loss", "training accuracy %", "test accuracy %", "seconds")
    _table(f"{result.config.network} on {result.config.data}", columns, rows)
    print(
        f"test accuracy {100 * result.test_accuracy:.2f} % ({result.test_samples} images), "
        f"{result.parameters} parameters, {result.seconds:.1f} s"
    )
    for kind, path in result.files.items():
        print(f"  {kind}: {path}")
    if "history" not in result.files:
        print("  no pictures: matplotlib is not installed; pip install 'mixflow[viz]'")


def _predict(args: argparse.Namespace) -> None:
    """``mixflow predict``: classes of the test images of a set."""
    symbol, arg_params, aux_params = load_checkpoint(args.prefix, args.epoch)
    images = datasets.load(args.data)
    batch = min(args.batch_size, len(images.test_labels))
    inputs = NDArrayIter(images.test_images, images.test_labels, batch)
    module = Module(symbol)
    module.bind(inputs.provide_data, inputs.provide_label, for_training=False)
    module.set_params(arg_params, aux_params)
    scores = module.predict(inputs).asnumpy()
    classes = scores.argmax(axis=1)
    right = int((classes == images.test_labels).sum())
    rows = [
        (
            i,
            images.classes[classes[i]],
            images.classes[int(images.test_labels[i])],
            f"{100 * scores[i].max():.1f}",
        )
        for i in range(min(args.show, len(classes)))
    ]
    _table(f"first {len(rows)} test images of {args.data}", ("image", "class", "label", "%"), rows)
    print(f"accuracy {100 * right / len(classes):.2f} % ({right} of {len(classes)})")
    if args.out:
        content = {"classes": classes.tolist(), "accuracy": right / len(classes)}
        write_atomically(args.out, json.dumps(content).encode())
        print(f"  classes: {args.out}")


def _summary(args: argparse.Namespace) -> None:
    """``mixflow summary``: layers, parameters, planned memory."""
    symbol = train.network(args.network, args.classes)
    sample = models.DEFAULT_SHAPES[args.network] if args.image_shape is None else args.image_shape
    train.check_sample(args.network, symbol, sample)
    shapes = models.input_shapes(args.network, args.batch_size, sample)
    rows = visualization.layer_table(symbol, shapes)
    _table(
        f"{args.network}, batch {args.batch_size}",
        ("layer", "operator", "output shape", "parameters"),
        [(r["name"], r["op"], "x".join(map(str, r["shape"])), r["params"]) for r in rows],
    )
    print(f"parameters: {sum(r['params'] for r in rows):,}")
    reports = [symbol.memory_report(for_training=flag, **shapes) for flag in (True, False)]
    _show_memory("planned memory of internal arrays", ("training", "prediction"), reports)


_STRATEGIES = (
    "none",
    "inplace",
    "coshare",
    "both",
    "arena",
    "lower_bound",
    "lower_bound_unfused",
)


def _show_memory(title: str, columns: Sequence[str], reports: Sequence[dict[str, int]]) -> None:
    """A table of planned bytes, one column per report, and what its rows mean."""
    shown = [s for s in (*_STRATEGIES, "recomputed") if s in reports[0]]
    rows = [(s, *(f"{report[s]:,}" for report in reports)) for s in shown]
    extra = (f"{report['both'] - report['lower_bound_unfused']:,}" for report in reports)
    rows.append(("both - lower_bound_unfused", *extra))
    _table(f"{title}, bytes", ("strategy", *columns), rows)
    print(
        "none, inplace, coshare, both: outputs of the network's operators, as in the paper; "
        "arena, lower_bound: the fused plan that runs, workspace included; "
        "lower_bound_unfused: the network as written"
        + ("; recomputed: the arena under the limit" if "recomputed" in shown else "")
    )


def _memory(args: argparse.Namespace) -> None:
    """``mixflow memory``: planned bytes of networks by strategy, as a table and a bar chart."""
    reports = {}
    for name in args.network:
        symbol = train.network(name, args.classes)
        shapes = models.input_shapes(name, args.batch_size, models.DEFAULT_SHAPES[name])
        reports[name] = symbol.memory_report(not args.predict, args.limit, **shapes)
    kind = "prediction" if args.predict else "training"
    title = f"internal arrays, {kind}, batch {args.batch_size}"
    _show_memory(title, list(reports), list(reports.values()))
    Path(args.out).mkdir(parents=True, exist_ok=True)
    target = Path(args.out) / f"memory-{kind}.json"
    write_atomically(target, json.dumps(reports, indent=1).encode())
    print(f"  figures: {target}")
    if visualization.can_draw():
        picture = target.with_suffix(".png")
        visualization.plot_memory(reports, picture, title)
        print(f"  picture: {picture}")


def _costliest(rows: Sequence[profiler.StepProfile], count: int) -> list[profiler.StepProfile]:
    return sorted(rows, key=lambda r: -r.seconds)[:count]


def _profile_row(
    row: profiler.StepProfile, total: float, limits: profiler.Limits
) -> tuple[str, ...]:
    """Cells of one step; arithmetic only where there is some."""
    seconds = max(row.seconds, 1e-12)
    share, traffic = limits.shares(row.flops, row.nbytes, seconds)
    return (
        row.label,
        row.implementation,
        f"{1000 * row.seconds:.2f}",
        f"{100 * row.seconds / max(total, 1e-12):.1f}",
        f"{row.flops / seconds / 1e9:.0f}" if row.flops else "",
        f"{100 * share:.0f}" if row.flops else "",
        f"{row.nbytes / seconds / 1e9:.1f}",
        f"{100 * traffic:.0f}",
    )


def _profile(args: argparse.Namespace) -> None:
    """``mixflow profile``: the costliest steps of a plan."""
    if args.network not in models.NETWORKS:
        raise UnknownNameError(describe_unknown("network", args.network, list(models.NETWORKS)))
    shapes = models.input_shapes(args.network, args.batch_size, args.image_shape)
    executor = profiler.bind_random(models.NETWORKS[args.network](), shapes)
    rows = profiler.profile(executor, not args.predict, args.repeat)
    total = sum(row.seconds for row in rows)
    limits = profiler.machine_limits()
    what = "prediction" if args.predict else "training"
    _table(
        f"{args.network}, batch {args.batch_size}, {what}: {1000 * total:.1f} ms "
        f"in {len(rows)} steps",
        ("step", "implementation", "ms", "%", "GFLOP/s", "% of limit", "GB/s", "% of limit"),
        [_profile_row(r, total, limits) for r in _costliest(rows, args.show)],
    )
    flops, nbytes = sum(r.flops for r in rows), sum(r.nbytes for r in rows)
    shares = limits.shares(flops, nbytes, total)
    print(
        f"limits measured here: {limits.flops / 1e9:.0f} GFLOP/s, {limits.nbytes / 1e9:.1f} GB/s; "
        f"the whole: {flops / 1e9:.1f} GFLOP, {100 * shares[0]:.0f} % of the arithmetic limit, "
        f"{nbytes / 1e9:.2f} GB, {100 * shares[1]:.0f} % of the memory-traffic limit"
    )
    _table(
        "by primitive",
        ("primitive", "steps", "ms", "%"),
        [
            (name, count, f"{1000 * seconds:.2f}", f"{100 * seconds / max(total, 1e-12):.1f}")
            for name, count, seconds in profiler.by_primitive(rows)
        ],
    )


def _utilisation(args: argparse.Namespace) -> None:
    """``mixflow utilisation``: a job's report as a table, a picture and TensorBoard scalars."""
    try:
        report = json.loads(Path(args.report).read_text())
    except ValueError as error:
        raise FormatError(f"[utilisation] expected JSON in {args.report}, got {error}") from None
    processes = utilisation.from_json(report)
    _table(
        f"{args.report}: {report.get('seconds', 0):.1f} s",
        ("process", "CPU % mean", "max", "memory max MB", "sent MB", "received MB"),
        [_utilisation_row(name, utilisation.totals(s)) for name, s in processes.items() if s],
    )
    if args.out:
        visualization.plot_utilisation(report, args.out, args.title)
        print(f"  picture: {args.out}")
    if args.tensorboard:
        utilisation.write_scalars(report, args.tensorboard)
        print(f"  TensorBoard: {args.tensorboard}")


def _utilisation_row(name: str, totals: dict[str, float]) -> list[Any]:
    sizes = ("resident_bytes_max", "sent_bytes", "received_bytes")
    megabytes = [f"{totals[size] / 1e6:.1f}" for size in sizes]
    return [name, totals["cpu_percent_mean"], totals["cpu_percent_max"], *megabytes]


def _placement(args: argparse.Namespace) -> None:
    """``mixflow placement``: where the nodes of a network would run, and what that costs."""
    symbol = train.network(args.network, args.classes)
    shapes = models.input_shapes(args.network, args.batch_size, args.image_shape)
    contexts = [cpu(k) for k in range(args.contexts)]
    requests = {n: "null" if args.predict or n in shapes else "write" for n in symbol.list_inputs()}
    wanted = placement.Auto(costs=args.costs)
    bound: Any = symbol
    executor = bound.simple_bind(contexts, grad_req=requests, placement=wanted, **shapes)
    report = executor.placement
    what = "prediction" if args.predict else "training"
    _table(
        f"{args.network}, batch {args.batch_size}, {what}",
        ("context", "nodes", "computes, ms", "keeps, MB"),
        [
            (
                repr(load.context),
                load.nodes,
                f"{1e3 * load.seconds:.3f}",
                f"{load.nbytes / 1e6:.1f}",
            )
            for load in report.loads
        ],
    )
    print(report.summary())
    if args.nodes:
        _table("nodes", ("node", "context"), [(n, repr(c)) for n, c in report.nodes.items()])


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.replace("x", ",").split(","))


def _add(command: argparse.ArgumentParser, name: str, default: Any, text: str) -> None:
    """An option whose help names its default."""
    kind = _positive if name == "--batch-size" else type(default)
    command.add_argument(name, type=kind, default=default, help=f"{text} (default: %(default)s)")


def _positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _train_arguments(command: argparse.ArgumentParser) -> None:
    _add(command, "--network", "lenet", NETWORK_HELP)
    _add(command, "--data", "digits", DATA_HELP)
    _add(command, "--epochs", 10, "passes over the training images")
    _add(command, "--batch-size", 64, "images per update")
    _add(command, "--optimizer", "sgd", "sgd, nag, adam, rmsprop, adagrad, ...")
    command.add_argument(
        "--lr", type=float, default=None, help="learning rate (default: by optimizer)"
    )
    _add(command, "--wd", 1e-4, "weight decay")
    _add(command, "--momentum", 0.9, "of sgd and nag")
    _add(command, "--seed", 0, "of the initial values and the order of images")
    _add(command, "--shift", 0, "move training images by up to N pixels")
    _add(command, "--contexts", 1, "CPU contexts that share each batch")
    _add(command, "--out", "out/train", "folder for the results")
    command.add_argument("--quiet", action="store_true", help="no progress bar")


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    top = argparse.ArgumentParser(prog="mixflow", description="Train and inspect networks.")
    top.add_argument("--version", action="version", version=f"mixflow {__version__}")
    commands = top.add_subparsers(dest="command", required=True)

    one = commands.add_parser("train", help="train a network and leave figures, pictures, files")
    _train_arguments(one)
    one.set_defaults(run=_train)

    two = commands.add_parser("predict", help="classify the test images of a set")
    two.add_argument("--prefix", required=True, help="checkpoint without -symbol.json")
    two.add_argument("--epoch", type=int, required=True, help="number in the checkpoint's name")
    _add(two, "--data", "digits", DATA_HELP)
    _add(two, "--batch-size", 100, "images per batch")
    _add(two, "--show", 10, "rows to print")
    two.add_argument("--out", default="", help="JSON file for all classes")
    two.set_defaults(run=_predict)

    three = commands.add_parser("summary", help="layers, parameters, planned memory")
    _add(three, "--network", "lenet", NETWORK_HELP)
    _add(three, "--batch-size", 64, "samples per batch")
    three.add_argument("--classes", type=int, default=None, help="default: those of its paper")
    three.add_argument(
        "--image-shape", type=_shape, default=None, help="e.g. 1x28x28; default: that of its paper"
    )
    three.set_defaults(run=_summary)

    memory = commands.add_parser("memory", help="planned bytes of networks by strategy")
    memory.add_argument(
        "--network", nargs="+", default=["alexnet", "googlenet", "vgg-16"], help="one or more"
    )
    _add(memory, "--batch-size", 64, "samples per batch")
    memory.add_argument("--classes", type=int, default=None, help="default: those of its paper")
    memory.add_argument("--predict", action="store_true", help="prediction instead of training")
    memory.add_argument(
        "--limit", default=None, help="bytes (or 2G, 500M) to keep by recomputation; adds a row"
    )
    _add(memory, "--out", "out/memory", "folder for the figures and the bar chart")
    memory.set_defaults(run=_memory)

    four = commands.add_parser("profile", help="the costliest steps of a network's plan")
    _add(four, "--network", "resnet-50", NETWORK_HELP)
    _add(four, "--batch-size", 8, "samples per batch")
    four.add_argument("--image-shape", type=_shape, default=None, help="default: the network's")
    four.add_argument("--predict", action="store_true", help="forward only, inference mode")
    _add(four, "--repeat", 3, "runs; the fastest of each step counts")
    _add(four, "--show", 10, "steps to print")
    four.set_defaults(run=_profile)

    used = commands.add_parser("utilisation", help="what the processes of a job have used")
    used.add_argument("report", help="file of 'mixflow launch --report'")
    used.add_argument("--out", help="picture to write (.png, .svg, .pdf)")
    used.add_argument("--title", default="", help="over the picture")
    used.add_argument("--tensorboard", help="folder for TensorBoard scalars")
    used.set_defaults(run=_utilisation)

    place = commands.add_parser("placement", help="nodes of a network over several contexts")
    _add(place, "--network", "googlenet", NETWORK_HELP)
    _add(place, "--batch-size", 8, "samples per batch")
    place.add_argument("--classes", type=int, default=None, help="default: those of its paper")
    place.add_argument("--image-shape", type=_shape, default=None, help="default: the network's")
    place.add_argument("--contexts", type=_positive, default=2, help="CPU contexts (default: 2)")
    place.add_argument("--predict", action="store_true", help="forward only, inference mode")
    place.add_argument(
        "--costs", choices=placement.COSTS, default="measured", help="of steps (default: measured)"
    )
    place.add_argument("--nodes", action="store_true", help="the context of every node too")
    place.set_defaults(run=_placement)

    im2rec.add_im2rec(commands.add_parser("im2rec", help="record files from images"))
    im2rec.add_rec2idx(commands.add_parser("rec2idx", help="the index of a record file"))
    add_launch(commands.add_parser("launch", help="a program as the workers of a job"))
    add_jobs(commands)
    add_simulate(commands.add_parser("simulate", help="what more machines would do"))
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status. A user's mistake is one line, not a traceback."""
    args = parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # e.g. `| head -1`: what follows goes nowhere, also at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except MixflowError as error:
        print(f"mixflow: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"mixflow: [files] {error.strerror or error}{where}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mixflow: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
