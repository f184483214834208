"""`rk.compare` and `rk.tune`: methods on one problem or task, from Python. The command compares through here, too."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from rookery.data.federated import Clients
from rookery.data.partitions import as_text
from rookery.direction import known_direction
from rookery.errors import InputError, unknown
from rookery.experiments.codec import fits
from rookery.experiments.compare import Budget, Comparison, check, compare_in_folder, compare_subjects
from rookery.experiments.experiment import CONFIG, FORM, Callback, CommonOptions, Experiment, Options, decisive
from rookery.experiments.subject import OwnOptions, OwnSubject, Subject, check_methods
from rookery.experiments.tune import Tuning
from rookery.experiments.tune import tune as tune_subject
from rookery.files import check_path, hold, read_json, write_text
from rookery.metric import Metrics
from rookery.own_code import own_name
from rookery.problems.base import Problem
from rookery.runs.folder import open_folder, versions, write_results
from rookery.runs.result import Result
from rookery.runs.run import metric_names, no_metrics, run
from rookery.tasks.base import described_task
from rookery.tasks.registry import TASKS

WRITTEN = "comparison.csv, comparison.json, comparison.png, report.html"  # files of a comparison's folder

# What `rk.run` takes besides the problem, the method, the clients, the metrics and how long it goes.
RUN_OPTIONS = (
    "x", "y", "start", "sampling", "batch_size", "client_metrics", "engine", "precision", "seed", "every",
)  # fmt: skip


def compare(
    problem: Any,
    methods: Mapping[str, Any],
    clients: Any = None,
    *,
    exchanges: float | None = None,
    megabytes: float | None = None,
    gradients: float | None = None,
    seeds: int = 3,
    target: float | None = None,
    tune: bool = False,
    tune_budget: float | None = None,
    metrics: Metrics | None = None,
    metric: str | None = None,
    falling: bool | None = None,
    validation: Metrics | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> Comparison:
    """Compare methods at equal costs: every method with every seed, all for the same budget.

    Args:
      problem: Problem, or task such as `rk.tasks.HyperRep()`.
      methods: Methods by label. With a task also pairs, the same task in another form and a method, such as
        `(rk.tasks.Trust(form="plain"), rk.FedAvg(lr=rk.Rates(0.5)))`.
      clients: Federated data; with a task, the number of clients to divide its data over.
      exchanges, megabytes, gradients: Budget of every run; give one of them. Default: 200 exchanges.
      seeds: Number of seeds. With a problem they seed the runs; with a task each also draws its own partition and
        initial values.
      target: Value of the metric to report the cost of; runs do not end there.
      tune: Search each method's step sizes first: those of clients and server, and other numbers marked as scales.
      tune_budget: Gradient evaluations to tune each method with; None: as many as 24 runs of the most expensive method.
      metrics: Function that measures, as in `rk.run`. A task has its own.
      metric: Name of the metric that counts; None: the only one, or "accuracy".
      falling: True if a lower value of it is better, False if a higher one is; None: inferred from its name, and
        refused where the name does not say it. The printed comparison says which.
      validation: Metrics to tune with, on other examples than `metrics`; None: `metrics`. A task has its own.
      out: Folder for the runs, the table, a plot and a report; None: nothing is written. With a task, a folder with the
        same comparison is resumed, and methods can be added to it.
      progress: Whether to show bars.
      options: With a problem, the other arguments of `rk.run`. With a task, `cohort`, `partition` (a text such as
        "dirichlet:0.2" or a partition such as `rk.Dirichlet(0.2)`), `batch_size`, `seed`, `every`, `engine`,
        `precision`, `up` and `down`.

    Returns:
      A `Comparison`: its `table()`, `differences()`, `plot(path)`, `report(path)`, `histories` and `tunings`.
    """
    budget = Budget.of(exchanges, megabytes, gradients)
    amount = tune_budget if tune_budget is not None else (0.0 if tune else None)
    check(seeds, amount)
    given = {"metrics": metrics, "metric": metric, "falling": falling, "validation": validation}
    subjects = subjects_of(problem, methods, clients, given, options)
    shared: dict[str, Any] = {"seeds": seeds, "target": target, "tune_budget": amount}
    with _shown(progress, budget) as (race, say):
        if out is None:
            return compare_subjects(
                subjects, lambda one, label: _go(one, race(label)), budget=budget, say=say, **shared
            )
        folder = Path(out)
        if isinstance(problem, Problem):
            with open_folder(folder, ""):
                found = _compare_own(subjects, folder, budget, race, say, shared)
        else:
            experiments: Any = subjects
            found = compare_experiments(experiments, folder, budget, race, say, **shared)
        write_comparison(found, folder)
        say(f"results in {folder}: {WRITTEN}, and a folder for every run")
        return found


def compare_experiments(
    experiments: Mapping[str, Experiment],
    folder: Path,
    budget: Budget,
    race: Callable[[str], list[Callback]],
    say: Callable[[str], Any],
    *,
    seeds: int,
    target: float | None,
    tune_budget: float | None,
) -> Comparison:
    """Compare the experiments of a task in a folder, for Python and for the command. The folder is locked, and refused
    if it holds another comparison. `race` makes a run's callbacks from its label."""
    asked = asked_of(experiments, budget, seeds, tune_budget)
    with comparison_folder(folder, asked, list(experiments)) as before:
        return compare_in_folder(
            experiments,
            folder,
            budget=budget,
            before=before,
            seeds=seeds,
            target=target,
            tune_budget=tune_budget,
            callbacks=lambda place: race(place.name),
            say=say,
        )


def tune(
    problem: Any,
    method: Any,
    clients: Any = None,
    *,
    budget: float,
    rounds: int | None = None,
    metrics: Metrics | None = None,
    metric: str | None = None,
    falling: bool | None = None,
    progress: bool = True,
    **options: Any,
) -> Tuning:
    """Search a method's step sizes: those of clients and server, and other numbers that it marks as scales.

    Args:
      problem, method, clients: As in `rk.compare`.
      budget: Gradient evaluations to spend at most, over all clients and candidates.
      rounds: Rounds to run every candidate for: as many as you will run the method for. None: as many as the budget
        allows 24 candidates.
      metrics, metric, falling: As in `rk.compare`; measure on validation examples. A task has its own.
      progress: Whether to say what is tried.
      options: As in `rk.compare`.

    Returns:
      A `Tuning`: the `method` with its best numbers, the `grid` of values that were tried, the `chosen` ones, the
      `table` of all candidates, the `gradients` spent, and the `edges` at which the budget ended, if it did.
    """
    given = {"metrics": metrics, "metric": metric, "falling": falling, "validation": None}
    (subject,) = subjects_of(problem, {type(method).__name__: method}, clients, given, options).values()
    with _shown(progress, None) as (_, say):
        return tune_subject(subject, budget, rounds, say)


def subjects_of(
    problem: Any, methods: Mapping[str, Any], clients: Any, given: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Subject]:
    """Return the subjects of a comparison, by label."""
    check_methods(methods)
    if isinstance(problem, Problem):
        return {label: _own(problem, label, method, clients, given, options) for label, method in methods.items()}
    if not dataclasses.is_dataclass(problem) or isinstance(problem, type) or not hasattr(problem, "assemble"):
        raise InputError(
            f"problem: {problem!r} was given; a problem such as rk.Bilevel(...), or a task such as "
            "rk.tasks.HyperRep(), is needed"
        )
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name}: it was given with a task, which has its own")
    allowed = [field.name for field in dataclasses.fields(CommonOptions) if field.name not in ("clients", "target")]
    for name in options:
        if name not in allowed:
            raise unknown("options", name, allowed)
    if clients is not None:
        options = {**options, "clients": clients}
    name, set_options = task_name(problem), _task_options(getattr(problem, "defaults", {}), options)
    return {
        label: Experiment(name, task, label, method, set_options)
        for label, (task, method) in ((label, _on(problem, label, given)) for label, given in methods.items())
    }


def _task_options(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> Options:
    """The options of a task's runs: plain values, which a run's folder can hold; a partition may be an object."""
    hints, values = get_type_hints(Options), {}
    for name, value in options.items():
        if name == "partition":
            value = as_text(value)
        elif isinstance(value, np.generic):
            value = value.item()
        if name != "engine" and not fits(value, hints[name]):
            allowed = "a positive int" if name == "clients" else _shown_type(hints[name])
            advice = "; its data is divided over that many clients" if name == "clients" else ""
            raise InputError(f"{name} must be {allowed} with a task; got {value!r}{advice}.")
        values[name] = value
    return Options(**{**defaults, **values})


def _shown_type(hint: Any) -> str:
    """A declared type in words: an int, a str, a bool or None."""
    kinds = get_args(hint) or (hint,)
    names = ["None" if kind is type(None) else getattr(kind, "__name__", repr(kind)) for kind in kinds]
    return f"{'an' if names[0] == 'int' else 'a'} {' or '.join(names)}"


def _on(task: Any, label: str, given: Any) -> tuple[Any, Any]:
    """The task that a method is run on, and the method: a pair of its own, or the task of all."""
    if not isinstance(given, tuple):
        return task, given
    own = {FORM: getattr(task, FORM)} if hasattr(task, FORM) else {}
    if len(given) != 2 or type(given[0]) is not type(task) or dataclasses.replace(given[0], **own) != task:
        raise InputError(
            f"methods: {label!r}: {given!r} was given; a method, or a pair of the same {type(task).__name__} in "
            "another form and a method"
        )
    return given


def task_name(task: Any) -> str:
    """A task's name on the command line, or its file and class."""
    known = {cls: name for name, cls in TASKS.items()}
    return known.get(type(task)) or own_name(type(task)) or type(task).__name__


def _own(
    problem: Problem, label: str, method: Any, clients: Any, given: Mapping[str, Any], options: Mapping[str, Any]
) -> OwnSubject:
    if not isinstance(clients, Clients):
        raise InputError(f"clients: {type(clients).__name__} was given; make them with rk.federate(...)")
    for name in options:
        if name not in RUN_OPTIONS:
            raise unknown("options", name, RUN_OPTIONS)
    if given["metrics"] is None and options.get("client_metrics") is None:
        raise InputError("metrics: none was given; methods are compared by one, a function of the sequences")
    arguments = {name: value for name, value in options.items() if name not in ("seed", "every")}
    arguments = {"problem": problem, "clients": clients, **arguments}
    metric = _main_metric(given["metric"], metric_names(method, arguments, given["metrics"] or no_metrics))
    known_direction(metric, given["falling"])
    return OwnSubject(
        label,
        method,
        arguments,
        given["metrics"],
        metric,
        given["falling"],
        given["validation"],
        OwnOptions(seed=options.get("seed", 0), every=options.get("every")),
    )


def _main_metric(metric: str | None, names: list[str]) -> str:
    """The metric that counts: the one that was named, the only one, or accuracy."""
    if metric is None and len(names) == 1:
        return names[0]
    if (metric or "accuracy") not in names:
        given = "none was given" if metric is None else f"{metric!r} was given"
        raise InputError(f"metric: {given}; the metrics are {', '.join(names) or 'none'}, and one of them is needed")
    return metric or "accuracy"


def _go(subject: Any, callbacks: Iterable[Callback]) -> Result:
    """Runs a subject, and keeps nothing of it on disk."""
    options = subject.options
    arguments = subject.arguments(subject.assemble()) | {"stop": None}
    with subject.advised():
        return run(method=subject.method, rounds=options.rounds, every=options.every, callbacks=callbacks, **arguments)


def _compare_own(
    subjects: Mapping[str, Any], folder: Path, budget: Budget, race: Any, say: Any, shared: dict[str, Any]
) -> Comparison:
    """A user's own problem compared in a folder: every run is written when it has ended."""
    folders: list[Path] = []

    def run_one(subject: Any, label: str) -> Result:
        result, place = _go(subject, race(label)), folder / label
        place.mkdir()
        described = {"task_name": type(subject.given["problem"]).__name__, "method_name": subject.method_name}
        described |= {"seed": subject.options.seed, "rounds": subject.options.rounds, "method": repr(subject.method)}
        falling = known_direction(subject.metric, subject.falling)
        described |= {"main_metric": subject.metric, "falling": falling, "versions": versions()}
        write_text(place / CONFIG, json.dumps(described, indent=1))
        write_results(place, result, subject.method_name, subject.metric)
        folders.append(place)
        return result

    found = compare_subjects(subjects, run_one, budget=budget, say=say, **shared)
    return dataclasses.replace(found, folders=tuple(folders))


def write_comparison(comparison: Comparison, folder: Path, title: str = "", report_title: str | None = None) -> None:
    """Write the table, the plot and the page of a comparison into its folder, and how it was made."""
    comparison.table().to_csv(folder / "comparison.csv")
    write_text(folder / "comparison.json", json.dumps(comparison.to_json(), indent=1))
    comparison.plot(folder / "comparison.png", title=title)
    comparison.report(folder / "report.html", title=report_title)


def asked_of(
    experiments: Mapping[str, Experiment], budget: Budget, seeds: int, tune_budget: float | None
) -> dict[str, Any]:
    """What a comparison of a task is, but for its methods: the same may be gone on with."""
    one = next(iter(experiments.values()))
    shared = {field.name: getattr(one.options, field.name) for field in dataclasses.fields(CommonOptions)}
    asked = {budget.axis: budget.amount, "seeds": seeds, "tune_budget": tune_budget, "task": one.task_name}
    of_task = {name: value for name, value in described_task(one.task).items() if name != FORM}  # a method's own
    return decisive(asked | {"task_options": of_task, **shared, "target": None})


@contextlib.contextmanager
def comparison_folder(folder: Path, asked: dict[str, Any], methods: list[str]) -> Iterator[list[str]]:
    """Holds the folder of a comparison, and gives the methods that it has besides. That of another one, whose table
    would be overwritten, is refused; methods may be added. One that is refused before it has begun leaves nothing."""
    check_path(folder, "out")
    path, there = folder / "compare.json", folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out: {str(folder)!r} cannot be written: {error.strerror}") from error
    try:
        with hold(folder, "out"):
            known = path.is_file()
            before = _same_comparison(path, asked, methods)
            try:
                yield before
            except BaseException:
                if not known and not any(child.is_dir() for child in folder.iterdir()):
                    path.unlink(missing_ok=True)
                raise
    finally:
        if not there and not any(folder.iterdir()):
            folder.rmdir()


def _same_comparison(path: Path, asked: dict[str, Any], methods: list[str]) -> list[str]:
    """Refuse the folder of another comparison. Write the options of this one with all its methods so far, and return
    the earlier methods that are not among the present ones."""
    kept = read_json(path, "out", "; give another folder") if path.is_file() else asked
    if different := [name for name in asked if kept.get(name) != asked[name]]:
        shown = different[0].replace("_", " ")
        raise InputError(f"out: {str(path.parent)!r} holds a comparison with other {shown}; give another folder")
    earlier = kept.get("methods", [])
    if not isinstance(earlier, list) or not all(isinstance(label, str) for label in earlier):
        raise InputError(f"out: {str(path)!r} is damaged: methods must be a list of labels; give another folder")
    before = [label for label in earlier if label not in methods]
    write_text(path, json.dumps(asked | {"methods": [*before, *methods]}, indent=1))
    return before


@contextlib.contextmanager
def _shown(
    progress: bool, budget: Budget | None
) -> Iterator[tuple[Callable[[str], list[Callback]], Callable[[str], Any]]]:
    """Bars and sentences, or nothing."""
    if not progress:
        yield lambda label: [], lambda text: None
        return
    from rich.console import Console

    from rookery.runs.progress import Bars

    console = Console(highlight=False)
    say = lambda text: console.print(text, markup=False, soft_wrap=True)
    if budget is None:
        yield lambda label: [], say
        return
    with Bars(console) as bars:
        yield lambda label: [bars.add(label, budget.amount, budget.axis)], say
