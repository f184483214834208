"""The table of methods and what each promises. A method gets every common test by having its rows here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import rookery as rk
from rookery.algorithms.registry import METHODS
from rookery.problems.exact import LinearComposition, QuadraticBilevel, QuadraticMinimax

# Weighted, ragged, dimensions of x and y that differ; two-leaf pytrees through start(leaves=2).
_KINDS: dict[str, Callable[[], Any]] = {
    "E1": lambda: QuadraticBilevel.random(clients=3, dims=(2, 3), weights="random", seed=1),
    "E2": lambda: LinearComposition.random(clients=3, dims=(2, 3, 2), weights="random", seed=2),
    "E3": lambda: QuadraticMinimax.random(clients=3, dims=(2, 3), weights="random", seed=3),
}


@cache
def bed(name: str) -> Any:
    """A problem with a known answer."""
    return _KINDS[name]()


BEDS = tuple(_KINDS)


@dataclass(frozen=True)
class Case:
    """A method in some setting, and its promises.

    order: 0, its fixed point is the solution; k, its error is of order eta^k.
    solves: "truth", or "reweighted" by p_i tau_i.
    up, down: numbers per client and round, in multiples of dim z; `scalars_up` besides.
    """

    name: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    order: int = 0
    solves: str = "truth"
    exchanges: int = 1
    up: int = 1
    down: int = 1
    scalars_up: int = 0
    random_steps: bool = True

    def make(self, lr: Any, cls: type | None = None, **changes: Any) -> Any:
        """The method with these step sizes; `cls` puts another class in its place."""
        return (cls or METHODS[self.method].method)(lr=lr, **(self.options | changes))


UNEQUAL = rk.FixedSteps([1, 2, 4])

CASES = [
    Case("simfbo tau=1", "simfbo"),
    Case("simfbo tau=5", "simfbo", {"local_steps": 5}, order=1),
    Case("simfbo unequal", "simfbo", {"local_steps": UNEQUAL}, order=1, solves="reweighted"),
    Case("shrofbo tau=1", "shrofbo", scalars_up=1),
    Case("shrofbo tau=5", "shrofbo", {"local_steps": 5}, order=1, scalars_up=1),
    Case("shrofbo unequal", "shrofbo", {"local_steps": UNEQUAL}, order=1, scalars_up=1),
    Case("fedbio I=1", "fedbio"),
    Case("fedbio I=5", "fedbio", {"local_steps": 5}, order=1),
    Case("fedavg Q=1", "fedavg"),
    Case("fedavg Q=5", "fedavg", {"local_steps": 5}, order=1),
    Case("fedavg normalised", "fedavg", {"local_steps": 2, "normalised": True}, order=1),
    Case("fedbioacc I=1", "fedbioacc", {"local_steps": 1}, exchanges=2, up=2, down=3, random_steps=False),
    Case("fedbioacc I=2", "fedbioacc", {"local_steps": 2}, exchanges=2, up=2, down=3, random_steps=False),
    Case(
        "fedbioacc I=5",
        "fedbioacc",
        {"local_steps": 5},
        order=1,
        exchanges=2,
        up=2,
        down=3,
        random_steps=False,
    ),
]

# One case for each method: where a property does not depend on the number of steps.
ONE_EACH = [next(case for case in CASES if case.method == name and case.order == 1) for name in METHODS]


def by_name(case: Case) -> str:
    return case.name.replace(" ", "-")


def reweighted(exact: Any, factors: Any) -> Any:
    """The problem with client weights in proportion to p_i times a factor each."""
    weights = exact.weights * factors
    return dataclasses.replace(exact, weights=weights / weights.sum())
