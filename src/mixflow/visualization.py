"""Drawings and tables of networks and trainings."""

from __future__ import annotations

import importlib.util
import io
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import extras
from .errors import ParamError, ShapeError
from .files import write_atomically
from .symbol import Symbol

_COLOURS = {
    "Convolution": "#fb8072",
    "FullyConnected": "#fb8072",
    "BatchNorm": "#bebada",
    "Activation": "#ffffb3",
    "LeakyReLU": "#ffffb3",
    "Pooling": "#80b1d3",
    "Concat": "#fdb462",
    "Flatten": "#fdb462",
    "Reshape": "#fdb462",
    "SoftmaxOutput": "#b3de69",
    "softmax": "#b3de69",
}
_SHOWN = ("kernel", "stride", "num_filter", "num_hidden", "act_type", "pool_type", "p")


def layer_table(symbol: Symbol, shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    """One row per operator node: name, op, output shape, parameters, names of its inputs.

    A parameter that several nodes share counts at the first.

    Args:
        symbol: network.
        shapes: shapes of its inputs.

    Raises:
        ShapeError: the shapes do not fit.
    """
    internals = symbol.get_internals()
    _, out_shapes, _ = internals.infer_shape(**shapes)
    if out_shapes is None:
        raise ShapeError(f"[summary] expected shapes that fix every node, got {dict(shapes)}")
    by_output = dict(zip(internals.list_outputs(), out_shapes, strict=True))
    given = set(shapes)
    counted: set[str] = set()
    rows = []
    for value in internals.heads:
        node = value.node
        if node.op is None or value.index:
            continue
        parents = [v.node for v in node.inputs]
        labels = set(node.op.nondiff)
        named = zip(node.op.input_names(dict(node.params)), parents, strict=False)
        own = [p.name for k, p in named if p.op is None and p.name not in given and k not in labels]
        rows.append(
            {
                "name": node.name,
                "op": node.op.name,
                "shape": by_output[_output_name(node, by_output)],
                "params": sum(_size(by_output[n]) for n in own if n in by_output.keys() - counted),
                "inputs": [p.name for p in parents if p.op is not None or p.name in given],
                "settings": {k: v for k, v in node.params.items() if k in _SHOWN and v},
            }
        )
        counted.update(own)
    return rows


def _output_name(node: Any, known: Mapping[str, Any]) -> str:
    for suffix in ("_output", "_output0", ""):
        if node.name + suffix in known:
            return str(node.name + suffix)
    return next(n for n in known if n.startswith(node.name))


def _size(shape: Sequence[int]) -> int:
    total = 1
    for dim in shape:
        total *= dim
    return total


def print_summary(
    symbol: Symbol,
    shape: Mapping[str, tuple[int, ...]] | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> int:
    """Prints a table of the layers.

    Args:
        symbol: network.
        shape: shapes of the inputs.
        line_length: columns.
        positions: right ends of the four columns, as shares of the line.

    Returns:
        Number of parameters.
    """
    ends = [int(line_length * p) for p in positions]

    def line(cells: Sequence[Any]) -> str:
        text = ""
        for cell, end in zip(cells, ends, strict=True):
            text = f"{text}{cell}"[: end - 1].ljust(end)
        return text.rstrip()

    rows = layer_table(symbol, shape or {})
    print("_" * line_length)
    print(line(["Layer (type)", "Output Shape", "Param #", "Previous Layer"]))
    print("=" * line_length)
    for row in rows:
        shown = "x".join(str(d) for d in row["shape"][1:])
        print(line([f"{row['name']}({row['op']})", shown, row["params"], ", ".join(row["inputs"])]))
    total = sum(int(row["params"]) for row in rows)
    print("=" * line_length)
    print(f"Total params: {total}")
    return total


def plot_network(
    symbol: Symbol,
    title: str = "plot",
    save_format: str = "pdf",
    shape: Mapping[str, tuple[int, ...]] | None = None,
    dtype: Any = None,
    node_attrs: Mapping[str, str] | None = None,
    hide_weights: bool = True,
) -> Any:
    """The network as a ``graphviz.Digraph`` (extra ``viz``), with shapes on the edges.

    Args:
        symbol: network.
        title: name of the file that ``render`` writes.
        save_format: 'pdf', 'png', 'svg'.
        shape: shapes of the inputs; None = no shapes.
        node_attrs: Graphviz attributes of every node.
        hide_weights: leave parameters out.
    """
    graphviz = extras.load("graphviz", "plot_network")
    style = {"shape": "box", "style": "rounded,filled", "fontname": "sans", "width": "2"}
    style |= node_attrs or {}
    drawing = graphviz.Digraph(name=title, format=save_format, node_attr=style)
    shapes = {r["name"]: r["shape"] for r in layer_table(symbol, shape)} if shape else {}
    shapes.update(shape or {})
    nodes = symbol.nodes()
    weights = {v.node.name for n in nodes for v in n.inputs[1:] if v.node.op is None}
    hidden = {w for w in weights if hide_weights and w not in (shape or {})}
    for node in nodes:
        if node.name in hidden:
            continue
        kind = node.op.name if node.op is not None else "input"
        settings = [f"{k}={v}" for k, v in node.params.items() if k in _SHOWN and v]
        label = "\n".join([f"{node.name}", kind if node.op is not None else "", *settings]).strip()
        drawing.node(node.name, label=label, fillcolor=_COLOURS.get(kind, "#8dd3c7"))
        for value in node.inputs:
            if value.node.name not in hidden:
                edge = "x".join(str(d) for d in shapes.get(value.node.name, ())[1:])
                drawing.edge(value.node.name, node.name, label=edge, fontsize="10")
    return drawing


def can_draw() -> bool:
    """Whether matplotlib is installed (extra ``viz``)."""
    return importlib.util.find_spec("matplotlib") is not None


def _pyplot(feature: str) -> Any:
    """matplotlib's pyplot, drawing without a screen; `feature` is named where it is missing."""
    extras.load("matplotlib", feature).use("Agg")
    return extras.load("matplotlib.pyplot", feature)


def _save(figure: Any, path: str | Path, **options: Any) -> None:
    """Writes a picture, whole or not at all, and lets go of the figure."""
    content = io.BytesIO()
    kind = Path(path).suffix.removeprefix(".") or "png"
    known = sorted(figure.canvas.get_supported_filetypes())
    if kind.lower() not in known:
        raise ParamError(f"[pictures] expected a name that ends with one of {known}, got {path}")
    figure.savefig(content, dpi=120, format=kind, **options)
    extras.load("matplotlib.pyplot", "pictures").close(figure)
    write_atomically(path, content.getvalue())


def plot_history(history: Sequence[Mapping[str, float]], path: str | Path, title: str = "") -> None:
    """Loss, and training and test accuracy, per epoch, as a picture.

    Args:
        history: per epoch a mapping with 'epoch', 'train_loss', 'train_accuracy', 'test_accuracy'.
        path: file to write.
        title: over the picture.
    """
    pyplot = _pyplot("plot_history")
    epochs = [row["epoch"] for row in history]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    left.plot(epochs, [row["train_loss"] for row in history], color="#d62728")
    left.set(xlabel="epoch", ylabel="cross entropy", title="training loss", ylim=(0, None))
    for key, colour in (("train_accuracy", "#1f77b4"), ("test_accuracy", "#2ca02c")):
        right.plot(epochs, [100 * row[key] for row in history], label=key[:-9], color=colour)
    right.set(xlabel="epoch", ylabel="accuracy (%)", title="accuracy")
    right.legend(loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    figure.tight_layout()
    _save(figure, path)


def plot_memory(
    reports: Mapping[str, Mapping[str, int]], path: str | Path, title: str = ""
) -> None:
    """Planned bytes as bars, one group per network (the form of the MXNet paper's figure 7).

    Args:
        reports: per network the result of `Symbol.memory_report`.
        path: file to write.
        title: over the picture.
    """
    pyplot = _pyplot("plot_memory")
    strategies = ("none", "inplace", "coshare", "both", "arena")
    figure, axes = pyplot.subplots(figsize=(2.5 + 2 * len(reports), 4))
    width = 0.8 / len(strategies)
    for number, strategy in enumerate(strategies):
        heights = [report[strategy] / 2**20 for report in reports.values()]
        places = [group + (number - 2) * width for group in range(len(reports))]
        axes.bar(places, heights, width, label=strategy)
    for group, report in enumerate(reports.values()):
        bound = report["lower_bound_unfused"] / 2**20
        axes.hlines(bound, group - 0.45, group + 0.45, color="black", linestyle="dotted")
    axes.set(ylabel="MiB", title=title, xticks=range(len(reports)))
    axes.set_xticklabels(list(reports))
    axes.legend(title="dotted: lower bound", fontsize=8, loc="upper left")
    axes.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    _save(figure, path)


#: Panels of `plot_utilisation`: title, unit, and a sample's column with what it is divided by.
_PANELS = (
    ("processor", "% of one core", "cpu_percent", 1),
    ("memory", "resident, MB", "resident_bytes", 1e6),
    ("sent", "MB per s", "sent_bytes", 1e6),
    ("received", "MB per s", "received_bytes", 1e6),
)


def plot_utilisation(report: Mapping[str, Any], path: str | Path, title: str = "") -> None:
    """What each process of a job used over time: processor, memory, bytes per second both ways.

    Args:
        report: `Job.report()`, or what ``mixflow launch --report FILE`` has written.
        path: file to write; its ending gives the kind (.png, .svg, .pdf).
        title: over the picture.

    Raises:
        ParamError: the report holds no samples.
    """
    from .kvstore import utilisation

    processes = utilisation.from_json(report)
    pyplot = _pyplot("plot_utilisation")
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 6), sharex=True, layout="constrained")
    for axis, (name, unit, column, divisor) in zip(axes.flat, _PANELS, strict=True):
        for process, samples in processes.items():
            times = [s.seconds for s in samples]
            if name in ("sent", "received"):  # counters: per second
                values = utilisation.rates(samples, column)
            else:
                values = [getattr(s, column) for s in samples]
            axis.step(times, [v / divisor for v in values], label=process, lw=1.2)
        axis.set(title=name, ylabel=unit)
        axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
        axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("seconds since the job's start")
    axes[0][0].legend(fontsize=8)
    figure.suptitle(title)
    _save(figure, path)


def plot_scaling(
    rows: Sequence[Mapping[str, Any]], path: str | Path, lines: Sequence[str], title: str = ""
) -> None:
    """Efficiency and throughput by machines, one line per policy, with what they rest on below.

    Args:
        rows: of `simulate.sweep`.
        path: file to write.
        lines: what is printed below.
        title: over the picture.
    """
    pyplot = _pyplot("plot_scaling")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2 + 0.16 * len(lines)))
    for label in dict.fromkeys(row.get("label", row["policy"]) for row in rows):
        own = [row for row in rows if row.get("label", row["policy"]) == label]
        machines = [row["machines"] for row in own]
        left.plot(machines, [100 * row["efficiency"] for row in own], "o-", label=label)
        right.plot(machines, [row["throughput"] for row in own], "o-", label=label)
    left.set(xlabel="machines", ylabel="efficiency (%)", xscale="log", ylim=(0, 105))
    right.set(xlabel="machines", ylabel="batches per second", xscale="log", yscale="log")
    left.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    # A line of 7 points takes 0.15 inches.
    under = (0.15 * len(lines) + 0.2) / figure.get_figheight()
    figure.tight_layout(rect=(0, under, 1, 1))
    figure.text(0.02, 0.01, "\n".join(lines), fontsize=7, family="monospace")
    _save(figure, path)


def draw_network(symbol: Symbol, shape: Mapping[str, tuple[int, ...]], stem: Path) -> Path:
    """Draws the network beside `stem`: ``.png`` where Graphviz's ``dot`` is installed, else a
    ``.png`` drawn with matplotlib, so that no system package is needed.

    Returns:
        The file written.
    """
    target = stem.with_suffix(".png")
    if shutil.which("dot") and importlib.util.find_spec("graphviz"):
        plot_network(symbol, stem.name, "png", shape).render(str(stem), cleanup=True)
    else:
        _draw_boxes(layer_table(symbol, shape), target)
    return target


def _draw_boxes(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A column of boxes, one per layer, top to bottom."""
    pyplot = _pyplot("draw_network")
    figure, axes = pyplot.subplots(figsize=(5, 0.7 * len(rows) + 0.5))
    for number, row in enumerate(rows):
        settings = "  ".join(f"{k}={v}" for k, v in row["settings"].items())
        shape = "x".join(str(d) for d in row["shape"][1:])
        text = f"{row['name']}  ({row['op']})\n{shape}  {settings}"
        box = {"boxstyle": "round", "facecolor": _COLOURS.get(str(row["op"]), "#8dd3c7")}
        axes.text(0.5, -number, text, ha="center", va="center", fontsize=9, bbox=box)
        if number:
            start, end = (0.5, -number + 0.7), (0.5, -number + 0.32)
            axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "->"})
    axes.set(xlim=(0, 1), ylim=(-len(rows) + 0.4, 0.6))
    axes.axis("off")
    _save(figure, path, bbox_inches="tight")
