"""Progress on the terminal: bars of runs, and the last reply of every site of a federation."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from rookery.runs.events import Event, printable
from rookery.runs.table import COST

METRICS = 1  # so many are shown beside a bar: a line of 80 characters holds it
SITES = 10  # sites shown at most: those that have been silent for longest
PERIOD = 10.0  # seconds between two lines of progress where output is not a terminal


class Sites:
    """The last reply of every site, from the events of a run."""

    def __init__(self) -> None:
        self._replies: dict[str, tuple[float, str] | None] = {}  # moment of the last reply, and what is shown of it
        self._failures: dict[str, str] = {}  # reasons of those whose last request failed

    def __call__(self, event: Event) -> None:
        """Takes in an event."""
        for entry in event.get("clients", ()):
            site = entry["site"]
            self._replies.setdefault(site, None)
            if entry["answered"]:
                took = "" if entry["seconds"] is None else f", after {entry['seconds']:.3g} s"
                self._replies[site] = (event["time"], f"round {event['round']}{took}")
                self._failures.pop(site, None)
        if event["event"] == "failed":
            self._replies.setdefault(event["site"], None)
            self._failures[event["site"]] = event["failure"]

    def lines(self, now: float) -> list[str]:
        """One line per site, the longest silent first."""
        moment = lambda site: (last := self._replies[site]) is not None and last[0]
        return [self._line(site, now) for site in sorted(list(self._replies), key=moment)]  # noqa: C414, another thread adds

    def _line(self, site: str, now: float) -> str:
        last = self._replies[site]
        said = "no reply yet" if last is None else f"last reply {max(0.0, now - last[0]):.0f} s ago ({last[1]})"
        return f"{site}: {said}" + (f"; {self._failures[site]}" if site in self._failures else "")


class _Progress(Progress):
    """Bars, and the sites below them."""

    sites: Sites | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        lines = [] if self.sites is None else self.sites.lines(time.time())
        for line in lines[:SITES]:
            yield Text(f"  {printable(line)}", overflow="ellipsis", no_wrap=True)
        if len(lines) > SITES:
            yield Text(f"  and {len(lines) - SITES} more")


class Bars:
    """Bars that are drawn while a `with` block lasts; each is a callback for `rk.run`.

    Args:
      sites: Sites to show below the bars; None: none.
    """

    def __init__(self, console: Console, sites: Sites | None = None):
        self._progress = _Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._progress.sites = sites if console.is_terminal else None

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
        self._progress, self._unit, self._label, self._total = progress, unit, label, total
        self._printed = time.monotonic()
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
        console = self._progress.console
        if not console.is_terminal and time.monotonic() - self._printed >= PERIOD:
            self._printed = time.monotonic()
            line = f"{self._label}: {done:.6g} of {self._total:.6g} {self._unit.removesuffix('s')}s  {facts}"
            console.print(line, markup=False, soft_wrap=True)
