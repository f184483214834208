"""Metrics of each client on its own test examples: a table of clients, and what of it goes into the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rookery.data.batches import Batch
from rookery.data.federated import Clients, cast, example_shape_of
from rookery.direction import lower_is_better
from rookery.engines.base import Carry, Session
from rookery.errors import InputError, failing
from rookery.federation.evaluation import TEST, ClientMetrics, means
from rookery.metric import Metric
from rookery.runs.table import COST, Table
from rookery.vectors import Values

SUMMARY = ("mean", "weighted", "worst")


def _summary(measured: Mapping[str, Any], weights: Any) -> dict[str, Any]:
    """Summarise every metric by the mean over clients, the weighted mean, and the worst client: the largest value
    where lower is better by the metric's name, otherwise the smallest."""
    found = {}
    for name, values in measured.items():
        worst = values.max() if lower_is_better(name) else values.min()
        found |= {f"{name} {which}": n for which, n in zip(SUMMARY, (values.mean(), values @ weights, worst))}
    return found


@dataclass(frozen=True)
class _Everybody:
    """The summary of clients' metrics, from the sequences of all and everybody's test examples."""

    function: ClientMetrics
    local: tuple[str, ...]
    capacity: int
    dtype: str

    def __call__(self, z: Values, level: tuple, weights: jax.Array) -> dict[str, jax.Array]:
        rows, offset, size = level

        def one(own: tuple) -> dict[str, jax.Array]:
            mine, at, n = own
            batch = Batch(rows, at, n, None, self.capacity, np.dtype(self.dtype))
            return means(self.function, Values({**z, **mine}), batch)

        measured = jax.lax.map(one, ({name: z[name] for name in self.local}, offset, size))
        return _summary(measured, weights)


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
        self.function, self.clients, self.test, self.local = function, clients, clients.test, local
        self.names = self._check(carry, local, dtype)
        self._there = np.ones(clients.population, bool)  # who has measured; of clients elsewhere some may not have

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
            if np.issubdtype(value.dtype, np.complexfloating):
                raise InputError(f"client_metrics: {name!r} is a complex number; every metric must be real")
        return list(given)

    @property
    def columns(self) -> list[str]:
        """The columns of the history."""
        return [f"{name} {which}" for name in self.names for which in SUMMARY]

    def measure(self, session: Session) -> dict[str, np.ndarray]:
        """The metrics of every client, where a run stands."""
        if not hasattr(session, "measure"):
            raise InputError("client_metrics: they were given, and this engine has no measure(function, test)")
        found = session.measure(self.function, self.test)
        self._there = ~np.isin(np.arange(self.clients.population), list(getattr(session, "unmeasured", ())))
        return found

    def summary(self, measured: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The mean over clients, that by their weights, and the worst; over those who answered."""
        there, weights = self._there, self.clients.weights
        if 0 < there.sum() < there.size:
            measured = {name: values[there] for name, values in measured.items()}
            weights = weights[there] / weights[there].sum()
        return {name: float(number) for name, number in _summary(measured, weights).items()}

    @property
    def largest(self) -> int:
        """The most test examples that a client has."""
        return int(np.max(self.test.size))

    def metric(self, dtype: Any, capacity: int | None = None) -> Metric:
        """The same summary as one metric of all clients' sequences, for programs that hold everybody's data: sweeps.
        `capacity` is the most test examples of a client in any run that shares the program."""
        level = cast({TEST: self.test}, dtype)[TEST]
        function = _Everybody(self.function, self.local, capacity or self.largest, np.dtype(dtype).name)
        return Metric(function, level=tuple(level), weights=self.clients.weights.astype(dtype))

    def table(self, measured: Mapping[str, np.ndarray]) -> Table:
        """One row per client."""
        rows = []
        for i, name in enumerate(self.clients.names):
            row = {"client": name, "examples": int(self.clients.sizes[i]), "weight": float(self.clients.weights[i])}
            row |= {"test examples": int(np.asarray(self.test.size)[i])}
            rows.append(row | {metric: float(values[i]) for metric, values in measured.items()})
        return Table(rows)
