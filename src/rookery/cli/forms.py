"""From words on the command line to tasks, methods and options: forms made from the dataclasses they fill."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, get_args, get_type_hints

import tyro

from rookery.algorithms.registry import Row, find_method
from rookery.errors import InputError, nearest, unknown
from rookery.experiments.experiment import FORM, Options
from rookery.federation.fields import Option, RatesField, meanings
from rookery.federation.rates import Rates
from rookery.own_code import short_name


def fill(form: type[Any], arguments: list[str], prog: str, description: str) -> Any:
    """A form filled from the command line. A field named `run` gives options without a prefix."""
    arguments = _for_each(arguments, option_names(form))
    _check_names(arguments, form)
    return tyro.cli(form, args=arguments, prog=prog, description=description)


def _for_each(arguments: list[str], known: list[str]) -> list[str]:
    """`--method.lr auto` as an option for each sequence: `--method.lr.x auto` and so on."""
    words, left = [], list(arguments)
    while left:
        name, equals, value = left.pop(0).partition("=")
        inner = [option for option in known if option.startswith(f"{name.replace('_', '-')}.")]
        if name in known or not inner or not name.startswith("--method.") or not (equals or left):
            words.append(f"{name}{equals}{value}")
            continue
        given = value if equals else left.pop(0)
        words += [word for option in inner for word in (option, given)]
    return words


def make_form(defaults: Mapping[str, Any] | None = None, /, **parts: type[Any]) -> type[Any]:
    """A form of several dataclasses: the options of `run` stand alone, those of the others after its name. `defaults`
    are those of `run` that differ from its own."""
    bare = lambda part: tyro.conf.FlagCreatePairsOff[tyro.conf.OmitArgPrefixes[part]]  # type: ignore[valid-type]
    named = lambda part: tyro.conf.FlagConversionOff[part]  # type: ignore[valid-type]
    fields = [
        (name, bare(part), dataclasses.field(default_factory=partial(part, **(defaults or {}))))
        if name == "run"
        else (name, named(part), dataclasses.field(default_factory=part))
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


def parse_options(
    task_name: str, task: type[Any], row: Row, arguments: list[str], run: type[Any] = Options, command: str = "run"
) -> Parsed:
    """The options of `rookery run`, or of another command on a task and a method: --task.*, --method.* and those of the
    run."""
    prog = f"rookery {command} {task_name} {row.name}"
    rates = _task_alone(task, arguments, prog).rates
    filled = fill(
        make_form(getattr(task, "defaults", None), task=task, method=method_form(row, rates), run=run),
        arguments,
        prog=prog,
        description=f"{(task.__doc__ or '').split(chr(10))[0]} Method: {row.summary}.",
    )
    return Parsed(filled.task, method_from(row, filled.method), filled.run)


def _task_alone(task: type[Any], arguments: list[str], prog: str) -> Any:
    """The task as the command line sets it: a method's rates are by default those of the task, which depend on it."""
    words, taken = [], False
    for argument in arguments:
        taken = argument.startswith("--task.") or (taken and not re.match(r"--?[a-zA-Z]", argument))
        words += [argument] * taken
    return fill(make_form(task=task), words, prog=prog, description="").task


def parse_form(text: str, task: Any) -> tuple[str, Any]:
    """A method's words without the form of the task that they name, and the task in that form: `fedavg@plain`."""
    found = re.match(r"((?:.*/)?[^/]*?)@(\w*)([^/]*)$", text)  # an @ in a folder's name is none
    if found is None or not hasattr(task, FORM):
        if found is not None:
            raise InputError(f"method: {text!r} was given, and the task has one form; give the method alone")
        return text, task
    allowed = get_args(get_type_hints(type(task))[FORM])
    if allowed and found[2] not in allowed:
        raise unknown(f"method: the form in {text!r}", found[2], allowed)
    return found[1] + found[3], dataclasses.replace(task, **{FORM: found[2]})


def parse_method(text: str, task: Any) -> tuple[str, Any]:
    """A method with options, as in `simfbo`, `simfbo:local-steps=5,lr.x=0.1` or `mine.py:Mine:beta=0.5`, for a task,
    and what to call it."""
    own = re.match(r"(.*\.py:\w+)(?::(.*))?$", text)
    name, settings = (own[1], own[2] or "") if own else text.partition(":")[::2]
    row = find_method(name)
    label = f"{short_name(name)}{':' * bool(settings)}{settings}" if own else text
    arguments = []
    for setting in re.split(r",(?=[\w.-]+=)", settings) if settings else ():
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"method: {text!r} was given; options follow as in {name}:local-steps=5,lr.x=0.1")
        arguments += [f"--method.{key.strip()}", value.strip()]
    form = make_form(method=method_form(row, task.rates))
    try:
        return label, method_from(row, fill(form, arguments, prog=f"rookery compare {text}", description="").method)
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


def method_form(row: Row, rates: Mapping[str, float]) -> type[Any]:
    """A dataclass with a method's fields as a shell can give them; each field says how."""
    help_of = argument_help(row.method)
    used = rates
    if isinstance(row.method.uses, tuple):
        used = {name: rate for name, rate in rates.items() if name in row.method.uses}
    fields = []
    for field in dataclasses.fields(row.method):
        meaning = meanings(row.method)[field.name]
        given = used if isinstance(meaning, RatesField) else rates
        option = meaning.option(field.default, given, help_of.get(field.name, ""))
        if isinstance(option, dict):
            fields.append((field.name, *_form_of(option)))
        elif option is not None:
            fields.append((field.name, _described(option), dataclasses.field(default=option.default)))
    return dataclasses.make_dataclass(row.method.__name__, fields, frozen=True)


def _described(option: Option) -> Any:
    return Annotated[option.kind, tyro.conf.arg(help=option.text)]


def _form_of(options: Mapping[str, Option]) -> tuple[type[Any], Any]:
    fields = [(name, _described(option), dataclasses.field(default=option.default)) for name, option in options.items()]
    form = dataclasses.make_dataclass("Rates", fields, frozen=True)
    return form, dataclasses.field(default_factory=form)


def argument_help(cls: type[Any]) -> dict[str, str]:
    """The texts of a docstring's `Args:`, by argument."""
    section = re.search(r"\nArgs:\n(.*?)(?:\n\n|\Z)", inspect.cleandoc(cls.__doc__ or ""), re.DOTALL)
    found = re.findall(
        r"^  (\w+): (.*?)(?=^  \w+: |\Z)", section[1] + "\n" if section else "", re.DOTALL | re.MULTILINE
    )
    return {name: " ".join(text.split()) for name, text in found}


def method_from(row: Row, form: Any) -> Any:
    """The method that a filled form describes."""
    values = {}
    for name, meaning in meanings(row.method).items():
        if hasattr(form, name):
            given = getattr(form, name)
            several = isinstance(meaning, RatesField)  # an option for each sequence
            values[name] = meaning.parse(name, dataclasses.asdict(given) if several else given)
    method = row.method(**values)
    used = {
        name: Rates(**{k: rate for k, rate in value.entries().items() if k in method.uses})
        for name, value in values.items()
        if isinstance(value, Rates) and method.uses is not None
    }
    return dataclasses.replace(method, **used)
