"""From words on the command line to tasks, methods and options: forms made from the dataclasses they fill."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable
from typing import Annotated, Any

import tyro

from rookery.algorithms.drift import ControlVariates, Duals
from rookery.algorithms.estimators import ConjugateGradient, Estimator, Neumann, Tracked
from rookery.algorithms.presets import from_optax
from rookery.algorithms.registry import Row, find_method
from rookery.errors import InputError, nearest
from rookery.experiments.experiment import Options
from rookery.federation.rates import Rates
from rookery.federation.steps import Epochs, FixedSteps, RandomSteps
from rookery.problems.sets import Ball, Box, Simplex


def fill(form: type[Any], arguments: list[str], prog: str, description: str) -> Any:
    """A form filled from the command line. A field named `run` gives options without a prefix."""
    _check_names(arguments, form)
    return tyro.cli(form, args=arguments, prog=prog, description=description)


def make_form(**parts: type[Any]) -> type[Any]:
    """A form of several dataclasses: the options of `run` stand alone, those of the others after its name."""
    bare = lambda part: tyro.conf.FlagCreatePairsOff[tyro.conf.OmitArgPrefixes[part]]  # type: ignore[valid-type]
    named = lambda part: tyro.conf.FlagConversionOff[part]  # type: ignore[valid-type]
    fields = [
        (name, bare(part) if name == "run" else named(part), dataclasses.field(default_factory=part))
        for name, part in parts.items()
    ]
    form = dataclasses.make_dataclass("Options", fields, frozen=True)
    form.parts = parts  # type: ignore[attr-defined]
    return form


@dataclasses.dataclass(frozen=True)
class Parsed:
    """A parsed command line: the task, the method, and the run's options."""

    task: Any
    method: Any
    run: Any


def parse_options(task_name: str, task: type[Any], row: Row, arguments: list[str], run: type[Any] = Options) -> Parsed:
    """The options of `rookery run`: --task.*, --method.* and those of the run."""
    filled = fill(
        make_form(task=task, method=method_form(row, task().rates), run=run),
        arguments,
        prog=f"rookery run {task_name} {row.name}",
        description=f"{(task.__doc__ or '').split(chr(10))[0]} Method: {row.summary}.",
    )
    return Parsed(filled.task, method_from(row, filled.method), filled.run)


def parse_method(text: str, task: type[Any]) -> Any:
    """A method with options, as in `simfbo` or `simfbo:local-steps=5,lr.x=0.1`."""
    name, _, settings = text.partition(":")
    row = find_method(name)
    arguments = []
    for setting in re.split(r",(?=[\w.-]+=)", settings) if settings else ():
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"method: {text!r} was given; options follow as in {name}:local-steps=5,lr.x=0.1")
        arguments += [f"--method.{key.strip()}", value.strip()]
    form = make_form(method=method_form(row, task().rates))
    try:
        return method_from(row, fill(form, arguments, prog=f"rookery compare {text}", description="").method)
    except InputError as error:
        raise InputError(f"method: {text!r} was given, and in it {str(error).replace('--method.', '')}") from None


def _check_names(arguments: list[str], form: type[Any]) -> None:
    """Refuses options that are not there, with the nearest one that is."""
    known = ["--help", "-h", *option_names(form)]
    for argument in arguments:
        name = argument.split("=")[0].replace("_", "-")
        if name.startswith("-") and not re.fullmatch(r"-\.?\d.*", name) and name not in known:
            raise InputError(f"option: {argument.split('=')[0]!r} is not known{nearest(name, known)}; --help shows all")


def option_names(form: type[Any], prefix: str = "--") -> list[str]:
    """The names of all options that a form has."""
    names = []
    for field in dataclasses.fields(form):
        inner = getattr(form, "parts", {}).get(field.name, field.type)
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
    if re.fullmatch(r"\d{1,20}", text):
        return int(text)
    if match := re.fullmatch(r"(\d{1,20})\.\.(\d{1,20})", text):
        return RandomSteps(int(match[1]), int(match[2]))
    if re.fullmatch(r"\d{1,20}(,\d{1,20})+", text):
        return FixedSteps([int(part) for part in text.split(",")])
    if epochs and (match := re.fullmatch(r"(\d{1,20})(?:\.\.(\d{1,20}))?e", text)):
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
