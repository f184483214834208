"""What a study is: cells to run, what is measured in them, and what the paper says of it. Imports experiments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rookery.experiments.compare import cost
from rookery.experiments.experiment import Experiment
from rookery.experiments.tune import Tuning
from rookery.runs.table import Table

# Said of cells that shared a machine.
SIDE_BY_SIDE = "Up to 21 cells ran on the GPU at a time, so that each took many times as long as it would alone."


@dataclass(frozen=True)
class Measure:
    """A number read off a run's history, and when it counts as the paper's.

    Args:
      name: what tables call it.
      of: the number; infinite where it was never reached.
      rising: whether larger is better.
      tolerance: how far from the paper's it may be, on either side, in its own unit.
      factor: how many times the paper's it may be, or the paper's this.
      percent: whether it is shown in percent.
    """

    name: str
    of: Callable[[Table], float]
    rising: bool = True
    tolerance: float = 0.0
    factor: float = 1.0
    percent: bool = False

    def side(self, ours: float, paper: float, spread: float = 0.0) -> int:
        """0: within the tolerance or the published spread of the paper's; 1: better than that; -1: worse."""
        slack = max(self.tolerance, spread)
        above, below = ours > paper * self.factor + slack, ours < paper / self.factor - slack
        return (int(above) - int(below)) * (1 if self.rising else -1)

    def show(self, value: float) -> str:
        """The number as a table has it."""
        if math.isnan(value):
            return ""
        if math.isinf(value):
            return "never"
        return f"{100 * value:.2f}" if self.percent else _number(value, 4)

    def show_with_spread(self, mean: float, spread: float) -> str:
        """A mean and its spread as a table has them."""
        if not math.isfinite(mean):
            return self.show(mean)
        return f"{self.show(mean)} ± {_number(100 * spread if self.percent else spread, 2)}"


def _number(value: float, digits: int) -> str:
    """A number with a given number of digits; large ones whole, with commas, and not in powers of ten."""
    if abs(value) >= 1e9:
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.{digits}g}'):g}"


@dataclass(frozen=True)
class First:
    """What a run had spent (exchanges, megabytes, gradients, seconds or rounds) when a metric first reached a level."""

    axis: str
    metric: str
    level: float
    falling: bool = False

    def __call__(self, history: Table) -> float:
        there = history[self.metric] <= self.level if self.falling else history[self.metric] >= self.level
        return float(cost(history, self.axis)[there.argmax()]) if there.any() else math.inf


@dataclass(frozen=True)
class Last:
    """A metric at the end of a run, or its mean over the last few evaluations; NaN: the run has no such metric."""

    metric: str
    evaluations: int = 1

    def __call__(self, history: Table) -> float:
        if self.metric not in history:
            return math.nan
        return float(np.mean(history[self.metric][-self.evaluations :]))


@dataclass(frozen=True)
class Jumps:
    """How much a metric changes from one evaluation to the next: the mean over the second half of a run.

    NaN: there was one evaluation.
    """

    metric: str

    def __call__(self, history: Table) -> float:
        values = history[self.metric]
        changes = np.abs(np.diff(values[(len(values) - 1) // 2 :]))
        return float(np.mean(changes)) if changes.size else math.nan


def reached(level: float, axis: str = "exchanges", metric: str = "accuracy", factor: float = 1.1) -> Measure:
    """What was spent when an accuracy was first there; to a tenth, by default."""
    return Measure(f"{axis} to {100 * level:g} %", First(axis, metric, level), rising=False, factor=factor)


def final(metric: str = "accuracy", tolerance: float = 0.0) -> Measure:
    """An accuracy at the end: the mean of the last five evaluations."""
    return Measure(f"final {metric.replace('_', ' ')}", Last(metric, 5), tolerance=tolerance, percent=True)


@dataclass(frozen=True)
class Search:
    """Settings of a method to choose from on validation data, and the exchanges that each is tried for."""

    methods: tuple[Any, ...]
    exchanges: int


def cell_name(row: str, column: str) -> str:
    """What a cell is called by its row and its column, which may be none."""
    return f"{row}, {column}" if column else row


@dataclass(frozen=True)
class Cell:
    """One experiment of a study: a row and a column of its table, and the paper's numbers by measure.

    With a search the experiment's method is the best of the search's settings, chosen before the cell is run.
    """

    row: str
    column: str
    experiment: Experiment
    paper: Mapping[str, float] = field(default_factory=dict)
    search: Search | None = None
    published_spread: Mapping[str, float] = field(default_factory=dict)  # how far it may be, by measure
    most_seeds: int | None = None  # where it is run with fewer than the others, to save time

    @property
    def name(self) -> str:
        return cell_name(self.row, self.column)

    def seeds(self, asked: int) -> int:
        """How many seeds it is run with."""
        return min(asked, self.most_seeds or asked)


@dataclass(frozen=True)
class Claim:
    """Something that the paper says of several cells together, and whether it holds here."""

    text: str
    holds: bool
    found: str


@dataclass(frozen=True)
class Done:
    """A cell that has been run: a history per seed, what made it, and what was chosen where there was a choice."""

    cell: Cell
    histories: Sequence[Table]
    seconds: float
    commit: str
    device: str
    tuning: Tuning | None = None
    code: Mapping[str, str] = field(default_factory=dict)  # digests of the modules that made it

    @property
    def diverged(self) -> list[bool]:
        """Which seeds' runs ended early, since a value was no longer finite."""
        return [bool(history["round"][-1] < self.cell.experiment.options.rounds) for history in self.histories]

    def values(self, measure: Measure) -> np.ndarray:
        """A number per seed; NaN for what is of the end of a run, where it diverged before that."""
        lost = [isinstance(measure.of, Last | Jumps) and gone for gone in self.diverged]
        return np.asarray([math.nan if gone else measure.of(h) for h, gone in zip(self.histories, lost)])


def mean_and_spread(values: np.ndarray) -> tuple[float, float, int]:
    """The mean and sample deviation of the finite values, and their number; infinite: never; NaN: not measured."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return math.nan if np.isnan(values).all() else math.inf, math.nan, 0
    # The mean of equal numbers may differ from them by a rounding.
    spread = float(finite.std(ddof=1)) if np.ptp(finite) else 0.0
    return float(finite.mean()), spread, int(finite.size)


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper, to be made again.

    Args:
      name: its name on the command line.
      title: what it is.
      source: the paper and the table.
      settings: what is run, in a paragraph or two of markdown.
      cells: the experiments; with True the small version, on data that is built in.
      measures: what is read off each.
      claims: what the paper says of several cells, checked on what was run.
      claims_heading, misses_heading: what the page calls them, and what does not hold.
      judged: whether the claims are anybody's, and count in the table of all; otherwise they only mark.
      claims_of_parts: whether the claims can be checked when some cells are missing.
      remarks: what is to be said of the numbers, in markdown.
      causes: why a number is not the paper's, or a claim does not hold, by its name or part of it; of a number that
        is "CELL: MEASURE (better)" or "(worse)". The first that fits counts.
      axes, metric: what the figure shows: the metric against each.
      logarithmic, log_metric: whether the axes are, and the metric.
      lowest: the lowest value of the metric that the figure shows; None: all.
      by_setting: whether the page has a table per setting with a column per measure, or one per measure with a column
        per setting.
      picture: draws another figure than the metric against each axis, from what was done, into a file.
      runs_of: the study whose cells these are, where two show the same runs; by default its own.
      seeds: how many by default.
    """

    name: str
    title: str
    source: str
    settings: str
    cells: Callable[[bool], Sequence[Cell]]
    measures: tuple[Measure, ...]
    claims: Callable[[Mapping[str, Done]], Sequence[Claim]] = lambda done: ()
    claims_heading: str = "What the paper claims"
    misses_heading: str = "Not reproduced"
    claims_of_parts: bool = False
    judged: bool = True
    remarks: str = ""
    causes: Mapping[str, str] = field(default_factory=dict)
    axes: tuple[str, ...] = ("exchanges",)
    metric: str = "accuracy"
    logarithmic: bool = False
    log_metric: bool = False
    lowest: float | None = None
    by_setting: bool = False
    picture: Callable[[Mapping[str, Done], Path], None] | None = None
    runs_of: str = ""
    seeds: int = 5


def fewer(
    done: Mapping[str, Done],
    column: str,
    best: str,
    others: Sequence[str],
    measure: Measure,
    verb: str = "needs less than",
) -> list[Claim]:
    """Claims that one row has less of something than each of some others, spreads apart."""
    return _orders(done, column, best, others, measure, verb, falling=True)


def higher(
    done: Mapping[str, Done],
    column: str,
    best: str,
    others: Sequence[str],
    measure: Measure,
    verb: str = "is above",
) -> list[Claim]:
    """Claims that one row is above each of some others, spreads apart."""
    return _orders(done, column, best, others, measure, verb, falling=False)


@dataclass(frozen=True)
class Summary:
    """What the seeds of a cell have in a measure: the mean and spread of those that have a number, and how many do."""

    mean: float
    spread: float
    reached: int
    seeds: int

    def show(self, measure: Measure, unit: str = "") -> str:
        if math.isnan(self.mean):
            return "diverged"
        text = measure.show_with_spread(self.mean, self.spread) + (unit if self.reached else "")
        return f"{text}, {self.reached} of {self.seeds}" if 0 < self.reached < self.seeds else text


def summary(done: Done, measure: Measure) -> Summary:
    return Summary(*mean_and_spread(done.values(measure)), len(done.histories))


def _orders(
    done: Mapping[str, Done],
    column: str,
    best: str,
    others: Sequence[str],
    measure: Measure,
    verb: str,
    falling: bool,
) -> list[Claim]:
    """A claim for each of the others that was run, if the best was."""
    return [
        _order(f"{column}: {best} {verb} {other} ({measure.name})", done[first], done[second], measure, falling)
        for other in others
        if (first := f"{best}, {column}") in done and (second := f"{other}, {column}") in done
    ]


def _order(text: str, first: Done, second: Done, measure: Measure, falling: bool) -> Claim:
    """All seeds of the better one have a number, and it is better by more than both spreads, or the other has none.

    What was found says as well with how many seeds it is so: rows share their seeds' partitions and initial values.
    """
    ours, theirs = summary(first, measure), summary(second, measure)
    sign = -1.0 if falling else 1.0
    spreads = float(np.nan_to_num(ours.spread) + np.nan_to_num(theirs.spread))
    holds = ours.reached == ours.seeds and (theirs.reached == 0 or sign * (ours.mean - theirs.mean) > spreads)
    scores = [np.nan_to_num(sign * each.values(measure), nan=-math.inf, neginf=-math.inf) for each in (first, second)]
    so = int(np.sum(scores[0] > scores[1]))
    unit = " %" if measure.percent else ""
    found = f"{ours.show(measure, unit)} against {theirs.show(measure, unit)}; so with {so} of {ours.seeds} seeds"
    return Claim(f"{text}, spreads apart", holds, found)
