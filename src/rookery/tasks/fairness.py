"""Agnostic federated learning: a model that is best for the worst mixture of the clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import federate
from rookery.data.partitions import Partition
from rookery.problems.kinds import Minimax
from rookery.problems.sets import Simplex
from rookery.tasks.base import Assembly, OnData, check_options, find_dataset, find_network
from rookery.tasks.metrics import Evaluation, OnOwn, label_mix, on_test
from rookery.tasks.models import Network, cross_entropy


@dataclass(frozen=True)
class MixtureLoss:
    """n y_i CE - pull / 2 |y - 1/n|^2 of an example of client i; over all n clients, sum_i y_i CE_i less the pull."""

    network: Network
    pull: float

    def __call__(self, x: Any, y: jax.Array, e: Any) -> jax.Array:
        n = y.shape[0]
        loss = cross_entropy(self.network(x, e["input"]), e["label"])
        return n * y[e["client"]] * loss - 0.5 * self.pull * jnp.sum((y - 1 / n) ** 2)


@dataclass(frozen=True)
class Fairness(OnData):
    """One network for the worst mixture of clients: min over x, max over y on the simplex, of sum_i y_i f_i(x).

    f_i is the mean cross-entropy of client i; the maximum over y is that of the clients' losses, softened by the pull
    of y to equal weights. Accuracies of clients are those of the test set, weighted to the client's own mix of labels.
    """

    data: str = "digits"
    """Which data: digits, mnist, fashion_mnist, cifar10, a9a or another of the catalogue."""
    widths: tuple[int, ...] = ()
    """Widths of the network's hidden layers; none for a linear softmax."""
    pull: float = 0.1
    """Weight of |y - 1/n|^2 / 2, which holds the mixture near equal weights; 0: the worst client alone."""

    @property
    def rates(self) -> Mapping[str, float]:
        return {"x": 0.2, "y": 0.0005}

    @property
    def batch_size(self) -> int | None:
        return 16

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(self, pull=(self.pull >= 0, "a number that is not negative"))
        dataset = find_dataset(self.data, tuning, self.table)
        network = find_network("mlp", dataset, self.widths, ("mlp",))
        own = dataset.has_own_tests(partition)
        plain = dataset.partition(partition, clients=clients, seed=seed, weights="equal", own_test=own)
        clients = plain.population  # of data with clients of its own, theirs
        records = [plain.client(i) for i in range(clients)]
        named = [{**record, "client": np.full(len(record["label"]), i, np.int32)} for i, record in enumerate(records)]
        return Assembly(
            problem=Minimax(MixtureLoss(network, self.pull), y_set=Simplex()),
            clients=federate(named, test=[plain.own_test(i) for i in range(clients)] if own else None),
            x=network.init,
            y=np.full(clients, 1 / clients, np.float32),
            metrics=on_test(Evaluation(network), dataset, mix=label_mix(plain, dataset.classes)),
            client_metrics=OnOwn(network) if own else None,
            main_metric="worst_client",
            falling=False,
        )
