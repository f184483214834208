"""Hyper-representation: clients learn a common representation (upper) under heads fitted to it (lower)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax

from rookery.data.partitions import Partition
from rookery.tasks.base import Assembly, Nested, augmentation, check_options, find_dataset, find_network
from rookery.tasks.metrics import Evaluation, OnOwn, on_both, on_test
from rookery.tasks.models import Initial, Network, OfClasses, cross_entropy, squared_norm


@dataclass(frozen=True)
class Upper(OfClasses):
    """Cross-entropy of a validation example; x holds the first layers of the network and y the last."""

    network: Network

    def __call__(self, x: Any, y: Any, e: Any) -> jax.Array:
        return cross_entropy(self.network(x | y, e["input"]), e["label"])


@dataclass(frozen=True)
class Lower(OfClasses):
    """Cross-entropy of a training example, with a ridge on y; where y is one layer, it is strongly convex in it."""

    network: Network
    ridge: float

    def __call__(self, x: Any, y: Any, e: Any) -> jax.Array:
        return cross_entropy(self.network(x | y, e["input"]), e["label"]) + 0.5 * self.ridge * squared_norm(y)


@dataclass(frozen=True)
class HyperRep(Nested):
    """A representation learned on validation data, under a head fitted to training data.

    x holds the first layers of a network, y the last one or two; the lower loss is on each client's training examples,
    the upper on its validation examples, and the accuracy is on held-out test examples that no client has.
    """

    data: str = "digits"
    """Which data: digits, mnist, fashion_mnist, cifar10 or another of the catalogue."""
    model: Literal["mlp", "lenet"] = "mlp"
    """The network: mlp, one hidden layer; lenet, two convolutions and three dense layers, for images."""
    hidden: int = 64
    """Width of the hidden layer of the mlp."""
    head: int = 1
    """How many of the last layers are y: 1, or 2 with lenet."""
    ridge: float = 0.01
    """Weight of |y|^2 / 2 in the lower loss."""
    validation: float = 0.5
    """Part of each client's examples that the upper level sees."""
    augment: bool = False
    """Whether training images are cropped and flipped at random."""
    examples: int = 0
    """How many training examples to use, the first ones, with half as many for the test; 0: all."""
    training_accuracy: bool = False
    """Whether the accuracy on training examples is measured too, on 10,000 of them at most."""
    init: Initial = "fan_in"
    """How layers start: fan_in, normal of variance 1 / inputs; he, twice that; pytorch, as PyTorch's do."""

    @property
    def rates(self) -> Mapping[str, float]:
        return self.nested_rates(x=0.2, y=0.2, v=0.2)

    @property
    def batch_size(self) -> int | None:
        return 16

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        layers = 2 if self.model == "mlp" else 5
        check_options(
            self,
            hidden=(self.hidden >= 1, "a width of at least 1"),
            head=(1 <= self.head <= min(2, layers - 1), f"1{' or 2' if layers > 2 else ''} of {layers} layers"),
            ridge=(self.ridge >= 0, "a number that is not negative"),
        )
        dataset = find_dataset(self.data, tuning, self.table)
        if self.examples:
            most = min(len(dataset.train["label"]), 2 * len(dataset.test["label"]))
            check_options(self, examples=(2 <= self.examples <= most, f"a number from 2 to {most}, or 0 for all,"))
            dataset = dataset.first(self.examples, self.examples // 2)
        network = find_network(self.model, dataset, (self.hidden,), ("mlp", "lenet"), self.init)
        evaluation, own = Evaluation(network, parts=("x", "y")), dataset.has_own_tests(partition)
        return Assembly(
            problem=self.bilevel(upper=Upper(network), lower=Lower(network, self.ridge)),
            clients=dataset.partition(
                partition,
                clients=clients,
                seed=seed,
                validation=self.validation,
                augment=augmentation(dataset, self.augment),
                own_test=own,
            ),
            x=partial(layers_of, network, slice(None, -self.head)),
            y=partial(layers_of, network, slice(-self.head, None)),
            metrics=on_both(evaluation, dataset) if self.training_accuracy else on_test(evaluation, dataset),
            client_metrics=OnOwn(network, ("x", "y")) if own else None,
        )


def layers_of(network: Network, which: slice, key: jax.Array) -> dict[str, Any]:
    """Some of a network's layers, freshly made."""
    return dict(list(network.init(key).items())[which])
