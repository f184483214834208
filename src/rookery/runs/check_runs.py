"""The runs that the checks of a method share, so that they share compiled programs too. Imports runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from rookery.federation.sampling import All, Uniform
from rookery.runs.result import Result
from rookery.runs.run import run
from rookery.vectors import Tree

RATE, SMALL = 0.1, 0.02  # step sizes


def field_names(cls: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(cls)]


def flat(tree: Tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def with_lr(method: Any, lr: Any) -> Any:
    return dataclasses.replace(method, lr=lr) if "lr" in field_names(type(method)) else method


def checked_run(method: Any, exact: Any, **options: Any) -> Result:
    start = jax.tree.map(lambda leaf: leaf + 0.3, exact.start(leaves=2))
    sampling = All() if method.participation == "all" else Uniform(2)
    usual = {"rounds": 6, "precision": "float64", "sampling": sampling, "batch_size": 2, "seed": 5}
    return run(exact.problem, method, exact.clients, **(usual | start | options))


def distance(a: Result, b: Result) -> float:
    return max(float(np.abs(flat(a.sequences[name]) - flat(b.sequences[name])).max()) for name in a.sequences)


@dataclasses.dataclass(frozen=True)
class Changed:
    """An exact problem with other clients, losses or sets."""

    exact: Any
    problem: Any
    clients: Any

    def start(self, **options: Any) -> Any:
        return self.exact.start(**options)


def changed(exact: Any, **parts: Any) -> Changed:
    """An exact problem with another `problem` or other `clients`."""
    return Changed(exact, **({"problem": exact.problem, "clients": exact.clients} | parts))
