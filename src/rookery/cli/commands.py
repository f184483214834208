"""What each command does with its words."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from rookery.algorithms.registry import find_method
from rookery.cli.forms import fill, make_form, parse_form, parse_method, parse_options
from rookery.cli.show import show_comparison, show_counts, show_results, show_study, show_tuning
from rookery.data.catalogue import TABLE, by_column, load_with
from rookery.data.own_tables import TableOptions, choose_label, shown_data
from rookery.data.partitions import class_counts, parse
from rookery.data.schema import read_schema, schema_of, write_schema
from rookery.data.sites import called_by
from rookery.data.tables import read_csv
from rookery.engines.hosts import join, leads
from rookery.engines.messaging import ClientsFailed, OnFailure
from rookery.errors import AdviceWarning, DivergenceWarning, InputError, cleaned
from rookery.experiments import api, loopback
from rookery.experiments import compare as comparing
from rookery.experiments.configuration import read_configuration
from rookery.experiments.experiment import (
    CONCLUSION,
    FORM,
    CommonOptions,
    Experiment,
    Options,
    has_ended,
    launch,
    read_config,
    read_experiment,
    resume_folder,
)
from rookery.experiments.federated import label
from rookery.experiments.federated import launch as launch_federation
from rookery.experiments.federation import FEDERATION
from rookery.federation.stages import Stage
from rookery.files import refuse_used, slug, write_folder, write_text
from rookery.own_code import file_and_class, full_name, load_class, short_name
from rookery.reproduce.queue import main as run_queue
from rookery.reproduce.registry import find_study
from rookery.reproduce.registry import reproduce as make_again
from rookery.runs.check import check as check_method
from rookery.runs.folder import make_folder
from rookery.runs.interrupts import interrupted_status
from rookery.runs.plot import plot_counts
from rookery.runs.progress import Bars, Sites
from rookery.runs.report import write_report
from rookery.runs.result import Result, shown_worse
from rookery.tasks.registry import find_task


@dataclasses.dataclass(frozen=True)
class RunOptions(Options):
    """Where, with whom and how long to run, and where to leave the results."""

    out: Path | None = None
    """Folder for the results; by default a new one under runs/."""


def leading_words(arguments: list[str]) -> list[str]:
    """The leading arguments that are no options."""
    words = []
    for argument in arguments:
        if argument.startswith("-"):
            break
        words.append(argument)
    return words


HELP = ("run", "compare", "federate", "export", "queue")  # commands that show their options without a task


def _show_options(command: str, options: type[Any], rest: str) -> None:
    """The options of a command that do not depend on the task; those that do are named."""
    description = (
        f"Options of the task and of the methods are shown by --help after them: rookery {command} {rest} --help"
    )
    with contextlib.suppress(SystemExit):
        fill(make_form(run=options), ["--help"], f"rookery {command} {rest}", description)


def run(arguments: list[str], console: Console) -> int:
    """`rookery run TASK METHOD [options]`."""
    words = leading_words(arguments)
    if arguments[:1] in (["-h"], ["--help"]):
        _show_options("run", RunOptions, "TASK METHOD")
        return 0
    if len(words) < 2:
        raise InputError("run: a task and a method are needed, as in: rookery run hyperrep simfbo")
    if len(words) > 2:
        raise InputError(f"run: {words[2]!r} was given after the task and the method; options begin with --")
    task_name = full_name(words[0])
    task, row = find_task(task_name), find_method(words[1])
    parsed = parse_options(task_name, task, row, arguments[2:], RunOptions)
    experiment = Experiment(task_name, parsed.task, row.name, parsed.method, parsed.run)
    console = _joined(experiment, console)
    places: list[Path] = []
    try:
        with watched(experiment, console) as callbacks:
            seen = lambda place: places.append(place) or callbacks(place)
            say = lambda text: console.print(text, markup=False, soft_wrap=True)
            result, folder = launch(experiment, parsed.run.out, seen, say)
    except KeyboardInterrupt:
        if places and places[0].is_dir():
            said = f"interrupted; what was done is in {places[0]}: rookery resume {places[0]} goes on"
        else:
            said = "interrupted before the first round was done; nothing was kept"
        console.print(said, markup=False, soft_wrap=True)
        return interrupted_status()
    return _conclude(console, short_name(row.name), result, folder, experiment)


def _joined(experiment: Experiment, console: Console) -> Console:
    """Joins the other processes of a run that is on several; all but the first are silent."""
    if experiment.options.engine == "mesh":
        join()
    return console if leads() else Console(quiet=True)


@dataclasses.dataclass(frozen=True)
class FederateOptions(RunOptions):
    """Where the clients are, and what happens when one does not answer."""

    clients: int = 0
    """Number of clients that the data is divided over; 0: one per site."""
    transport: Literal["loopback", "nvflare", "flower"] = "loopback"
    """What carries the messages: loopback, processes on this machine; nvflare; flower."""
    sites: int | None = None
    """Number of sites; by default 3, or those that the data has (--partition natural)."""
    on_failure: Literal["wait", "drop", "abort"] = "wait"
    """Who does not answer is asked again, is left out of the round, or ends the run."""
    deadline: float | None = None
    """Seconds that an exchange may take; by default as long as it takes (nvflare, flower: 600)."""
    minimum: int = 1
    """With --on-failure drop, how many must answer; with fewer a round is undone and drawn again."""
    tries: int = 10
    """How often a client is asked, or a round is tried, before the run ends."""
    secure: bool = False
    """With flower, make certificates and keys for all; nvflare always does, and loopback has nothing to protect."""

    @property
    def policy(self) -> OnFailure:
        return OnFailure(self.on_failure, self.deadline, self.minimum, self.tries)


def _federated(command: str, arguments: list[str], options: type[Any]) -> tuple[Experiment, Any]:
    """The experiment and the options of a command about a federation."""
    words = leading_words(arguments)
    if len(words) != 2:
        raise InputError(f"{command}: a task and a method are needed, as in: rookery {command} hyperrep simfbo")
    task_name = full_name(words[0])
    task, row = find_task(task_name), find_method(words[1])
    parsed = parse_options(task_name, task, row, arguments[2:], options, command)
    given: FederateOptions = parsed.run
    if given.engine != "local":
        raise InputError(f"engine: {given.engine} was given; in a federation clients are elsewhere, and it has no say")
    if given.sites is not None and given.sites < 1:
        raise InputError(f"sites: {given.sites} was given; at least 1 is needed")
    _ = given.policy  # refuses what is none
    fields = {field.name: getattr(given, field.name) for field in dataclasses.fields(Options)}
    sites = len(getattr(given, "names", ())) or (loopback.SITES if given.sites is None else given.sites)
    run_options = dataclasses.replace(Options(**fields), clients=given.clients or sites)
    return Experiment(task_name, parsed.task, row.name, parsed.method, run_options), given


@dataclasses.dataclass(frozen=True)
class ExportOptions(FederateOptions):
    """For which framework, and who takes part."""

    transport: Literal["nvflare", "flower"] = "nvflare"  # type: ignore[assignment]
    """The framework that carries the messages."""
    names: tuple[str, ...] = ()
    """The names of the sites, where they have data of their own that is not here."""


def export(arguments: list[str], console: Console) -> int:
    """`rookery export TASK METHOD --transport nvflare -o FOLDER [options]`."""
    if arguments[:1] in (["-h"], ["--help"]):
        _show_options("export", ExportOptions, "TASK METHOD")
        return 0
    arguments = ["--out" if argument == "-o" else argument for argument in arguments]
    experiment, options = _federated("export", arguments, ExportOptions)
    if options.out is None:
        raise InputError("out: none was given; the folder to write is needed, as in: -o FOLDER")
    if len(set(options.names)) < len(options.names):
        raise InputError(f"names: {' '.join(options.names)} was given; names are of one site each")
    sources = dict.fromkeys(options.names) or loopback.sources_of(experiment, options.sites)
    refuse_used(options.out, "out")
    framework = importlib.import_module(f"rookery.experiments.{options.transport}")
    write_folder(options.out, lambda aside: framework.export(experiment, aside, sources, options.policy))
    say = lambda text: console.print(text, markup=False, soft_wrap=True)
    say(f"{len(sources)} sites: {', '.join(sources)}")
    say(f"written to {options.out}; what each party does is in {options.out / 'README.md'}")
    return 0


def federate(arguments: list[str], console: Console) -> int:
    """`rookery federate TASK METHOD [options]`."""
    if arguments[:1] in (["-h"], ["--help"]):
        _show_options("federate", FederateOptions, "TASK METHOD")
        return 0
    experiment, options = _federated("federate", arguments, FederateOptions)
    sources = loopback.sources_of(experiment, options.sites)
    folder = options.out or make_folder(slug(label(experiment)))
    say = lambda text: console.print(text, markup=False, soft_wrap=True)
    say(f"{len(sources)} sites, a process each: {', '.join(sources)}")
    if options.transport == "loopback":
        return _watched_federation(experiment, folder, console, sources, options.policy)
    try:
        given = (experiment, folder, sources, options.transport, options.policy, say)
        result = launch_federation(*given, secure=options.secure)
    except KeyboardInterrupt:
        say(f"interrupted; what was done is in {folder}: the same command with --out {folder} goes on")
        return interrupted_status()
    show_results(console, {short_name(experiment.method_name): result})
    say(f"results in {folder / 'server'}; what else was written, and the logs, in {folder}")
    return 0 if result.status in ("done", "stopped") else 1


def _watched_federation(
    experiment: Experiment, folder: Path, console: Console, sources: Any = None, policy: OnFailure | None = None
) -> int:
    """A federation on this machine with a progress bar, and how it ended; None: as the folder says."""
    say = lambda text: console.print(text, markup=False, soft_wrap=True)
    begun, sites = None if sources is None else experiment, Sites()
    try:
        with watched(experiment, console, sites) as callbacks:
            result = loopback.federate(begun, folder, sources, policy, callbacks, say, sites)
    except KeyboardInterrupt:
        kept = (
            f"what was done is in {folder}: rookery resume {folder} goes on" if folder.is_dir() else "nothing was kept"
        )
        say(f"interrupted; {kept}")
        return interrupted_status()
    except ClientsFailed as error:
        say(f"the run ended: {error}")
        if folder.is_dir():
            say(f"what was done is in {folder}: rookery resume {folder} goes on")
        return 1
    if result.missing.rows:
        say(f"{len(result.missing.rows)} times somebody was missing; who and why is in missing.csv")
    return _conclude(console, short_name(experiment.method_name), result, folder, experiment)


def resume(arguments: list[str], console: Console) -> int:
    """`rookery resume RUN`."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise InputError("resume: the folder of one run is needed, as in: rookery resume runs/mine")
    folder = Path(arguments[0])
    config = read_config(folder)
    for name in (config.get("task_name"), config.get("method_file")):
        if isinstance(name, str) and (own := file_and_class(name)) is not None:
            said = f"this runs the code in {own[0]}, if its sha256 is the one that the run recorded"
            console.print(said, markup=False, soft_wrap=True)
    federated = FEDERATION in config
    told = config[FEDERATION].get("sites") if isinstance(config.get(FEDERATION), dict) else None
    for site, source in told.items() if isinstance(told, dict) else ():
        if (function := called_by(source)) is not None:
            said = f"site {cleaned(site)} calls {cleaned(function)}, as config.json says; resume folders that you trust"
            console.print(said, markup=False, soft_wrap=True)
    experiment = read_configuration(folder)[0] if federated else read_experiment(folder)
    if has_ended(folder):
        console.print(f"{folder} has ended; there is nothing to go on with", markup=False, soft_wrap=True)
        show_results(console, {short_name(experiment.method_name): Result.load(folder)})
        return 0
    if federated:
        return _watched_federation(experiment, folder, console)
    console = _joined(experiment, console)
    try:
        with watched(experiment, console) as callbacks:
            say = lambda text: console.print(text, markup=False, soft_wrap=True)
            result, _ = resume_folder(folder, callbacks, say)
    except KeyboardInterrupt:
        said = f"interrupted; {folder} is as it was: rookery resume {folder} goes on"
        console.print(said, markup=False, soft_wrap=True)
        return interrupted_status()
    return _conclude(console, short_name(experiment.method_name), result, folder, experiment)


@contextlib.contextmanager
def watched(
    experiment: Experiment, console: Console, sites: Sites | None = None
) -> Iterator[Callable[[Path], list[Any]]]:
    """Shows a progress bar (with the sites of a federation), and warnings as sentences; yields a function that makes
    the run's callbacks from its folder."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_sentences(console))
        label = f"{Path(experiment.task_name).stem} {short_name(experiment.method_name)}"
        bar = stack.enter_context(Bars(console, sites)).add(label, experiment.options.rounds)

        def callbacks(folder: Path) -> list[Any]:
            if not experiment.options.tensorboard:
                return [bar]
            from rookery.runs.tensorboard import TensorBoard

            return [bar, stack.enter_context(TensorBoard(folder / "tensorboard"))]

        yield callbacks


@contextlib.contextmanager
def _sentences(console: Console) -> Iterator[None]:
    """Warnings as sentences on the console; divergence is told in the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        warnings.simplefilter("always", AdviceWarning)
        warnings.showwarning = lambda message, *_: console.print(f"warning: {message}", markup=False, soft_wrap=True)
        yield


def _conclude(console: Console, name: str, result: Result, folder: Path, experiment: Experiment) -> int:
    """Says how a run ended and where its results are; gives the exit status."""
    if not leads():
        return 0
    show_results(console, {name: result})
    say = lambda text: console.print(text, markup=False, soft_wrap=True)
    if (folder / CONCLUSION).is_file():
        say((folder / CONCLUSION).read_text().strip())
    say(f"results in {folder}")
    target, config = experiment.options.target, read_config(folder)
    metric = str(config.get("main_metric"))
    if target is not None and result.status == "done" and metric in result.history:
        best = float(min(result.history[metric]) if config.get("falling") else max(result.history[metric]))
        if not (best <= target if config.get("falling") else best >= target):
            say(f"the target was not reached: {metric} {target:g} was asked for, and the best was {best:.4g}")
    if result.status == "interrupted":
        say(f"interrupted after round {result.state.round}; what was done is there: rookery resume {folder} goes on")
        return interrupted_status()
    if result.status == "diverged":
        say(f"the run diverged: {result.divergence}; try smaller step sizes")
        return 1
    if result.worse:
        say(shown_worse(result.worse))
    return 0


@dataclasses.dataclass(frozen=True)
class CompareOptions(CommonOptions):
    """What is compared, where and with whom."""

    target: float | None = None
    """A value of the task's main metric: what it costs to reach it is shown. Runs do not end there."""
    every: int | None = None
    """Rounds between two evaluations; by default about 100 evaluations in all."""
    exchanges: int | None = None
    """Exchanges that every method is given; by default 200."""
    megabytes: float | None = None
    """Megabytes, both ways and over all clients, that every method is given instead."""
    gradients: float | None = None
    """Gradient evaluations, over all clients, that every method is given instead."""
    seeds: int = 3
    """How many seeds, from --seed on; each draws its own partition, initial values and run."""
    tune: bool = False
    """Search each method's step sizes first, those of clients and server, with the same budget on validation data."""
    tune_budget: float | None = None
    """Gradient evaluations to tune each method with; by default as many as 24 runs of the most expensive one."""
    out: Path | None = None
    """Folder for the results; by default a new one under runs/. One with the same comparison is gone on with."""


def compare(arguments: list[str], console: Console) -> int:
    """`rookery compare TASK METHOD... [options]`."""
    words = leading_words(arguments)
    if arguments[:1] in (["-h"], ["--help"]):
        _show_options("compare", CompareOptions, "TASK METHOD...")
        return 0
    if len(words) < 2:
        raise InputError("compare: a task and methods are needed, as in: rookery compare hyperrep simfbo fedbioacc")
    task_name, labels = full_name(words[0]), words[1:]
    if len({label.lower() for label in labels}) < len(labels):
        raise InputError(f"compare: a method was given twice in {' '.join(labels)}; give each once")
    task = find_task(task_name)
    form = make_form(getattr(task, "defaults", None), task=task, run=CompareOptions)
    filled = fill(form, arguments[len(words) :], f"rookery compare {' '.join(words)}", "Methods side by side.")
    options: CompareOptions = filled.run
    shared = {field.name: getattr(options, field.name) for field in dataclasses.fields(CommonOptions)}
    experiments = {}
    for words_of_it in labels:
        bare, own_task = parse_form(words_of_it, filled.task)
        label, method = parse_method(bare, own_task)
        if bare != words_of_it:
            label = words_of_it if label == bare else f"{label}@{getattr(own_task, FORM)}"
        if label in experiments:
            raise InputError(f"compare: {label} was given twice; give classes of different names")
        experiments[label] = Experiment(task_name, own_task, label, method, Options(**shared))
    tuned = options.tune_budget if options.tune_budget is not None else (0.0 if options.tune else None)
    budget = comparing.Budget.of(options.exchanges, options.megabytes, options.gradients)
    comparing.check(options.seeds, tuned)
    said = shown_data(next(iter(experiments.values())).about())
    folder = options.out or make_folder(f"compare_{Path(task_name).stem}")
    say = lambda text: console.print(text, markup=False, soft_wrap=True)
    if said:
        say(said)
    with _sentences(console), Bars(console) as bars:
        race = lambda label: [bars.add(label, budget.amount, budget.axis)]
        try:
            found = api.compare_experiments(
                experiments, folder, budget, race, say, seeds=options.seeds, target=options.target, tune_budget=tuned
            )
        except KeyboardInterrupt:
            say(f"interrupted; the same command with --out {folder} goes on")
            return interrupted_status()
    for label, tuning in found.tunings.items():
        show_tuning(console, label, tuning)
    show_comparison(console, found)
    stem = Path(task_name).stem
    api.write_comparison(found, folder, f"{stem}, {options.partition}", f"{stem}: {', '.join(found.histories)}")
    say(f"\nresults in {folder}: {api.WRITTEN}, and a folder for every run")
    return 0


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Where the page goes."""

    out: Path = Path("report.html")
    """The page to write; -o for short."""
    title: str | None = None
    """Its title; by default the tasks and methods."""


def report(arguments: list[str], console: Console) -> int:
    """`rookery report RUN... -o report.html`."""
    arguments = ["--out" if argument == "-o" else argument for argument in arguments]
    words, rest = [], []
    for before, argument in zip([""] + arguments, arguments):  # every option takes one word
        (rest if argument.startswith("--") or before.startswith("--") else words).append(argument)
    if not words:
        raise InputError("report: the folders of some runs are needed, as in: rookery report runs/* -o report.html")
    options: ReportOptions = fill(make_form(run=ReportOptions), rest, "rookery report RUN...", "One page of runs.").run
    page = write_report(words, options.out, options.title)
    console.print(f"report in {page}", markup=False, soft_wrap=True)
    return 0


@dataclasses.dataclass(frozen=True)
class ReproduceOptions:
    """How much of a study is run, and where its page goes."""

    seeds: int | None = None
    """How many seeds; by default the study's own number, two with --quick."""
    quick: bool = False
    """The small version: built-in data, few rounds, the same code."""
    out: Path = Path("results")
    """Folder of the pages; cells that are done are kept in its .cells/ and not run again."""
    page: bool = False
    """Run nothing: write the page of the cells that are done."""


def reproduce(arguments: list[str], console: Console) -> int:
    """`rookery reproduce STUDY [options]`."""
    words = leading_words(arguments)
    if len(words) != 1:
        raise InputError("reproduce: the name of one study is needed, as in: rookery reproduce fedvra-table4 --quick")
    study, form = find_study(words[0]), make_form(run=ReproduceOptions)
    options: ReproduceOptions = fill(form, arguments[1:], f"rookery reproduce {study.name}", study.title).run
    say = lambda text: console.print(text, markup=False, soft_wrap=True)
    try:
        page, done = make_again(study.name, options.seeds, options.quick, options.out, say, run=not options.page)
    except KeyboardInterrupt:
        say(f"interrupted; the same command goes on, and what is done in {options.out} is not run again")
        return interrupted_status()
    show_study(console, study, done, options.quick)
    say(f"page in {page}")
    return 0


def queue(arguments: list[str], console: Console) -> int:
    """`rookery queue [ENTRY ...] [options]`."""
    return run_queue(arguments)


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    """What a method is compared with."""

    like: str = ""
    """Method that must give the same runs, such as simfbo, or FILE.py:CLASS."""


def check(arguments: list[str], console: Console) -> int:
    """`rookery check FILE.py:CLASS [--like METHOD]`."""
    words = leading_words(arguments)
    if len(words) != 1:
        raise InputError("check: one method, or stage, is needed, as in: rookery check my_method.py:Mine")
    form = make_form(run=CheckOptions)
    options: CheckOptions = fill(form, arguments[1:], "rookery check FILE.py:CLASS", "Check a method or a stage.").run
    own = load_class(words[0], "method") if file_and_class(words[0]) is not None else None
    is_stage = isinstance(own, type) and issubclass(own, Stage)
    like = find_method(options.like).method if options.like else None
    findings = check_method(own if is_stage else find_method(words[0]).method, like=like)
    console.print(str(findings), markup=False, soft_wrap=True)
    return 0 if findings else 1


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """How the data is divided, and whether that is drawn."""

    partition: str = "iid"
    """How the data is divided, such as iid, shards:2 or dirichlet:0.2; rookery list shows all."""
    clients: int = 100
    """Number of clients that the data is divided over."""
    seed: int = 0
    """Seed of the partition."""
    plot: bool = False
    """Draw clients x classes into a png."""
    out: Path | None = None
    """The png; by default NAME_PARTITION.png in the current folder."""
    label: str = ""
    """Column of a csv file to learn; by default its one column called label, target, class, y, outcome, diagnosis or
    num."""
    categories: tuple[str, ...] = ()
    """Columns of a csv file that hold words or codes; each becomes one column per value."""
    missing: Literal["refuse", "drop"] = "refuse"
    """Rows of a csv file with empty cells: refuse the file, or drop the rows."""
    schema: str = ""
    """Schema of the csv files (rookery schema writes one)."""
    checked: str = ""
    """Column of a csv file, of 0 and 1, that says whose label was checked; it is no input."""


def data(arguments: list[str], console: Console) -> int:
    """`rookery data NAME [options]`."""
    words = leading_words(arguments)
    if len(words) != 1:
        raise InputError("data: the name of one dataset is needed, as in: rookery data digits --partition shards:2")
    form, name = make_form(run=DataOptions), words[0]
    options: DataOptions = fill(form, arguments[1:], f"rookery data {name}", "A dataset and its partition.").run
    source, partition = by_column(name, parse(options.partition))
    rules = read_schema(options.schema) if options.schema else None
    given = (options.label, options.categories, options.missing, "pooled", rules, options.checked)
    dataset = load_with(source, TableOptions(*given))
    parts, names = dataset.deal(partition, options.clients, options.seed)
    counts = class_counts(dataset.train["label"], parts, dataset.classes)
    train, test = (len(part["label"]) for part in (dataset.train, dataset.test))
    shape = " x ".join(map(str, dataset.shape))
    console.print(f"{name}: {train} training and {test} test examples of {shape}, {dataset.classes} classes")
    console.print(shown_data(dataset.about), markup=False, soft_wrap=True)
    console.print(f"{options.partition} over {len(parts)} clients, seed {options.seed}", markup=False)
    if names:
        who = ", ".join(f"{who} ({part.size})" for who, part in zip(names[:20], parts))
        console.print(who + (f" and {len(names) - 20} more" if len(names) > 20 else ""), markup=False)
    show_counts(console, counts, dataset.class_names)
    if options.plot:
        stem = f"{name}_{options.partition}".replace(":", "-").replace("/", "-")
        path = options.out or Path(f"{stem}.png")
        title = f"{name}, {options.partition}, {len(parts)} clients"
        try:
            plot_counts(counts, dataset.class_names, path, title, names)
        except OSError as error:
            raise InputError(f"out: {str(path)!r} cannot be written: {error.strerror}") from error
        except ValueError:
            raise InputError(f"out: {str(path)!r} was given; the name of a png is needed") from None
        console.print(f"plot in {path}", markup=False, soft_wrap=True)
    return 0


@dataclasses.dataclass(frozen=True)
class SchemaOptions:
    """What the schema says, and where it goes; or which schema a table is checked against."""

    out: Path = Path("schema.toml")
    """File to write; one that exists is refused."""
    label: str = ""
    """Column to learn; by default the one column called label, target, class, y, outcome, diagnosis or num."""
    categories: tuple[str, ...] = ()
    """Columns of codes; columns of words are categories anyway."""
    checked: str = ""
    """Column of 0 and 1 that says whose label was checked; it is no input."""
    check: Path | None = None
    """Schema to check the table against; nothing is written."""
    missing: Literal["refuse", "drop"] = "refuse"
    """With --check, whether rows with empty cells break a rule, or are dropped."""


def schema(arguments: list[str], console: Console) -> int:
    """`rookery schema FILE.csv [options]`."""
    words = leading_words(arguments)
    if len(words) != 1:
        raise InputError("schema: one csv file is needed, as in: rookery schema ours.csv --label ill")
    form, path = make_form(run=SchemaOptions), Path(words[0].removeprefix(TABLE)).expanduser()
    description = "What every site's table must hold: written from one table, or checked."
    options: SchemaOptions = fill(form, arguments[1:], f"rookery schema {words[0]}", description).run
    table = read_csv(path)
    if options.check is not None:
        failures = read_schema(str(options.check)).failures(table, options.missing)
        for rule, column in failures:
            console.print(f"fails: rule {rule!r}, column {column!r}", markup=False, soft_wrap=True)
        if not failures:
            console.print("passes")
        return 1 if failures else 0
    if options.out.exists():
        raise InputError(f"out: {str(options.out)!r} exists; give another file with --out, or remove it")
    label = choose_label([name for name in table if name != options.checked], options.label)
    found = schema_of(table, label, options.categories, options.checked)
    write_text(options.out, write_schema(found))
    categories = ", ".join(found.categories) or "none"
    console.print(
        f"label {label!r}, classes {', '.join(map(str, found.classes))}; {len(found.columns)} inputs, categories: "
        f"{categories}\nwritten to {options.out}; review its ranges and values before you share it",
        markup=False,
        soft_wrap=True,
    )
    return 0
