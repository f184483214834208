"""Loss tuning: a scale and a shift per class, so that a network fitted to a long tail is fair to all classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.data.federated import Clients
from rookery.data.partitions import LongTail, Partition
from rookery.tasks.base import Assembly, Nested, check_options, find_dataset, find_network
from rookery.tasks.metrics import Evaluation, on_test
from rookery.tasks.models import Initial, Network, OfClasses, cross_entropy, squared_norm


@dataclass(frozen=True)
class TunedLoss(OfClasses):
    """CE(sigmoid(dy) * logits + ly) + ridge / 2 |y|^2 of a training example; x = {dy, ly}, y the network."""

    network: Network
    ridge: float

    def __call__(self, x: Any, y: Any, e: Any) -> jax.Array:
        logits = jax.nn.sigmoid(x["dy"]) * self.network(y, e["input"]) + x["ly"]
        return cross_entropy(logits, e["label"]) + 0.5 * self.ridge * squared_norm(y)


@dataclass(frozen=True)
class BalancedLoss(OfClasses):
    """weights[label] CE(logits) of a validation example."""

    network: Network
    weights: tuple[float, ...]

    def __call__(self, x: Any, y: Any, e: Any) -> jax.Array:
        loss = cross_entropy(self.network(y, e["input"]), e["label"])
        return jnp.asarray(self.weights, loss.dtype)[e["label"]] * loss


@dataclass(frozen=True)
class LossTuning(Nested):
    """A scale and a shift of each class's logit in the training loss, tuned for all classes to count alike.

    Class c keeps the first ceil(largest tail^(c / (C - 1))) of its training examples, at most what it has. The lower
    level fits all weights y of a network to CE(sigmoid(dy) * logits + ly) on training examples, the upper judges it by
    the class-balanced cross-entropy on validation examples, whose weights N / (C N_c) have mean 1 over all examples.
    x = {dy, ly} is in no network and reaches the upper loss only through y. It starts at 0: scales 1/2, no shifts.
    """

    data: str = "digits"
    """Which data: digits, mnist, fashion_mnist, cifar10 or another of the catalogue."""
    tail: float = 0.01
    """Size of the last class over that of the first."""
    widths: tuple[int, ...] = (64,)
    """Widths of the network's hidden layers."""
    ridge: float = 0.001
    """Weight of |y|^2 / 2 in the lower loss."""
    validation: float = 0.5
    """Part of each client's examples that the upper level sees."""
    init: Initial = "fan_in"
    """How layers start: fan_in, normal of variance 1 / inputs; he, twice that; pytorch, as PyTorch's do."""

    @property
    def rates(self) -> Mapping[str, float]:
        return self.nested_rates(x=0.1, y=0.5, v=0.3)

    @property
    def batch_size(self) -> int | None:
        return 16

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        check_options(
            self,
            tail=(0 < self.tail <= 1, "a number above 0 and at most 1"),
            ridge=(self.ridge >= 0, "a number that is not negative"),
        )
        dataset = find_dataset(self.data, tuning, self.table)
        network = find_network("mlp", dataset, self.widths, ("mlp",), self.init)
        federation = dataset.partition(
            LongTail(self.tail, partition), clients=clients, seed=seed, validation=self.validation
        )
        zeros = np.zeros(dataset.classes, np.float32)
        return Assembly(
            problem=self.bilevel(
                upper=BalancedLoss(network, balancing(federation, dataset.classes)),
                lower=TunedLoss(network, self.ridge),
            ),
            clients=federation,
            x={"dy": zeros, "ly": zeros},
            y=network.init,
            metrics=on_test(Evaluation(network, parts=("y",), balanced=True), dataset),
            main_metric="balanced",
            falling=False,
        )


def balancing(clients: Clients, classes: int) -> tuple[float, ...]:
    """N / (C N_c), with N_c the examples of class c over all clients and both levels; 0 for a class that has none."""
    labels = np.concatenate([level.rows["label"] for level in clients.levels.values()])
    counts = np.bincount(labels, minlength=classes)
    present = np.count_nonzero(counts)
    return tuple(float(labels.size / (present * count)) if count else 0.0 for count in counts)
