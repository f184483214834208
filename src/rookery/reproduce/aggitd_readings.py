"""What an inner step is in FBO-AggITD's table 2: readings of what the paper leaves open, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rookery.algorithms.aggitd import AggITD
from rookery.algorithms.fednest import FedNest
from rookery.experiments.experiment import Experiment
from rookery.federation.rates import Rates
from rookery.reproduce.aggitd import EXCHANGES, FINAL, PAPER, REACHED, SOURCE, options
from rookery.reproduce.study import SIDE_BY_SIDE, Cell, Claim, Done, Study, summary
from rookery.tasks.hyperrep import HyperRep

EXAMPLES = 600  # of a client


@dataclass(frozen=True)
class Reading:
    """What the paper does not say.

    Args:
      batch: examples of a minibatch.
      epochs: whether the five inner iterations are epochs; otherwise they are steps.
      ridge: the weight of the ridge on the head.
      validation: the part of a client's examples that the upper level sees, non-iid; iid it is a half.
      init: how layers start.
    """

    batch: int
    epochs: bool = True
    ridge: float = 0.01
    validation: float = 0.2
    init: str = "pytorch"

    def part(self, setting: str) -> float:
        """The part of a client's examples that the upper level sees."""
        return 0.5 if setting == "iid" else self.validation

    def steps(self, setting: str, tau: int) -> tuple[int, int]:
        """Lower steps of a round, and upper ones: five inner iterations, and tau epochs."""
        upper = round(EXAMPLES * self.part(setting))
        epoch = lambda examples: math.ceil(examples / self.batch)
        return 5 * (epoch(EXAMPLES - upper) if self.epochs else 1), tau * epoch(upper)

    def experiment(self, name: str, setting: str, tau: int, quick: bool) -> Experiment:
        """A method with the paper's numbers, read so."""
        lower, upper = self.steps(setting, tau)
        shared = {"lr": Rates(x=0.01, y=0.003), "neumann_step": 0.01, "lower_steps": lower, "upper_steps": upper}
        method, exchanges = (AggITD(**shared), 5) if name == "FBO-AggITD" else (FedNest(neumann_terms=5, **shared), 10)
        data, hidden = ("digits", 16) if quick else ("mnist", 200)
        task = HyperRep(
            data,
            hidden=hidden,
            validation=self.part(setting),
            ridge=self.ridge,
            init=self.init,  # type: ignore[arg-type]
        )
        rounds = (100 if quick else EXCHANGES) // exchanges
        return Experiment("hyperrep", task, name, method, options(setting, rounds, quick, self.batch))


READINGS = {
    "5 epochs, 64": Reading(64),
    "5 epochs, 64, no ridge": Reading(64, ridge=0.0),
    "5 epochs, 64, halves": Reading(64, validation=0.5),
    "5 epochs, 64, no ridge, halves": Reading(64, ridge=0.0, validation=0.5),
    "5 epochs, 100": Reading(100),
    "5 epochs, 100, halves": Reading(100, validation=0.5),
    "5 epochs, 32, halves": Reading(32, validation=0.5),
    "5 steps, 64": Reading(64, epochs=False),
    "5 steps, 64, halves": Reading(64, epochs=False, validation=0.5),
    "5 steps, 16": Reading(16, epochs=False),
    "5 steps, 16, old initial values": Reading(16, epochs=False, init="fan_in"),
}


def cells(quick: bool) -> list[Cell]:
    """Every reading in every cell of the table; what differs non-iid alone is run iid once."""
    found = []
    for label, reading in list(READINGS.items())[: 2 if quick else None]:
        for (setting, tau), numbers in PAPER.items():
            if setting == "iid" and "halves" in label:
                continue  # as without
            for name, (reached, final) in numbers.items():
                paper = {REACHED.name: float(reached), FINAL.name: final}
                experiment = reading.experiment(name, setting, tau, quick)
                found.append(Cell(f"{label}: {name}", f"{setting}, tau = {tau}", experiment, paper))
    return found


def distances(done: Mapping[str, Done]) -> list[Claim]:
    """How far each reading is from the paper's sixteen numbers; none is a claim of the paper's."""
    found = []
    for label in READINGS:
        ratios, points = [], []
        for (setting, tau), numbers in PAPER.items():
            row = label.replace(", halves", "") if setting == "iid" else label
            for name, (reached, final) in numbers.items():
                each = done.get(f"{row}: {name}, {setting}, tau = {tau}")
                if each is None:
                    continue
                exchanges, end = summary(each, REACHED).mean, summary(each, FINAL).mean
                ratios.append(math.log(min(exchanges, EXCHANGES) / reached) if not math.isnan(exchanges) else math.nan)
                points.append(100 * (end - final))
        if not ratios:
            continue
        size = lambda values: sum(map(abs, values)) / len(values)
        text = (
            f"exchanges are off by a factor of {math.exp(size(ratios)):.2f} (from {math.exp(min(ratios)):.2f} to "
            f"{math.exp(max(ratios)):.2f} times the paper's), final accuracies by {size(points):.2f} points (from "
            f"{min(points):+.2f} to {max(points):+.2f}), of {len(ratios)} cells"
        )
        close = math.exp(size(ratios)) < 1.25 and size(points) < 0.5
        found.append(Claim(label, close, text))
    return found


READINGS_STUDY = Study(
    name="aggitd-readings",
    title="FBO-AggITD, table 2: what an inner step is",
    source=f"{SOURCE}, table 2",
    settings="""
The paper leaves open how large minibatches are, whether its five inner iterations are steps or epochs of minibatches,
how large the ridge on the head is, and how a client's examples are divided non-iid. Readings of that, each with all
that the paper does say (inner step 0.003, outer step 0.01, lambda 0.01, N = 1, T = 5, SVRG, tau epochs above, 100
clients, 10 a round, 784-200-10, PyTorch's initial values), one seed. An epoch is as many steps as its minibatches,
which are drawn with replacement. "halves": non-iid, too, half of a client's examples are the upper level's; otherwise
a fifth (what the public code of FedNest has). Where a reading differs from another non-iid alone, its iid cells are the
other's.
""",
    cells=cells,
    measures=(REACHED, FINAL),
    claims=distances,
    claims_heading="How far each reading is from the paper",
    claims_of_parts=True,
    remarks="The column says whether a reading is close: exchanges within a factor of 1.25, and final accuracies "
    "within 0.5 points, on average over the eight cells. " + SIDE_BY_SIDE,
    misses_heading="Where readings miss",
    seeds=1,
)
