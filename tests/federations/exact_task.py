"""The problems with known answers as a task in a file, so that sites can make them from a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

from rookery.data.catalogue import load
from rookery.problems import exact
from rookery.problems.kinds import Single
from rookery.tasks.base import Assembly

KINDS: dict[str, Any] = {
    "E1": lambda: exact.QuadraticBilevel.random(clients=3, dims=(2, 3), weights="random", seed=1),
    "E1a": lambda: exact.QuadraticConsensus.random(clients=3, dims=3, weights="random", seed=4),
    "E1-local": lambda: exact.QuadraticBilevel.random(clients=3, dims=(2, 3), weights="random", seed=1, local=True),
    "E2": lambda: exact.LinearComposition.random(clients=3, dims=(2, 3, 2), weights="random", seed=2),
    "E3": lambda: exact.QuadraticMinimax.random(clients=3, dims=(2, 3), weights="random", seed=3),
    "E4": lambda: exact.Midrange.random(clients=3, seed=5),
    "E5": lambda: exact.QuadraticMeta.random(clients=3, seed=6),
    "E6": lambda: exact.RidgePenalties.random(clients=3, seed=7),
    "E7": lambda: exact.DataCleaning.random(clients=3, seed=8),
    "E8": lambda: exact.LossTuning.random(clients=3, seed=9),
}


@cache
def made(name: str) -> Any:
    return KINDS[name]()


@dataclass(frozen=True)
class Exact:
    """A problem with a known answer."""

    problem: str = "E1"

    @property
    def rates(self):
        return {"x": 0.05, "y": 0.05, "v": 0.05}

    @property
    def batch_size(self):
        return None

    def assemble(self, partition, clients, seed, tuning=False) -> Assembly:
        found = made(self.problem)
        start = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.3, found.start())
        given = start.pop("start", {})
        metrics = None if found.problem.local else _norms
        return Assembly(
            problem=found.problem, clients=found.clients, metrics=metrics, start=given, main_metric="size", **start
        )


def _norms(z):
    return {"size": sum(abs(leaf).sum() for leaf in jax.tree.leaves(dict(z)))}


@dataclass(frozen=True)
class Towards:
    """A loss that knows a number."""

    number: float

    def __call__(self, x, e):
        return 0.5 * ((x - self.number) ** 2).sum() + 0.0 * e["input"].sum()


@dataclass(frozen=True)
class Nosy:
    """A task that looks at everybody's labels when it is put together."""

    data: str = "heart"

    @property
    def rates(self):
        return {"x": 0.05}

    @property
    def batch_size(self):
        return None

    def assemble(self, partition, clients, seed, tuning=False) -> Assembly:
        dataset = load(self.data)
        problem = Single(Towards(float(dataset.train["label"].mean())))
        return Assembly(problem=problem, clients=dataset.partition(partition, clients=clients), x=np.zeros(2))
