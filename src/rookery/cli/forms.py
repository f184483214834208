"""The command: `rookery run TASK METHOD`, `rookery list`. Options are typed from the dataclasses they fill."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table as RichTable

from rookery.algorithms.drift import ControlVariates, Duals
from rookery.algorithms.estimators import ConjugateGradient, Estimator, Neumann, Tracked
from rookery.algorithms.presets import from_optax
from rookery.algorithms.registry import METHODS, Row, find_method
from rookery.data.partitions import PARTITIONS, parse
from rookery.errors import AdviceWarning, DivergenceWarning, InputError, nearest
from rookery.federation.rates import Rates
from rookery.federation.sampling import All, Uniform
from rookery.federation.server import ServerOptimiser
from rookery.federation.steps import Epochs, FixedSteps, RandomSteps
from rookery.problems.sets import Ball, Box, Simplex
from rookery.runs.folder import check_writable, default_folder, write_run
from rookery.runs.progress import Bar
from rookery.runs.result import Result
from rookery.runs.run import Interrupted, run
from rookery.tasks.registry import TASKS, find_task
from rookery.version import __version__

USAGE = """usage: rookery COMMAND

  rookery run TASK METHOD [options]   solve a task with a method; --help after METHOD shows the options
  rookery list                        methods, tasks and partitions
  rookery --version
"""


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Where, how long, and with whom to run."""

    rounds: int = 200
    """Rounds to do."""
    clients: int = 100
    """Number of clients that the data is divided over."""
    cohort: int = 10
    """Clients per round, drawn uniformly without replacement; 0: all of them."""
    partition: str = "iid"
    """How the data is divided: iid, shards:K, dirichlet:A or dirichlet-class:A."""
    batch_size: int | None = None
    """Examples per minibatch; by default the task's own; 0: all of a client's examples."""
    seed: int = 0
    """Seed of the partition, the initial values and the run."""
    every: int | None = None
    """Rounds between two evaluations; by default about 50 evaluations in all."""
    target: float | None = None
    """End the run when the task's main metric reaches this value."""
    engine: Literal["local", "eager"] = "local"
    """local: compiled; eager: client by client, the reference."""
    precision: Literal["float32", "float64"] = "float32"
    """Floating-point type of everything."""
    out: Path | None = None
    """Folder for the results; by default a new one under runs/."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and gives its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(highlight=False)
    try:
        return _dispatch(arguments, console)
    except InputError as error:
        Console(stderr=True, highlight=False).print(f"rookery: {error}", markup=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        Console(stderr=True, highlight=False).print("rookery: interrupted before the first round; nothing was written")
        return 130


def _dispatch(arguments: list[str], console: Console) -> int:
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help"):
        console.print(USAGE, markup=False, end="")
        return 0
    if command == "--version":
        console.print(__version__, markup=False)
        return 0
    if command == "list":
        _no_more(arguments[1:])
        show_list(console)
        return 0
    if command == "run":
        return _run(arguments[1:], console)
    raise InputError(f"command: {command!r} is not known{nearest(command, ('run', 'list'))}; allowed are run, list")


def _no_more(arguments: list[str]) -> None:
    if arguments:
        raise InputError(f"list: {arguments[0]!r} was given; it takes no arguments")


def show_list(console: Console) -> None:
    """Prints what there is to choose from."""
    methods = RichTable(
        "method", "what it does", "exchanges a round", "problems", "exactness", box=None, pad_edge=False
    )
    for row in METHODS.values():
        methods.add_row(row.name, row.summary, row.exchanges, row.problems, row.exactness)
    tasks = RichTable("task", "what it learns", box=None, pad_edge=False)
    for name, task in TASKS.items():
        tasks.add_row(name, (task.__doc__ or "").strip().split("\n")[0])
    partitions = RichTable("partition", "how examples are divided", box=None, pad_edge=False)
    for name, (_, description) in PARTITIONS.items():
        partitions.add_row(name, description)
    for table in (methods, tasks, partitions):
        console.print(table)
        console.print()


def _run(arguments: list[str], console: Console) -> int:
    words = list(leading_words(arguments))
    if len(words) < 2 and {"-h", "--help"} & set(arguments):
        console.print(USAGE, markup=False, end="")
        return 0
    if len(words) < 2:
        raise InputError("run: a task and a method are needed, as in: rookery run hyperrep simfbo")
    task_name, method_name = words[:2]
    task, row = find_task(task_name), find_method(method_name)
    options = parse_options(task_name, task, row, arguments[2:])
    result, folder = launch(task_name, options.task, row.name, options.method, options.run, console)
    summary(console, {row.name: result})
    console.print(f"results in {folder}", markup=False, soft_wrap=True)
    if result.status == "interrupted":
        console.print(f"interrupted after round {result.state.round}; what was done is there", markup=False)
        return 130
    if result.status == "diverged":
        console.print(f"the run diverged: {result.divergence}; try smaller step sizes", markup=False, soft_wrap=True)
        return 1
    return 0


def leading_words(arguments: list[str]):
    """The leading arguments that are no options."""
    for argument in arguments:
        if argument.startswith("-"):
            return
        yield argument


@dataclasses.dataclass(frozen=True)
class Parsed:
    """A parsed command line: the task, the method, and the run's options."""

    task: Any
    method: Any
    run: RunOptions


def parse_options(task_name: str, task: type[Any], row: Row, arguments: list[str]) -> Parsed:
    """The options of `rookery run`: --task.*, --method.* and those of the run."""
    form = method_form(row, task().rates)
    options = dataclasses.make_dataclass(
        "Options",
        [
            ("task", task, dataclasses.field(default_factory=task)),
            ("method", form, dataclasses.field(default_factory=form)),
            ("run", tyro.conf.OmitArgPrefixes[RunOptions], dataclasses.field(default_factory=RunOptions)),
        ],
        frozen=True,
    )
    _check_names(arguments, options)
    filled: Any = tyro.cli(
        options,
        args=arguments,
        prog=f"rookery run {task_name} {row.name}",
        description=f"{(task.__doc__ or '').split(chr(10))[0]} Method: {row.summary}.",
        config=(tyro.conf.FlagConversionOff,),
    )
    return Parsed(filled.task, method_from(row, filled.method), filled.run)


def _check_names(arguments: list[str], options: type[Any]) -> None:
    """Refuses options that are not there, with the nearest one that is."""
    known = ["--help", "-h", *option_names(options)]
    for argument in arguments:
        name = argument.split("=")[0].replace("_", "-")
        if name.startswith("-") and not re.fullmatch(r"-\.?\d.*", name) and name not in known:
            raise InputError(f"option: {argument.split('=')[0]!r} is not known{nearest(name, known)}; --help shows all")


def option_names(options: type[Any], prefix: str = "--") -> list[str]:
    """The names of all options that a dataclass makes."""
    names = []
    for field in dataclasses.fields(options):
        inner = RunOptions if field.name == "run" else field.type
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            names += option_names(inner, "--" if field.name == "run" else f"{prefix}{field.name}.")
        else:
            names.append(f"{prefix}{field.name}".replace("_", "-"))
    return names


def method_form(row: Row, rates: Any) -> type[Any]:
    """A dataclass with a method's fields as a shell can give them: one rate per sequence, steps as text."""
    help_of = argument_help(row.method)
    plain = {
        "float": float,
        "int": int,
        "bool": bool,
        "str": str,
        "float | None": float | None,
        "int | None": int | None,
    }
    own = rates
    if isinstance(row.method.uses, tuple):
        rates = {name: rate for name, rate in own.items() if name in row.method.uses}
    fields = []
    for field in dataclasses.fields(row.method):
        kind, default, text = str(field.type), field.default, help_of.get(field.name, "")
        if kind == "Rates":
            chosen = {name: rate if default is dataclasses.MISSING else default[name] for name, rate in rates.items()}
            fields.append((field.name, *_rates_form(chosen, float, text)))
        elif kind == "Rates | None":
            fields.append((field.name, *_rates_form(dict.fromkeys(rates), float | None, text)))
        elif kind in ("Steps", "Work"):
            text = "Local steps: a number (5), a range drawn per client and round (1..10), one each (1,2,4)"
            text += "; or epochs (2e, 1..5e)." if kind == "Work" else "."
            fields.append((field.name, _described(str, text), dataclasses.field(default=str(default))))
        elif kind in _TEXTS:
            text, default = _TEXTS[kind]
            fields.append((field.name, _described(str, text), dataclasses.field(default=default)))
        elif field.name == "client_lr" and "y" in own:
            fields.append((field.name, _described(float, text), dataclasses.field(default=own["y"])))
        elif kind == "Amount":
            fields.append((field.name, _described(str, text), dataclasses.field(default=str(default))))
        elif kind == "Coefficients":  # functions are for Python
            table = tuple[float, ...] | None
            fields.append((field.name, _described(table, text), dataclasses.field(default=default)))
        else:
            fields.append((field.name, _described(plain[kind], text), dataclasses.field(default=default)))
    return dataclasses.make_dataclass(row.method.__name__, fields, frozen=True)


# What a shell gives as text: what to say of it, and what it is when nothing is said.
_TEXTS = {
    "Estimator": ("How the adjoint is found: neumann:TERMS:STEP, cg:ITERATIONS or tracked.", "neumann:10:0.1"),
    "Drift": ("Drift control: none, control-variates, duals:GAMMA:A or duals:GAMMA:A:D.", "none"),
    "Server": ("The server's optimiser: none, sgd:LR:MOMENTUM, adam:LR, yogi:LR or adagrad:LR.", "none"),
    "ConstraintSet | None": ("The set: none, simplex, box:LOW:HIGH or ball:RADIUS.", "none"),
}


def _described(kind: Any, text: str) -> Any:
    return Annotated[kind, tyro.conf.arg(help=text)]


def argument_help(cls: type[Any]) -> dict[str, str]:
    """The texts of a docstring's `Args:`, by argument."""
    section = re.search(r"\n    Args:\n(.*?)\n\n", cls.__doc__ or "", re.DOTALL)
    found = re.findall(
        r"^      (\w+): (.*?)(?=^      \w+: |\Z)", section[1] + "\n" if section else "", re.DOTALL | re.MULTILINE
    )
    return {name: " ".join(text.split()) for name, text in found}


def _rates_form(defaults: dict[str, Any], kind: Any, text: str) -> tuple[type[Any], Any]:
    fields = [
        (name, _described(kind, f"For {name}: {text}"), dataclasses.field(default=default))
        for name, default in defaults.items()
    ]
    form = dataclasses.make_dataclass("Rates", fields, frozen=True)
    return form, dataclasses.field(default_factory=form)


def method_from(row: Row, form: Any) -> Any:
    """The method that a filled form describes."""
    values = {}
    for field in dataclasses.fields(row.method):
        value = getattr(form, field.name)
        if dataclasses.is_dataclass(value):
            rates = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            given = {name: rate for name, rate in rates.items() if rate is not None}
            if given and len(given) < len(rates):
                missing = next(name for name in rates if name not in given)
                raise InputError(f"{field.name}: no rate for {missing}; give all of {', '.join(rates)}, or none")
            value = Rates(**given) if given else None
        elif str(field.type) in _PARSERS:
            value = _PARSERS[str(field.type)](field.name, value)
        values[field.name] = value
    method = row.method(**values)
    used = {
        name: Rates(**{k: rate for k, rate in value.entries().items() if k in method.uses})
        for name, value in values.items()
        if isinstance(value, Rates) and method.uses is not None
    }
    return dataclasses.replace(method, **used)


def _parse_form(name: str, text: str, forms: dict[str, Callable[..., Any]], allowed: str) -> Any:
    """A word and its numbers, "cg:10", by the form of that word and as many numbers."""
    word, *numbers = text.split(":")
    form = forms.get(f"{word}/{len(numbers)}")
    if form is not None:
        with contextlib.suppress(ValueError, OverflowError):
            return form(*map(float, numbers))
    raise InputError(f"{name}: {text!r} was given; allowed are {allowed}")


def parse_estimator(name: str, text: str) -> Estimator:
    """`neumann:10:0.1`, `cg:10` or `tracked`."""
    forms = {
        "neumann/2": lambda terms, step: Neumann(_whole(terms), step),
        "cg/1": lambda iterations: ConjugateGradient(_whole(iterations)),
        "tracked/0": Tracked,
    }
    return _parse_form(name, text, forms, "neumann:TERMS:STEP, cg:ITERATIONS and tracked")


def _whole(number: float) -> int:
    if number != int(number):
        raise ValueError
    return int(number)


def parse_drift(name: str, text: str) -> Any:
    """`none`, `control-variates`, `duals:1:0.5` or `duals:1:0.5:2`."""
    forms = {
        "none/0": lambda: None,
        "control-variates/0": ControlVariates,
        "duals/2": lambda gamma, a: Duals(Rates(gamma), a),
        "duals/3": lambda gamma, a, d: Duals(Rates(gamma), a, d),
    }
    return _parse_form(name, text, forms, "none, control-variates, duals:GAMMA:A and duals:GAMMA:A:D")


def parse_server(name: str, text: str) -> Any:
    """`none`, `sgd:1:0.9`, `adam:0.01`, ..."""

    def optimiser(word: str) -> Callable[..., Any]:
        return lambda *numbers: from_optax(word, **dict(zip(("learning_rate", "momentum"), numbers)))

    forms = {"none/0": lambda: None, "sgd/2": optimiser("sgd")}
    forms |= {f"{word}/1": optimiser(word) for word in ("sgd", "adam", "yogi", "adagrad")}
    return _parse_form(name, text, forms, "none, sgd:LR, sgd:LR:MOMENTUM, adam:LR, yogi:LR and adagrad:LR")


def parse_set(name: str, text: str) -> Any:
    """`none`, `simplex`, `box:-1:1` or `ball:2`."""
    forms = {"none/0": lambda: None, "simplex/0": Simplex, "box/2": Box, "ball/1": Ball}
    return _parse_form(name, text, forms, "none, simplex, box:LOW:HIGH and ball:RADIUS")


def parse_amount(name: str, text: str) -> Any:
    """A number, or a word that the method knows."""
    try:
        return float(text)
    except ValueError:
        return text


def parse_steps(name: str, text: str, epochs: bool = False) -> Any:
    """`5`: so many; `1..10`: random per client and round; `1,2,4`: one number per client; `2e`, `1..5e`: epochs."""
    if re.fullmatch(r"\d+", text):
        return int(text)
    if match := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        return RandomSteps(int(match[1]), int(match[2]))
    if re.fullmatch(r"\d+(,\d+)+", text):
        return FixedSteps([int(part) for part in text.split(",")])
    if epochs and (match := re.fullmatch(r"(\d+)(?:\.\.(\d+))?e", text)):
        return Epochs(int(match[1]), None if match[2] is None else int(match[2]))
    allowed = "a number (5), a range (1..10) or a list (1,2,4)" + (", or epochs (2e, 1..5e)" if epochs else "")
    raise InputError(f"{name}: {text!r} was given; allowed are {allowed}")


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "Steps": parse_steps,
    "Work": lambda name, text: parse_steps(name, text, epochs=True),
    "Estimator": parse_estimator,
    "Drift": parse_drift,
    "Server": parse_server,
    "ConstraintSet | None": parse_set,
    "Amount": parse_amount,
}


def launch(
    task_name: str, task: Any, method_name: str, method: Any, options: RunOptions, console: Console
) -> tuple[Result, Path]:
    """Runs a task with a progress bar and writes the run folder, also when it is interrupted."""
    if options.clients < 1 or options.cohort < 0:
        raise InputError(f"clients, cohort: {options.clients}, {options.cohort} were given; clients >= 1, cohort >= 0")
    assembly = task.assemble(parse(options.partition), options.clients, options.seed)
    folder = options.out or default_folder(task_name, method_name)
    check_writable(folder)
    batch_size = task.batch_size if options.batch_size is None else options.batch_size
    config = {
        "task_name": task_name,
        "task": dataclasses.asdict(task),
        "method_name": method_name,
        "method": plain(method),
        **dataclasses.asdict(options),
        "batch_size": batch_size,
    }
    try:
        with Bar(options.rounds, f"{task_name} {method_name}", console) as bar, warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)  # told in the summary
            warnings.simplefilter("always", AdviceWarning)
            warnings.showwarning = lambda message, *_: _say(console, message)
            result = run(
                assembly.problem,
                method,
                assembly.clients,
                x=assembly.x,
                y=assembly.y,
                start=assembly.start,
                rounds=options.rounds,
                sampling=Uniform(options.cohort) if options.cohort else All(),
                batch_size=batch_size or None,
                seed=options.seed,
                metrics=assembly.metrics,
                every=options.every,
                stop=_target(assembly, options.target),
                engine=options.engine,
                precision=options.precision,
                callbacks=[bar],
            )
    except Interrupted as interrupted:
        if not interrupted.result.history.rows:
            raise KeyboardInterrupt from None
        result = interrupted.result
    return result, write_run(folder, result, config, assembly.main_metric)


def _say(console: Console, message: Any) -> None:
    console.print(f"warning: {message}", markup=False, soft_wrap=True)


def _target(assembly: Any, target: float | None) -> dict[str, Any] | None:
    """Where to stop: at least the target, or at most where the metric falls."""
    if target is None:
        return None
    return {assembly.main_metric: (lambda value: value <= target) if assembly.falling else target}


def plain(value: Any) -> Any:
    """A method's fields as json holds them: rates by sequence, schedules of steps by their fields."""
    if isinstance(value, Rates):
        return value.entries()
    if isinstance(value, ServerOptimiser):
        return str(value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return fields or type(value).__name__
    return value


def summary(console: Console, results: dict[str, Result]) -> None:
    """A table of how runs ended and what they cost."""
    table = RichTable(box=None, pad_edge=False)
    columns = ["method", "rounds", "exchanges", "MB up", "down", "samples", "seconds"]
    metrics = list(next(iter(results.values())).history.columns[8:])
    for name in [*columns, *metrics]:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for name, result in results.items():
        row = result.history.rows[-1]
        table.add_row(
            name,
            str(row["round"]),
            str(row["exchanges"]),
            f"{row['bytes_up'] / 1e6:.2f}",
            f"{row['bytes_down'] / 1e6:.2f}",
            str(row["samples"]),
            f"{row['seconds']:.2f}",
            *(f"{row[metric]:.4f}" for metric in metrics),
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
