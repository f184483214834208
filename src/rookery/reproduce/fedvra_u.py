"""FedVRA-U, figure 4: semi-supervised learning, 90 % of each client's labels hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rookery.algorithms.fedvrau import FedVRAU
from rookery.experiments.experiment import Experiment, Options
from rookery.federation.rates import Rates
from rookery.federation.steps import Epochs
from rookery.reproduce.fedvra import SOURCE, rival
from rookery.reproduce.study import Cell, Claim, Done, Last, Measure, Study, higher
from rookery.tasks.semisupervised import SemiSupervised

METHODS = ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "FedVRA-U")
ACCURACY = Measure("accuracy", Last("accuracy", 5), percent=True)
MNIST, CIFAR10 = "MNIST, non-iid", "CIFAR-10, non-iid"


def make(name: str, column: str) -> Any:
    """A method with the paper's numbers; the others move the pseudo-labels by projected steps of the same rate."""
    shared = {"local_steps": Epochs(2), "weight_decay": 1e-3}
    if name != "FedVRA-U":
        return rival(name, lr=Rates(x=0.01, y=1.0), **shared)
    a, gamma = (5.0, 0.5) if column == MNIST else (7.0, 0.1)
    own = {"gamma": gamma, "a": a, "d": 15.0, "client_lr": 1.0, "client_steps": Epochs(1)}
    return FedVRAU(lr=Rates(x=0.01), **own, **shared)


def cells(quick: bool) -> list[Cell]:
    """Every method on either data; quickly, on the digits."""
    mlp = SemiSupervised("digits" if quick else "mnist", hidden=(16,) if quick else (200, 200), init="pytorch")
    tasks = {MNIST: mlp, CIFAR10: SemiSupervised("cifar10", model="cnn", augment=True, init="pytorch")}
    options = Options(
        rounds=10 if quick else 300,
        clients=20 if quick else 100,
        cohort=5 if quick else 10,
        partition="dirichlet:0.2",
        batch_size=8 if quick else 32,
        every=2,
    )
    return [
        Cell(
            name,
            column,
            Experiment("semisupervised", task, name, make(name, column), options),
            most_seeds=3 if column == CIFAR10 else None,
        )
        for column, task in list(tasks.items())[: 1 if quick else None]
        for name in METHODS
    ]


def claims(done: Mapping[str, Done]) -> list[Claim]:
    """FedVRA-U is best, SCAFFOLD second."""
    found = []
    for column in (MNIST, CIFAR10):
        found += higher(done, column, "FedVRA-U", METHODS[:-1], ACCURACY)
        found += higher(done, column, "SCAFFOLD", ("FedAvg", "FedProx", "FedDyn"), ACCURACY)
    return found


SEMI_SUPERVISED = Study(
    name="fedvra-u",
    title="FedVRA-U, figure 4: semi-supervised learning",
    source=f"{SOURCE}, figure 4",
    settings="""
100 clients, 10 a round, Dirichlet(0.2); 90 % of each client's labels are hidden, and it keeps pseudo-labels on the
simplex for these examples, moved by projected steps. The loss of an example with a pseudo-label y is -y' log p + |y|^2
/ 2 and counts 0.3. A network 784-200-200-10 on MNIST and that of fedvra-table3 on CIFAR-10, both with PyTorch's initial
values; learning rate 0.01 (1 for pseudo-labels), minibatches of 32, weight decay 0.001, 300 rounds, 2 local epochs in
which the others move weights and pseudo-labels together; FedVRA-U first moves the pseudo-labels for one epoch and then
the weights for two, gamma 0.5, a 5 (CIFAR-10: 0.1 and 7), d 15, FedProx mu 0.1, FedDyn alpha 0.1. The paper shows
curves and gives no numbers: what is checked is their order.
""",
    cells=cells,
    measures=(ACCURACY,),
    claims=claims,
    claims_of_parts=True,
    remarks="On CIFAR-10 all is far below what labels would give: 50 of a client's 500 examples have one.",
    causes={
        "SCAFFOLD is above FedDyn": "FedDyn is above SCAFFOLD in the paper's tables 3 and 4 and in our versions of "
        "them as well; hiding labels does not turn that round here. The paper does not give the others' settings."
    },
    axes=("round",),
)
