"""FedBiO's named tasks: data cleaning, hyper-representation and fair learning on MNIST."""

from __future__ import annotations

from collections.abc import Mapping

from rookery.algorithms.fedbio import FedBiO
from rookery.algorithms.fedbioacc import FedBiOAcc
from rookery.experiments.experiment import Experiment, Options
from rookery.federation.rates import Rates
from rookery.reproduce.aggitd import CHOSEN, options
from rookery.reproduce.fedbio import SOURCE
from rookery.reproduce.study import Cell, Claim, Done, Last, Measure, Study, fewer, higher
from rookery.tasks.cleaning import Cleaning
from rookery.tasks.fairness import Fairness

CLEANING, REPRESENTATION, FAIR = "data cleaning", "hyper-representation", "fair learning"
ACCURACY = Measure("accuracy", Last("accuracy", 5), percent=True)
LOSS = Measure("test loss", Last("loss", 5), rising=False)
F1 = Measure("F1 of the wrong labels", Last("f1", 5), percent=True)
AUC = Measure("AUC of the wrong labels", Last("auc", 5), percent=True)
WORST = Measure("accuracy of the worst client", Last("worst_client", 5), percent=True)
SPREAD = Measure("spread of the clients' accuracies", Last("spread", 5), rising=False, percent=True)


def cells(quick: bool) -> list[Cell]:
    """Each task with its methods, and where there is something to compare with, the model without the upper level."""
    found = []
    data = "digits" if quick else "mnist"
    cleaning = Cleaning(data, noise=0.6)
    rate = 20.0 if quick else 1000.0
    chosen = Options(rounds=20 if quick else 200, clients=100, cohort=10, every=2, batch_size=0)
    for name, x, steps in (("no cleaning", 0.0, 1), ("FedBiO, I = 1", rate, 1), ("FedBiO, I = 5", rate / 5, 5)):
        method = FedBiO(lr=Rates(x=x, y=0.1, v=0.1), local_steps=steps)
        found.append(Cell(name, CLEANING, Experiment("cleaning", cleaning, "FedBiO", method, chosen)))
    method = FedBiOAcc(lr=Rates(x=rate, y=0.1, v=0.1), delta=4.6, offset=100.0)
    found.append(Cell("FedBiOAcc, I = 1", CLEANING, Experiment("cleaning", cleaning, "FedBiOAcc", method, chosen)))
    for name, method, exchanges in (
        ("FedBiO, I = 15", FedBiO(lr=Rates(x=0.1, y=0.03, v=0.03), local_steps=15), 1),
        ("FedBiOAcc, I = 15", FedBiOAcc(lr=Rates(x=0.1, y=0.03, v=0.03), local_steps=15, delta=4.6, offset=100.0), 2),
    ):
        shared = options("non-iid", (20 if quick else 200) // exchanges, quick, 32, every=2)
        found.append(
            Cell(name, REPRESENTATION, Experiment("hyperrep", CHOSEN.task("non-iid", quick), name, method, shared))
        )
    fair = Fairness(data)
    chosen = Options(
        rounds=20 if quick else 300, clients=20, cohort=0, partition="longtail:0.05+shards:1", every=3, batch_size=16
    )
    for name, method in (
        ("FedBiO, average loss", FedBiO(lr=Rates(x=0.2, y=0.0))),
        ("FedBiO, worst mixture", FedBiO(lr=Rates(x=0.2, y=0.003))),
        ("FedBiOAcc, average loss", FedBiOAcc(lr=Rates(x=0.2, y=0.0), delta=4.6, offset=100.0)),
        ("FedBiOAcc, worst mixture", FedBiOAcc(lr=Rates(x=0.2, y=0.003), delta=4.6, offset=100.0)),
    ):
        found.append(Cell(name, FAIR, Experiment("fairness", fair, name, method, chosen)))
    return found


def claims(done: Mapping[str, Done]) -> list[Claim]:
    """Cleaning finds the wrong labels and mends the model; the worst client gains from its weight."""
    plain = ("no cleaning",)
    found = []
    for name in ("FedBiO, I = 1", "FedBiO, I = 5"):
        found += higher(done, CLEANING, name, plain, ACCURACY)
        found += fewer(done, CLEANING, name, plain, LOSS, verb="is below")
    for name in ("FedBiO", "FedBiOAcc"):
        found += higher(done, FAIR, f"{name}, worst mixture", (f"{name}, average loss",), WORST)
    return found


TASKS = Study(
    name="fedbio-tasks",
    title="FedBiO and FedBiOAcc: the paper's tasks on MNIST",
    source=f"{SOURCE} (it names these tasks and has no experiments)",
    settings="""
**Data cleaning**: 100 clients, 10 a round, 600 examples each, half for validation; 60 % of the training labels are
replaced by others. Each client weighs its training examples by x, which it keeps; y is a linear softmax that all share;
full batches, rates 1,000 for x (200 with I = 5) and 0.1, 200 rounds. An example is found to be wrong where its weight
is below one half. Without cleaning, all weights stay one half. **Hyper-representation**: the setting of aggitd-table2,
non-iid, minibatches of 32, rates 0.1 for x and 0.03, 200 exchanges. **Fair learning**: a long tail (the last class has
a twentieth of the first's examples), 20 clients with one label-sorted shard each, all in every round, a linear softmax,
minibatches of 16, rates 0.2 for x and 0.003 for the mixture of clients, 300 rounds; on the average loss that mixture
stays uniform. FedBiOAcc everywhere with alpha_t = 4.6 / (100 + t)^(1/3).
""",
    cells=cells,
    measures=(ACCURACY, LOSS, F1, AUC, WORST, SPREAD),
    claims=claims,
    claims_heading="What is to be expected",
    misses_heading="Not as expected",
    remarks="FedBiOAcc takes two exchanges a round, so that in hyper-representation it takes half as many local steps "
    "in as many exchanges, and is behind FedBiO; in fair learning it has as many rounds, and twice the exchanges.",
)
