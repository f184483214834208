"""Plots of histories and of partitions, as png."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rookery.runs.table import Table

# Curves are told apart by colour, those of the report; and where one lies on another, by width and dashes.
COLOURS = ("#0059b0", "#e0620c", "#2f9d78", "#8f2a6b", "#7d6200", "#1f2328", "#4d93d6")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
WIDEST, THINNEST = 3.2, 1.4
Curve = tuple[np.ndarray, np.ndarray, np.ndarray]  # x, mean, spread


def _figure(width: float, height: float) -> Any:
    # Imported here: it takes a second, and most runs draw nothing.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _dress(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x.replace("_", " "))
    axes.set_ylabel(y.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _stroke(number: int, count: int) -> dict[str, Any]:
    """How curve `number` of so many is drawn: later ones thinner and dashed, so that one below is seen."""
    width = WIDEST - (WIDEST - THINNEST) * number / max(count - 1, 1) if count > 1 else 1.8
    dashes = DASHES[number % len(DASHES)] if number else "-"
    return {"color": COLOURS[number % len(COLOURS)], "linewidth": width, "linestyle": dashes}


def plot_histories(
    histories: Mapping[str, Table], metric: str, path: str | Path, against: str = "exchanges", title: str = ""
) -> Path:
    """Draws one curve per history, a metric against what it cost, into a png."""
    figure = _figure(6.4, 4.0)
    axes = figure.subplots()
    for number, (name, history) in enumerate(histories.items()):
        axes.plot(history[against], history[metric], label=name, **_stroke(number, len(histories)))
    _dress(axes, against, metric)
    if title:
        axes.set_title(title)
    if any(histories):
        axes.legend(frameon=False)
    figure.savefig(path)
    return Path(path)


def plot_panels(
    panels: Mapping[str, Mapping[str, Curve]],
    metric: str,
    path: str | Path,
    title: str = "",
    target: float | None = None,
    wrap: int | None = None,
    logarithmic: bool = False,
    log_metric: bool = False,
    lowest: float | None = None,
) -> Path:
    """Draws panels, in each one curve per name with its spread, into a png.

    Args:
      panels: by their labels, which stand under them.
      target: a level to mark.
      wrap: how many panels there are in a row; None: all.
      logarithmic: whether costs are on a logarithmic scale, where what costs nothing is left out.
      log_metric: whether the metric is on a logarithmic scale.
      lowest: the lowest value of the metric that is shown; None: all are.
    """
    columns = wrap or len(panels)
    rows = -(-len(panels) // columns)
    figure = _figure(4.2 * columns, 3.8 * rows)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    for number, (axes, (against, curves)) in enumerate(zip(grid.flat, panels.items())):
        for name, (x, mean, spread) in curves.items():
            begin = int(np.argmax(x > 0)) if logarithmic else 0
            x, mean, spread = x[begin:], mean[begin:], spread[begin:]
            stroke = _stroke(names.index(name), len(names))
            (line,) = axes.plot(x, mean, label=name, **stroke)
            # On a logarithmic scale the band is as wide below as above, and does not fall through zero.
            below = mean**2 / (mean + spread) if log_metric else mean - spread
            axes.fill_between(x, below, mean + spread, color=line.get_color(), alpha=0.2, linewidth=0)
        if target is not None:
            axes.axhline(target, color="0.5", linewidth=1, linestyle="--")
        _dress(axes, against, "" if number % columns else metric)
        if logarithmic:
            axes.set_xscale("log")
        else:
            axes.locator_params(axis="x", nbins=6)
        if log_metric:
            axes.set_yscale("log")
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    if lowest is not None:
        highest = max(float(np.nanmax(mean)) for curves in panels.values() for _, mean, _ in curves.values())
        grid[0][0].set_ylim(bottom=lowest, top=highest + 0.03 * (highest - lowest))
    drawn = [axes.get_legend_handles_labels() for axes in grid.flat[: len(panels)]]
    lines = {name: line for handles, labels in drawn for line, name in zip(handles, labels)}
    _legend_below(figure, [lines[name] for name in names], names)
    if title:
        figure.suptitle(title)
    figure.savefig(path)
    return Path(path)


def _legend_below(figure: Any, lines: Sequence[Any], names: Sequence[str]) -> None:
    """A legend below all panels, in as many columns as fit, five at most."""
    for columns in range(5, 0, -1):
        legend = figure.legend(lines, names, loc="outside lower center", ncols=columns, frameon=False)
        box = legend.get_window_extent()
        if columns == 1 or box.width <= figure.bbox.width:
            width, height = figure.get_size_inches()
            figure.set_size_inches(width, height + box.height / figure.dpi)  # room of its own, not the panels'
            return
        legend.remove()


NAMED = 30  # clients whose names fit under a picture


def plot_counts(
    counts: np.ndarray, classes: Sequence[str], path: str | Path, title: str = "", names: Sequence[str] = ()
) -> Path:
    """Draws how many examples of each class (upwards) each client (to the right) has, by shade, into a png; clients by
    their names, where they have some and are few."""
    clients = len(counts)
    figure = _figure(min(14.0, max(5.0, 2.5 + 0.09 * clients)), min(12.0, max(2.6, 1.4 + 0.22 * len(classes))))
    axes = figure.subplots()
    image = axes.imshow(counts.T, aspect="auto", origin="lower", cmap="viridis", interpolation="nearest")
    axes.set_xlabel("client")
    if 0 < len(names) <= NAMED:
        axes.set_xticks(range(len(names)), names, rotation=30 if len(names) > 6 else 0)
    axes.set_yticks(range(len(classes)), classes)
    axes.set_ylabel("class")
    figure.colorbar(image, ax=axes, label="examples")
    if title:
        axes.set_title(title)
    figure.savefig(path)
    return Path(path)
