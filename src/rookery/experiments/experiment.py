"""An experiment: a task, a method and how to run them; run into a folder, and resumed from it.

Imports tasks, methods and runs; the progress bar only where one is shown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rookery.algorithms.registry import find_method
from rookery.data.catalogue import by_column
from rookery.data.own_tables import shown_data
from rookery.data.partitions import Natural, Partition, parse
from rookery.engines.hosts import leads, meet
from rookery.engines.messaging import ClientsFailed, Note
from rookery.errors import AdviceWarning, InputError
from rookery.experiments.codec import CLASS, build, decode, encode
from rookery.federation.sampling import All, Uniform
from rookery.files import read_json, remove_folder, remove_leftovers, slug, write_text
from rookery.own_code import own_name, short_name, source_hash
from rookery.runs.checkpoint import Continued, Recorded, latest_round
from rookery.runs.events import EVENTS, EventFile, printing
from rookery.runs.folder import HistoryFile, open_folder, versions, write_results
from rookery.runs.result import HISTORY, RESULT, Result
from rookery.runs.run import Interrupted, continue_run, run
from rookery.tasks.base import Assembly, OnData, described_task, find_dataset
from rookery.tasks.registry import find_task

CONFIG, CHECKPOINTS, CONCLUSION = "config.json", "checkpoints", "conclusion.txt"

Callback = Callable[[int, dict], Any]

FORM = "form"  # the field of a task that says in which form it is solved, where it has several

COHORT = 10  # clients per round, where there are more, the method needs not all, and nothing is said


@dataclass(frozen=True)
class CommonOptions:
    """Where and with whom to run."""

    clients: int = 100
    """Number of clients that the data is divided over."""
    cohort: int | None = None
    """Clients per round, drawn uniformly without replacement; 0: all of them; by default 10, or all where there are
    fewer or the method needs them."""
    partition: str = "iid"
    """How the data is divided, such as iid, shards:2 or dirichlet:0.2; rookery list shows all."""
    batch_size: int | None = None
    """Examples per minibatch; by default the task's own; 0: all of a client's examples."""
    seed: int = 0
    """Seed of the partition, the initial values and the run."""
    every: int | None = None
    """Rounds between two evaluations; by default about 50 evaluations in all."""
    target: float | None = None
    """End the run when the task's main metric reaches this value."""
    engine: Literal["local", "mesh", "eager"] = "local"
    """local: compiled; mesh: on all devices and hosts; eager: client by client, the reference."""
    precision: Literal["float32", "tf32", "bfloat16", "float64"] = "float32"
    """Floating-point type of everything."""
    up: str = "none"
    """What is done to every reply, such as topk:0.01+quantise:8 or ef21:topk:0.01; by sequence: x=sign;y=topk:0.1."""
    down: str = "none"
    """What is done to every vector that the server sends, such as quantise:8."""
    checkpoint_every: str = "60s"
    """How often to write where the run stands: rounds (10) or seconds (30s)."""
    keep: int = 2
    """How many of the newest checkpoints to keep."""
    tensorboard: bool = False
    """Log the history for TensorBoard too, in the folder's tensorboard/."""


@dataclass(frozen=True)
class Options(CommonOptions):
    """Where, with whom and how long to run."""

    rounds: int = 200
    """Rounds to do."""


@dataclass(frozen=True)
class Experiment:
    """A task and a method by their names on the command line and as they are set, and how to run them."""

    task_name: str
    task: Any
    method_name: str
    method: Any
    options: Options = Options()

    def assemble(self, tuning: bool = False) -> Assembly:
        """The task on its clients."""
        options = self.options
        if options.clients < 1 or (options.cohort or 0) < 0:
            raise InputError(
                f"clients, cohort: {options.clients}, {options.cohort} were given; clients >= 1, cohort >= 0"
            )
        task, partition = self._divided()
        if not isinstance(partition, Natural):
            self._cohort(options.clients)
        if options.target is not None and not math.isfinite(options.target):
            raise InputError(f"target: {options.target} was given; a finite number is needed")
        assembly = task.assemble(partition, options.clients, options.seed, tuning=tuning)
        assembly.check_target(options.target)
        if about := self.about():  # tasks may make clients anew, without what a dataset says of itself
            clients = dataclasses.replace(assembly.clients, about=about)
            assembly = dataclasses.replace(assembly, clients=clients)
        return assembly

    def about(self) -> dict[str, Any]:
        """Label, classes, inputs and scaling of the task's data; empty for a task without data of the catalogue."""
        task, _ = self._divided()
        if not isinstance(task, OnData) or not isinstance(name := getattr(task, "data", None), str):
            return {}
        return find_dataset(name, table=task.table).about

    def _divided(self) -> tuple[Any, Partition]:
        """The task and its partition, where the column of `natural:COLUMN` is part of the task's data."""
        partition, task = parse(self.options.partition), self.task
        if isinstance(getattr(task, "data", None), str):
            data, partition = by_column(task.data, partition)
            task = task if data == task.data else dataclasses.replace(task, data=data)
        return task, partition

    def _cohort(self, population: int) -> int:
        """Clients per round, 0: all of them."""
        cohort = self.options.cohort
        if cohort is None:
            return COHORT if population > COHORT and self.method.participation != "all" else 0
        if cohort > population:
            raise InputError(
                f"cohort: {cohort} was given for {population} clients; at most that many are allowed, and 0 stands for "
                "all of them"
            )
        return cohort

    @contextlib.contextmanager
    def advised(self) -> Iterator[None]:
        """Advice of what the user chose, and none of what the task did: its minibatches."""
        with warnings.catch_warnings():
            if self.options.batch_size is None:
                warnings.filterwarnings("ignore", "batch_size", AdviceWarning)
            yield

    def arguments(self, assembly: Assembly) -> dict[str, Any]:
        """What `rk.run` and `rk.sweep` are given, but for the method and the rounds."""
        options = self.options
        batch_size = self.task.batch_size if options.batch_size is None else options.batch_size
        cohort = self._cohort(assembly.clients.population)
        return {
            "problem": assembly.problem,
            "clients": assembly.clients,
            "x": assembly.x,
            "y": assembly.y,
            "start": assembly.start,
            "sampling": Uniform(cohort) if cohort else All(),
            "batch_size": batch_size or None,
            "seed": options.seed,
            "metrics": assembly.metrics,
            "client_metrics": assembly.client_metrics,
            "stop": assembly.stop(options.target),
            "engine": options.engine,
            "precision": options.precision,
            "up": options.up,
            "down": options.down,
        }

    def to_json(self) -> dict[str, Any]:
        """Everything that makes the experiment again; of code of the user's own also a digest of its file."""
        own = own_name(type(self.method))
        sources = {"task_source": source_hash(self.task_name, "task")}
        sources |= {} if own is None else {"method_file": own, "method_source": source_hash(own, "method")}
        return {
            "task_name": self.task_name,
            "task": described_task(self.task),
            "method_name": self.method_name,
            "method": encode(self.method),
            **{key: source for key, source in sources.items() if source is not None},
            **{field.name: getattr(self.options, field.name) for field in dataclasses.fields(Options)},
        }

    @classmethod
    def from_json(cls, config: dict[str, Any], folder: Path | None = None) -> Experiment:
        """Makes the experiment that `to_json` described again. A file of the user's own is run if it is what it was,
        and refused if not.

        Args:
          folder: Folder of the run, which a refusal names; None: it is not in one.
        """
        try:
            options = build(Options, {field.name: config[field.name] for field in dataclasses.fields(Options)})
            name, method_name = config["task_name"], config["method_name"]
            if not (isinstance(name, str) and isinstance(method_name, str)):
                raise TypeError(f"task_name and method_name are {name!r} and {method_name!r}")
            _check_source("task", name, config.get("task_source"), folder)
            own, classes = config.get("method_file"), {}
            if own is not None:
                _check_source("method", own, config.get("method_source"), folder)
                classes = {config["method"][CLASS]: find_method(own).method}
            method = decode(config["method"], classes)
            return cls(name, build(find_task(name), config["task"]), method_name, method, options)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(f"config: it does not describe an experiment of this version: {error}") from None


def _check_source(argument: str, name: str, recorded: str | None, folder: Path | None) -> None:
    """Refuses a file of the user's own that is not what it was; its code has not been run by then."""
    if source_hash(name, argument) != recorded:
        path, where = name.rpartition(":")[0], "the run's folder" if folder is None else repr(str(folder))
        raise InputError(
            f"config: {path!r} is not the file that this run was made with: its sha256, with those of the files beside "
            "it that it imports, is not the recorded one. To resume the run, restore the file; to run the new code, "
            f"remove or rename {where} and begin again"
        )


INCIDENTAL = ("checkpoint_every", "keep", "tensorboard")  # options on which no number depends


def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a description of an experiment says of its numbers, as json gives it back."""
    return json.loads(json.dumps({key: value for key, value in config.items() if key not in INCIDENTAL}))


def launch(
    experiment: Experiment,
    folder: Path | None = None,
    callbacks: Callable[[Path], Iterable[Callback]] | None = None,
    say: Callable[[str], Any] = lambda text: None,
) -> tuple[Result, Path]:
    """Runs an experiment into a folder, also when it is interrupted; gives the result and the folder.

    Args:
      folder: a new or empty one; None: a new one under runs/, named after time, task and method.
      callbacks: makes the run's callbacks, from its folder; each is called with (round, history row).
      say: called with a sentence about the clients.

    The folder holds config.json from the beginning, checkpoints/ while the run goes on, and in the end history.csv,
    sequences.safetensors (the final parameters), result.json and state.safetensors, and plot.png.
    """
    name = f"{Path(experiment.task_name).stem}_{slug(short_name(experiment.method_name))}"
    with run_folder(folder, name) as opened:
        with discarded_when_refused(opened):
            described = experiment.to_json()
            assembly = experiment.assemble()
            say(assembly.clients.described())
            if said := shown_data(assembly.clients.about):
                say(said)
            told = {"main_metric": assembly.main_metric, "falling": assembly.falling, "versions": versions()}
            told["data"] = assembly.clients.stated()
            write_text(opened / CONFIG, json.dumps(described | told, indent=1))
            note = EventFile(opened / EVENTS, printing(say))
            result = go(experiment, assembly, opened, callbacks, note, resumed=False)
        finish(opened, result, experiment, assembly)
    return result, opened


def resume(path: str | Path, problem: Any = None, method: Any = None, clients: Any = None, **options: Any) -> Result:
    """Goes on with a run that was stopped, as if it never had been: the same numbers, bit for bit.

    Args:
      path: the folder of a run that the command made; or, with what follows, that of a run's checkpoints.
      problem, method, clients: what `rk.run` was given, for a run with `checkpoints=`.
      options: the other arguments it was given (`rounds`, `every` and `checkpoints` are known; `rounds` may be given to
        go further). What differs from the run is refused.

    A damaged checkpoint is told in a warning, and the one before it is used.

    Returns:
      A `Result` with the whole history. Of a run that has ended it is the result it had.
    """
    if problem is None and method is None and clients is None and not options:
        return resume_folder(path)[0]
    return continue_run(path, problem, method, clients, **options)  # type: ignore[arg-type]


def resume_folder(
    folder: str | Path,
    callbacks: Callable[[Path], Iterable[Callback]] | None = None,
    say: Callable[[str], Any] = lambda text: None,
) -> tuple[Result, Path]:
    """Resumes the run of a folder that `launch` made, with identical results; returns the result of one that ended."""
    path = Path(folder)
    if "federation" in read_config(path):
        from rookery.experiments.loopback import federate  # which imports this

        return federate(None, path, callbacks=callbacks, say=say), path
    experiment = read_experiment(path)
    if has_ended(path):
        return Result.load(path), path
    with run_folder(path, "", existing=True) as opened:
        assembly = experiment.assemble()
        note = EventFile(opened / EVENTS, printing(say))
        result = go(experiment, assembly, opened, callbacks, note, resumed=True)
        finish(opened, result, experiment, assembly)
    return result, path


@contextlib.contextmanager
def run_folder(folder: Path | None, name: str, existing: bool = False) -> Iterator[Path]:
    """A run's folder. Of several processes of one run the first has it, the others one of their own for the time."""
    with contextlib.ExitStack() as stack:
        if not leads():
            opened = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
            if existing:
                shutil.copytree(Path(folder or "."), opened)
            meet("folders")
            stack.enter_context(open_folder(opened, name, existing))
            yield opened
            return
        meet("folders")
        yield stack.enter_context(open_folder(folder, name, existing))


class _Begun:
    """A callback that records the start of a run once everything was checked."""

    def __init__(self, note: Note, kind: str, **facts: Any):
        self._record = partial(note, kind, **facts)

    def compiling(self) -> None:
        self._record()

    def __call__(self, round: int, row: dict[str, Any]) -> None:
        pass


def go(
    experiment: Experiment,
    assembly: Assembly,
    folder: Path,
    callbacks: Any,
    note: Note,
    resumed: bool,
    engine: Any = None,
) -> Result:
    """Runs an experiment into a folder until it ends or is interrupted.

    Args:
      note: Called with the kind and the facts of every event of the run.
      engine: Engine that runs it; None: the one that the options name.
    """
    options, history = experiment.options, HistoryFile(folder / HISTORY)
    arguments: dict[str, Any] = experiment.arguments(assembly)
    if engine is not None:
        arguments["engine"] = engine
    kind, where = ("resumed", latest_round(folder / CHECKPOINTS)) if resumed else ("started", 0)
    begun = _Begun(note, kind, round=where, rounds=options.rounds)
    arguments["callbacks"] = [begun, history, *(callbacks(folder) if callbacks else ())]
    kept = (folder / CHECKPOINTS, options.checkpoint_every, options.keep, note)
    plan = Continued(*kept, begin=history.begin) if resumed else Recorded(*kept)
    try:
        with experiment.advised():
            asked = {"rounds": options.rounds, "every": options.every, "checkpoints": plan}
            result = run(method=experiment.method, **asked, **arguments)
    except Interrupted as interrupted:
        note("interrupted", round=interrupted.result.state.round)
        if not interrupted.result.history.rows or (not resumed and not interrupted.result.state.round):
            raise KeyboardInterrupt from None
        return interrupted.result
    except ClientsFailed as error:
        note("ended", round=latest_round(folder / CHECKPOINTS), status="clients failed", failures=error.failures)
        raise
    divergence = None if result.divergence is None else str(result.divergence)
    note("ended", round=result.state.round, status=result.status, divergence=divergence)
    return result


def has_ended(folder: Path) -> bool:
    """Whether a run's folder holds its results, and nothing to go on from; what a kill left aside is removed then."""
    ended = (folder / RESULT).is_file() and not (folder / CHECKPOINTS).is_dir()
    if ended:
        remove_leftovers(folder)
    return ended


def read_config(folder: str | Path) -> dict[str, Any]:
    """What a run's folder says of the run."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise InputError(f"run: {str(folder)!r} holds no {CONFIG}; the folder of a run is needed")
    return read_json(path, "run", "; begin the run again")


def read_experiment(folder: str | Path) -> Experiment:
    """The experiment of a run's folder."""
    return Experiment.from_json(read_config(folder), Path(folder))


@contextlib.contextmanager
def discarded_when_refused(folder: Path) -> Iterator[None]:
    """A run that fails before it has done a round leaves nothing."""
    try:
        yield
    except BaseException as error:
        refused = not (folder / CHECKPOINTS).is_dir()
        # A second Ctrl-C may come while what was done is being written: that stays.
        begun = latest_round(folder / CHECKPOINTS) > 0
        if refused or (isinstance(error, KeyboardInterrupt) and not begun):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def finish(folder: Path, result: Result, experiment: Experiment, assembly: Assembly) -> None:
    """Writes the results; the checkpoints of a run that has ended are not needed any more."""
    if assembly.conclusion is not None and result.status in ("done", "stopped"):
        write_text(folder / CONCLUSION, f"{assembly.conclusion(result)}\n")
    write_results(folder, result, short_name(experiment.method_name), assembly.main_metric)
    if result.status != "interrupted":
        remove_folder(folder / CHECKPOINTS)  # at once: a part of them would look like a run that goes on
