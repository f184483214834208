"""The table of methods and what each promises. A method gets every common test by having its rows here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import rookery as rk
from rookery.algorithms.registry import METHODS
from rookery.problems.exact import (
    JointConsensus,
    LinearComposition,
    QuadraticBilevel,
    QuadraticConsensus,
    QuadraticMinimax,
)


@dataclass(frozen=True, eq=False)
class Penalised(QuadraticBilevel):
    """The quadratic bilevel problem with its lower level as two penalties, whose answer is that of the penalties."""

    lams: tuple[float, ...] = (10.0, 30.0)

    @property
    def problem(self) -> rk.Bilevel:
        return dataclasses.replace(super().problem, by=rk.Penalty(self.lams))

    def solution(self) -> Any:
        return self.penalty_solution(self.lams)


# Weighted, ragged, dimensions of x and y that differ; two-leaf pytrees through start(leaves=2).
_E1: dict[str, Any] = {"clients": 3, "dims": (2, 3), "weights": "random", "seed": 1}
_KINDS: dict[str, Callable[[], Any]] = {
    "E1": lambda: QuadraticBilevel.random(**_E1),
    "E2": lambda: LinearComposition.random(clients=3, dims=(2, 3, 2), weights="random", seed=2),
    "E1-local": lambda: QuadraticBilevel.random(**_E1, local=True),
    "E1-penalty": lambda: Penalised.random(**_E1),
    "E1-penalty-local": lambda: Penalised.random(**_E1, local=True),
    "E3": lambda: QuadraticMinimax.random(clients=3, dims=(2, 3), weights="random", seed=3),
    "E1a": lambda: QuadraticConsensus.random(clients=3, dims=3, weights="random", seed=4),
    "E1a-joint": lambda: JointConsensus(bed("E1a")),
}


@cache
def bed(name: str) -> Any:
    """A problem with a known answer."""
    return _KINDS[name]()


@dataclass(frozen=True)
class Case:
    """A method in some setting, and its promises.

    order: 0, its fixed point is the solution; k, its error is of order eta^k; None: judged by tests of its own.
    solves: "truth", or "reweighted" by p_i tau_i.
    up, down: numbers per client and round, from the dimensions of all sequences, z together.
    beds: the problems that it solves.
    """

    name: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    order: int | None = 0
    solves: str = "truth"
    exchanges: int = 1
    up: Callable[[SimpleNamespace], int] = lambda d: d.z
    down: Callable[[SimpleNamespace], int] = lambda d: d.z
    random_steps: str | None = "local_steps"  # the field that takes RandomSteps
    beds: tuple[str, ...] = ("E1", "E2", "E3", "E1-penalty")
    sampling: Any = field(default_factory=lambda: rk.Uniform(2))

    @property
    def noisy(self) -> dict[str, Any]:
        """One setting for many checks, so that they share programs."""
        return {"sampling": self.sampling, "batch_size": 2}

    @property
    def cohort(self) -> int:
        """How many clients take part in a round of three."""
        return 3 if isinstance(self.sampling, rk.All) else self.sampling.m

    def make(self, lr: Any, cls: type | None = None, **changes: Any) -> Any:
        """The method with these step sizes; `cls` puts another class in its place."""
        return (cls or METHODS[self.method].method)(lr=lr, **(self.options | changes))


UNEQUAL = rk.FixedSteps([1, 2, 4])
STORM: dict[str, Any] = {"exchanges": 2, "up": lambda d: 2 * d.z, "down": lambda d: 3 * d.z, "random_steps": None}
MSA: dict[str, Any] = STORM | {"down": lambda d: 4 * d.z}  # z goes once
LOCAL_STORM: dict[str, Any] = STORM | {"up": lambda d: 2 * d.x, "down": lambda d: 3 * d.x, "beds": ("E1-local",)}
NEST = {"neumann_step": 0.2, "lower_rounds": 2, "lower_steps": 2, "upper_steps": 2}
SINGLE: dict[str, Any] = {"up": lambda d: d.x, "down": lambda d: d.x, "beds": ("E1a",)}
VRA = {"gamma": 0.2, "a": 0.5, "local_steps": UNEQUAL}
GOSSIP: dict[str, Any] = {"up": lambda d: 2 * d.z, "down": lambda d: 0, "sampling": rk.All()}  # two neighbours of three
TWO_LOOPS: dict[str, Any] = {"order": None, "beds": ("E1",), "random_steps": "upper_steps"}
COMM: dict[str, Any] = {"beds": ("E1",), "random_steps": "lower_steps"}

CASES = [
    Case("simfbo tau=1", "simfbo"),
    Case("simfbo tau=5", "simfbo", {"local_steps": 5}, order=1),
    Case("simfbo unequal", "simfbo", {"local_steps": UNEQUAL}, order=1, solves="reweighted"),
    Case("shrofbo tau=1", "shrofbo", up=lambda d: d.z + 1),
    Case("shrofbo tau=5", "shrofbo", {"local_steps": 5}, order=1, up=lambda d: d.z + 1),
    Case("shrofbo unequal", "shrofbo", {"local_steps": UNEQUAL}, order=1, up=lambda d: d.z + 1),
    Case("fedbio I=1", "fedbio"),
    Case("fedbio I=5", "fedbio", {"local_steps": 5}, order=1),
    Case("fedavg Q=1", "fedavg"),
    Case("fedavg Q=5", "fedavg", {"local_steps": 5}, order=1),
    Case("fedavg normalised", "fedavg", {"local_steps": 2, "normalised": True}, order=1),
    Case(
        "simfbo controlled",
        "simfbo",
        {"local_steps": UNEQUAL, "drift": rk.ControlVariates()},
        up=lambda d: d.z + 1,
        down=lambda d: 2 * d.z,
    ),
    Case(
        "simfbo dual", "simfbo", {"local_steps": UNEQUAL, "drift": rk.Duals(rk.Rates(0.5), a=0.5)}, up=lambda d: d.z + 1
    ),
    Case(
        "shrofbo controlled",
        "shrofbo",
        {"local_steps": UNEQUAL, "drift": rk.ControlVariates()},
        up=lambda d: d.z + 2,
        down=lambda d: 2 * d.z,
    ),
    Case(
        "shrofbo dual",
        "shrofbo",
        {"local_steps": UNEQUAL, "drift": rk.Duals(rk.Rates(0.5), a=0.5)},
        up=lambda d: d.z + 2,
    ),
    Case(
        "fedbio controlled",
        "fedbio",
        {"local_steps": UNEQUAL, "drift": rk.ControlVariates()},
        up=lambda d: d.z + 1,
        down=lambda d: 2 * d.z,
    ),
    Case(
        "fedbio dual", "fedbio", {"local_steps": UNEQUAL, "drift": rk.Duals(rk.Rates(0.5), a=0.5)}, up=lambda d: d.z + 1
    ),
    Case("fedprox Q=1", "fedprox", {"mu": 0.3, "local_steps": 1}, **SINGLE),
    Case("fedprox Q=5", "fedprox", {"mu": 0.3, "local_steps": 5}, order=1, **SINGLE),
    Case("fednova unequal", "fednova", {"local_steps": UNEQUAL}, order=1, **SINGLE | {"up": lambda d: d.x + 1}),
    Case(
        "scaffold unequal",
        "scaffold",
        {"local_steps": UNEQUAL},
        **SINGLE | {"up": lambda d: 2 * d.x, "down": lambda d: 2 * d.x},
    ),
    Case("vrlsgd Q=3", "vrlsgd", {"local_steps": 3}, random_steps=None, sampling=rk.All(), **SINGLE),
    Case("feddyn unequal", "feddyn", {"alpha": 0.5, "local_steps": UNEQUAL}, **SINGLE),
    Case("fedadmm unequal", "fedadmm", {"gamma": 0.5, "local_steps": UNEQUAL}, **SINGLE),
    Case(
        "fedpd unequal",
        "fedpd",
        {"eta": 2.0, "local_steps": UNEQUAL},
        sampling=rk.All(),
        **SINGLE | {"down": lambda d: d.x + 1},
    ),
    Case("fedvra unequal", "fedvra", VRA, **SINGLE | {"up": lambda d: d.x + 1}),
    Case(
        "fedvrau unequal",
        "fedvrau",
        VRA | {"client_lr": 0.3, "client_steps": 2},
        **SINGLE | {"up": lambda d: d.x + 1, "beds": ("E1a-joint",)},
    ),
    Case("fedbioacc I=1", "fedbioacc", {"local_steps": 1}, **STORM),
    Case("fedbioacc I=2", "fedbioacc", {"local_steps": 2}, **STORM),
    Case("fedbioacc I=5", "fedbioacc", {"local_steps": 5}, order=1, **STORM),
    Case(
        "fedbioacc own I=2",
        "fedbioacc",
        {"local_steps": 2},
        **LOCAL_STORM | {"beds": ("E1-local", "E1-penalty-local")},
    ),
    Case("fedmsa K=1", "fedmsa", {"local_clients": 3}, **MSA),
    Case("fedmsa K=4", "fedmsa", {"local_clients": 3, "local_steps": 4, "momentum": 0.5}, **MSA),
    Case(
        "fedbiolocal I=3",
        "fedbiolocal",
        {"local_steps": 3, "hypergradient": rk.Tracked()},
        order=1,
        up=lambda d: d.x,
        down=lambda d: d.x,
        beds=("E1-local",),
    ),
    Case(
        "fedbioacclocal I=4",
        "fedbioacclocal",
        {"local_steps": 4, "hypergradient": rk.Tracked()},
        order=1,
        **LOCAL_STORM,
    ),
    Case(
        "fednest N=2 T=3",
        "fednest",
        NEST | {"neumann_terms": 3},
        exchanges=2 * 2 + 3 + 3,
        up=lambda d: (2 * 2 + 3 + 1) * d.y + 2 * d.x,
        down=lambda d: 2 * d.x + (2 * 2 + 1 + 3 + 1) * d.y,  # every vector goes once
        **TWO_LOOPS,
    ),
    Case(
        "fednest sgd",
        "fednest",
        NEST | {"neumann_terms": 3, "lower_solver": "sgd"},
        exchanges=2 + 3 + 3,
        up=lambda d: (2 + 3 + 1) * d.y + 2 * d.x,
        down=lambda d: 2 * d.x + (2 + 1 + 3 + 1) * d.y,
        **TWO_LOOPS,
    ),
    Case(
        "lfednest N=2",
        "lfednest",
        NEST | {"neumann_terms": 3},
        exchanges=2 * 2 + 1,
        up=lambda d: 2 * 2 * d.y + d.x,
        down=lambda d: d.x + (2 * 2 + 1) * d.y + 1,  # and the number of terms
        **TWO_LOOPS,
    ),
    Case(
        "aggitd N=2",
        "aggitd",
        NEST,
        exchanges=2 * 2 + 3,
        up=lambda d: (3 * 2 + 1) * d.y + 2 * d.x,
        down=lambda d: 2 * d.x + (3 * 2 + 3) * d.y + 2 * 3,  # and t and Q
        **TWO_LOOPS,
    ),
    Case(
        "aggitd sgd",
        "aggitd",
        NEST | {"lower_solver": "sgd"},
        exchanges=2 + 3,
        up=lambda d: (2 * 2 + 1) * d.y + 2 * d.x,
        down=lambda d: 2 * d.x + (2 * 2 + 3) * d.y + 2 * 3,
        **TWO_LOOPS,
    ),
    Case(
        "commfedbio N=2 T=3",
        "commfedbio",
        {"lower_rounds": 2, "adjoint_rounds": 3},
        exchanges=2 + 3 + 1,
        up=lambda d: (2 + 3) * d.y + d.x,
        down=lambda d: d.x + (2 + 1) * d.y + (3 + 1) * d.v,
        **COMM,
    ),
    Case(
        "commfedbio steps",
        "commfedbio",
        {"lower_rounds": 2, "adjoint_rounds": 3, "lower_steps": 4},
        order=1,
        exchanges=2 + 3 + 1,
        up=lambda d: (2 + 3) * d.y + d.x,
        down=lambda d: d.x + (2 + 1) * d.y + (3 + 1) * d.v,
        **COMM,
    ),
    Case(
        "commfedbio sketched",
        "commfedbio",
        {"form": "sketched", "sketch": 4, "lower_rounds": 2, "lower_steps": 2},
        order=None,
        exchanges=2 + 2,
        up=lambda d: 2 * d.y + 2 * 4 * (4 + 1) + d.x,
        down=lambda d: d.x + (2 + 1) * d.y + d.v + 2,  # and the key
        **COMM,
    ),
    Case("gossip tau=1", "gossip", **GOSSIP),  # a ring of three is complete; test_gossip.py has others
    Case("gossip tau=5", "gossip", {"local_steps": 5}, order=1, **GOSSIP),
    Case("gossip last", "gossip", {"adapt": "last", "momentum": rk.Rates(0.5)}, order=1, **GOSSIP),
    Case("gossiptracking", "gossiptracking", random_steps=None, **GOSSIP | {"up": lambda d: 4 * d.z}),
    Case(
        "gbdsbo b=2",
        "gbdsbo",
        {"neumann_step": 0.2, "neumann_terms": 3},
        **GOSSIP | TWO_LOOPS | {"up": lambda d: 2 * (2 * d.x + 2 * d.y + d.x * d.y + 2 * d.y**2), "random_steps": None},
    ),
]

# One case for each method, the last with many steps: where a property does not depend on their number.
ONE_EACH = [
    next(case for case in CASES if case.method == name and not case.name.endswith(("=1", "Q=1"))) for name in METHODS
]


def by_name(case: Case) -> str:
    return case.name.replace(" ", "-")


def reweighted(exact: Any, factors: Any) -> Any:
    """The problem with client weights in proportion to p_i times a factor each."""
    weights = exact.weights * factors
    return dataclasses.replace(exact, weights=weights / weights.sum())


def on_beds(cases: list[Case]) -> list[tuple[Case, str]]:
    """Every case with every problem that it solves."""
    return [(case, name) for case in cases for name in case.beds]
