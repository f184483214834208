"""Progress bars: of one run, and of the runs of a comparison."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rookery.runs.table import COST

METRICS = 1  # so many are shown beside a bar: a line of 80 characters holds it


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

    def add(self, label: str, total: float, unit: str = "round") -> Bar:
        """A bar that is full when a column of the history reaches a total; what shows a row on it."""
        return Bar(self._progress, label, total, unit)


class Bar:
    """One bar: it is there from when its run is compiled, and shows every row of the history."""

    def __init__(self, progress: Progress, label: str, total: float, unit: str):
        self._progress, self._unit = progress, unit
        self._task = progress.add_task(label, total=total, facts="", visible=False)

    def compiling(self) -> None:
        """Everything was checked, and the program is made."""
        self._progress.update(self._task, visible=True, facts="compiling, first time")

    def __call__(self, round: int, row: dict[str, Any]) -> None:
        metrics = [f"{name} {value:.4g}" for name, value in row.items() if name not in COST][:METRICS]
        rate = [f"{round / row['seconds']:.4g} rounds/s"] if row["seconds"] else []
        exchanges = [] if self._unit == "exchanges" else [f"{row['exchanges']} exchanges"]
        facts = "  ".join([*exchanges, *metrics, *rate])
        done = (row["bytes_up"] + row["bytes_down"]) / 1e6 if self._unit == "megabytes" else row[self._unit]
        self._progress.update(self._task, visible=True, completed=done, facts=facts)
