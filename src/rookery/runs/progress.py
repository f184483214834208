"""A progress bar for runs: round, exchanges, metrics, rate and time left."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_COST = ("round", "exchanges", "floats_up", "floats_down", "bytes_up", "bytes_down", "samples", "seconds")


class Bar:
    """A callback for `rk.run` that draws its progress; use it as a context manager."""

    def __init__(self, rounds: int, label: str, console: Console):
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task(label, total=rounds, facts="compiling")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, round: int, row: dict[str, Any]) -> None:
        metrics = [f"{name} {value:.4g}" for name, value in row.items() if name not in _COST]
        rate = [f"{round / row['seconds']:.4g} rounds/s"] if row["seconds"] else []
        facts = "  ".join([f"{row['exchanges']} exchanges", *metrics, *rate])
        self._progress.update(self._task, completed=round, facts=facts)
