"""What the command prints: lists, summaries and comparisons as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from rookery.algorithms.registry import METHODS
from rookery.data.catalogue import DATASETS
from rookery.data.partitions import PARTITIONS
from rookery.experiments.compare import Comparison
from rookery.experiments.tune import Tuning
from rookery.reproduce.page import grids, rows_of
from rookery.reproduce.registry import STUDIES
from rookery.reproduce.study import Done, Study
from rookery.runs.result import Result, shown_rates
from rookery.runs.table import Table
from rookery.tasks.registry import TASKS


def _table(*columns: str, left: int = 1) -> RichTable:
    table = RichTable(box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=number >= left or left == 1)
    return table


def _print(console: Console, table: RichTable) -> None:
    """A table of numbers in full: where the terminal is narrow its lines are broken there, and nothing is cut off."""
    needed = console.measure(table, options=console.options.update(width=10_000)).maximum
    Console(file=console.file, width=max(console.width, needed), highlight=False).print(table)


def show_list(console: Console) -> None:
    """Prints what there is to choose from."""
    methods = _table("method", "what it does", "exchanges a round", "problems", "exactness", left=5)
    for row in METHODS.values():
        methods.add_row(row.name, row.summary, row.exchanges, row.problems, row.exactness)
    tasks = _table("task", "what it learns", left=2)
    for name, task in TASKS.items():
        tasks.add_row(name, (task.__doc__ or "").strip().split("\n")[0])
    datasets = _table("data", "what it holds", left=2)
    for name, (description, _) in DATASETS.items():
        datasets.add_row(name, description)
    partitions = _table("partition", "how examples are divided", left=2)
    for name, (_, description) in PARTITIONS.items():
        partitions.add_row(name, description)
    studies = _table("study", "what is reproduced", left=2)
    for study in STUDIES.values():
        studies.add_row(study.name, study.title)
    for table in (methods, tasks, datasets, partitions, studies):
        console.print(table)
        console.print()


def show_results(console: Console, results: Mapping[str, Result]) -> None:
    """How runs ended: a table of what they cost, and one of their metrics."""
    metrics = next(iter(results.values())).history.metrics
    costs = _table("method", "rounds", "exchanges", "MB up", "down", "samples", "seconds")
    values = _table("method", *metrics)
    for name, result in results.items():
        row = result.history.rows[-1]
        costs.add_row(
            name,
            str(row["round"]),
            str(row["exchanges"]),
            f"{row['bytes_up'] / 1e6:.2f}",
            f"{row['bytes_down'] / 1e6:.2f}",
            str(row["samples"]),
            f"{row['seconds']:.2f}",
        )
        values.add_row(name, *(_number(row[metric]) for metric in metrics))
    _print(console, costs)
    if metrics:
        _print(console, values)
    for name, result in results.items():
        if result.rates:
            console.print(f"step sizes of {name}, measured: {shown_rates(result.rates)}")
        if result.clients is not None:
            show_clients(console, result.clients)


def show_clients(console: Console, clients: Table, most: int = 20) -> None:
    """A row per client: who it is, how much it weighs, and its own metrics; of many the first and the last ones."""
    rows = clients.rows if len(clients.rows) <= most else [*clients.rows[: most // 2], *clients.rows[-most // 2 :]]
    metrics = [name for name in clients.columns if name not in ("client", "examples", "weight", "test examples")]
    table = _table("client", "weight", "examples", "of test", *metrics)
    for row in rows:
        counts = [f"{row['weight']:.3f}", str(row["examples"]), str(row["test examples"])]
        table.add_row(row["client"], *counts, *(_number(row[metric]) for metric in metrics))
    _print(console, table)
    if len(rows) < len(clients.rows):
        console.print(f"{len(clients.rows) - len(rows)} more are in clients.csv")


def _number(value: float) -> str:
    """Four decimals, or four digits where it is large."""
    return f"{value:.4f}" if abs(value) < 1e5 else f"{value:.4g}"


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Prints a comparison as `print(comparison)` does in Python."""
    console.print(f"\n{comparison}", markup=False, soft_wrap=True)


def show_tuning(console: Console, label: str, tuning: Tuning) -> None:
    """Prints every candidate that a method was tuned with, in the order in which they were tried."""
    *rates, metric = (name for name in tuning.table.columns if name not in ("method", "stage", "rounds"))
    said = f"\n{label}: tuned on validation data with {tuning.gradients} gradient evaluations"
    console.print(said, markup=False, soft_wrap=True)
    shown = _table("stage", "rounds", *rates, metric, left=0)
    for row in tuning.table.rows:
        value = "diverged" if math.isnan(row[metric]) else f"{row[metric]:.4f}"
        shown.add_row(str(row["stage"]), str(row["rounds"]), *(f"{row[name]:.4g}" for name in rates), value)
    _print(console, shown)


def show_study(console: Console, study: Study, done: Mapping[str, Done], quick: bool) -> None:
    """A study's table: ours with its spread, and the paper's number in brackets."""
    for grid in grids(study, rows_of(study, done, quick)):
        console.print(f"\n{grid.heading}: ours ± spread{'' if quick else ' (paper)'}", markup=False)
        shown = _table("", *grid.columns)
        for row in grid.rows:
            shown.add_row(*row)
        _print(console, shown)


def show_counts(console: Console, counts: np.ndarray, classes: tuple[str, ...]) -> None:
    """How a partition divides a dataset: sizes, and classes per client."""
    sizes, kinds = counts.sum(axis=1), (counts > 0).sum(axis=1)
    shares = counts / sizes[:, None]
    table = _table("", "least", "mean", "most")
    table.add_row("examples of a client", str(sizes.min()), f"{sizes.mean():.1f}", str(sizes.max()))
    table.add_row("classes of a client", str(kinds.min()), f"{kinds.mean():.1f}", str(kinds.max()))
    largest = shares.max(axis=1)
    table.add_row("part of its largest class", *(f"{x:.3f}" for x in (largest.min(), largest.mean(), largest.max())))
    _print(console, table)
    if len(classes) <= 20:
        totals = _table("class", "examples")
        for name, total in zip(classes, counts.sum(axis=0)):
            totals.add_row(name, str(total))
        _print(console, totals)
