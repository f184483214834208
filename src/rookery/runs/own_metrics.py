"""Metrics of each client on its own test examples: a table of clients, and what of it goes into the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rookery.data.federated import Clients, example_shape_of
from rookery.engines.base import Carry, Session
from rookery.errors import InputError, failing
from rookery.federation.evaluation import ClientMetrics
from rookery.runs.table import COST, Table
from rookery.vectors import Values

FALLING = ("loss", "error")  # a metric whose name has one of these words is worst where it is largest
SUMMARY = ("mean", "weighted", "worst")


class OwnMetrics:
    """The metrics of a run's clients, measured where their data is."""

    def __init__(self, function: ClientMetrics, clients: Clients, carry: Carry, local: tuple[str, ...], dtype: Any):
        if not callable(function):
            raise InputError(
                f"client_metrics: {function!r} was given; a function of the sequences and an example is needed"
            )
        if clients.test is None:
            raise InputError(
                "client_metrics: they were given, and these clients have no test examples of their own; give "
                "rk.federate a test=, such as test=0.2"
            )
        self.function, self.clients, self.test = function, clients, clients.test
        self.names = self._check(carry, local, dtype)

    def _check(self, carry: Carry, local: tuple[str, ...], dtype: Any) -> list[str]:
        values = Values(
            {
                name: jax.tree.map(lambda leaf: leaf[0], tree) if name in local else tree
                for name, tree in carry.values().items()
            }
        )
        with failing("client_metrics: the function of the initial values and one test example"):
            given = jax.eval_shape(self.function, values, example_shape_of(self.test, dtype))
        if not isinstance(given, Mapping):
            raise InputError(
                f"client_metrics: the function gives {type(given).__name__}; a mapping from names to scalars is needed"
            )
        for name, value in given.items():
            if not isinstance(name, str) or name in COST:
                raise InputError(
                    f"client_metrics: the name {name!r} was given; a text that is no column of every history"
                )
            if getattr(value, "shape", None) != ():
                raise InputError(f"client_metrics: {name!r} of one example is {value}; every metric must be a scalar")
        return list(given)

    @property
    def columns(self) -> list[str]:
        """The columns of the history."""
        return [f"{name} {which}" for name in self.names for which in SUMMARY]

    def measure(self, session: Session) -> dict[str, np.ndarray]:
        """The metrics of every client, where a run stands."""
        if not hasattr(session, "measure"):
            raise InputError("client_metrics: they were given, and this engine has no measure(function, test)")
        return session.measure(self.function, self.test)

    def summary(self, measured: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The mean over clients, that by their weights, and the worst."""
        found = {}
        for name, values in measured.items():
            worst = np.max if any(word in name.lower() for word in FALLING) else np.min
            numbers = (values.mean(), values @ self.clients.weights, worst(values))
            found |= {f"{name} {which}": float(number) for which, number in zip(SUMMARY, numbers)}
        return found

    def table(self, measured: Mapping[str, np.ndarray]) -> Table:
        """One row per client."""
        rows = []
        for i, name in enumerate(self.clients.names):
            row = {"client": name, "examples": int(self.clients.sizes[i]), "weight": float(self.clients.weights[i])}
            row |= {"test examples": int(np.asarray(self.test.size)[i])}
            rows.append(row | {metric: float(values[i]) for metric, values in measured.items()})
        return Table(rows)
