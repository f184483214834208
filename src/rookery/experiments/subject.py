"""What is compared and tuned: a task's experiment, or a problem of the user's own. Imports tasks' contract and runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rookery.errors import InputError
from rookery.metric import Metrics
from rookery.tasks.base import Assembly


class Subject(Protocol):
    """A method with what it is run on."""

    @property
    def method_name(self) -> str: ...

    @property
    def method(self) -> Any: ...

    @property
    def options(self) -> Any:
        """What is set, `seed`, `rounds` and `every` among it."""
        ...

    def assemble(self, tuning: bool = False) -> Assembly:
        """The problem, its clients and its metrics; for tuning, with metrics of validation examples."""
        ...

    def arguments(self, assembly: Assembly) -> dict[str, Any]:
        """What `rk.run` is given, but for the method and the rounds."""
        ...

    def advised(self) -> contextlib.AbstractContextManager[None]:
        """Where it is run: advice that the user has no use for is not given."""
        ...


@dataclass(frozen=True)
class OwnOptions:
    """How a problem of the user's own is run."""

    seed: int = 0
    rounds: int = 1
    every: int | None = None
    target: float | None = None


@dataclass(frozen=True)
class OwnSubject:
    """A problem of the user's own with a method.

    Args:
      given: Arguments of `rk.run` except the method, the rounds, the seed and the metrics.
      metrics: Function that measures; `metric` names the value that counts.
      falling: Whether a lower value of it is better; None: inferred from its name.
      validation: Metrics to tune with, with the same names, on other examples; None: `metrics`.
    """

    method_name: str
    method: Any
    given: Mapping[str, Any]
    metrics: Metrics | None
    metric: str
    falling: bool | None = None
    validation: Metrics | None = None
    options: OwnOptions = OwnOptions()

    def assemble(self, tuning: bool = False) -> Assembly:
        measured = self.validation if tuning and self.validation is not None else self.metrics
        values = {name: self.given[name] for name in ("problem", "clients", "x", "y") if name in self.given}
        return Assembly(
            **{"x": None, **values},
            start=self.given.get("start") or {},
            metrics=measured,
            main_metric=self.metric,
            falling=self.falling,
        )

    def advised(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def arguments(self, assembly: Assembly) -> dict[str, Any]:
        return {**self.given, "metrics": assembly.metrics, "seed": self.options.seed}


def check_methods(methods: Any) -> None:
    """Refuses what is not a mapping from labels to methods."""
    if not isinstance(methods, Mapping) or not methods:
        raise InputError(
            f'methods: {methods!r} was given; a mapping such as {{"SimFBO": rk.SimFBO(lr=rk.Rates(0.1))}} is needed'
        )
    for label, given in methods.items():
        method = given[-1] if isinstance(given, tuple) and given else given
        if not isinstance(label, str) or isinstance(method, type) or not callable(getattr(method, "round", None)):
            raise InputError(f"methods: {label!r}: {method!r} was given; a label and a method are needed")
