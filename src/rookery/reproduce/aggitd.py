"""FBO-AggITD's table 2: hyper-representation on MNIST, FedNest against AggITD."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rookery.algorithms.aggitd import AggITD
from rookery.algorithms.fednest import FedNest
from rookery.algorithms.lfednest import LFedNest
from rookery.experiments.experiment import Experiment, Options
from rookery.federation.rates import Rates
from rookery.reproduce.study import SIDE_BY_SIDE, Cell, Study, final, reached
from rookery.tasks.hyperrep import HyperRep
from rookery.tasks.models import Initial

SOURCE = "*Communication-Efficient Federated Hypergradient Computation via Aggregated Iterative Differentiation*"

# Exchanges to 90 % and final accuracy, by setting and local epochs of the upper level.
PAPER = {
    ("iid", 1): {"FedNest": (1630, 0.9168), "FBO-AggITD": (530, 0.9294)},
    ("iid", 5): {"FedNest": (610, 0.9348), "FBO-AggITD": (195, 0.9461)},
    ("non-iid", 1): {"FedNest": (1380, 0.9146), "FBO-AggITD": (520, 0.9267)},
    ("non-iid", 5): {"FedNest": (760, 0.9287), "FBO-AggITD": (305, 0.9388)},
}
EXCHANGES = 2000
REACHED, FINAL = reached(0.9), final(tolerance=0.005)


def options(setting: str, rounds: int, quick: bool, batch: int, every: int = 1) -> Options:
    """100 clients, 10 a round; iid, or two label-sorted shards each."""
    return Options(
        rounds=rounds,
        clients=20 if quick else 100,
        cohort=5 if quick else 10,
        partition="iid" if setting == "iid" else "shards:2",
        batch_size=8 if quick else batch,
        every=every,
    )


@dataclass(frozen=True)
class Reading:
    """What the paper does not say.

    Args:
      batch: examples of a minibatch.
      epochs: whether the five inner iterations are epochs; otherwise they are steps.
      ridge: the weight of the ridge on the head.
      validation: the part of a client's examples that the upper level sees, non-iid; iid it is a half.
      init: how layers start.
      anchor: the examples that SVRG's gradient q is taken on.
    """

    batch: int
    epochs: bool = True
    ridge: float = 0.01
    validation: float = 0.2
    init: Initial = "pytorch"
    anchor: str = "minibatch"

    def part(self, setting: str) -> float:
        """The part of a client's examples that the upper level sees."""
        return 0.5 if setting == "iid" else self.validation

    def steps(self, setting: str, tau: int, examples: int) -> tuple[int, int]:
        """Lower steps of a round, and upper ones: five inner iterations, and tau epochs."""
        upper = round(examples * self.part(setting))
        epoch = lambda examples: math.ceil(examples / self.batch)
        return 5 * (epoch(examples - upper) if self.epochs else 1), tau * epoch(upper)

    def task(self, setting: str, quick: bool, data: str = "mnist") -> HyperRep:
        """A network whose hidden layer, of 200 units, is x and whose head is y."""
        data, hidden = ("digits", 16) if quick else (data, 200)
        return HyperRep(data, hidden=hidden, validation=self.part(setting), ridge=self.ridge, init=self.init)

    def method(
        self,
        name: str,
        setting: str,
        tau: int = 1,
        lr: Rates | None = None,
        solver: str = "svrg",
        neumann_step: float = 0.01,
        examples: int = 600,
    ) -> tuple[Any, int]:
        """A method of two loops with the paper's numbers, N = 1 and T = 5, and its exchanges a round.

        LFedNest takes tau steps above and no epochs of them, with which it diverges non-iid. FedNest's public code
        takes tau steps, too, in all of its methods, each on all validation examples.
        """
        lower, upper = self.steps(setting, tau, examples)
        upper = tau if name == "LFedNest" else upper
        small = name == "LFedNest" and setting == "non-iid"
        shared: dict[str, Any] = {
            "lr": lr or (Rates(x=0.005, y=0.001) if small else Rates(x=0.01, y=0.003)),
            "neumann_step": neumann_step,
            "lower_steps": lower,
            "upper_steps": upper,
            "lower_solver": solver,
            "anchor": self.anchor,
        }
        twice = int(solver == "svrg")  # the lower round has a second exchange
        match name:
            case "FBO-AggITD":
                return AggITD(**shared), 4 + twice
            case "FedNest":
                return FedNest(neumann_terms=5, **shared), 9 + twice
            case "LFedNest":
                return LFedNest(neumann_terms=5, **shared), 2 + twice
            case _:
                raise ValueError(name)

    def experiment(self, name: str, setting: str, tau: int, quick: bool) -> Experiment:
        """A cell of the table, read so."""
        method, exchanges = self.method(name, setting, tau)
        rounds = (100 if quick else EXCHANGES) // exchanges
        chosen = options(setting, rounds, quick, self.batch)
        return Experiment("hyperrep", self.task(setting, quick), name, method, chosen)


CHOSEN = Reading(64, ridge=0.0, validation=0.5, anchor="full")  # as aggitd_readings.py chose, with full anchors


def cells(quick: bool) -> list[Cell]:
    """The table; quickly, tau = 5."""
    found = []
    for (setting, tau), numbers in PAPER.items():
        if quick and tau == 1:
            continue
        for name, (exchanges, accuracy) in numbers.items():
            measured = {REACHED.name: float(exchanges), FINAL.name: accuracy}
            experiment = CHOSEN.experiment(name, setting, tau, quick)
            found.append(Cell(name, f"{setting}, tau = {tau}", experiment, measured))
    return found


TABLE2 = Study(
    name="aggitd-table2",
    title="FBO-AggITD, table 2: hyper-representation on MNIST",
    source=f"{SOURCE}, table 2",
    settings="""
100 clients, 10 a round; a network 784-200-10 whose hidden layer is x and whose head is y, with PyTorch's initial
values. 600 examples each, half for training and half for validation, iid or in two of 200 label-sorted shards. Inner
step 0.003, outer step 0.01, lambda 0.01, N = 1, T = 5, SVRG. 2,000 exchanges: 200 rounds of FedNest, 400 of FBO-AggITD.

What the paper leaves open is read as comes closest to its sixteen numbers, of the readings in
[aggitd-readings](aggitd-readings.md): minibatches of 64, five inner *epochs* (25 steps), tau epochs above (5 or 25
steps), no ridge. It was chosen on these test results: this is a reproduction, and no comparison of methods.

SVRG's gradient q is taken on all examples of a client, as in FedNest's public code. With q on one minibatch, which is
how Algorithm 1 reads, a lower round is noisier than one of SGD.
""",
    cells=cells,
    measures=(REACHED, FINAL),
    remarks=SIDE_BY_SIDE,
    causes={
        "FedNest, iid": "FedNest ends at the paper's accuracies, in 0.6 of its exchanges: as if its rounds were "
        "counted with about 16 exchanges there, and not with the 2N + T + 3 = 10 of its algorithm. It is no matter of "
        "samples: with fresh ones in the upper steps, in the place of that of the hypergradient, it took 986 and 346.",
        "FedNest, non-iid, tau = 5: exch": "As iid.",
        "FedNest, non-iid, tau = 1: exch": "As iid, but less: 0.84 of the paper's.",
        "FedNest, non-iid, tau = 1: final": "By 0.57 of a point. How the paper divides a client's examples is not "
        "said.",
        "tau = 5: final accuracy (better)": "FBO-AggITD at tau = 5 is 0.6 of a point above the paper's in both "
        "settings. No cause was found; with a ridge of 0.01 it is 0.3 above iid and 0.1 non-iid, and at tau = 1 0.3 "
        "and 0.6 below (one seed).",
        "tau = 5: exchanges to 90 % (better)": "Three quarters of the paper's. With a fifth of a client's examples for "
        "validation it is 365 (one seed), above the paper's 305: how the paper divides them is not said.",
        "FBO-AggITD, non-iid, tau = 1": "A tenth more than the paper's 520. With a fifth of a client's examples for "
        "validation, as in FedNest's public code, it is 835 to 940 (one seed): how the paper divides them is not said.",
    },
)
