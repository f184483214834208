"""Hyper-representation: clients learn a common representation (upper) under heads fitted to it (lower)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from rookery.data.partitions import Partition
from rookery.errors import InputError
from rookery.problems.bilevel import Bilevel
from rookery.tasks.base import Assembly, find_dataset
from rookery.tasks.metrics import Metric, classification
from rookery.tasks.models import apply, cross_entropy, dense, squared_norm
from rookery.vectors import Values


def logits(x: Any, y: Any, image: jax.Array) -> jax.Array:
    """The network: hidden layer x with a ReLU, head y."""
    return apply(y, jax.nn.relu(apply(x, image)))


def upper(x: Any, y: Any, e: Any) -> jax.Array:
    """Cross-entropy of a validation example."""
    return cross_entropy(logits(x, y, e["input"]), e["label"])


@dataclass(frozen=True)
class Lower:
    """Cross-entropy of a training example, with a ridge on the head that makes the lower level strongly convex."""

    ridge: float

    def __call__(self, x: Any, y: Any, e: Any) -> jax.Array:
        return upper(x, y, e) + 0.5 * self.ridge * squared_norm(y)


@dataclass(frozen=True)
class HyperRep:
    """A hidden layer learned on validation data, under a head fitted to training data.

    x is the hidden layer, y the head; the lower loss is on each client's training examples, the upper on its validation
    examples, and the accuracy is on held-out test examples that no client has.
    """

    data: str = "digits"
    """Which data: digits."""
    hidden: int = 64
    """Width of the hidden layer."""
    ridge: float = 0.01
    """Weight of |y|^2 / 2 in the lower loss."""
    validation: float = 0.5
    """Part of each client's examples that the upper level sees."""

    @property
    def rates(self) -> Mapping[str, float]:
        return {"x": 0.2, "y": 0.2, "v": 0.2}

    @property
    def batch_size(self) -> int | None:
        return 16

    def assemble(self, partition: Partition, clients: int, seed: int, tuning: bool = False) -> Assembly:
        if self.hidden < 1 or self.ridge < 0:
            raise InputError(f"task: hidden = {self.hidden}, ridge = {self.ridge} were given; hidden >= 1, ridge >= 0")
        dataset = find_dataset(self.data, tuning)
        width = dataset.train["input"].shape[1]
        return Assembly(
            problem=Bilevel(upper=upper, lower=Lower(self.ridge)),
            clients=dataset.partition(partition, clients=clients, seed=seed, validation=self.validation),
            x=lambda key: dense(jax.random.fold_in(key, 0), width, self.hidden),
            y=lambda key: dense(jax.random.fold_in(key, 1), self.hidden, dataset.classes),
            metrics=Metric(accuracy, images=dataset.test["input"], labels=dataset.test["label"]),
        )


def accuracy(z: Values, images: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    """Test accuracy and test loss of the network."""
    return classification(jax.vmap(lambda image: logits(z.x, z.y, image))(images), labels)
