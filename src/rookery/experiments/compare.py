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

from rookery.errors import InputError
from rookery.experiments.experiment import CONFIG, Callback, Experiment, decisive, launch, read_config, resume_folder
from rookery.experiments.subject import Subject
from rookery.experiments.tune import HALVING, PARTS, Cost, Tuning, probe, tune
from rookery.federation.steps import is_count
from rookery.files import read_json, slug, undamaged, write_text
from rookery.runs.result import Result
from rookery.runs.table import Table

# What methods are compared by: a column of the history (bytes go both ways), its name, and what one unit is.
AXES: dict[str, tuple[Callable[[Table], np.ndarray], float]] = {
    "exchanges": (lambda history: history["exchanges"], 1),
    "megabytes": (lambda history: history["bytes_up"] + history["bytes_down"], 1e6),
    "megabytes up": (lambda history: history["bytes_up"], 1e6),
    "gradients": (lambda history: history["gradients"], 1),
    "seconds": (lambda history: history["seconds"], 1),
    "round": (lambda history: history["round"], 1),
}
EQUAL = ("exchanges", "megabytes", "gradients")  # what is made equal; seconds are the machine's


def cost(history: Table, axis: str) -> np.ndarray:
    """What a run had cost at every evaluation."""
    column, unit = AXES[axis]
    return column(history) / unit


@dataclass(frozen=True)
class Comparison:
    """Histories of several methods on one task, some seeds each, and what they show."""

    metric: str
    falling: bool
    histories: Mapping[str, Sequence[Table]]
    target: float | None = None
    diverged: Mapping[str, Sequence[bool]] = field(default_factory=dict)  # which runs, by method
    tunings: Mapping[str, Tuning] = field(default_factory=dict)  # what tuning found, by method
    folders: Sequence[Path] = ()  # of the runs, where they were kept

    def spent_to_target(self, history: Table, axis: str) -> float:
        """What a run had cost when it first reached the target; NaN: it never did."""
        values = history[self.metric]
        there = values <= self.target if self.falling else values >= self.target
        return float(cost(history, axis)[there.argmax()]) if there.any() else math.nan

    def value_at(self, history: Table, axis: str, amount: float) -> float:
        """The metric of the last evaluation that had cost no more than an amount."""
        return float(history[self.metric][cost(history, axis) <= amount * (1 + 1e-12)][-1])

    def whole(self, name: str) -> list[Table]:
        """The histories of a method's runs that did not diverge."""
        runs = self.histories[name]
        return [history for history, lost in zip(runs, self.diverged.get(name, [False] * len(runs))) if not lost]

    def common(self, axis: str) -> float:
        """What every run that did not diverge has spent at least: where they can be compared. One that spends nothing,
        since its clients learn alone, can be compared anywhere."""
        spent = [float(cost(history, axis)[-1]) for name in self.histories for history in self.whole(name)]
        return min((amount for amount in spent if amount > 0), default=0.0 if spent else math.nan)

    def table(self) -> Table:
        """One row per method: means over seeds, with the standard deviation beside them.

        `X to target` is what the runs that reached the target had spent by then, `reached` how many did;
        `at equal X` is the metric where all methods have spent the same X. Runs that diverged are counted, and are in
        no mean.
        """
        table = Table()
        for name, runs in self.histories.items():
            whole = self.whole(name)
            row: dict[str, Any] = {"method": name, "seeds": len(runs), "diverged": len(runs) - len(whole)}
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

    def curves(self, name: str, axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A method's mean cost, mean metric and its standard deviation over seeds, at every evaluation."""
        runs = self.whole(name) or self.histories[name]
        length = min(len(history.rows) for history in runs)
        costs = np.stack([cost(history, axis)[:length] for history in runs])
        values = np.stack([history[self.metric][:length] for history in runs])
        return costs.mean(axis=0), values.mean(axis=0), values.std(axis=0)

    def plot(self, path: str | Path, title: str = "") -> Path:
        """One figure with three axes: the metric against exchanges, megabytes and gradient evaluations."""
        from rookery.runs.plot import plot_panels

        panels = {axis: {name: self.curves(name, axis) for name in self.histories} for axis in EQUAL}
        return plot_panels(panels, self.metric, path, title=title, target=self.target)

    def report(self, path: str | Path, title: str | None = None) -> Path:
        """One page of all runs, which must have been kept in folders."""
        from rookery.runs.report import write_report

        if not self.folders:
            raise InputError("report: the runs of this comparison were not kept; give rk.compare a folder with out=")
        return write_report(self.folders, path, title)

    def __repr__(self) -> str:
        """The table in short: the metric in the end, and where all have spent the same."""
        amounts = [f"at {self.common(axis):.4g} {axis}" for axis in EQUAL]
        lines = [["method", f"final {self.metric}", *amounts]]
        for row in self.table().rows:
            spread = lambda name, row=row: f" ± {row[f'{name} spread']:.2g}" if row["seeds"] > 1 else ""
            names = [f"final {self.metric}", *(f"at equal {axis}" for axis in EQUAL)]
            lines.append([row["method"], *(f"{row[name]:.4g}{spread(name)}" for name in names)])
        widths = [max(map(len, column)) for column in zip(*lines)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def _add(row: dict[str, Any], name: str, values: np.ndarray) -> None:
    row[name] = float(values.mean()) if values.size else math.nan
    row[f"{name} spread"] = float(values.std()) if values.size else math.nan


class Budget(NamedTuple):
    """What every method is given: an amount of one of EQUAL."""

    axis: str
    amount: float

    @classmethod
    def of(cls, exchanges: float | None, megabytes: float | None, gradients: float | None) -> Budget:
        """The one that was given; 200 exchanges where none was."""
        given = {"exchanges": exchanges, "megabytes": megabytes, "gradients": gradients}
        given = {axis: amount for axis, amount in given.items() if amount is not None}
        if len(given) > 1:
            raise InputError(f"{', '.join(given)}: all were given; methods are given the same of one of them")
        ((axis, amount),) = given.items() or (("exchanges", 200.0),)
        if not 0 < amount < math.inf or (axis != "megabytes" and amount < 1):
            raise InputError(f"{axis}: {amount} was given; a positive number{'' if axis == 'megabytes' else ' from 1'}")
        return cls(axis, amount)

    def rounds(self, cost: Cost) -> int:
        """The rounds of a method that it pays for, one at least."""
        if not getattr(cost, self.axis) > 0:
            raise InputError(f"{self.axis}: {self.amount:g} were given, and a method spends none; give exchanges")
        return max(1, math.ceil(self.amount / getattr(cost, self.axis) - 1e-9))


Kept = Callable[[Subject, str], Any]  # runs a subject under a label, or gives what it gave before


def compare_subjects(
    subjects: Mapping[str, Subject],
    run_one: Kept,
    *,
    budget: Budget,
    seeds: int = 3,
    target: float | None = None,
    tune_budget: float | None = None,
    tune_one: Callable[[Subject, float], Tuning] | None = None,
    say: Callable[[str], Any] = lambda text: None,
) -> Comparison:
    """Runs every subject with every seed, all for one budget.

    Args:
      subjects: by label; their rounds and seeds are set here.
      run_one: runs one, by its label with the seed; gives its result.
      seeds: how many: s, s + 1, ... from the seed of the options.
      target: a value of the main metric whose cost is of interest; runs do not end there.
      tune_budget: gradient evaluations to tune each method with; 0: as many as nine runs of the most expensive method;
        None: no tuning.
      tune_one: tunes one; None: anew.
      say: called with a sentence about what is done.
    """
    check(seeds, tune_budget)
    first = next(iter(subjects.values())).assemble()
    first.check_target(target)
    say(first.clients.described())
    costs = {label: probe(subject) for label, subject in subjects.items()}
    rounds = {label: budget.rounds(cost) for label, cost in costs.items()}
    tunings = _tune_all(
        subjects, costs, rounds, tune_budget, tune_one or (lambda one, amount: tune(one, amount, say)), say
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
            if result.status == "diverged":
                say(f"{label}, seed {options.seed}: the run diverged; {result.divergence}")
            histories.setdefault(label, []).append(result.history)
            diverged.setdefault(label, []).append(result.status == "diverged")
    assembly = next(iter(subjects.values())).assemble()
    return Comparison(assembly.main_metric, assembly.falling, histories, target, diverged, tunings)


def run_label(label: str, seed: int) -> str:
    """What a run of a comparison is called."""
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
    """The experiments of a task compared in a folder: a run that is done is not run again, nor tuned again. `before`
    are methods that the folder holds already: they stay part of the comparison."""
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

    def tune_one(experiment: Any, amount: float) -> Tuning:
        path = folder / "tuning" / f"{slug(labels[experiment.method_name])}.json"
        return _tune_once(experiment, amount, path, say)

    labels = {experiment.method_name: label for label, experiment in experiments.items()}
    found = compare_subjects(experiments, run_one, budget=budget, tune_one=tune_one, say=say, **options)
    histories = {label: [result.history for result in results] for label, results in kept.items()}
    diverged = {label: [result.status == "diverged" for result in results] for label, results in kept.items()}
    return dataclasses.replace(
        found,
        histories={**histories, **found.histories},
        diverged={**diverged, **found.diverged},
        folders=(*(path for label in kept for path in there[label]), *folders),
    )


def check(seeds: int, tune_budget: float | None) -> None:
    """Refuses numbers that no comparison can be made with."""
    if not is_count(seeds):
        raise InputError(f"seeds: {seeds} was given; at least 1 is needed")
    if tune_budget is not None and not 0 <= tune_budget < math.inf:
        raise InputError(f"tune budget: {tune_budget} was given; a number of gradient evaluations is needed")


_CODE = {"task_source": "code of the task", "method_source": "code of the method", "method_file": "file of the method"}


def run_cell(experiment: Experiment, folder: Path, callbacks: Any = None) -> Any:
    """Runs an experiment into a folder, or goes on with it there; one that has ended gives the result it had."""
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
    tune_one: Callable[[Subject, float], Tuning],
    say: Callable[[str], Any],
) -> dict[str, Tuning]:
    if budget is None:
        return {}
    if not budget:
        budget = max(PARTS * costs[label].gradients * max(rounds[label], HALVING[0]) for label in subjects)
    say(f"tuning: {budget:.4g} gradient evaluations for each method, on validation data")
    return {label: tune_one(subject, budget) for label, subject in subjects.items()}


def _tune_once(experiment: Experiment, budget: float, path: Path, say: Callable[[str], Any]) -> Tuning:
    """Tunes, or takes what was found for the same experiment and budget before."""
    asked = decisive(experiment.to_json() | {"budget": budget})
    if path.is_file():
        kept = read_json(path, "out", "; remove it, and it is tuned again")
        with undamaged(path, "out", "; remove it, and it is tuned again"):
            if kept["asked"] == asked:
                return Tuning.from_json(kept, {type(experiment.method).__name__: type(experiment.method)})
    tuning = tune(experiment, budget, say)
    write_text(path, json.dumps({"asked": asked, **tuning.to_json()}, indent=1))
    return tuning
