"""Meta-learning: a starting point from which every client adapts a model of its own (implicit MAML)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rookery.data.partitions import Partition
from rookery.tasks.base import Assembly, Nested, check_options, find_dataset, find_network
from rookery.tasks.metrics import client_accuracies, label_mix, on_test, predict
from rookery.tasks.models import Network, OfClasses, cross_entropy
from rookery.vectors import Values, Vector


@dataclass(frozen=True)
class AdaptedLoss(OfClasses):
    """CE at y + pull / 2 |y - x|^2 of a client's training example."""

    network: Network
    pull: float

    def __call__(self, x: Any, y: Any, e: Any) -> jax.Array:
        apart = Vector(y) - Vector(x)
        return cross_entropy(self.network(y, e["input"]), e["label"]) + 0.5 * self.pull * apart.dot(apart)


@dataclass(frozen=True)
class JudgedLoss(OfClasses):
    """CE at y of a client's validation example."""

    network: Network

    def __call__(self, x: Any, y: Any, e: Any) -> jax.Array:
        return cross_entropy(self.network(y, e["input"]), e["label"])


@dataclass(frozen=True)
class MetaLearn(Nested):
    """A starting point x from which every client adapts a network y_i of its own; y_i never leaves it.

    Client i's own lower level is its training loss with pull / 2 |y - x|^2; the upper level judges y_i on its
    validation examples. Accuracies of clients are those of the test set, weighted to the client's own mix of labels:
    of its y_i and, beside it, of x as it is (`unadapted`).
    """

    data: str = "digits"
    """Which data: digits, mnist, fashion_mnist or another of the catalogue."""
    widths: tuple[int, ...] = ()
    """Widths of the network's hidden layers; none for a linear softmax, whose lower level is strongly convex."""
    pull: float = 1.0
    """Weight of |y - x|^2 / 2 in the lower loss."""
    validation: float = 0.5
    """Part of each client's examples that the upper level sees."""

    @property
    def rates(self) -> Mapping[str, float]:
        return self.nested_rates(x=0.3, y=0.2, v=0.2)

    @property
    def batch_size(self) -> int | None:
        return 8

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(self, pull=(self.pull > 0, "a positive number"))
        dataset = find_dataset(self.data, tuning, self.table)
        network = find_network("mlp", dataset, self.widths, ("mlp",))
        federation = dataset.partition(partition, clients=clients, seed=seed, validation=self.validation)
        # Made here and not by the run, whose keys differ by client: every y_i starts at x.
        begin = network.init(jax.random.key(seed))
        return Assembly(
            problem=self.bilevel(upper=JudgedLoss(network), lower=AdaptedLoss(network, self.pull), lower_scope="local"),
            clients=federation,
            x=begin,
            y=begin,
            metrics=on_test(Adaptation(network), dataset, mix=label_mix(federation, dataset.classes)),
        )


@dataclass(frozen=True)
class Adaptation:
    """The accuracy of every client's own network, over clients; and the mean accuracy of the common starting point."""

    network: Network

    def __call__(self, z: Values, images: jax.Array, labels: jax.Array, mix: jax.Array) -> dict[str, jax.Array]:
        def own(client: tuple[Any, jax.Array]) -> jax.Array:
            y, labels_of = client
            return client_accuracies(predict(self.network, y, images), labels, labels_of[None])[0]

        adapted = jax.lax.map(own, (z.y, mix))
        unadapted = client_accuracies(predict(self.network, z.x, images), labels, mix)
        return {
            "accuracy": jnp.mean(adapted),
            "worst_client": jnp.min(adapted),
            "spread": jnp.std(adapted),
            "unadapted": jnp.mean(unadapted),
        }
