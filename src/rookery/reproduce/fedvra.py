"""FedVRA's tables 3 (CIFAR-10) and 4 (MNIST) and its figure 2: plain learning with sampled, unequal clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rookery.algorithms.fedavg import FedAvg
from rookery.algorithms.feddyn import FedDyn
from rookery.algorithms.fedprox import FedProx
from rookery.algorithms.fedvra import FedVRA
from rookery.algorithms.scaffold import Scaffold
from rookery.experiments.experiment import Experiment, Options
from rookery.federation.rates import Rates
from rookery.federation.steps import Epochs
from rookery.reproduce.study import SIDE_BY_SIDE, Cell, Claim, Done, First, Last, Measure, Study, fewer, higher
from rookery.tasks.classify import Classify

SOURCE = "*Beyond ADMM: A Unified Client-variance-reduced Adaptive Federated Learning Framework*"
METHODS = ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "FedVRA")

# Accuracy, then rounds to the three levels, by column and method; inf: more than 500.
inf = math.inf
MNIST = {
    "non-iid": {
        "FedAvg": (0.9564, 63, 373, inf),
        "FedProx": (0.9562, 63, 393, inf),
        "SCAFFOLD": (0.9704, 44, 212, 485),
        "FedDyn": (0.9774, 42, 125, 251),
        "FedVRA": (0.9834, 29, 60, 107),
    },
    "non-iid + HLU": {
        "FedAvg": (0.9618, 49, 273, inf),
        "FedProx": (0.9615, 49, 280, inf),
        "SCAFFOLD": (0.9759, 33, 162, 327),
        "FedDyn": (0.9786, 34, 106, 200),
        "FedVRA": (0.9824, 24, 49, 87),
    },
}
CIFAR10 = {
    "iid": {
        "FedAvg": (0.6772, 139, 282, inf),
        "FedProx": (0.6762, 139, 284, inf),
        "SCAFFOLD": (0.6732, 143, 287, inf),
        "FedDyn": (0.7453, 78, 134, 250),
        "FedVRA": (0.7547, 40, 67, 121),
    },
    "non-iid": {
        "FedAvg": (0.6103, 231, 477, inf),
        "FedProx": (0.6103, 231, 459, inf),
        "SCAFFOLD": (0.5549, 318, inf, inf),
        "FedDyn": (0.7165, 130, 206, 389),
        "FedVRA": (0.7370, 76, 114, 191),
    },
    "non-iid + HLU": {
        "FedAvg": (0.6520, 150, 305, inf),
        "FedProx": (0.6508, 157, 305, inf),
        "SCAFFOLD": (0.5940, 260, 481, inf),
        "FedDyn": (0.7219, 95, 150, 306),
        "FedVRA": (0.7377, 59, 87, 159),
    },
}


def make(name: str, epochs: Epochs, a: float, d: float = 10.0) -> Any:
    """A method with the paper's numbers."""
    shared = {"lr": Rates(0.01), "local_steps": epochs, "weight_decay": 1e-3}
    return FedVRA(gamma=0.1, a=a, d=d, **shared) if name == "FedVRA" else rival(name, **shared)


def rival(name: str, **shared: Any) -> Any:
    """A method that FedVRA is held against, with the paper's number of its own."""
    match name:
        case "FedAvg":
            return FedAvg(**shared)
        case "FedProx":
            return FedProx(mu=0.1, **shared)
        case "SCAFFOLD":
            return Scaffold(server_lr=1.0, **shared)
        case "FedDyn":
            return FedDyn(alpha=0.1, **shared)


def options(column: str, quick: bool, every: int = 1) -> Options:
    """500 rounds with 10 of 100 clients."""
    return Options(
        rounds=20 if quick else 500,
        clients=20 if quick else 100,
        cohort=5 if quick else 10,
        partition="iid" if column == "iid" else "dirichlet:0.2",
        batch_size=10 if quick else 50,
        every=every,
    )


def cells(
    task: Classify, paper: Mapping[str, Any], levels: Sequence[float], a: float, quick: bool, every: int = 1
) -> list[Cell]:
    """Every method in every column."""
    if quick:
        task = Classify(widths=(16,), init="pytorch")
    found = []
    for column, numbers in paper.items():
        # One program for both: from two to two epochs, and from one to five.
        epochs = Epochs(1, 5) if "HLU" in column else Epochs(2, 2)
        for name in METHODS:
            experiment = Experiment("classify", task, name, make(name, epochs, a), options(column, quick, every))
            numbers_of = dict(zip(names(levels), numbers[name]))
            found.append(Cell(name, column, experiment, numbers_of))
    return found


def names(levels: Sequence[float]) -> list[str]:
    return ["accuracy", *(f"rounds to {100 * level:.0f} %" for level in levels)]


def measures(levels: Sequence[float], tolerance: float, every: int = 1) -> tuple[Measure, ...]:
    """The final accuracy, and the rounds to three levels; to a tenth, which is the paper's spread."""
    # The mean over the last ten rounds: single rounds of sampled clients jump by more than methods differ.
    accuracy = Measure("accuracy", Last("accuracy", 10 // every), tolerance=tolerance, percent=True)
    rounds = [
        Measure(name, First("round", "accuracy", level), rising=False, factor=1.1)
        for name, level in zip(names(levels)[1:], levels)
    ]
    return (accuracy, *rounds)


def first_everywhere(columns: Sequence[str], accuracy: Measure) -> Any:
    """The claim that FedVRA is first in every column."""

    def claims(done: Mapping[str, Done]) -> list[Claim]:
        others = METHODS[:-1]
        return [claim for column in columns for claim in higher(done, column, "FedVRA", others, accuracy)]

    return claims


SETTINGS = """
100 clients, 10 a round, equal sizes, {partition}; learning rate 0.01, minibatches of 50, weight decay 0.001, no
momentum, 2 local epochs (HLU: 1 to 5, drawn for every client and round), 500 rounds. FedProx mu 0.1; SCAFFOLD server
step 1; FedDyn alpha 0.1; FedVRA gamma 0.1, d 10, a {a}. {network}
The accuracy is that of the server's point on the test set, the mean over the last ten rounds. Layers start as
PyTorch's do, with weights and biases uniform in +-1/sqrt(fan-in). Every image is normalised by its own mean and
deviation, as in the paper. The numbers of rounds depend on the initial values:
with normal weights of variance 1/fan-in, three times PyTorch's, every method needs about two thirds of them on MNIST.
"""

MNIST_LEVELS, CIFAR10_LEVELS = (0.90, 0.95, 0.97), (0.50, 0.60, 0.70)
_mnist, CIFAR10_MEASURES = measures(MNIST_LEVELS, 0.005), measures(CIFAR10_LEVELS, 0.010, every=2)

TABLE4 = Study(
    name="fedvra-table4",
    title="FedVRA, table 4: MNIST",
    source=f"{SOURCE}, table 4",
    settings=SETTINGS.format(partition="Dirichlet(0.2) over classes", a=10, network="A network 784-200-200-10."),
    cells=lambda quick: cells(
        Classify(data="mnist", widths=(200, 200), init="pytorch", normalise="image"), MNIST, MNIST_LEVELS, 10.0, quick
    ),
    measures=_mnist,
    claims_of_parts=True,
    claims=first_everywhere(tuple(MNIST), _mnist[0]),
    causes={
        "rounds to 90 % (better)": "Three to seven rounds of the first fifty, all later levels and accuracies being "
        "the paper's. No cause was found; what is known to differ is how images are normalised, which was not tried."
    },
    axes=("round",),
)

CONVOLUTIONAL = Classify(data="cifar10", model="cnn", augment=True, init="pytorch", normalise="image")

TABLE3 = Study(
    name="fedvra-table3",
    title="FedVRA, table 3: CIFAR-10",
    source=f"{SOURCE}, table 3",
    settings=SETTINGS.format(
        partition="iid or Dirichlet(0.2) over classes",
        a=7,
        network="Two convolutions 5 x 5 of 64 channels with max pools, dense layers of 384 and 192 and one of the ten "
        'classes; crops and flips. (The paper has a network "similar to" another paper\'s, of two convolutions and two '
        "dense layers; there, as here, the layer of the classes comes after these two.)",
    )
    + "Three seeds where the paper has five runs, to save time.",
    cells=lambda quick: cells(
        CONVOLUTIONAL,
        CIFAR10,
        CIFAR10_LEVELS,
        7.0,
        quick,
        every=2,
    ),
    measures=CIFAR10_MEASURES,
    claims_of_parts=True,
    claims=first_everywhere(tuple(CIFAR10), CIFAR10_MEASURES[0]),
    remarks=SIDE_BY_SIDE
    + " What is not there yet is on [an older page](fedvra-table3-older.md), with the library's initial values, which "
    "need half as many rounds: that was the whole difference in what has been run again, but for FedDyn's.",
    causes={
        "FedDyn": "No cause was found: early rounds are the paper's, later ones are faster and end five points higher. "
        "With the library's initial values all methods but FedDyn and FedVRA were four points above the paper, and "
        "these six to eight."
    },
    axes=("round",),
    seeds=3,
)

# Figure 2: the factors a and d.

FACTORS = (1, 3, 5, 7, 10, 15, 20)
OF_D, OF_A = "d, with a = 10", "a, with d = 10"
OF_D_CIFAR, OF_A_CIFAR = "CIFAR-10: d, with a = 7", "CIFAR-10: a, with d = 10"


def factors(quick: bool) -> list[Cell]:
    """FedVRA with one factor as in the tables and the other from 1 to 20."""
    mnist, cifar10 = Classify(data="mnist", widths=(200, 200), init="pytorch", normalise="image"), CONVOLUTIONAL
    found = []
    for column, task in ((OF_D, mnist), (OF_A, mnist), (OF_D_CIFAR, cifar10), (OF_A_CIFAR, cifar10)):
        if quick and task is cifar10:
            continue
        for value in (1, 10) if quick else FACTORS:
            other = 7.0 if column == OF_D_CIFAR else 10.0
            a, d = (other, float(value)) if column in (OF_D, OF_D_CIFAR) else (float(value), other)
            method = make("FedVRA", Epochs(2, 2), a, d)
            chosen = options("non-iid", quick, every=2 if task is cifar10 else 1)
            place = Classify(widths=(16,), init="pytorch") if quick else task
            experiment = Experiment("classify", place, "FedVRA", method, chosen)
            found.append(Cell(f"factor {value}", column, experiment, most_seeds=3 if task is cifar10 else None))
    return found


def factors_claims(done: Mapping[str, Done]) -> list[Claim]:
    """A larger d and a larger a are faster, and a larger a ends higher."""
    found = []
    for of_d, of_a, (ends, _, speed, _) in ((OF_D, OF_A, _mnist), (OF_D_CIFAR, OF_A_CIFAR, CIFAR10_MEASURES)):
        pairs = [(column, f"factor {value}") for column in (of_d, of_a) for value in (10, 20)]
        found += [claim for column, row in pairs for claim in fewer(done, column, row, ("factor 1",), speed)]
        found += higher(done, of_a, "factor 10", ("factor 1",), ends)
    return found


FIGURE2 = Study(
    name="fedvra-fig2",
    title="FedVRA, figure 2: the factors a and d",
    source=f"{SOURCE}, figure 2",
    settings="""
FedVRA in the non-iid columns of fedvra-table4 (MNIST) and fedvra-table3 (CIFAR-10), with one of the factors a (of the
duals' step) and d (of the server's) as in these tables and the other, the factor, from 1 to 20. The paper shows curves
and gives no numbers: it says that a larger d is faster but may cause floors, and that a larger a, within limits, is
faster and ends higher.
""",
    remarks="There is no floor: with a = 10 every d ends at the same accuracy. The first 20 rounds are the wilder the "
    "larger a factor is, so that rounds to 90 % do not always fall with it.",
    cells=factors,
    measures=(*_mnist, *CIFAR10_MEASURES[1:]),
    claims=factors_claims,
    claims_of_parts=True,
    axes=("round",),
    logarithmic=True,
    lowest=0.6,
)
