"""`rk.compare` and `rk.tune`: methods on one problem or task, from Python. The command compares through here, too."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rookery.data.federated import Clients
from rookery.errors import InputError, unknown
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
    falling: bool = False,
    validation: Metrics | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> Comparison:
    """Compares methods at equal costs: every method with every seed, all for the same budget.

    Args:
      problem: a problem, or a task such as `rk.tasks.HyperRep()`.
      methods: by label. Of a task also a pair, the same task in another form and a method, such as
        `(rk.tasks.Trust(form="plain"), rk.FedAvg(lr=rk.Rates(0.5)))`.
      clients: who holds the data; for a task, how many clients its data is divided over.
      exchanges, megabytes, gradients: what every method is given, one of them; none: 200 exchanges.
      seeds: how many. Of a problem they are those of the run; of a task each draws its own partition and initial
        values as well.
      target: a value of the metric whose cost is of interest; runs do not end there.
      tune: search each method's step sizes, and what else it marks as a scale, first.
      tune_budget: gradient evaluations to tune each method with; None: as many as nine runs of the most expensive one.
      metrics: what is measured, as `rk.run` takes it. A task has its own.
      metric: the name of the one that counts; None: the only one, or "accuracy".
      falling: whether it is better when it is lower.
      validation: metrics to tune with, on examples that are not those of `metrics`; None: these themselves. A task
        has its own.
      out: a folder for the runs, the table, a plot and a report; of a task, one with the same comparison is gone on
        with, and methods can be added to it. None: nothing is written.
      progress: whether to show bars.
      options: of a problem, the other arguments of `rk.run`; of a task, `cohort`, `partition`, `batch_size`, `seed`,
        `every`, `engine` and `precision`.

    Returns:
      A `Comparison`: its `table()`, `plot(path)`, `report(path)`, `histories` and `tunings`.
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
        say(f"results in {folder}: comparison.csv, comparison.png, report.html, and a folder for every run")
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
    """The experiments of a task compared in a folder, which is held and refused if it is another's: for Python and for
    the command. `race` makes a run's callbacks, of its label."""
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
    metrics: Metrics | None = None,
    metric: str | None = None,
    falling: bool = False,
    progress: bool = True,
    **options: Any,
) -> Tuning:
    """Searches a method's step sizes, and what else it marks as a scale, by successive halving, and widens the grid
    where the best is on its edge.

    Args:
      problem, method, clients: as in `rk.compare`.
      budget: gradient evaluations to spend at most, over all clients and candidates.
      metrics, metric, falling: what decides, best on validation examples; a task has its own.
      progress: whether to say what is tried.
      options: as in `rk.compare`.

    Returns:
      A `Tuning`: the `method` with its best numbers, the `table` of all that was tried, the `gradients` spent, and the
      `edges` at which the budget ended, if it did.
    """
    given = {"metrics": metrics, "metric": metric, "falling": falling, "validation": None}
    (subject,) = subjects_of(problem, {type(method).__name__: method}, clients, given, options).values()
    with _shown(progress, None) as (_, say):
        return tune_subject(subject, budget, say)


def subjects_of(
    problem: Any, methods: Mapping[str, Any], clients: Any, given: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Subject]:
    """What is compared, by label."""
    check_methods(methods)
    if isinstance(problem, Problem):
        return {label: _own(problem, label, method, clients, given, options) for label, method in methods.items()}
    if not dataclasses.is_dataclass(problem) or isinstance(problem, type) or not hasattr(problem, "assemble"):
        raise InputError(
            f"problem: {problem!r} was given; a problem such as rk.Bilevel(...), or a task such as "
            "rk.tasks.HyperRep(), is needed"
        )
    for name, value in given.items():
        if value:
            raise InputError(f"{name}: it was given with a task, which has its own")
    allowed = [field.name for field in dataclasses.fields(CommonOptions) if field.name not in ("clients", "target")]
    for name in options:
        if name not in allowed:
            raise unknown("options", name, allowed)
    if clients is not None:
        options = {**options, "clients": clients}
    name, set_options = task_name(problem), Options(**{**getattr(problem, "defaults", {}), **options})
    return {
        label: Experiment(name, task, label, method, set_options)
        for label, (task, method) in ((label, _on(problem, label, given)) for label, given in methods.items())
    }


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
    return OwnSubject(
        label,
        method,
        arguments,
        given["metrics"],
        _main_metric(given["metric"], metric_names(method, arguments, given["metrics"] or no_metrics)),
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
        told = {"main_metric": subject.metric, "falling": subject.falling, "versions": versions()}
        write_text(place / CONFIG, json.dumps(described | told, indent=1))
        write_results(place, result, subject.method_name, subject.metric)
        folders.append(place)
        return result

    found = compare_subjects(subjects, run_one, budget=budget, say=say, **shared)
    return dataclasses.replace(found, folders=tuple(folders))


def write_comparison(comparison: Comparison, folder: Path, title: str = "", report_title: str | None = None) -> None:
    """The table, the plot and the page of a comparison, into its folder."""
    comparison.table().to_csv(folder / "comparison.csv")
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
    """Refuses what another comparison was asked; writes what this one is, with all its methods so far, and gives those
    that are not among the methods of now."""
    kept = read_json(path, "out", "; give another folder") if path.is_file() else asked
    if different := [name for name in asked if kept.get(name) != asked[name]]:
        shown = different[0].replace("_", " ")
        raise InputError(f"out: {str(path.parent)!r} holds a comparison with other {shown}; give another folder")
    held = kept.get("methods", [])
    if not isinstance(held, list) or not all(isinstance(label, str) for label in held):
        raise InputError(
            f"out: {path.name} in {str(path.parent)!r} is damaged: its methods are not names; give another folder"
        )
    before = [label for label in held if label not in methods]
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
