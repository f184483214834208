"""Step sizes by sequence: numbers or schedules, one for all or one each. Imports vectors and errors."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, register_pytree_with_keys_class

from rookery.errors import InputError, failing, nearest
from rookery.structs import Given, struct
from rookery.vectors import Scalar, Sequences

_DEFAULT = "default"
AUTO = "auto"  # in the place of a rate: one that is measured


@struct
class PerClient:
    """A number of each client's own, in the place of one for all: a table with one entry per client.

    A function of the round may give one, for numbers that change over clients and rounds.

    >>> Rates(PerClient([0.1, 0.2])).at(0, 1)["x"].item()
    0.20000000298023224
    """

    table: Any

    def __post_init__(self):
        if isinstance(self.table, (list, tuple)):
            object.__setattr__(self, "table", np.asarray(self.table))

    def at(self, client: Any) -> jax.Array:
        return jnp.asarray(self.table)[client]

    def check(self, argument: str, population: int) -> None:
        table = np.asarray(self.table)
        if table.shape != (population,) or table.dtype.kind not in "fiu" or not np.isfinite(table).all():
            raise InputError(
                f"{argument}: PerClient of shape {table.shape} was given; {population} finite numbers are needed, one "
                "for each client"
            )


@dataclass(frozen=True)
class Decay:
    """A schedule of falling rates, rate / (1 + t / scale)^power at round t, that a run's folder can hold.

    >>> Rates(x=Decay(0.1, scale=10.0, power=0.5), y=0.2).at(30)
    Rates(x=0.05, y=0.2)
    """

    rate: float
    scale: float = 1.0
    power: float = 1 / 3

    def __post_init__(self):
        if not (_is_finite_number(self.rate) and self.scale > 0 and self.power >= 0):
            raise InputError(
                f"Decay: rate {self.rate!r}, scale {self.scale!r} and power {self.power!r} were given; a finite rate, "
                "scale > 0 and power >= 0 are needed"
            )

    def __call__(self, time: Scalar) -> Any:
        return self.rate / (1 + time / self.scale) ** self.power


@register_pytree_with_keys_class
class Rates:
    """One number per sequence, each a number or a schedule (a function of the traced round or iteration).

    `Rates(0.05)` is one number for all sequences, `Rates(x=0.1, y=0.2, v=0.2)` one each, `Rates(0.05, x=0.01)` a
    default with exceptions. Numbers are traced: changing one does not recompile; a schedule is part of the program.
    "auto" in the place of a number is measured where a run begins.

    >>> Rates(0.05, x=0.01)["x"], Rates(0.05, x=0.01)["y"]
    (0.01, 0.05)
    """

    __slots__ = ("_entries",)
    __array_ufunc__ = None

    def __init__(self, default: Any = None, /, **entries: Any):
        named = {} if default is None else {_DEFAULT: default}
        self._entries: dict[str, Any] = named | entries

    def __getitem__(self, name: str) -> Any:
        return self._entries[name] if name in self._entries else self._entries[_DEFAULT]

    def replace(self, **entries: Any) -> Rates:
        """These rates with some entries set; `default` is the one for all other sequences."""
        return Rates._from(self._entries | entries)

    def awaited(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the sequences whose rate is yet to be measured."""
        return tuple(name for name in names if isinstance(self._entries.get(name, self._entries.get(_DEFAULT)), str))

    def entries(self) -> dict[str, Any]:
        """The rates by sequence; `default` is the one for all other sequences."""
        return dict(self._entries)

    def at(self, time: Scalar, client: Any = None) -> Rates:
        """The numbers at a round or iteration, for a client: schedules are called with it."""

        def now(rate: Any) -> Any:
            rate = rate(time) if callable(rate) else rate
            if not isinstance(rate, PerClient):
                return rate
            if client is None:
                raise InputError("rates: a number of each client's own was given where the server needs one for all")
            return rate.at(client)

        return self.map(now)

    @property
    def varies(self) -> bool:
        """Whether some entry is a client's own, in the first round."""
        now = [rate(0) if callable(rate) else rate for rate in self._entries.values()]
        return any(isinstance(rate, PerClient) for rate in now)

    def inverse(self) -> Rates:
        """One over every number, and 0 for 0."""
        return self.map(lambda rate: jnp.where(rate == 0, 0, 1 / jnp.where(rate == 0, 1, rate)))

    @property
    def one(self) -> Any:
        """The number for all sequences."""
        return self._entries[_DEFAULT]

    def map(self, function: Callable[[Any], Any]) -> Rates:
        """Every entry sent through a function."""
        return Rates._from({name: function(rate) for name, rate in self._entries.items()})

    def __mul__(self, other: Any) -> Any:
        """Times a point: sequence by sequence. Times a number: every rate."""
        if isinstance(other, Sequences):
            return other.map(lambda name, vector: vector * self[name])
        return self.map(lambda rate: rate * other)

    __rmul__ = __mul__

    def __rsub__(self, number: Scalar) -> Rates:
        return self.map(lambda rate: number - rate)

    def check(self, argument: str, names: Iterable[str], population: int | None = None) -> None:
        """Refuses names that the problem does not have, sequences without a rate, and rates that are no numbers."""
        names = tuple(names)
        for name, rate in self._entries.items():
            if name != _DEFAULT and not names:
                raise InputError(f"{argument}: Rates was given; one number for all sequences is needed")
            if name != _DEFAULT and name not in names:
                raise InputError(
                    f"{argument}: there is no sequence {name!r}{nearest(name, names)}; "
                    f"this problem has {', '.join(names)}"
                )
            shown = argument if name == _DEFAULT and not names else f"{argument}.{name}"
            now = rate if not callable(rate) or population is None else _at_first(shown, rate)
            if isinstance(now, PerClient) and population is not None:
                now.check(shown, population)
            elif not callable(now) and not _is_finite_number(now):
                if isinstance(now, str) and now == AUTO:
                    raise InputError(
                        f"{shown}: 'auto' was given where nothing measures it; rk.run and rk.sweep do, of the lr of "
                        "SimFBO, ShroFBO, FedBiO, FedAvg and Scaffold"
                    )
                given = repr(now) if now is rate else f"a schedule that gives {now!r} at first"
                raise InputError(f"{shown}: {given} was given; a finite number or a schedule is needed")
        missing = [name for name in names if name not in self._entries]
        if _DEFAULT not in self._entries and missing:
            raise InputError(
                f"{argument}: no rate for {', '.join(missing)}; give one each, or a default as in rk.Rates(0.1, x=0.01)"
            )

    def __repr__(self) -> str:
        shown = [str(v) if k == _DEFAULT else f"{k}={v}" for k, v in self._entries.items()]
        return f"Rates({', '.join(shown)})"

    @classmethod
    def _from(cls, entries: dict[str, Any]) -> Rates:
        rates = cls()
        rates._entries = entries
        return rates

    def tree_flatten_with_keys(self):
        names = tuple(sorted(self._entries))
        schedules = tuple((name, self._entries[name]) for name in names if callable(self._entries[name]))
        traced = tuple(name for name in names if not callable(self._entries[name]))
        return tuple((DictKey(name), self._entries[name]) for name in traced), (traced, schedules)

    @classmethod
    def tree_unflatten(cls, structure, children):
        traced, schedules = structure
        return cls._from({**dict(zip(traced, children)), **dict(schedules)})


def _at_first(argument: str, schedule: Callable[[Any], Any]) -> Any:
    """What a schedule gives in the first round, once it is seen to give one number of a round that is traced."""
    with failing(f"{argument}: the schedule, of a traced round,"):
        traced = jax.eval_shape(lambda t: schedule(t), jnp.int32(0))
        now = schedule(0)
    if not isinstance(now, PerClient) and getattr(traced, "shape", None) != ():
        raise InputError(f"{argument}: the schedule gives {traced} of a round; one number is needed")
    return now


def as_float(value: Any) -> Any:
    """A number as one with a point, and whatever else there is as it is."""
    if isinstance(value, PerClient):
        return PerClient(np.asarray(value.table, np.float64)) if np.asarray(value.table).dtype.kind in "iu" else value
    return float(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else value


def _is_finite_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, np.ndarray, jax.Array)):
        return False
    array = np.asarray(value)
    return bool(array.ndim == 0 and array.dtype.kind in "fiu" and np.isfinite(array))


Rate = Rates | float | PerClient | Decay | str | Callable[[Any], Any]  # what a user may give for step sizes
GivenRates = Given[Rates, Rate]
GivenOptionalRates = Given[Rates | None, Rate | None]
