"""Progress bars: of one run, and of the runs of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rookery.runs.table import COST


class Bars:
    """Bars that are drawn while a `with` block lasts; each is a callback for `rk.run`."""

    def __init__(self, console: Console):
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=console,
        )

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def add(self, label: str, total: float, unit: str = "round") -> Callable[[int, dict[str, Any]], None]:
        """A bar that is full when a column of the history reaches a total; what shows a row on it."""
        task = self._progress.add_task(label, total=total, facts="compiling, first time")

        def show(round: int, row: dict[str, Any]) -> None:
            metrics = [f"{name} {value:.4g}" for name, value in row.items() if name not in COST]
            rate = [f"{round / row['seconds']:.4g} rounds/s"] if row["seconds"] else []
            facts = "  ".join([f"{row['exchanges']} exchanges", *metrics, *rate])
            done = (row["bytes_up"] + row["bytes_down"]) / 1e6 if unit == "megabytes" else row[unit]
            self._progress.update(task, completed=done, facts=facts)

        return show
