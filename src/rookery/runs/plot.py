"""Plots of histories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rookery.runs.table import Table


def plot_histories(
    histories: Mapping[str, Table], metric: str, path: str | Path, against: str = "exchanges", title: str = ""
) -> Path:
    """Draws one curve per history, a metric against what it cost, into a png."""
    # Imported here: it takes a second, and most runs draw nothing.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, history in histories.items():
        axes.plot(history[against], history[metric], label=name, linewidth=1.8)
    axes.set_xlabel(against.replace("_", " "))
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title)
    if any(histories):
        axes.legend(frameon=False)
    figure.savefig(path)
    return Path(path)
