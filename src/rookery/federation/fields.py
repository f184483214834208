"""What the fields of a method mean: how each is bound, checked, given in a shell, kept as json and explained.

A field says it with a specifier (`lr: Rates = rates()`, `local_steps: Steps = steps(1)`), or its plain type says it
(`beta: float = 0.9`). Whoever handles methods, `bind` before a run, the command, the codec, asks the field and nothing
else. Imports rates, steps, the codec, structs and errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from rookery.errors import InputError, unknown
from rookery.federation import codec
from rookery.federation.rates import AUTO, PerClient, Rates, as_float
from rookery.federation.steps import (
    LARGEST,
    Epochs,
    FixedSteps,
    RandomSteps,
    Steps,
    StepsBy,
    bind_steps,
    check_count,
    check_steps,
    is_random,
    is_whole,
    parse_steps,
)

MEANING = "meaning"


class Scope(NamedTuple):
    """What binding a field looks at."""

    names: tuple[str, ...]  # the sequences that need step sizes
    shared: tuple[str, ...]
    population: int
    random: int = 0  # the random schedules among the fields before
    others: tuple[str, ...] = ()  # sequences of the problem that the method takes no step sizes for


class Option(NamedTuple):
    """How a shell gives a field: a plain type, what it is when nothing is given, and what to say of it."""

    kind: Any
    default: Any
    text: str = ""


class Field:
    """What a field means; this one is anything at all, and stays as it is."""

    def wrap(self, value: Any) -> Any:
        """The value that a method holds, from the one it was made with."""
        return value

    def bind(self, argument: str, value: Any, scope: Scope) -> Any:
        """The value made ready for a problem; refuses one that does not fit, in one sentence."""
        return value

    def option(self, default: Any, rates: Mapping[str, float], text: str) -> Option | dict[str, Option] | None:
        """How a shell gives it: one option, one for each sequence, or None: not at all. `text` is what the docstring
        says."""
        return None

    def parse(self, argument: str, given: Any) -> Any:
        """The value that a shell gave."""
        return given

    def encode(self, argument: str, value: Any) -> Any:
        """The value as json has it."""
        return codec.encode(value, argument)

    def decode(self, value: Any) -> Any:
        """What `encode` gave."""
        return codec.decode(value)

    def explain(self) -> str:
        """What may be given, in a few words."""
        return "anything"


@dataclasses.dataclass(frozen=True)
class RatesField(Field):
    """One number for each sequence: step sizes, which are not negative, or momenta."""

    optional: bool = False
    positive: bool = True
    auto: bool = False  # whether they may be measured

    def bind(self, argument: str, value: Any, scope: Scope) -> Any:
        if value is None and self.optional:
            return None
        value = Rates(value) if isinstance(value, str) and value == AUTO else value
        if not isinstance(value, Rates) and len(scope.names) > 1:
            raise InputError(
                f"{argument}: {value!r} was given and this problem has {', '.join(scope.names)}; "
                f"use rk.Rates({value!r}) for one rate in all of them"
            )
        for name, rate in value.entries().items() if isinstance(value, Rates) else ():
            if name in scope.others:
                raise InputError(
                    f"{argument}.{name}: {rate!r} was given, and this method takes no rate for {name!r}; it takes "
                    f"{', '.join(scope.names)}"
                )
        made = bound_rates(argument, value, scope.names, scope.population)
        for name, rate in made.entries().items():
            if self.positive and np.any(np.asarray(0 if callable(rate) else getattr(rate, "table", rate)) < 0):
                raise InputError(
                    f"{argument}.{name}: {rate!r} was given; a step size is not negative".replace(".default", "")
                )
        return made

    def option(self, default: Any, rates: Mapping[str, float], text: str) -> dict[str, Option]:
        if self.optional:
            return {name: Option(float | None, None, f"For {name}: {text}") for name in rates}
        own = {name: rate if default is dataclasses.MISSING else default[name] for name, rate in rates.items()}
        kind = float | Literal["auto"] if self.auto else float
        return {name: Option(kind, rate, f"For {name}: {text}") for name, rate in own.items()}

    def parse(self, argument: str, given: Mapping[str, Any]) -> Rates | None:
        rates = {name: rate for name, rate in given.items() if rate is not None}
        if rates and len(rates) < len(given):
            missing = next(name for name in given if name not in rates)
            raise InputError(f"{argument}: no rate for {missing}; give all of {', '.join(given)}, or none")
        return Rates(**rates) if rates else None

    def explain(self) -> str:
        told = "rk.Rates: a number or a schedule for each sequence"
        return told + (", or None" if self.optional else "") + (", or 'auto'" if self.auto else "")


def bound_rates(argument: str, value: Any, names: tuple[str, ...], population: int) -> Rates:
    """Rates with every number checked and made a float: a whole number is no other program than one with a point."""
    rates = value if isinstance(value, Rates) else Rates(value)
    rates.check(argument, names, population)
    return rates.map(as_float)


@dataclasses.dataclass(frozen=True)
class AmountField(Field):
    """One number for all sequences: a number, a schedule, rk.PerClient, or a word that stands for a rule."""

    words: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""

    def wrap(self, value: Any) -> Any:
        if not self.words or not isinstance(value, str):
            return value
        if value not in self.words:
            raise unknown(self.name, value, [*self.words, "a number", "rk.PerClient"])
        return self.words[value]

    def bind(self, argument: str, value: Any, scope: Scope) -> Any:
        if value is None:
            raise InputError(f"{argument}: None was given; a number, a schedule or rk.PerClient is needed")
        if isinstance(value, tuple(type(rule) for rule in self.words.values())):
            return value
        return bound_rates(argument, value, (), scope.population)

    def option(self, default: Any, rates: Mapping[str, float], text: str) -> Option:
        return Option(str, str(default), text)

    def parse(self, argument: str, given: str) -> Any:
        try:
            return float(given)
        except ValueError:
            return given

    def explain(self) -> str:
        return ", ".join(["a number", "a schedule", "rk.PerClient", *map(repr, self.words)])


@dataclasses.dataclass(frozen=True)
class StepsField(Field):
    """How much a client works: steps, fixed, per client or random, or epochs."""

    epochs: bool = False

    def bind(self, argument: str, value: Any, scope: Scope) -> Any:
        check_steps(argument, value, scope.population, epochs=self.epochs)
        return bind_steps(value, scope.random)

    def option(self, default: Any, rates: Mapping[str, float], text: str) -> Option:
        return Option(str, str(default), f"Local steps: {self.explain()}.")

    def parse(self, argument: str, given: str) -> Any:
        return parse_steps(argument, given, epochs=self.epochs)

    def explain(self) -> str:
        steps = "a number (5), a range drawn per client and round (1..10), one each (1,2,4)"
        return f"{steps}; or epochs (2e, 1..5e)" if self.epochs else steps


@dataclasses.dataclass(frozen=True)
class NumberField(Field):
    """One number for the whole run."""

    optional: bool = False
    rate_of: str | None = None  # the sequence whose step size it is, which a task has a default for
    scale: bool = False  # whether tuning searches it by factors, as it does step sizes

    def bind(self, argument: str, value: Any, scope: Scope) -> Any:
        if value is None and self.optional:
            return None
        if value is None or callable(value):
            given = "None" if value is None else "a function"
            raise InputError(f"{argument}: {given} was given; one number for the whole run is needed")
        Rates(value).check(argument, ())
        return as_float(value)

    def option(self, default: Any, rates: Mapping[str, float], text: str) -> Option:
        if self.rate_of is not None and self.rate_of in rates:
            default = rates[self.rate_of]
        return Option(float | None if self.optional else float, default, text)

    def explain(self) -> str:
        return "a number" + (", or None" if self.optional else "")


@dataclasses.dataclass(frozen=True)
class WholeField(Field):
    """A whole number; from `least` on, where that is given."""

    optional: bool = False
    least: int | None = None

    def bind(self, argument: str, value: Any, scope: Scope) -> Any:
        if value is None and self.optional:
            return None
        if self.least == 1:
            check_count(argument, value)
        elif value is None or not is_whole(value) or abs(int(value)) > LARGEST:
            raise InputError(f"{argument}: {value!r} was given; a whole number up to {LARGEST} is needed")
        return value

    def option(self, default: Any, rates: Mapping[str, float], text: str) -> Option:
        return Option(int | None if self.optional else int, default, text)

    def explain(self) -> str:
        return "a whole number" + (f" from {self.least}" if self.least else "") + (", or None" if self.optional else "")


@dataclasses.dataclass(frozen=True)
class FlagField(Field):
    """True or False."""

    def bind(self, argument: str, value: Any, scope: Scope) -> Any:
        if not isinstance(value, bool):
            raise InputError(f"{argument}: {value!r} was given; True or False is needed")
        return value

    def option(self, default: Any, rates: Mapping[str, float], text: str) -> Option:
        return Option(bool, default, text)

    def explain(self) -> str:
        return "True or False"


@dataclasses.dataclass(frozen=True)
class WordField(Field):
    """A word; one of some, where these are given."""

    allowed: tuple[str, ...] = ()

    def bind(self, argument: str, value: Any, scope: Scope) -> Any:
        if self.allowed and value not in self.allowed:
            raise unknown(argument, str(value), self.allowed)
        if not isinstance(value, str):
            raise InputError(f"{argument}: {value!r} was given; a word is needed")
        return value

    def option(self, default: Any, rates: Mapping[str, float], text: str) -> Option:
        return Option(str, default, text)

    def explain(self) -> str:
        return ", ".join(self.allowed) or "a word"


@dataclasses.dataclass(frozen=True)
class ComponentField(Field):
    """A part with fields of its own: drift control, an estimator, a server's optimiser, a set.

    Args:
      read: makes one of a text that a shell gave, `read(argument, text)`; None: a shell cannot.
      text: what to say of it.
      given: the text that stands for the default.
      wrapped: makes the part of what a user may give in its place (None, a mapping).
    """

    read: Callable[[str, str], Any] | None = None
    text: str = ""
    given: str = "none"
    wrapped: Callable[[Any], Any] | None = None

    def wrap(self, value: Any) -> Any:
        return value if self.wrapped is None else self.wrapped(value)

    def bind(self, argument: str, value: Any, scope: Scope) -> Any:
        return bound(value, scope._replace(names=scope.shared), f"{argument}.") if codec.is_part(value) else value

    def option(self, default: Any, rates: Mapping[str, float], text: str) -> Option | None:
        return None if self.read is None else Option(str, self.given, self.text)

    def parse(self, argument: str, given: str) -> Any:
        assert self.read is not None
        return self.read(argument, given)

    def explain(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class TableField(Field):
    """A table of numbers, or a function, which a shell cannot give."""

    wrapped: Callable[[Any], Any] | None = None

    def wrap(self, value: Any) -> Any:
        return value if self.wrapped is None else self.wrapped(value)

    def option(self, default: Any, rates: Mapping[str, float], text: str) -> Option:
        return Option(tuple[float, ...] | None, default, text)

    def explain(self) -> str:
        return "numbers, or a function"


def _made(meaning: Field, default: Any, static: bool = False) -> Any:
    return dataclasses.field(default=default, metadata={MEANING: meaning, "static": static})


def rates(*, default: Any = dataclasses.MISSING, positive: bool = True, auto: bool = False) -> Any:
    """A field of numbers by sequence, step sizes unless not `positive`; with `default=None` it may be left out. With
    `auto` they are what a step along the direction field takes, which can be measured."""
    return _made(RatesField(default is None, positive, auto), default)


def amount(*, default: Any, words: Mapping[str, Any] | None = None, name: str = "") -> Any:
    """A field of one number for all sequences, a schedule of it, one per client, or a word with a rule behind it."""
    return _made(AmountField(dict(words or {}), name), default)


def steps(*, default: Any = 1, epochs: bool = True) -> Any:
    """A field of local steps; without `epochs`, of steps alone."""
    return _made(StepsField(epochs), default)


def number(*, default: Any = dataclasses.MISSING, rate_of: str | None = None, scale: bool = False) -> Any:
    """A field of one number; with `default=None` it may be left out. Tuning searches a `scale` by factors."""
    return _made(NumberField(default is None, rate_of, scale), default)


def count(*, default: Any = dataclasses.MISSING, static: bool = False) -> Any:
    """A field of a whole number from 1; `static` ones are part of the structure."""
    return _made(WholeField(default is None, least=1), default, static)


def choice(*allowed: str) -> Any:
    """A field of one of some words, the first when nothing is given; part of the structure."""
    return _made(WordField(allowed), allowed[0], static=True)


def component(
    default: Any = None,
    read: Callable[[str, str], Any] | None = None,
    text: str = "",
    given: str = "none",
    wrapped: Callable[[Any], Any] | None = None,
    static: bool = False,
) -> Any:
    """A field that is a part with fields of its own; see `ComponentField`."""
    return _made(ComponentField(read, text, given, wrapped), default, static)


def table(wrapped: Callable[[Any], Any] | None = None) -> Any:
    """A field of a table of numbers or a function; None when nothing is given."""
    return _made(TableField(wrapped), None)


def meanings(cls: type[Any]) -> dict[str, Field]:
    """What every field of a dataclass means: what its specifier says, or its type."""
    fields = [field for field in dataclasses.fields(cls) if field.init]
    if all(MEANING in field.metadata for field in fields):
        return {field.name: field.metadata[MEANING] for field in fields}
    with contextlib.suppress(NameError, TypeError, AttributeError):  # a type that is not there when the code runs
        hints = get_type_hints(cls)
        return {field.name: field.metadata.get(MEANING) or _of_type(hints[field.name]) for field in fields}
    return {field.name: field.metadata.get(MEANING) or _of_default(cls, field) for field in fields}


def _of_type(hint: Any) -> Field:
    """The meaning of a field by its type."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    optional, kinds = type(None) in parts, [part for part in parts if part is not type(None)]
    if hint == Steps:
        return StepsField(epochs=True)
    if len(kinds) != 1:
        return ComponentField()
    plain = {Rates: RatesField(optional), float: NumberField(optional), int: WholeField(optional)}
    plain |= {bool: FlagField(), str: WordField(), PerClient: AmountField()}
    plain |= dict.fromkeys((FixedSteps, RandomSteps, StepsBy, Epochs), StepsField(epochs=True))
    return plain.get(kinds[0], ComponentField())


def _of_default(cls: type[Any], field: Any) -> Field:
    """The meaning of a field whose type cannot be looked up, by what it is when nothing is given."""
    if field.default is dataclasses.MISSING:
        raise InputError(
            f"{cls.__name__}: the type {field.type!r} of {field.name} cannot be looked up; say what it is with a "
            "specifier such as rk.rates() or rk.number()"
        )
    return _of_type(type(field.default))


def wrapped(instance: Any) -> None:
    """Puts the values that a method holds in the place of those it was made with."""
    for field in dataclasses.fields(instance):
        meaning = field.metadata.get(MEANING)
        if meaning is not None and (value := meaning.wrap(given := getattr(instance, field.name))) is not given:
            object.__setattr__(instance, field.name, value)


def bound(owner: Any, scope: Scope, prefix: str = "") -> Any:
    """A method or a part with every field bound."""
    values = {}
    for name, meaning in meanings(type(owner)).items():
        values[name] = meaning.bind(prefix + name, getattr(owner, name), scope)
        scope = scope._replace(random=scope.random + is_random(values[name]))
    return dataclasses.replace(owner, **values)


def parse_words(argument: str, text: str, forms: Mapping[str, Callable[..., Any]], allowed: str) -> Any:
    """A word and its numbers, "cg:10", by the form of that word and as many numbers ("cg/1")."""
    word, *numbers = text.split(":")
    form = forms.get(f"{word}/{len(numbers)}")
    if form is not None:
        with contextlib.suppress(ValueError, OverflowError):
            return form(*map(float, numbers))
    raise InputError(f"{argument}: {text!r} was given; allowed are {allowed}")


def whole(number: float) -> int:
    """A number that was read as a float, where it is whole."""
    if number != int(number):
        raise ValueError
    return int(number)
