"""What the papers prove, on a problem with a known answer: slopes in logarithms, with their intervals over seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.algorithms.fedbioacc import FedBiOAcc
from rookery.algorithms.fedmsa import FedMSA
from rookery.algorithms.simfbo import SimFBO
from rookery.experiments.experiment import Experiment, Options
from rookery.federation.rates import Rates
from rookery.reproduce.fedbio import Quadratic
from rookery.reproduce.study import Cell, Claim, Done, First, Last, Measure, Study
from rookery.runs.table import Table

SAMPLED, CLIENTS, LOCAL = (2, 4, 8, 16), (1, 4, 16, 64), (1, 2, 4, 8)
KINDS = {"alike": 0.0, "differ": 1.0, "differ much": 3.0}  # how much clients do
SCALES = tuple(2.0 ** (j / 2) for j in range(20))
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # t for 95 % by the number of seeds; more: as with the most


@dataclass(frozen=True)
class MeanSquare:
    """The mean of a metric's squares over the second half of a run."""

    metric: str

    def __call__(self, history: Table) -> float:
        values = history[self.metric]
        return float(np.mean(values[len(values) // 2 :] ** 2))


SQUARE = Measure("mean squared distance to x*", MeanSquare("distance"), rising=False)
ROUNDS = Measure("rounds to a distance of 0.001", First("round", "distance", 1e-3, falling=True), rising=False)
END = Measure("distance to x* at the end", Last("distance"), rising=False)


def _cell(row: str, column: str, task: Quadratic, method: Any, **options: Any) -> Cell:
    chosen = {"clients": 8, "cohort": 0, "precision": "float64", "batch_size": 0, **options}
    return Cell(row, column, Experiment("fedbio-e1", task, row, method, Options(**chosen)))


def cells(quick: bool) -> list[Cell]:
    """Speed-ups with clients, sampled and all; rounds against local steps; the longest steps against local steps."""
    found, rounds = [], 400 if quick else 4000
    noisy = {"rounds": rounds, "every": rounds // 100, "batch_size": 1}
    rates, pool = Rates(x=0.02, y=0.05, v=0.05), Quadratic(heterogeneity=0.3, pool=256)
    for number in SAMPLED:
        few = {**noisy, "clients": 32, "cohort": number}
        found.append(_cell(f"{number} of 32 clients", "SimFBO, sampled clients", pool, SimFBO(lr=rates), **few))
    for number in CLIENTS:
        method = FedBiOAcc(lr=rates, local_steps=2, offset=0.0)
        found.append(_cell(f"{number} clients", "FedBiOAcc", pool, method, **noisy, **{"clients": number}))
    for (kind, heterogeneity), steps in itertools.product(KINDS.items(), LOCAL):
        method = FedMSA(lr=Rates(x=0.01, y=0.05, v=0.05), local_steps=steps, momentum=0.5)
        place = Quadratic(heterogeneity=heterogeneity)
        found.append(_cell(f"K = {steps}", f"FedMSA, clients {kind}", place, method, rounds=rounds // 4, every=5))
    for kind, steps, scale in itertools.product(("alike", "differ much"), (4, 8, 16), SCALES[:1] if quick else SCALES):
        method = FedMSA(
            lr=Rates(x=0.002, y=0.01, v=0.01).map(lambda r, s=scale: r * s), local_steps=steps, momentum=0.5
        )
        row, column = f"K = {steps}, steps times {scale:.3g}", f"longest steps, clients {kind}"
        found.append(_cell(row, column, Quadratic(heterogeneity=KINDS[kind]), method, rounds=1000, every=100))
    return found


def slope(sizes: Sequence[float], values: Sequence[np.ndarray]) -> tuple[float, float]:
    """The slope in logarithms, a straight line for each seed, and half of its 95 % interval over seeds; infinite where
    there is one seed alone."""
    each = [np.polyfit(np.log(sizes), np.log(own), 1)[0] for own in np.stack(values, axis=1)]
    if len(each) < 2:
        return float(np.mean(each)), math.inf
    student = STUDENT[min(len(each), max(STUDENT))]
    return float(np.mean(each)), student * float(np.std(each, ddof=1)) / math.sqrt(len(each))


def _longest(done: Mapping[str, Done], kind: str, steps: int) -> np.ndarray:
    """The longest steps, in multiples of the shortest, at which each seed's run ends closer than 0.01."""
    found = []
    for scale in SCALES:
        ends = done[f"K = {steps}, steps times {scale:.3g}, longest steps, clients {kind}"].values(END)
        found.append(np.where(ends < 0.01, scale, 0.0))  # a run that diverged has none
    return np.max(found, axis=0)


def claims(done: Mapping[str, Done]) -> list[Claim]:
    """Each a slope that the theory gives, within a fifth, where its interval is no wider."""

    def sloped(text: str, sizes: Sequence[float], values: Sequence[np.ndarray], expected: float) -> Claim:
        found, half = slope(sizes, values)
        holds = abs(found - expected) <= 0.2 and half <= 0.2
        said = f"slope {found:.2f} ± {half:.2f}, {len(values[0])} seeds, 95 %"
        return Claim(f"{text} (slope {expected:g})", holds, said)

    column = "SimFBO, sampled clients"
    sampled = [done[f"{number} of 32 clients, {column}"].values(SQUARE) for number in SAMPLED]
    every = [done[f"{number} clients, FedBiOAcc"].values(SQUARE) for number in CLIENTS]
    found = [
        sloped("SimFBO: the squared error falls as 1 / P, P clients drawn without replacement", SAMPLED, sampled, -1),
        sloped("FedBiOAcc: the squared error falls as 1 / clients", CLIENTS, every, -1),
    ]
    for kind in KINDS:
        rounds = [done[f"K = {steps}, FedMSA, clients {kind}"].values(ROUNDS) for steps in LOCAL]
        text = f"FedMSA: rounds fall as 1 / K at the same step, clients {kind}"
        found.append(sloped(text, LOCAL, rounds, -1))
    for kind, expected in (("alike", 0.0), ("differ much", -1.0)):
        longest = [_longest(done, kind, steps) for steps in (4, 8, 16)]
        text = f"FedMSA: the longest step at which it converges, against K, clients {kind}"
        if all(0 < value < SCALES[-1] for values in longest for value in values):
            found.append(sloped(text, (4, 8, 16), longest, expected))
        else:
            found.append(Claim(f"{text} (slope {expected:g})", False, "the longest steps are not within the grid"))
    return found


THEORY = Study(
    name="theory",
    title="What the papers prove, on a problem with a known answer",
    source="*SimFBO*, theorem 1; *FedBiO/FedBiOAcc*, theorem 2; *FedMSA*, theorem 3.1 and corollary C.1",
    settings="""
The quadratic bilevel problem E1 (x in R^2, y in R^3), float64, whose solution is known in closed form. **Speed-ups**:
one pool of 256 examples (heterogeneity 0.3) dealt alike, minibatches of one example, rates 0.02 for x and 0.05 for y
and v, 4,000 rounds; SimFBO with one local step and P of 32 clients drawn without replacement, FedBiOAcc with I = 2,
alpha_t = t^(-1/3), c = 1 and all of 1 to 64 clients; the squared distance to the solution is the mean over the second
half. **FedMSA**: 8 clients with full batches who are alike or differ (heterogeneity 0, 1, 3), rho 0.5, one of them
taking the local steps; rounds to a distance of 0.001 at rates 0.01 and 0.05 with K = 1, 2, 4, 8; and the longest steps,
0.002 and 0.01 times powers of sqrt(2), at which 1,000 rounds end closer than 0.01, with K = 4, 8, 16 (a grid that tells
factors of 1.4): the theorem asks for steps of order 1 / (tau K), where tau measures how much clients differ. A slope is
that of a straight line through logarithms, for each seed (a problem of its own); intervals are Student's.

Two more claims are held by tests, since they have no slope: SimFBO's bound on local v (proposition 1), and FedVRA's
lemma 1, that federated ADMM is a variance-reduced scheme, as an identity.
""",
    cells=cells,
    measures=(SQUARE, ROUNDS, END),
    claims=claims,
    claims_heading="What is proved",
    metric="distance",
    log_metric=True,
    axes=("round",),
    by_setting=True,
)
