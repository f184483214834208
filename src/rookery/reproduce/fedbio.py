"""FedBiO and FedBiOAcc: what their theory says, made visible on a problem with a known answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.algorithms.drift import ControlVariates
from rookery.algorithms.estimators import ConjugateGradient
from rookery.algorithms.fedbio import FedBiO
from rookery.algorithms.fedbio_local import FedBiOLocal
from rookery.algorithms.fedbioacc import FedBiOAcc
from rookery.data.federated import federate
from rookery.data.partitions import Partition
from rookery.experiments.experiment import Experiment, Options
from rookery.federation.rates import Decay, Rates
from rookery.metric import Metric
from rookery.problems.exact.bilevel import QuadraticBilevel
from rookery.reproduce.study import Cell, Claim, Done, Last, Measure, Study, fewer, mean_and_spread
from rookery.tasks.base import Assembly
from rookery.vectors import Values

SOURCE = "*Communication-Efficient Federated Bilevel Optimization with Local and Global Lower Level Problems*"
DISTANCE = Measure("distance to x*", Last("distance", 20), rising=False)


@dataclass(frozen=True)
class Quadratic:
    """E1: quadratic levels, a solution in closed form; with `pool`, one pool of examples dealt to all clients alike."""

    heterogeneity: float = 1.0
    local: bool = False
    pool: int = 0

    @property
    def rates(self) -> Mapping[str, float]:
        return {"x": 0.05, "y": 0.1, "v": 0.1}

    @property
    def batch_size(self) -> int | None:
        return None

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        holders, examples = (1, self.pool) if self.pool else (clients, 4)
        exact = QuadraticBilevel.random(
            clients=holders, heterogeneity=self.heterogeneity, seed=seed, examples=examples, local=self.local
        )
        federation = exact.clients
        if self.pool:
            whole = federation.client(0)
            deal = lambda i: jax.tree.map(lambda rows: rows[i::clients], whole)
            federation = federate([deal(i) for i in range(clients)])
        solution = np.asarray(exact.solution())
        dx, dy = exact.dims
        return Assembly(
            problem=exact.problem,
            clients=federation,
            x=np.zeros(dx),
            y=np.zeros(dy),
            metrics=Metric(distance, solution=solution),
            main_metric="distance",
            falling=True,
        )


def distance(z: Values, solution: jax.Array) -> dict[str, jax.Array]:
    """|x - x*|."""
    return {"distance": jnp.linalg.norm(z.x - solution)}


def _cell(row: str, column: str, task: Quadratic, method: Any, **options: Any) -> Cell:
    chosen = {"clients": 8, "cohort": 0, "precision": "float64", **options}
    return Cell(row, column, Experiment("fedbio-e1", task, row, method, Options(**chosen)))


def cells(quick: bool) -> list[Cell]:
    """Drift against I; momentum against none per sample; speed-up with clients; global against local lower levels."""
    found, scale = [], 10 if quick else 1
    rates = Rates(x=0.02, y=0.1, v=0.1)
    drift = Quadratic()
    for steps in (1, 2, 5, 10):
        whole = {"rounds": 2000 // scale, "every": 20 // scale or 1, "batch_size": 0}
        found.append(_cell(f"FedBiO, I = {steps}", "drift", drift, FedBiO(lr=rates, local_steps=steps), **whole))
    controlled = FedBiO(lr=rates, local_steps=10, drift=ControlVariates())
    found.append(_cell("FedBiO, I = 10, control variates", "drift", drift, controlled, **whole))
    noisy = {"rounds": 4000 // scale, "every": 40 // scale or 1, "batch_size": 1}
    # FedBiOAcc's steps are alpha_t = (1 + t)^(-1/3) times the rates, with t = 2 round + 1 in the middle of a round.
    falling = rates.map(lambda rate: Decay(rate * 2 ** (-1 / 3)))
    for name, method in (
        ("FedBiO", FedBiO(lr=rates, local_steps=2)),
        ("FedBiO, steps as FedBiOAcc", FedBiO(lr=falling, local_steps=2)),
        ("FedBiOAcc", FedBiOAcc(lr=rates, local_steps=2)),
    ):
        found.append(_cell(name, "noise", Quadratic(heterogeneity=0.3), method, **noisy))
    for clients in (1, 4, 16, 64):
        method = FedBiO(lr=Rates(x=0.02, y=0.05, v=0.05), local_steps=1)
        pool = Quadratic(heterogeneity=0.3, pool=256)
        found.append(_cell(f"FedBiO, {clients} clients", "speed-up", pool, method, **(noisy | {"clients": clients})))
    for name, task, method in (
        ("FedBiO, one lower level", Quadratic(), FedBiO(lr=rates)),
        (
            "FedBiOLocal, own lower levels",
            Quadratic(local=True),
            FedBiOLocal(lr=Rates(x=0.02, y=0.1), local_steps=1, hypergradient=ConjugateGradient(3)),
        ),
    ):
        found.append(_cell(name, "lower levels", task, method, **whole))
    return found


def claims(done: Mapping[str, Done]) -> list[Claim]:
    """What the theory says."""
    mean = lambda name: mean_and_spread(done[name].values(DISTANCE))[0]
    drifts = [mean(f"FedBiO, I = {steps}, drift") for steps in (1, 2, 5, 10)]
    controlled = mean("FedBiO, I = 10, control variates, drift")
    sizes = [1, 4, 16, 64]
    speed = [mean(f"FedBiO, {clients} clients, speed-up") for clients in sizes]
    slope = np.polyfit(np.log(sizes), 2 * np.log(speed), 1)[0]
    plain, momentum = mean("FedBiO, noise"), mean("FedBiOAcc, noise")
    shared, own = (
        mean(f"{name}, lower levels") for name in ("FedBiO, one lower level", "FedBiOLocal, own lower levels")
    )
    grows = drifts[0] < 1e-6 < drifts[1] < drifts[2] < drifts[3]
    errors = ", ".join(f"{error:.3g}" for error in speed)
    return [
        Claim("exact with I = 1, and a drift that grows with I", grows, ", ".join(f"{d:.2g}" for d in drifts)),
        Claim("control variates take the drift away at I = 10", controlled < 1e-6, f"{controlled:.2g}"),
        Claim("FedBiOAcc is closer than FedBiO at equal noise", momentum < plain, f"{momentum:.3g}, {plain:.3g}"),
        *fewer(done, "noise", "FedBiOAcc", ("FedBiO, steps as FedBiOAcc",), DISTANCE, verb="is closer than"),
        Claim(
            "the squared error falls as 1 / clients (slope -1 in logarithms, to 0.25)",
            abs(slope + 1) < 0.25,
            f"slope {slope:.2f}; {errors} with 1, 4, 16, 64 clients",
        ),
        Claim(
            "one lower level, and one for each client: both reach their own solution",
            max(shared, own) < 1e-6,
            f"{shared:.2g}, {own:.2g}",
        ),
    ]


RATES = Study(
    name="fedbio-rates",
    title="FedBiO and FedBiOAcc: the theory, made visible",
    source=f"{SOURCE} (no experiments there: these are its theorems on a problem with a known answer)",
    settings="""
The quadratic bilevel problem E1 (x in R^2, y in R^3), 8 clients who all take part, float64, rates 0.02 for x and 0.1
for y and v. **drift**: strong heterogeneity, full batches, 2,000 rounds. **noise**: mild heterogeneity, minibatches
of one example, I = 2, 4,000 rounds: each momentum step draws as many samples as a plain one, and takes two gradients of
each. FedBiOAcc's steps fall as alpha_t = (1 + t)^(-1/3); FedBiO is there with constant steps and with the same falling
ones. **speed-up**: one pool of 256 examples dealt to 1, 4, 16 or 64 clients, one example each in a step, rates 0.05 for
y and v. **lower levels**: one lower problem for all, and one of each client's own, whose solutions differ.
""",
    cells=cells,
    measures=(DISTANCE,),
    claims=claims,
    causes={
        "FedBiOAcc is closer than FedBiO, steps": "On this problem, at this noise and length, falling steps alone do "
        "what momentum and falling steps do together: the gain over constant steps is not one of momentum. The theorem "
        "is about the order of the number of samples as the error goes to zero, which 8,000 steps do not show."
    },
    metric="distance",
    log_metric=True,
    axes=("round",),
)
