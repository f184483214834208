"""Reports: one page of curves and tables out of run folders, to be opened in a browser or sent to somebody."""

from __future__ import annotations

import csv
import html
import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rookery.direction import lower_is_better
from rookery.errors import InputError
from rookery.files import read_json
from rookery.own_code import short_name
from rookery.runs.table import COST
from rookery.version import __version__

AXES = ("exchanges", "bytes", "samples", "gradients", "seconds", "round")  # what metrics can be drawn against
POINTS = 1000  # of a curve at most: a page of long runs stays small
LARGEST = 1e300  # a value beyond it counts as not finite: no axis reaches so far
UNFINISHED = "running or interrupted"


@dataclass(frozen=True)
class Recorded:
    """A run folder as it was read: its configuration, its history column by column, and how it ended."""

    folder: Path
    config: dict[str, Any]
    columns: dict[str, list[float | None]]
    status: str

    @property
    def method(self) -> str:
        return short_name(str(self.config.get("method_name", "")))

    @property
    def task(self) -> str:
        return str(self.config.get("task_name", ""))

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def rows(self) -> int:
        return max(map(len, self.columns.values()), default=0)

    @property
    def metrics(self) -> list[str]:
        return [name for name in self.columns if name not in COST]

    def cost(self, axis: str) -> list[float | None] | None:
        """A column to draw metrics against, if it is there; bytes are those up and down together."""
        if axis != "bytes":
            return self.columns.get(axis)
        ways = [self.columns.get(name) for name in ("bytes_up", "bytes_down")]
        return None if None in ways else [None if None in both else sum(both) for both in zip(*ways)]


def write_report(runs: Sequence[str | Path], path: str | Path, title: str | None = None) -> Path:
    """Writes one HTML page out of run folders: curves to explore, a summary, and how the configurations differ.

    The page holds everything it needs and asks nothing of the network. It is written aside and renamed, so it is there
    whole or not at all; a page of an earlier time is replaced.

    Args:
      runs: run folders, or folders that hold some one or two levels down.
      path: where the page goes, such as "report.html".
      title: its heading; by default the tasks that were solved.

    Returns:
      The path of the page.
    """
    recorded = [read_run(folder) for folder in find_runs(runs)]
    return _write(Path(path), render(describe(recorded, title)))


def find_runs(runs: Sequence[str | Path]) -> list[Path]:
    """The run folders that are meant, each once: those given, and those inside of others, up to two levels down."""
    if isinstance(runs, str | Path) or not isinstance(runs, Sequence) or not runs:
        raise InputError(f"runs: {runs!r} was given; a list of run folders is needed")
    found: dict[Path, Path] = {}
    for given in runs:
        if not isinstance(given, str | Path):
            raise InputError(f"runs: {given!r} was given; the path of a run folder is needed")
        try:
            inside = _runs_in(Path(given))
        except OSError as error:
            raise InputError(f"runs: {str(given)!r} cannot be read: {error.strerror}") from error
        if not inside:
            raise InputError(
                f"runs: {str(given)!r} holds no history.csv; a run folder, or one with some in it, is needed"
            )
        for folder in inside:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def _runs_in(folder: Path, levels: int = 2) -> list[Path]:
    if (folder / "history.csv").is_file():
        return [folder]
    if levels == 0 or not folder.is_dir():
        return []
    # A folder that begins with a dot is one that is still being written.
    inside = [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]
    return [run for child in sorted(inside, key=_natural) for run in _runs_in(child, levels - 1)]


def _natural(folder: Path) -> list[tuple[int, str]]:
    """An order in which seed-2 comes before seed-10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", folder.name)]


def read_run(folder: Path) -> Recorded:
    """Reads a run folder; one without result.json is of a run that still goes, or was cut off."""
    columns = read_history(folder / "history.csv")
    return Recorded(folder, _read_json(folder / "config.json"), columns, _status(_read_json(folder / "result.json")))


def read_history(path: Path) -> dict[str, list[float | None]]:
    """The columns of a history; a cell that holds no finite number is None, and so is one that is missing."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise InputError(f"runs: {str(path)!r} cannot be read: {error.strerror}") from error
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()  # a row that is just being written
    header, *rows = [row for row in csv.reader(lines) if row] or [[]]
    return {name: [_number(row[i]) if i < len(row) else None for row in rows] for i, name in enumerate(header)}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if not abs(value) < LARGEST:
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _read_json(path: Path) -> dict[str, Any]:
    """What a file of a run folder says; nothing, when it is not there."""
    return read_json(path, "runs") if path.is_file() else {}


def _status(result: dict[str, Any]) -> str:
    status = str(result.get("status", UNFINISHED))
    divergence = result.get("divergence")
    return f"{status} in round {divergence.get('round')}" if isinstance(divergence, dict) else status


def falling(metric: str, runs: Sequence[Recorded] = ()) -> bool:
    """Say whether lower is better: as the runs' configurations say of their main metric, otherwise by its name. A
    metric with a name that does not say it is drawn as one that should rise."""
    for run in runs:
        if run.config.get("main_metric") == metric and isinstance(run.config.get("falling"), bool):
            return run.config["falling"]
    return bool(lower_is_better(metric))


def describe(runs: Sequence[Recorded], title: str | None = None) -> dict[str, Any]:
    """All that the page shows, in plain JSON types."""
    groups = group_by_seed(runs)
    metrics = _metrics(runs)
    tables = [dict(_flat(_configuration(group, runs))) for group in groups]
    names = short_names([run.folder for run in runs])
    of = {number: index for index, group in enumerate(groups) for number in group}
    return {
        "title": title or _title(runs),
        "made": time.strftime("%Y-%m-%d %H:%M %z"),
        "version": __version__,
        "axes": [axis for axis in AXES if any(run.cost(axis) is not None for run in runs)],
        "metrics": [{"name": metric, "falling": falling(metric, runs)} for metric in metrics],
        "groups": [
            {"label": label, "runs": group, **_folded([runs[number] for number in group], metrics)}
            for label, group in zip(_labels(groups, runs, tables, names), groups)
        ],
        "runs": [_run(run, names[i], of[i], metrics) for i, run in enumerate(runs)],
        "config": compare(tables),
        "thinned": any(run.rows > POINTS for run in runs),
    }


def _folded(seeds: Sequence[Recorded], metrics: list[str]) -> dict[str, Any]:
    """Average runs that differ in their seed alone: for every metric and cost, the mean of the final values and their
    sample standard deviation. The spread of one run is null, and so is a column that a run lacks. Runs that diverged
    enter no mean."""
    whole = [run for run in seeds if not run.status.startswith("diverged")]

    def over(columns: list[list[float | None] | None]) -> dict[str, float | None] | None:
        values = [_last_of(column or []) for column in columns]
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return {"mean": fmean(known), "spread": stdev(known) if len(known) > 1 else None}

    return {
        "final": {metric: over([run.columns.get(metric) for run in whole]) for metric in metrics},
        "costs": {axis: over([run.cost(axis) for run in whole]) for axis in AXES},
        "ended": [f"{count} {status}" for status, count in Counter(run.status for run in seeds).items()],
    }


def _title(runs: Sequence[Recorded]) -> str:
    tasks = list(dict.fromkeys(run.task for run in runs if run.task))
    return f"Runs of {', '.join(tasks)}" if tasks else "Rookery runs"


def _metrics(runs: Sequence[Recorded]) -> list[str]:
    """The metrics of all runs, first the main one: what the first run says it is, or accuracy."""
    metrics = list(dict.fromkeys(name for run in runs for name in run.metrics))
    main = next((name for name in (runs[0].config.get("main_metric"), "accuracy") if name in metrics), None)
    return sorted(metrics, key=lambda name: name != main)


def group_by_seed(runs: Sequence[Recorded]) -> list[list[int]]:
    """The runs by number, those together that differ in nothing but their seed."""
    groups: dict[Any, list[int]] = {}
    times: Counter = Counter()
    for number, run in enumerate(runs):
        key: Any = number  # without a known seed a run is on its own
        if run.seed is not None:
            settings = {name: value for name, value in run.config.items() if name not in ("seed", "out")}
            same = json.dumps([settings, run.seed], sort_keys=True)
            key = (json.dumps(settings, sort_keys=True), times[same])  # the same seed again is no other seed
            times[same] += 1
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def short_names(folders: Sequence[Path]) -> list[str]:
    """As much of the end of each path as tells all of them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts))):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _configuration(group: list[int], runs: Sequence[Recorded]) -> dict[str, Any]:
    """The configuration of a group: that of its first run, with the seeds of all; where it was written is left out."""
    config = {name: value for name, value in runs[group[0]].config.items() if name != "out"}
    if len(group) > 1:
        config["seed"] = ", ".join(str(runs[number].seed) for number in group)
    return config


def _flat(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """A nested configuration as dotted names and the text of their values."""
    if isinstance(value, dict) and (value or not name):
        for key, child in value.items():
            yield from _flat(child, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if isinstance(value, str) else "none" if value is None else _plain(value)


def _plain(value: Any) -> str:
    """A value as text, floats to ten digits: nobody wrote 0.30000000000000004."""
    return json.dumps(json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.10g}")))


def compare(tables: Sequence[dict[str, str]]) -> dict[str, Any]:
    """The rows of several configurations: those that differ, first those that all set, and those equal in all."""
    keys = list(dict.fromkeys(key for table in tables for key in table))
    rows = [{"key": key, "values": [table.get(key) for table in tables]} for key in keys]
    differing = [row for row in rows if len(set(row["values"])) > 1]
    return {
        "differing": sorted(differing, key=lambda row: None in row["values"]),
        "equal": [{"key": row["key"], "value": row["values"][0]} for row in rows if len(set(row["values"])) == 1],
    }


def _labels(
    groups: list[list[int]], runs: Sequence[Recorded], tables: Sequence[dict[str, str]], names: list[str]
) -> list[str]:
    """A name per group: its method, with what sets it apart from others of that method, if that is short."""
    several_tasks = len({run.task for run in runs}) > 1
    first = [runs[group[0]] for group in groups]
    plain = [" ".join(filter(None, [run.task if several_tasks else "", run.method])) for run in first]
    labels = []
    for number, label in enumerate(plain):
        alike = [tables[other] for other, its in enumerate(plain) if its == label]
        apart = compare(alike)["differing"] if len(alike) > 1 else []
        settings = ", ".join(f"{_last(row['key'])} {tables[number].get(row['key'], 'not set')}" for row in apart[:3])
        short = 0 < len(apart) <= 3 and len(settings) <= 60
        labels.append(f"{label}, {settings}" if label and short else label)
    seen = Counter(labels)
    return [
        label if label and seen[label] == 1 else " ".join(filter(None, [label, names[group[0]]]))
        for label, group in zip(labels, groups)
    ]


def _last(key: str) -> str:
    """A dotted name without the part of the configuration it is in."""
    return key.split(".", 1)[-1]


def _run(run: Recorded, name: str, group: int, metrics: list[str]) -> dict[str, Any]:
    """What the page knows of one run; of its curves a limited number of points, of its totals and bests all rows."""
    shown = range(run.rows) if run.rows <= POINTS else [round(i * (run.rows - 1) / (POINTS - 1)) for i in range(POINTS)]
    costs = {axis: column for axis in AXES if (column := run.cost(axis)) is not None}
    own = {metric: run.columns[metric] for metric in run.metrics}
    known = {metric: [value for value in own.get(metric, []) if value is not None] for metric in metrics}
    rounds = run.config.get("rounds")
    return {
        "name": name,
        "group": group,
        "task": run.task,
        "method": run.method,
        "seed": None if run.seed is None else str(run.seed),
        "status": run.status,
        "planned": rounds if isinstance(rounds, int) else None,
        "totals": {name: _last_of(run.columns[name]) for name in run.columns if name not in own},
        "final": {metric: _last_of(own.get(metric, [])) for metric in metrics},
        "best": {m: (min if falling(m, [run]) else max)(values) if values else None for m, values in known.items()},
        "costs": {axis: [column[i] for i in shown] for axis, column in costs.items()},
        "metrics": {metric: [column[i] for i in shown] for metric, column in own.items()},
    }


def _last_of(column: list[float | None]) -> float | None:
    return column[-1] if column else None


def render(report: dict[str, Any]) -> str:
    """The page: the template with the data in it."""
    # No "<" is left in the data, so nothing in it can end the element it is in.
    data = json.dumps(report, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {"title": html.escape(str(report["title"])), "data": data}
    template = resources.files("rookery.runs").joinpath("report.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(title|data)\}\}", lambda match: parts[match[1]], template)


def _write(target: Path, page: str) -> Path:
    """Writes the page beside its place, and moves it there."""
    if target.is_dir():
        raise InputError(f"path: {str(target)!r} is a folder; the path of a file such as report.html is needed")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(f"path: {str(target)!r} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(page)
        os.chmod(aside, 0o644)
        os.replace(aside, target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    return target
