"""Comparing methods on one task: at equal exchanges, equal bytes and equal gradient evaluations."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.direction import GIVEN, known_direction
from rookery.errors import InputError
from rookery.experiments.experiment import (
    CONFIG,
    Callback,
    Experiment,
    decisive,
    launch,
    read_config,
    read_experiment,
    resume_folder,
)
from rookery.experiments.shown import EQUAL, comparison_text
from rookery.experiments.statistics import paired, summarise
from rookery.experiments.subject import Subject
from rookery.experiments.tune import CANDIDATES, Cost, Tuning, probe, tune
from rookery.federation.steps import is_count
from rookery.files import read_json, slug, undamaged, write_text
from rookery.runs.divergence import exploded_metric
from rookery.runs.result import Result, signed_change
from rookery.runs.table import Table

# Axes of a comparison: a column of the history (bytes count both ways), and the size of one unit.
AXES: dict[str, tuple[Callable[[Table], np.ndarray], float]] = {
    "exchanges": (lambda history: history["exchanges"], 1),
    "megabytes": (lambda history: history["bytes_up"] + history["bytes_down"], 1e6),
    "megabytes up": (lambda history: history["bytes_up"], 1e6),
    "gradients": (lambda history: history["gradients"], 1),
    "seconds": (lambda history: history["seconds"], 1),
    "round": (lambda history: history["round"], 1),
}


def cost(history: Table, axis: str) -> np.ndarray:
    """Return the cost of a run at every evaluation."""
    column, unit = AXES[axis]
    return column(history) / unit


@dataclass(frozen=True)
class Comparison:
    """Histories of several methods on one task, one per seed, and what they show.

    Args:
      metric: Name of the metric that counts.
      falling: Whether a lower value of it is better.
      histories: One history per seed, by method. The same place in two methods is the same seed.
      target: Value of the metric to reach; the cost of reaching it is in the table.
      diverged: Which runs diverged, by method. They are counted, and enter no mean.
      tunings: What tuning found, by method.
      folders: Folders of the runs, where they were kept.
      direction: Where `falling` comes from: "given", or "inferred from the name".
    """

    metric: str
    falling: bool
    histories: Mapping[str, Sequence[Table]]
    target: float | None = None
    diverged: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    tunings: Mapping[str, Tuning] = field(default_factory=dict)
    folders: Sequence[Path] = ()
    direction: str = GIVEN

    def spent_to_target(self, history: Table, axis: str) -> float:
        """Return the cost of a run when it first reached the target; NaN if it never did."""
        values = history[self.metric]
        reached = values <= self.target if self.falling else values >= self.target
        return float(cost(history, axis)[reached.argmax()]) if reached.any() else math.nan

    def value_at(self, history: Table, axis: str, amount: float) -> float:
        """Return the metric at the last evaluation that had cost no more than an amount."""
        return float(history[self.metric][cost(history, axis) <= amount * (1 + 1e-12)][-1])

    def lost(self, name: str) -> list[bool]:
        """Say which runs of a method diverged, by seed."""
        return list(self.diverged.get(name, [False] * len(self.histories[name])))

    def whole(self, name: str) -> list[Table]:
        """Return the histories of a method's runs that did not diverge."""
        return [history for history, lost in zip(self.histories[name], self.lost(name)) if not lost]

    def common(self, axis: str) -> float:
        """Return the largest cost that every run reached, where runs can be compared. Runs that diverged do not count,
        and neither do runs without any cost, whose clients learn alone: they can be compared anywhere."""
        spent = [float(cost(history, axis)[-1]) for name in self.histories for history in self.whole(name)]
        return min((amount for amount in spent if amount > 0), default=0.0 if spent else math.nan)

    def table(self) -> Table:
        """Return one row per method: means over seeds, with sample deviations and 95 % intervals.

        Each mean `X` has the columns `X spread` (n - 1 in the denominator), `X low` and `X high` (Student's t), which
        are NaN for one seed. `A to target` is the cost of the runs that reached the target, and `reached` their number.
        `at equal A` is the metric where all methods have spent the same amount of A. `diverged` counts the runs that
        diverged, which enter no mean. `worse than at first` counts the other runs that ended worse than they began.
        """
        table = Table()
        for name, runs in self.histories.items():
            whole = self.whole(name)
            row: dict[str, Any] = {"method": name, "seeds": len(runs), "diverged": len(runs) - len(whole)}
            row["worse than at first"] = sum(map(self._ended_worse, whole))
            if self.target is not None:
                for axis in ("exchanges", "megabytes", "seconds"):
                    spent = np.asarray([self.spent_to_target(history, axis) for history in whole])
                    _add(row, f"{axis} to target", spent[~np.isnan(spent)])
                row["reached"] = int(np.sum(~np.isnan(spent)))
            _add(row, f"final {self.metric}", np.asarray([history[self.metric][-1] for history in whole]))
            for axis in EQUAL:
                amount = self.common(axis)
                values = np.asarray([self.value_at(history, axis, amount) for history in whole])
                _add(row, f"at equal {axis}", values)
            table.append(row)
        return table

    def _ended_worse(self, history: Table) -> bool:
        first, last = float(history[self.metric][0]), float(history[self.metric][-1])
        return (signed_change(self.metric, first, last, self.falling) or 0.0) > 0

    def differences(self, against: str | None = None, axis: str = "exchanges") -> Table:
        """Return paired differences of the metric over shared seeds, where all methods have spent the same.

        Args:
          against: Method to subtract from each of the others; None: the one with the best mean.
          axis: Cost that is equal: "exchanges", "megabytes" or "gradients".

        Returns:
          One row per other method: the mean difference, its sample deviation, its 95 % interval, the number of seeds
          in which neither run diverged (`pairs`), and in how many of these the method was `better`. The intervals are
          not corrected for the number of methods.
        """
        if against is not None and against not in self.histories:
            raise InputError(f"against must be one of {', '.join(self.histories)}; got {against!r}.")
        amount = self.common(axis)
        values = {
            name: np.asarray(
                [
                    math.nan if lost else self.value_at(history, axis, amount)
                    for history, lost in zip(runs, self.lost(name))
                ]
            )
            for name, runs in self.histories.items()
        }
        base = self._best(values) if against is None else against
        table = Table()
        for name in values:
            if base is None or name == base:
                continue
            both = min(len(values[name]), len(values[base]))
            first, second = values[name][:both], values[base][:both]
            shared = ~(np.isnan(first) | np.isnan(second))
            found = paired(first[shared], second[shared])
            better = first[shared] < second[shared] if self.falling else first[shared] > second[shared]
            row = {"method": name, "minus": base, "pairs": int(shared.sum()), "better": int(better.sum())}
            row |= {"difference": found.mean, "spread": found.spread, "low": found.low, "high": found.high}
            table.append(row)
        return table

    def _best(self, values: Mapping[str, np.ndarray]) -> str | None:
        """The method with the best mean, among those with the fewest diverged runs."""
        ranked = {
            name: (int(np.isnan(each).sum()), float(np.nanmean(each)) * (1 if self.falling else -1))
            for name, each in values.items()
            if not np.isnan(each).all()
        }
        return min(ranked, key=lambda name: ranked[name], default=None)

    def curves(self, name: str, axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a method's mean cost, mean metric and its sample deviation over seeds (NaN for one seed), at every
        evaluation."""
        runs = self.whole(name) or self.histories[name]
        length = min(len(history.rows) for history in runs)
        costs = np.stack([cost(history, axis)[:length] for history in runs])
        values = np.stack([history[self.metric][:length] for history in runs])
        spread = values.std(axis=0, ddof=1) if len(runs) > 1 else np.full(length, math.nan)
        return costs.mean(axis=0), values.mean(axis=0), spread

    def plot(self, path: str | Path, title: str = "") -> Path:
        """Draw one figure with three panels: the metric against exchanges, megabytes and gradient evaluations."""
        from rookery.runs.plot import plot_panels

        panels = {axis: {name: self.curves(name, axis) for name in self.histories} for axis in EQUAL}
        return plot_panels(panels, self.metric, path, title=title, target=self.target)

    def report(self, path: str | Path, title: str | None = None) -> Path:
        """Write one page of all runs, which must have been kept in folders."""
        from rookery.runs.report import write_report

        if not self.folders:
            raise InputError("report: the runs of this comparison were not kept; give rk.compare a folder with out=")
        return write_report(self.folders, path, title)

    def to_json(self) -> dict[str, Any]:
        """Describe how the comparison was made: the metric and its direction, and what was tuned, from which grid."""
        return {
            "metric": self.metric,
            "falling": self.falling,
            "direction": self.direction,
            "target": self.target,
            "seeds": {name: len(runs) for name, runs in self.histories.items()},
            "diverged": {name: self.lost(name) for name in self.histories},
            "tunings": {name: tuning.described() for name, tuning in self.tunings.items()},
        }

    def __repr__(self) -> str:
        """Show the comparison: its table, paired differences, and what was tuned."""
        return comparison_text(self)


def _add(row: dict[str, Any], name: str, values: np.ndarray) -> None:
    found = summarise(values)
    row |= {name: found.mean, f"{name} spread": found.spread, f"{name} low": found.low, f"{name} high": found.high}


class Budget(NamedTuple):
    """The amount of one of EQUAL that every method may spend."""

    axis: str
    amount: float

    @classmethod
    def of(cls, exchanges: float | None, megabytes: float | None, gradients: float | None) -> Budget:
        """Return the one budget that was given; 200 exchanges by default."""
        given = {"exchanges": exchanges, "megabytes": megabytes, "gradients": gradients}
        given = {axis: amount for axis, amount in given.items() if amount is not None}
        if len(given) > 1:
            raise InputError(f"{', '.join(given)}: all were given; methods are given the same of one of them")
        ((axis, amount),) = given.items() or (("exchanges", 200.0),)
        if not 0 < amount < math.inf or (axis != "megabytes" and amount < 1):
            raise InputError(f"{axis}: {amount} was given; a positive number{'' if axis == 'megabytes' else ' from 1'}")
        return cls(axis, amount)

    def rounds(self, cost: Cost) -> int:
        """Return how many rounds of a method the budget pays for, at least one."""
        if not getattr(cost, self.axis) > 0:
            raise InputError(f"{self.axis}: {self.amount:g} were given, and a method spends none; give exchanges")
        return max(1, math.ceil(self.amount / getattr(cost, self.axis) - 1e-9))


Kept = Callable[[Subject, str], Any]  # runs a subject under a label, or returns its earlier result
REMOVE = "; remove it, and it is tuned again"
TuneOne = Callable[[Subject, float, int], Tuning]  # of a subject, a budget in gradients, and rounds


def compare_subjects(
    subjects: Mapping[str, Subject],
    run_one: Kept,
    *,
    budget: Budget,
    seeds: int = 3,
    target: float | None = None,
    tune_budget: float | None = None,
    tune_one: TuneOne | None = None,
    say: Callable[[str], Any] = lambda text: None,
) -> Comparison:
    """Run every subject with every seed, all for one budget.

    Args:
      subjects: Subjects by label; this function sets their rounds and seeds.
      run_one: Function that runs one subject under its label with the seed, and returns the result.
      seeds: Number of seeds: s, s + 1, ... from the seed of the options.
      target: Value of the main metric to report the cost of; runs do not end there.
      tune_budget: Gradient evaluations to tune each method with; 0: as many as CANDIDATES runs of the most expensive
        method; None: no tuning.
      tune_one: Function that tunes one subject; None: `tune`.
      say: Function that is called with a sentence about each step.
    """
    check(seeds, tune_budget)
    first = next(iter(subjects.values())).assemble()
    falling = known_direction(first.main_metric, first.falling)
    first.check_target(target)
    say(first.clients.described())
    costs = {label: probe(subject) for label, subject in subjects.items()}
    rounds = {label: budget.rounds(cost) for label, cost in costs.items()}
    tunings = _tune_all(
        subjects,
        costs,
        rounds,
        tune_budget,
        tune_one or (lambda one, amount, rounds: tune(one, amount, rounds, say)),
        say,
    )
    histories: dict[str, list[Table]] = {}
    diverged: dict[str, list[bool]] = {}
    for label, subject in subjects.items():
        method = tunings[label].method if label in tunings else subject.method
        for number in range(seeds):
            options = dataclasses.replace(
                subject.options,
                rounds=rounds[label],
                every=subject.options.every or max(1, rounds[label] // 100),
                seed=subject.options.seed + number,
                target=None,
            )
            one: Any = dataclasses.replace(subject, method=method, options=options)  # type: ignore[type-var]
            result = run_one(one, run_label(label, options.seed))
            if result.status == "interrupted":
                raise KeyboardInterrupt
            if why := _why_diverged(result, first.main_metric, falling):
                say(f"{label}, seed {options.seed}: the run diverged; {why}")
            histories.setdefault(label, []).append(result.history)
            diverged.setdefault(label, []).append(bool(why))
    return Comparison(first.main_metric, falling, histories, target, diverged, tunings, direction=first.direction)


def _why_diverged(result: Result, metric: str, falling: bool) -> str | None:
    """Say why a run counts as diverged: by its status, or since the metric that counts exploded.

    The status goes by the names of metrics. Of the one that counts the direction is known here, and decides.
    """
    by_metric = result.divergence is not None and result.divergence.reason and result.divergence.sequences == (metric,)
    if result.status == "diverged" and not by_metric:
        return str(result.divergence)
    if not math.isfinite(last := float(result.history[metric][-1])):
        return f"{metric} ended at {last}"
    return exploded_metric(result.history, metric, falling)


def run_label(label: str, seed: int) -> str:
    """Return the name of a run of a comparison."""
    return f"{slug(label)}-seed{seed}"


def compare_in_folder(
    experiments: Mapping[str, Experiment],
    folder: Path,
    *,
    budget: Budget,
    before: Sequence[str] = (),
    callbacks: Callable[[Path], Iterable[Callback]] | None = None,
    say: Callable[[str], Any] = lambda text: None,
    **options: Any,
) -> Comparison:
    """Compare the experiments of a task in a folder: a run that is done is not run again, nor tuned again. `before`
    names methods that the folder holds already; they stay part of the comparison."""
    folders: list[Path] = []
    first, seeds = next(iter(experiments.values())).options.seed, options.get("seeds", 3)
    there = {label: [folder / run_label(label, first + number) for number in range(seeds)] for label in before}
    kept = {
        label: [resume_folder(path, callbacks)[0] for path in paths]
        for label, paths in there.items()
        if all((path / CONFIG).is_file() for path in paths)
    }

    def run_one(experiment: Any, label: str) -> Result:
        folders.append(folder / label)
        return run_cell(experiment, folder / label, callbacks)

    def tune_one(experiment: Any, amount: float, rounds: int) -> Tuning:
        path = folder / "tuning" / f"{slug(labels[experiment.method_name])}.json"
        return _tune_once(experiment, amount, rounds, path, say)

    labels = {experiment.method_name: label for label, experiment in experiments.items()}
    found = compare_subjects(experiments, run_one, budget=budget, tune_one=tune_one, say=say, **options)
    histories = {label: [result.history for result in results] for label, results in kept.items()}
    why = lambda result: _why_diverged(result, found.metric, found.falling)
    diverged = {label: [why(result) is not None for result in results] for label, results in kept.items()}
    return dataclasses.replace(
        found,
        histories={**histories, **found.histories},
        diverged={**diverged, **found.diverged},
        tunings={**_kept_tunings(folder, there, kept), **found.tunings},
        folders=(*(path for label in kept for path in there[label]), *folders),
    )


def _kept_tunings(folder: Path, runs: Mapping[str, Sequence[Path]], labels: Iterable[str]) -> dict[str, Tuning]:
    """The tunings of methods that a folder holds already, where they were tuned."""
    tunings = {}
    for label in labels:
        path = folder / "tuning" / f"{slug(label)}.json"
        if path.is_file():
            described = read_json(path, "out", REMOVE)
            with undamaged(path, "out", REMOVE):
                of = type(read_experiment(runs[label][0]).method)
                tunings[label] = Tuning.from_json(described, {of.__name__: of})
    return tunings


def check(seeds: int, tune_budget: float | None) -> None:
    """Refuse numbers of seeds and budgets that cannot be used."""
    if not is_count(seeds):
        raise InputError(f"seeds: {seeds} was given; at least 1 is needed")
    if tune_budget is not None and not 0 <= tune_budget < math.inf:
        raise InputError(f"tune budget: {tune_budget} was given; a number of gradient evaluations is needed")


_CODE = {"task_source": "code of the task", "method_source": "code of the method", "method_file": "file of the method"}


def run_cell(experiment: Experiment, folder: Path, callbacks: Any = None) -> Any:
    """Run an experiment into a folder, or resume it there; return the stored result of one that has ended."""
    if not (folder / CONFIG).is_file():
        return launch(experiment, folder, callbacks)[0]
    config = read_config(folder)
    wanted = decisive(experiment.to_json())
    different = [key for key, value in wanted.items() if config.get(key) != value]
    if different:
        shown = ", ".join(_CODE.get(key, key) for key in different)
        raise InputError(
            f"out: {str(folder)!r} holds a run with another {shown}; give another folder or the same options, or "
            "remove or rename that folder to run it again"
        )
    return resume_folder(folder, callbacks)[0]


def _tune_all(
    subjects: Mapping[str, Subject],
    costs: Mapping[str, Cost],
    rounds: Mapping[str, int],
    budget: float | None,
    tune_one: TuneOne,
    say: Callable[[str], Any],
) -> dict[str, Tuning]:
    """Tune every method with the same budget, each at the number of rounds at which it is compared."""
    if budget is None:
        return {}
    if not budget:
        budget = max(CANDIDATES * costs[label].gradients * rounds[label] for label in subjects)
    say(f"tuning: {budget:.4g} gradient evaluations for each method, on validation data")
    return {label: tune_one(subject, budget, rounds[label]) for label, subject in subjects.items()}


def _tune_once(experiment: Experiment, budget: float, rounds: int, path: Path, say: Callable[[str], Any]) -> Tuning:
    """Tune, or return what was found before for the same experiment, budget and rounds."""
    asked = decisive(experiment.to_json() | {"budget": budget, "rounds": rounds})
    if path.is_file():
        kept = read_json(path, "out", REMOVE)
        with undamaged(path, "out", REMOVE):
            if kept["asked"] == asked:
                return Tuning.from_json(kept, {type(experiment.method).__name__: type(experiment.method)})
    tuning = tune(experiment, budget, rounds, say)
    write_text(path, json.dumps({"asked": asked, **tuning.to_json()}, indent=1))
    return tuning
